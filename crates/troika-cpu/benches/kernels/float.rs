//! Products of f32 activations with weights as they are.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use troika_cpu::SharedMut;
use troika_cpu::kernels::linear::{OutView, Product, RowsView, WeightView, bf16, linear, panels};
use troika_graph::DType;

use crate::{Matrix, floats, weight, with};

fn cases() -> Vec<Matrix> {
    Matrix::all(&[DType::F32, DType::BF16, DType::F16, DType::Q8_0, DType::Q4_K], &[1, 512])
}

#[divan::bench(args = cases(), sample_count = 12)]
fn linear_float(bencher: Bencher<'_, '_>, c: Matrix) {
    let bytes = weight(c.dtype, c.n * c.k);
    let weights = vec![bytes; c.copies(c.dtype.row_bytes(c.k).unwrap_or(1) * c.n)];
    let x = floats(c.rows * c.k);
    let mut y = vec![0.0; c.rows * c.n];
    let (mut turn, size) = (0, weights[0].len());
    with(c.isa, |cx| {
        let bencher = bencher.counter(ItemsCount::new(c.ops())).counter(BytesCount::new(size));
        bencher.bench_local(|| {
            turn = (turn + 1) % weights.len();
            let w = WeightView { dtype: c.dtype, bytes: &weights[turn], rows: c.n, cols: c.k };
            let p = Product {
                weight: w,
                bias: None,
                x: RowsView::dense(&x, c.k),
                y: OutView::dense(SharedMut::new(&mut y), c.n),
                pairs: false,
                panels: false,
            };
            // SAFETY: nobody else has the results.
            unsafe { linear(cx, c.rows, 1, &|_| p) }.expect("no panic")
        });
    });
}

/// Copies of a weight packed in panels, taken in turn.
fn in_panels(c: &Matrix, stored: WeightView<'_>) -> Vec<Vec<f32>> {
    let bytes = c.n.div_ceil(panels::ROWS) * panels::panel_bytes(c.dtype, c.k);
    let mut packed = vec![0.0; bytes / 4];
    panels::pack_panels(c.isa, stored, bytemuck::cast_slice_mut(&mut packed));
    vec![packed; c.copies(bytes)]
}

/// With weights packed in panels, as products outside of experts have them.
#[divan::bench(args = Matrix::all(&[DType::F32, DType::BF16, DType::F16], &[1, 512]), sample_count = 12)]
fn linear_panels(bencher: Bencher<'_, '_>, c: Matrix) {
    let bytes = weight(c.dtype, c.n * c.k);
    let as_stored = WeightView { dtype: c.dtype, bytes: &bytes, rows: c.n, cols: c.k };
    let weights = in_panels(&c, as_stored);
    let size = size_of_val(&weights[0][..]);
    let x = floats(c.rows * c.k);
    let mut y = vec![0.0; c.rows * c.n];
    let mut turn = 0;
    with(c.isa, |cx| {
        let bencher = bencher.counter(ItemsCount::new(c.ops())).counter(BytesCount::new(size));
        bencher.bench_local(|| {
            turn = (turn + 1) % weights.len();
            let p = Product {
                weight: WeightView { bytes: bytemuck::cast_slice(&weights[turn]), ..as_stored },
                bias: None,
                x: RowsView::dense(&x, c.k),
                y: OutView::dense(SharedMut::new(&mut y), c.n),
                pairs: false,
                panels: true,
            };
            // SAFETY: nobody else has the results.
            unsafe { linear(cx, c.rows, 1, &|_| p) }.expect("no panic")
        });
    });
}

/// With packed weights and activations in bf16, rounded before each product, as ops run it.
#[divan::bench(args = Matrix::all(&[DType::BF16], &[1, 512]), sample_count = 12)]
fn linear_bf16(bencher: Bencher<'_, '_>, c: Matrix) {
    let bytes = weight(c.dtype, c.n * c.k);
    let stored = WeightView { dtype: c.dtype, bytes: &bytes, rows: c.n, cols: c.k };
    let weights = in_panels(&c, stored);
    let x = floats(c.rows * c.k);
    let pairs = bf16::is_native(c.isa);
    let mut words = vec![0.0; c.rows * bf16::words(c.k)];
    let mut rounded = vec![0.0; if pairs { 0 } else { x.len() }];
    let mut y = vec![0.0; c.rows * c.n];
    let (mut turn, size) = (0, size_of_val(&weights[0][..]));
    with(c.isa, |cx| {
        let bencher = bencher.counter(ItemsCount::new(c.ops())).counter(BytesCount::new(size));
        bencher.bench_local(|| {
            turn = (turn + 1) % weights.len();
            let into = if pairs { &mut words } else { &mut rounded };
            bf16::round(cx, &x, c.k, pairs, into).expect("no panic");
            let width = if pairs { bf16::words(c.k) } else { c.k };
            let p = Product {
                weight: WeightView { bytes: bytemuck::cast_slice(&weights[turn]), ..stored },
                bias: None,
                x: RowsView::dense(into, width),
                y: OutView::dense(SharedMut::new(&mut y), c.n),
                pairs,
                panels: true,
            };
            // SAFETY: nobody else has the results.
            unsafe { linear(cx, c.rows, 1, &|_| p) }.expect("no panic")
        });
    });
}
