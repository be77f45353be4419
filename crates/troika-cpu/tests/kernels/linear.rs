use proptest::prelude::*;
use troika_cpu::kernels::Context;
use troika_cpu::kernels::linear::{OutView, Product, RowsView, WeightView, bf16, linear, panels};
use troika_cpu::{Isa, SharedMut};
use troika_graph::{DType, blocks};

use crate::{Random, on_each_isa, with};

pub const DTYPES: &[DType] = DType::WEIGHTS;

/// How a product's operands lie.
#[derive(Clone, Copy, Default)]
struct Form {
    pairs: bool,
    panels: bool,
}

/// A product with activations in bf16, as pairs.
const PAIRS: Form = Form { pairs: true, panels: false };

fn run_as(
    cx: &mut Context<'_>,
    Form { pairs, panels }: Form,
    w: WeightView<'_>,
    bias: Option<&[f32]>,
    x: &[f32],
) -> Vec<f32> {
    let rows = x.len() / w.cols.max(1);
    let width = if pairs { bf16::words(w.cols) } else { w.cols };
    let mut words = vec![f32::NAN; rows * width];
    if pairs {
        bf16::round(cx, x, w.cols, true, &mut words).unwrap();
    }
    let mut y = vec![f32::NAN; rows * w.rows];
    let out = OutView::dense(SharedMut::new(&mut y), w.rows);
    let x = RowsView::dense(if pairs { &words } else { x }, width);
    let p = Product { weight: w, bias, x, y: out, pairs, panels };
    // SAFETY: nobody else has the results.
    unsafe { linear(cx, rows, 1, &|_| p) }.unwrap();
    y
}

fn run(cx: &mut Context<'_>, w: WeightView<'_>, b: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    run_as(cx, Form::default(), w, b, x)
}

/// Within 1e-6 of the reference, relative to the sum of `|x| |w|`.
fn check(cx: &mut Context<'_>, w: WeightView<'_>, b: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let got = run(cx, w, b, x);
    let mut want = vec![0.0; got.len()];
    crate::reference::linear(w, b, x, &mut want);
    let mut size = vec![0.0; got.len()];
    let mut wide = vec![0.0; w.rows * w.cols];
    blocks::dequantize(w.dtype, w.bytes, &mut wide);
    let wide: Vec<u8> = wide.iter().flat_map(|w| w.abs().to_le_bytes()).collect();
    let abs: Vec<f32> = x.iter().map(|x| x.abs()).collect();
    let wide = WeightView { dtype: DType::F32, bytes: &wide, ..w };
    crate::reference::linear(wide, None, &abs, &mut size);
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
    prop::sample::select(vec![1usize, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 16, 17, 31, 32, 33, 129])
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
        let product = |h: usize| Product {
            weight: w(h),
            bias: None,
            x: RowsView { offset: h * k, ..RowsView::dense(&x, heads * k) },
            y: OutView { offset: h * n, ..OutView::dense(out, heads * n) },
            pairs: false,
            panels: false,
        };
        // SAFETY: each head has columns of its own.
        unsafe { linear(cx, rows, heads, &product) }.unwrap();
        for (row, head) in (0..rows).flat_map(|r| (0..heads).map(move |h| (r, h))) {
            let mut want = vec![0.0; n];
            crate::reference::linear(w(head), None, &x[(row * heads + head) * k..][..k], &mut want);
            crate::close(&y[(row * heads + head) * n..][..n], &want, 1e-5, "head");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Native or emulated, alone or among others: the bits of the plain meaning.
    #[test]
    fn pairs_of_bf16_are_the_reference_to_the_bit(
        rows in rows(),
        n in 1usize..70,
        k in prop::sample::select(vec![1usize, 2, 7, 15, 31, 32, 33, 100, 511, 512, 513, 1025, 1500]),
        bias: bool,
        tiny: bool,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let mut bytes = r.weight(DType::BF16, n * k);
        let mut x = r.floats(rows * k);
        if tiny {
            // Exponents near the smallest: products and sums become denormal.
            bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|w| w[1] = w[1] & 0x80 | 0x20);
            x.iter_mut().for_each(|x| *x *= 1e-20);
        }
        let w = WeightView { dtype: DType::BF16, bytes: &bytes, rows: n, cols: k };
        let b = r.floats(n);
        let b = bias.then_some(&b[..]);
        let weight: Vec<half::bf16> =
            bytes.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b)).collect();
        on_each_isa(2, |cx| {
            let mut want = vec![0.0; rows * n];
            crate::reference::bf16_linear(bf16::instruction(cx.isa), &weight, b, &x, k, &mut want);
            let got = run_as(cx, PAIRS, w, b, &x);
            let same = got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits());
            assert!(same, "{}: {rows} rows, {n}x{k}", cx.isa.name());
        });
    }
}

