//! Compares dequantization, bit for bit, with values that ggml and the `gguf` Python package computed
//! from random blocks. Their scales include negative, subnormal, zero and the largest values, and
//! infinity and NaN.
//!
//! `data/blocks.bin` holds records: name (8 bytes), block bytes, values, then both.
//! `data/blocks.py` makes it.

#![allow(clippy::unwrap_used)]

use troika_graph::DType;
use troika_graph::blocks::{BlockParts, dequantize, scaled_nvfp4};

fn u32_at(b: &[u8], at: usize) -> usize {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) as usize
}

#[test]
fn blocks_mean_what_the_reference_says() {
    let mut data: &[u8] = include_bytes!("data/blocks.bin");
    let mut seen = Vec::new();
    while !data.is_empty() {
        let name = std::str::from_utf8(&data[..8]).unwrap().trim_end_matches('\0');
        let dtype = *DType::WEIGHTS.iter().find(|t| t.name() == name).unwrap();
        let (bytes, values) = (u32_at(data, 8), u32_at(data, 12));
        let (raw, rest) = data[16..].split_at(bytes);
        let (expected, rest) = rest.split_at(values * 4);
        let mut out = vec![0.0; values];
        dequantize(dtype, raw, &mut out);
        for (i, (e, o)) in expected.chunks_exact(4).zip(&out).enumerate() {
            let e = f32::from_le_bytes(e.try_into().unwrap());
            let equal = o.to_bits() == e.to_bits() || o.is_nan() && e.is_nan();
            assert!(equal, "{name} value {i}: {o} instead of {e}");
        }
        data = rest;
        seen.push(dtype);
    }
    let own = |d: &DType| d.has_zero_points() || *d == DType::F4_G16;
    let missing = |d: &&DType| !seen.contains(d) && !own(d);
    assert_eq!(DType::WEIGHTS.iter().find(missing), None, "a type without a reference");
}

fn random_bytes(mut seed: u32) -> impl FnMut() -> u8 {
    move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    }
}

#[test]
fn levels_are_those_of_the_codebook() {
    let mut random = random_bytes(1);
    for &dtype in DType::WEIGHTS.iter().filter(|d| d.is_quantized()) {
        let mut parts = BlockParts::default();
        let (mut all, mut wide) = ([false; 256], false);
        for _ in 0..300 {
            let block: Vec<u8> = (0..dtype.block_bytes()).map(|_| random()).collect();
            parts.take(dtype, &block);
            for level in &parts.levels[..dtype.block_len()] {
                all[usize::from(*level as u8)] = true;
                wide |= dtype.codebook().is_none_or(|c| !c.contains(level));
            }
        }
        assert_eq!(wide, dtype.codebook().is_none(), "{dtype}");
        let Some(codebook) = dtype.codebook() else { continue };
        // Types of fewer bits do not need all.
        let unused = |l: &&i8| !all[usize::from(**l as u8)];
        let unused = codebook.iter().filter(unused).count();
        let most = match dtype {
            DType::Q2_K => 12,
            DType::Q3_K => 8,
            DType::TQ1_0 | DType::Q2_0 | DType::TQ2_0 => 1,
            DType::Q1_0 => 14,
            _ => 10,
        };
        assert!(unused <= most, "{dtype}: {unused}");
    }
}

#[test]
fn zero_points_are_taken_off_before_scaling() {
    // Scale 0.5, zero point 7; nibbles 0..15 low, their reverse high.
    let nibbles: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
    for (dtype, parts) in [(DType::Q4_G32, 1), (DType::Q4_G64, 2), (DType::Q4_G128, 4)] {
        let block = [&[0x00, 0x38, 7][..], &nibbles.repeat(parts)].concat();
        let mut out = vec![0.0; 32 * parts];
        dequantize(dtype, &block, &mut out);
        for (i, o) in out.iter().enumerate() {
            let q = if i % 32 < 16 { i % 16 } else { 15 - i % 16 };
            assert_eq!(*o, 0.5 * (q as f32 - 7.0), "{dtype} {i}");
        }
    }
}

#[test]
fn scaled_fp4_is_fp4_times_a_number() {
    let mut random = random_bytes(7);
    let raw: Vec<u8> =
        (0..4 * 36).map(|i| if i % 36 < 4 { random() & 0x7e } else { random() }).collect();
    let (mut blocks, mut values, mut scaled) = ([0; 4 * 40], [0.0; 256], [0.0; 256]);
    dequantize(DType::NVFP4, &raw, &mut values);
    for factor in [0.25, 0.1, -3.0] {
        assert!(scaled_nvfp4(&raw, factor, &mut blocks));
        dequantize(DType::F4_G16, &blocks, &mut scaled);
        for (value, scaled) in values.iter().zip(scaled) {
            // Half a step of f16, of normal numbers or of others.
            let most = (value * factor).abs() / 2048.0 + 12.0 * f32::powi(2.0, -25);
            assert!((value * factor - scaled).abs() <= most, "{value} * {factor} is {scaled}");
            assert!(factor != 0.25 || scaled == value * factor);
        }
    }
    assert!(!scaled_nvfp4(&raw, 1e9, &mut blocks), "infinite scales are told");
}

#[test]
fn integers_are_values_too() {
    let mut out = [0.0; 2];
    dequantize(DType::I32, &[0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0], &mut out);
    assert_eq!(out, [-1.0, 7.0]);
}

#[test]
#[should_panic(expected = "Q4_0 row length")]
fn a_row_that_is_not_whole_blocks_is_a_mistake_of_the_caller() {
    dequantize(DType::Q4_0, &[0; 18], &mut [0.0; 31]);
}
