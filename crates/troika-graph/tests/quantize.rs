//! Quantization: steps, ranges, and values that are not finite.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use troika_graph::quantize::{is_target, quantize, row_int4};
use troika_graph::{DType, blocks::dequantize};

const TARGETS: [DType; 5] =
    [DType::Q8_0, DType::Q4_0, DType::Q4_G32, DType::Q4_G64, DType::Q4_G128];

fn back(dtype: DType, x: &[f32]) -> (Vec<f32>, bool) {
    let mut bytes = vec![0xaa; dtype.row_bytes(x.len()).unwrap()];
    let finite = quantize(dtype, x, &mut bytes);
    let mut out = vec![0.0; x.len()];
    dequantize(dtype, &bytes, &mut out);
    (out, finite)
}

/// Values near a normal distribution: sums of twelve uniform ones.
fn normal(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn relative_rms(got: &[f32], want: &[f32]) -> f32 {
    let error: f32 = got.iter().zip(want).map(|(g, w)| (g - w) * (g - w)).sum();
    (error / want.iter().map(|w| w * w).sum::<f32>()).sqrt()
}

#[test]
fn normal_weights_come_back_within_the_error_of_their_bits() {
    for (dtype, most) in [
        (DType::Q8_0, 0.006),
        (DType::Q4_0, 0.088),
        (DType::Q4_G32, 0.08),
        (DType::Q4_G64, 0.092),
        (DType::Q4_G128, 0.104),
    ] {
        let x = normal(3, 128 * 300);
        let (got, finite) = back(dtype, &x);
        let error = relative_rms(&got, &x);
        println!("{dtype}: {error:.4}");
        assert!(finite && error <= most, "{dtype}: {error}");
        // Of another size and with a mean.
        let x: Vec<f32> = x.iter().map(|x| 3e-3 * (x + 1.5)).collect();
        let got = back(dtype, &x).0;
        assert!(relative_rms(&got, &x) <= most * 1.2, "{dtype}, shifted");
    }
}

#[test]
fn every_value_is_within_a_step() {
    let x = normal(9, 128 * 64);
    for block in x.as_chunks::<32>().0 {
        let most = block.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        // Half a step, and what the scale lost as an f16.
        let bound = most / 127.0 * 0.5 + most * 1e-3;
        let got = back(DType::Q8_0, block).0;
        assert!(got.iter().zip(block).all(|(g, x)| (g - x).abs() <= bound));
    }
}

#[test]
fn what_fits_the_steps_is_exact() {
    let ints: Vec<f32> = (0..128).map(|i| ((i * 7 % 16) as f32 - 8.0) * 0.25).collect();
    for dtype in [DType::Q4_0, DType::Q4_G32, DType::Q4_G64, DType::Q4_G128] {
        assert_eq!(back(dtype, &ints).0, ints, "{dtype}");
    }
    let bytes: Vec<f32> = (0..64).map(|i| ((i % 32 * 37) % 254 - 127) as f32 * 0.5).collect();
    assert_eq!(back(DType::Q8_0, &bytes).0, bytes);
}

#[test]
fn odd_blocks_stay_finite() {
    let mut one = [0.0f32; 128];
    one[77] = -2.5;
    let all = [0.37f32; 128];
    let tiny = [1e-30f32; 128];
    let subnormal = [-1e-42f32; 128];
    let huge: [f32; 128] = std::array::from_fn(|i| if i % 2 == 0 { 6e4 } else { -5e4 });
    for dtype in TARGETS {
        assert_eq!(back(dtype, &[0.0; 128]).0, [0.0; 128], "{dtype}");
        assert!((back(dtype, &one).0[77] + 2.5).abs() < 0.02, "{dtype}");
        assert!(relative_rms(&back(dtype, &all).0, &all) < 0.01, "{dtype}");
        for small in [tiny, subnormal] {
            assert!(back(dtype, &small).0.iter().all(|x| x.abs() <= 1e-7), "{dtype}");
        }
        assert!(back(dtype, &[f32::MAX; 128]).0.iter().all(|x| x.is_finite()), "{dtype}");
        assert!(relative_rms(&back(dtype, &huge).0, &huge) < 0.1, "{dtype}");
    }
}

#[test]
fn what_is_no_number_is_told() {
    for dtype in TARGETS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = normal(5, 256);
            x[130] = bad;
            let (got, finite) = back(dtype, &x);
            assert!(!finite && got[130].is_nan() && got[0].is_finite(), "{dtype} {bad}");
        }
    }
    assert!(!quantize(DType::BF16, &[1.0, f32::NAN], &mut [0; 4]));
    assert!(quantize(DType::BF16, &[1.0, -3.0], &mut [0; 4]));
}

/// Rows of any length, with one scale.
#[test]
fn rows_of_four_bits_come_back_within_their_error() {
    let back = |x: &[f32]| -> (Vec<f32>, f32) {
        let mut numbers = vec![9; x.len()];
        let scale = row_int4(x, &mut numbers);
        assert!(numbers.iter().all(|n| (-8..8).contains(n)));
        (numbers.iter().map(|n| f32::from(*n) * scale).collect(), scale)
    };
    let x = normal(3, 4099);
    let error = relative_rms(&back(&x).0, &x);
    println!("{error:.4}");
    assert!(error < 0.12, "{error}");
    let exact: Vec<f32> = (0..37).map(|i| ((i * 7 % 16) as f32 - 8.0) * 0.25).collect();
    assert_eq!(back(&exact), (exact.clone(), 0.25));
    assert_eq!(back(&[0.0; 5]), (vec![0.0; 5], 1.0));
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(back(&[1.0, bad, 2.0]).0.iter().all(|v| v.is_nan()));
    }
}

#[test]
fn bf16_is_rounded_to_the_nearest() {
    let (got, finite) = back(DType::BF16, &[1.0, 1.003, -1.005_859_4]);
    assert_eq!((got, finite), (vec![1.0, 1.0, -1.007_812_5], true));
    assert!(is_target(DType::BF16) && is_target(DType::Q4_G64) && !is_target(DType::Q6_K));
}