proptest! {
    #![proptest_config(crate::cases(40))]

    /// Packed weights give the bits of weights as they lie in a file, with any number of rows.
    #[test]
    fn panels_of_pairs_do_not_change_bits(
        rows in prop::sample::select(vec![1usize, 2, 3, 15, 16, 17, 31, 32, 33, 129]),
        n in prop::sample::select(vec![1usize, 15, 16, 17, 31, 33, 48, 49, 100]),
        k in prop::sample::select(vec![1usize, 2, 31, 32, 33, 511, 512, 513, 1100]),
        bias: bool,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let bytes = &r.weight(DType::BF16, n * k)[..];
        let (x, b) = (r.floats(rows * k), r.floats(n));
        let b = bias.then_some(&b[..]);
        let w = WeightView { dtype: DType::BF16, bytes, rows: n, cols: k };
        on_each_isa(3, |cx| panels_are_as_stored(cx, PAIRS, w, b, &x));
    }
}

/// Few rows meet more weight rows than working memory has room for, and words that fill no tiles.
#[test]
fn long_parts_of_panels_of_pairs_do_not_change_bits() {
    let mut r = Random(11);
    let (n, k) = (300, 33);
    let bytes = &r.weight(DType::BF16, n * k)[..];
    for rows in [1, 31, 32] {
        let x = r.floats(rows * k);
        let w = WeightView { dtype: DType::BF16, bytes, rows: n, cols: k };
        on_each_isa(1, |cx| panels_are_as_stored(cx, PAIRS, w, None, &x));
    }
}

/// Checks that a packed weight gives the bits of one as it lies in a file.
fn panels_are_as_stored(
    cx: &mut Context<'_>,
    form: Form,
    w: WeightView<'_>,
    b: Option<&[f32]>,
    x: &[f32],
) {
    let packed = packed(cx.isa, w);
    let want = run_as(cx, form, w, b, x);
    let w = WeightView { bytes: bytemuck::cast_slice(&packed), ..w };
    let got = run_as(cx, Form { panels: true, ..form }, w, b, x);
    assert!(want.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()));
}

/// A weight as panels, in memory that held something else.
fn packed(isa: Isa, w: WeightView<'_>) -> Vec<f32> {
    let floats = w.rows.div_ceil(panels::ROWS) * panels::panel_bytes(w.dtype, w.cols) / 4;
    let mut packed = vec![f32::NAN; floats];
    panels::pack_panels(isa, w, bytemuck::cast_slice_mut(&mut packed));
    packed
}

proptest! {
    #![proptest_config(crate::cases(96))]

    /// The same for activations in f32.
    #[test]
    fn panels_of_floats_do_not_change_bits(
        rows in prop::sample::select(vec![1usize, 2, 3, 6, 15, 17, 33, 129]),
        n in prop::sample::select(vec![1usize, 15, 16, 17, 31, 33, 48, 49, 100, 300]),
        k in prop::sample::select(vec![1usize, 2, 3, 31, 32, 33, 255, 256, 257, 511, 513, 1100]),
        dtype in prop::sample::select(DTYPES.to_vec()),
        bias: bool,
        skew in 0usize..3,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let k = if dtype.is_quantized() { dtype.block_len() * (1 + k % 6) } else { k };
        let bytes = r.weight(dtype, n * k + skew * dtype.block_len());
        let bytes = &bytes[skew * dtype.block_bytes()..];
        let (x, b) = (r.floats(rows * k + skew), r.floats(n));
        let (x, b) = (&x[skew..], bias.then_some(&b[..]));
        let w = WeightView { dtype, bytes, rows: n, cols: k };
        on_each_isa(3, |cx| panels_are_as_stored(cx, Form::default(), w, b, x));
    }
}

