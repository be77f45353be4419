//! Compares dequantization, bit for bit, with values that the `gguf` Python package computed from
//! random blocks. Their scales include negative, subnormal, zero and the largest values.
//!
//! `data/blocks.bin` holds records: name (8 bytes), block bytes, values, then both.

#![allow(clippy::unwrap_used)]

use troika_graph::{DType, blocks::dequantize};

const TYPES: [DType; 14] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::MXFP4,
];

fn u32_at(b: &[u8], at: usize) -> usize {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) as usize
}

#[test]
fn blocks_mean_what_the_reference_says() {
    let mut data: &[u8] = include_bytes!("data/blocks.bin");
    let mut seen = 0;
    while !data.is_empty() {
        let name = std::str::from_utf8(&data[..8]).unwrap().trim_end_matches('\0');
        let dtype = TYPES.into_iter().find(|t| t.name() == name).unwrap();
        let (bytes, values) = (u32_at(data, 8), u32_at(data, 12));
        let (raw, rest) = data[16..].split_at(bytes);
        let (expected, rest) = rest.split_at(values * 4);
        let mut out = vec![0.0; values];
        dequantize(dtype, raw, &mut out);
        for (i, (e, o)) in expected.chunks_exact(4).zip(&out).enumerate() {
            let e = f32::from_le_bytes(e.try_into().unwrap());
            assert_eq!(o.to_bits(), e.to_bits(), "{name} value {i}: {o} instead of {e}");
        }
        data = rest;
        seen += 1;
    }
    assert_eq!(seen, TYPES.len());
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
