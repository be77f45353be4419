use troika_device::WeightBytes;
use troika_graph::DType;
use troika_model::lower::WeightShape;

use super::codes::{Codes, Grid, Number, Order, ScaleKind, Steps, ZeroCodes, Zeros};
use super::{PackedWeight, Parts, Rounding};

/// One group of 32 inputs and eight outputs with the given zero points.
fn zeros_of(less_one: bool, zeros: u32) -> Vec<u8> {
    let words = |n: usize, word: u32| WeightBytes::owned(word.to_le_bytes().repeat(n));
    let bytes = WeightBytes::owned(1f32.to_le_bytes().repeat(8));
    let codes =
        Codes { bytes: words(4 * 8, 0x7654_3210), bits: 4, order: Order::Inputs, n: 8, k: 32 };
    let steps = Steps { share: 1, row: 1, group: 8 };
    let zeros = ZeroCodes { bytes: words(1, zeros), bits: 4, steps, awq: false, less_one };
    let parts = Parts {
        codes,
        number: Number::Unsigned,
        scales: Grid { kind: ScaleKind::F32, bytes, steps },
        zeros: Zeros::Codes(zeros),
        group: 32,
        index: None,
    };
    let weight = PackedWeight {
        parts,
        taken: std::iter::once(0..8).collect(),
        transpose: false,
        rounding: Rounding::None,
        values: 256,
    };
    let shape = WeightShape { rows: 8, cols: 32, dtype: DType::Q4_G32 };
    let bytes = weight.rows(shape, 0..8).unwrap().0;
    bytes.chunks(DType::Q4_G32.block_bytes()).map(|block| block[2]).collect()
}

#[test]
fn zero_points_wrap_around() {
    // All 15: adding one to the whole word would overflow.
    assert_eq!(zeros_of(true, u32::MAX), [0; 8]);
    assert_eq!(zeros_of(false, u32::MAX), [15; 8]);
    assert_eq!(zeros_of(true, 0xf765_4321), [2, 3, 4, 5, 6, 7, 8, 0]);
}

#[test]
fn small_floats_are_those_of_their_formats() {
    let e4m3 = Number::E4M3.levels().0;
    // Zero, the smallest, the largest below 2^-6, 1, the largest.
    let known =
        [(0, 0.0), (1, 1.0 / 512.0), (7, 7.0 / 512.0), (8, 1.0 / 64.0), (0x38, 1.0), (0x7e, 448.0)];
    for (code, value) in known {
        assert_eq!((e4m3[code], e4m3[code + 128]), (value, -value), "{code}");
    }
    assert!(e4m3[0x7f].is_nan() && e4m3[0xff].is_nan());
    assert_eq!(e4m3.iter().filter(|v| !v.is_finite()).count(), 2);
    assert_eq!(Number::E2M1.levels().0[..9], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0]);
    let bytes = WeightBytes::owned(vec![0, 1, 127, 254, 255]);
    let steps = Steps { share: 1, row: 0, group: 1 };
    let grid = Grid { kind: ScaleKind::E8M0, bytes, steps };
    for (g, power) in [-127, -126, 0, 127].into_iter().enumerate() {
        assert_eq!(f64::from(grid.at(0, g)), 2f64.powi(power));
    }
    assert!(grid.at(0, 4).is_nan() && grid.at(0, 5).is_nan());
}