/// Products of one row share the streams of their weights, whatever the number of threads.
#[test]
fn packed_products_of_one_row_run_together() {
    let mut r = Random(13);
    let k = 300;
    let sizes = [(DType::BF16, 5), (DType::F16, 700), (DType::F32, 33), (DType::BF16, 1200)];
    let bytes: Vec<Vec<u8>> = sizes.iter().map(|(d, n)| r.weight(*d, n * k)).collect();
    let x = r.floats(k);
    on_each_isa(3, |cx| {
        let view = |i: usize| WeightView {
            dtype: sizes[i].0,
            bytes: &bytes[i],
            rows: sizes[i].1,
            cols: k,
        };
        let packed: Vec<Vec<f32>> = (0..sizes.len()).map(|i| packed(cx.isa, view(i))).collect();
        let mut results: Vec<Vec<f32>> = sizes.iter().map(|(_, n)| vec![f32::NAN; *n]).collect();
        let outs: Vec<_> = results.iter_mut().map(|y| SharedMut::new(&mut y[..])).collect();
        let product = |i: usize| Product {
            weight: WeightView { bytes: bytemuck::cast_slice(&packed[i]), ..view(i) },
            bias: None,
            x: RowsView::dense(&x, k),
            y: OutView::dense(outs[i], sizes[i].1),
            pairs: false,
            panels: true,
        };
        // SAFETY: each product has results of its own.
        unsafe { linear(cx, 1, sizes.len(), &product) }.unwrap();
        for (i, got) in results.iter().enumerate() {
            assert_eq!(*got, run(cx, view(i), None, &x), "product {i}");
        }
    });
}

/// Rows that lie anywhere and go anywhere, as the rows of experts do.
#[test]
fn pairs_of_bf16_of_an_index() {
    let mut r = Random(11);
    let (n, k, rows) = (50, 1100, 37);
    let bytes = r.weight(DType::BF16, n * k);
    let w = WeightView { dtype: DType::BF16, bytes: &bytes, rows: n, cols: k };
    let x = r.floats(rows * k);
    let index: Vec<u32> = (0..rows as u32).rev().collect();
    on_each_isa(2, |cx| {
        let width = bf16::words(k);
        let mut words = vec![f32::NAN; rows * width];
        bf16::round(cx, &x, k, true, &mut words).unwrap();
        let mut y = vec![f32::NAN; rows * n];
        let out = OutView::dense(SharedMut::new(&mut y), n);
        let (index, dense) = (Some(&index[..]), RowsView::dense(&words, width));
        let (x_rows, out) = (RowsView { index, ..dense }, OutView { index, ..out });
        let p = Product { weight: w, bias: None, x: x_rows, y: out, pairs: true, panels: false };
        // SAFETY: nobody else has the results.
        unsafe { linear(cx, rows, 1, &|_| p) }.unwrap();
        assert_eq!(y, run_as(cx, PAIRS, w, None, &x));
    });
}

#[test]
fn which_sets_multiply_pairs_natively() {
    on_each_isa(1, |cx| {
        let native = bf16::is_native(cx.isa);
        let form = if native { "native" } else { "emulated" };
        let by = bf16::instruction(cx.isa);
        println!("products of pairs of bf16, {}: {form}, {by:?}", cx.isa.name());
        // Rounding: ties to even, infinities and NaN kept, without the products the same numbers.
        let x = [257.0 / 256.0, 259.0 / 256.0, -0.0, f32::INFINITY, f32::NAN, 3.4e38, 1e-40, 0.1];
        let mut pairs = [0.0f32; 4];
        bf16::round(cx, &x, 8, true, &mut pairs).unwrap();
        let mut floats = [0.0f32; 8];
        bf16::round(cx, &x, 8, false, &mut floats).unwrap();
        for (i, x) in x.iter().enumerate() {
            let got = (pairs[i / 2].to_bits() >> (i % 2 * 16)) as u16;
            let want = half::bf16::from_f32(*x);
            assert!(got == want.to_bits() || x.is_nan() && half::bf16::from_bits(got).is_nan());
            assert_eq!(floats[i].to_bits() >> 16, u32::from(got));
        }
    });
}
