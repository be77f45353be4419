use proptest::prelude::*;
use troika_cpu::SharedMut;
use troika_cpu::kernels::Context;
use troika_cpu::kernels::linear::{OutView, Product, RowsView, WeightView, linear, scalar};
use troika_graph::{DType, blocks};

use crate::{Random, on_each_isa, with};

pub const DTYPES: [DType; 17] = [
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
    DType::Q4_G32,
    DType::Q4_G64,
    DType::Q4_G128,
];

fn product<'a>(
    w: WeightView<'a>,
    b: Option<&'a [f32]>,
    x: &'a [f32],
    y: &'a mut [f32],
) -> Product<'a> {
    Product {
        weight: w,
        bias: b,
        x: RowsView::dense(x, w.cols),
        y: OutView::dense(SharedMut::new(y), w.rows),
    }
}

pub fn run(cx: &mut Context<'_>, w: WeightView<'_>, b: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / w.cols.max(1);
    let mut y = vec![f32::NAN; rows * w.rows];
    let p = product(w, b, x, &mut y);
    linear(cx, rows, 1, &|_| p).unwrap();
    y
}

/// Within 1e-6 of the reference, relative to the sum of `|x| |w|`.
fn check(cx: &mut Context<'_>, w: WeightView<'_>, b: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let got = run(cx, w, b, x);
    let mut want = vec![0.0; got.len()];
    scalar::linear(w, b, x, &mut want);
    let mut size = vec![0.0; got.len()];
    let mut wide = vec![0.0; w.rows * w.cols];
    blocks::dequantize(w.dtype, w.bytes, &mut wide);
    let wide: Vec<u8> = wide.iter().flat_map(|w| w.abs().to_le_bytes()).collect();
    let abs: Vec<f32> = x.iter().map(|x| x.abs()).collect();
    let wide = WeightView { dtype: DType::F32, bytes: &wide, ..w };
    scalar::linear(wide, None, &abs, &mut size);
    for i in 0..got.len() {
        let bias = b.map_or(0.0, |b| b[i % w.rows].abs());
        let tol = 1e-6 * (size[i] + bias) + 1e-30;
        assert!(
            (got[i] - want[i]).abs() <= tol,
            "{} {}x{}, element {i}: {} is not {}",
            w.dtype,
            w.rows,
            w.cols,
            got[i],
            want[i]
        );
    }
    got
}

fn rows() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1usize, 2, 3, 4, 5, 15, 16, 17, 31, 33, 129])
}

proptest! {
    #![proptest_config(crate::cases(192))]

    #[test]
    fn plain_types_match_the_reference(
        rows in rows(),
        n in 1usize..70,
        k in prop::sample::select(vec![1usize, 7, 8, 9, 15, 16, 17, 31, 33, 100, 1023, 1025, 1500]),
        dtype in prop::sample::select(DTYPES[..3].to_vec()),
        bias: bool,
        skew in 0usize..3,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let bytes = r.weight(dtype, n * k + skew);
        // A view that begins `skew` elements into the memory: not aligned to lines.
        let bytes = &bytes[skew * dtype.block_bytes()..];
        let w = WeightView { dtype, bytes, rows: n, cols: k };
        let x = r.floats(rows * k + skew);
        let b = r.floats(n);
        on_each_isa(2, |cx| {
            check(cx, w, bias.then_some(&b), &x[skew..]);
        });
    }

    #[test]
    fn block_types_match_the_reference(
        rows in rows(),
        n in 1usize..60,
        blocks in 1usize..6,
        dtype in prop::sample::select(DTYPES[3..].to_vec()),
        seed: u64,
    ) {
        let k = dtype.block_len() * blocks;
        let mut r = Random(seed);
        let bytes = r.weight(dtype, n * k);
        let w = WeightView { dtype, bytes: &bytes, rows: n, cols: k };
        let x = r.floats(rows * k);
        on_each_isa(2, |cx| { check(cx, w, None, &x); });
    }

    /// The rule behind equal results of chunked and token-by-token runs.
    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others(
        rows in rows(),
        n in 1usize..60,
        k in prop::sample::select(vec![256usize, 768, 1280, 2304]),
        dtype in prop::sample::select(DTYPES.to_vec()),
        seed: u64,
    ) {
        let mut r = Random(seed);
        let bytes = r.weight(dtype, n * k);
        let w = WeightView { dtype, bytes: &bytes, rows: n, cols: k };
        let (x, b) = (r.floats(rows * k), r.floats(n));
        let row = r.below(rows);
        on_each_isa(3, |cx| {
            let all = run(cx, w, Some(&b), &x);
            let one = run(cx, w, Some(&b), &x[row * k..][..k]);
            assert_eq!(&all[row * n..][..n], &one[..]);
        });
    }
}

#[test]
fn threads_do_not_change_bits() {
    let mut r = Random(7);
    let (n, k) = (300, 1100);
    let bytes = r.weight(DType::BF16, n * k);
    let w = WeightView { dtype: DType::BF16, bytes: &bytes, rows: n, cols: k };
    let x = r.floats(70 * k);
    for isa in crate::runnable() {
        let one = with(isa, 1, |cx| run(cx, w, None, &x));
        for threads in 2..=3 {
            assert_eq!(one, with(isa, threads, |cx| run(cx, w, None, &x)));
        }
    }
}

#[test]
fn long_sums_of_one_sign_stay_accurate() {
    let mut r = Random(3);
    let k = 28672;
    let bytes: Vec<u8> = (0..2 * k).flat_map(|_| (r.float().abs() + 0.5).to_le_bytes()).collect();
    let w = WeightView { dtype: DType::F32, bytes: &bytes, rows: 2, cols: k };
    let x: Vec<f32> = r.floats(2 * k).iter().map(|x| x.abs()).collect();
    on_each_isa(1, |cx| {
        check(cx, w, None, &x);
    });
}

#[test]
fn heads_are_products_of_slices() {
    let mut r = Random(5);
    let (rows, heads, n, k) = (5, 3, 9, 20);
    let bytes: Vec<Vec<u8>> = (0..heads).map(|_| r.weight(DType::F32, n * k)).collect();
    let w = |h: usize| WeightView { dtype: DType::F32, bytes: &bytes[h], rows: n, cols: k };
    let x = r.floats(rows * heads * k);
    on_each_isa(2, |cx| {
        let mut y = vec![0.0; rows * heads * n];
        let out = SharedMut::new(&mut y);
        linear(cx, rows, heads, &|h| Product {
            weight: w(h),
            bias: None,
            x: RowsView { offset: h * k, ..RowsView::dense(&x, heads * k) },
            y: OutView { offset: h * n, ..OutView::dense(out, heads * n) },
        })
        .unwrap();
        for (row, head) in (0..rows).flat_map(|r| (0..heads).map(move |h| (r, h))) {
            let mut want = vec![0.0; n];
            scalar::linear(w(head), None, &x[(row * heads + head) * k..][..k], &mut want);
            crate::close(&y[(row * heads + head) * n..][..n], &want, 1e-5, "head");
        }
    });
}
