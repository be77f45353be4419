use proptest::prelude::*;
use troika_cpu::kernels::int8::{CalibratedInput, Layout, PackedView};
use troika_cpu::kernels::linear::WeightView;
use troika_cpu::kernels::outliers::{OutlierWeights, column, hot_columns, outliers};
use troika_graph::blocks::dequantize;
use troika_graph::quantize::quantize;
use troika_graph::{ActivationFormat, DType, Rounding, ScaleOrigin};

use crate::{Random, cases, on_each_isa};

#[test]
fn the_columns_of_most_outliers_are_held() {
    let mut counts = vec![0.0; 200];
    assert!(hot_columns(&counts).is_empty(), "there are none");
    counts[150] = 70.0;
    counts[3] = 25.0;
    counts[9] = 5.0;
    assert_eq!(hot_columns(&counts), [3, 150], "those have 95 of 100");
    counts.fill(1.0);
    assert_eq!(hot_columns(&counts).len(), 6, "no more than 3 % of the columns");
    assert!(hot_columns(&[]).is_empty());
}

proptest! {
    #![proptest_config(cases(60))]

    /// The sum of a row's clipped values times weights, as one would write it.
    #[test]
    fn outliers_are_as_by_the_sum(
        rows in 1_usize..5,
        n in 1_usize..40,
        blocks in 1_usize..11,
        dtype in prop::sample::select(vec![DType::F32, DType::Q8_0, DType::Q4_0]),
        smooth in any::<bool>(),
        limit in 0.2_f32..3.0,
        seed in any::<u32>(),
    ) {
        let k = 32 * blocks;
        let mut r = Random(seed.into());
        let x: Vec<f32> = r.floats(rows * k).iter().map(|x| x * 4.0).collect();
        let w: Vec<f32> = r.floats(n * k).iter().map(|w| w * 2.0).collect();
        let mut bytes: Vec<u8> = w.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut values = w;
        if dtype.is_quantized() {
            bytes = vec![0; dtype.row_bytes(n * k).unwrap()];
            prop_assert!(quantize(dtype, &values, &mut bytes));
            dequantize(dtype, &bytes, &mut values);
        }
        let stored = WeightView { dtype, bytes: &bytes, rows: n, cols: k };
        let clipped = ActivationFormat::of_tensor(8, ScaleOrigin::Clipped);
        let rounding = Rounding::of(clipped, limit).unwrap();
        let hot: Vec<u32> = (0..k as u32).step_by(7).collect();
        let mut columns = vec![0.0; hot.len() * n];
        for (c, to) in hot.iter().zip(columns.chunks_exact_mut(n)) {
            column(stored, *c as usize, to);
        }
        // Some columns are divided by a factor before they are clipped.
        let factors: Vec<f32> = (0..k).map(|i| if smooth { 0.5 + (i % 3) as f32 } else { 1.0 }).collect();
        let input = CalibratedInput { rounding, factors: if smooth { factors.clone() } else { Vec::new() } };
        let layout = Layout::new(dtype, n, k);
        let panels = layout.map_or(Vec::new(), |layout| layout.pack(&bytes));
        let packed = layout.map(|layout| PackedView { layout, bytes: &panels });
        for packed in [None, packed] {
        let weights = OutlierWeights { input: &input, hot: &hot, columns: &columns, stored, packed };
        on_each_isa(2, |cx| {
            let mut y = vec![f32::NAN; rows * n];
            outliers(cx, weights, &x, &mut y).unwrap();
            for (i, y) in y.iter().enumerate() {
                let divided = x[i / n * k..][..k].iter().zip(&factors);
                let row: Vec<f32> = divided.map(|(x, f)| x / f).collect();
                let col = values[i % n * k..][..k].iter().zip(&factors);
                let col: Vec<f32> = col.map(|(w, f)| w * f).collect();
                let rest = |x: f32| f64::from(x - rounding.round(x));
                let terms = row.iter().zip(&col).filter(|(x, _)| x.abs() > limit * 1.005);
                let sum: f64 = terms.map(|(x, w)| rest(*x) * f64::from(*w)).sum();
                let near = row.iter().filter(|x| (x.abs() - limit).abs() < limit * 0.015).count();
                // At the limit itself, what is rounded or clipped is less than a step.
                let slack = 1e-4 + near as f64 * f64::from(rounding.step) * 5.0;
                assert!((f64::from(*y) - sum).abs() <= slack, "{y} {sum}");
            }
        });
        }
    }
}
