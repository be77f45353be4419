//! Products of f32 activations with weights as they are.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use troika_cpu::SharedMut;
use troika_cpu::kernels::linear::{Input, OutView, Product, RowsView, WeightView, linear, panels};
use troika_graph::DType;

use crate::{Matrix, floats, weight, with};

fn cases() -> Vec<Matrix> {
    Matrix::all(&[DType::F32, DType::BF16, DType::F16, DType::Q8_0, DType::Q4_K], &[1, 512])
}

#[divan::bench(args = cases(), sample_count = 12)]
fn linear_float(bencher: Bencher<'_, '_>, c: Matrix) {
    let bytes = weight(c.dtype, c.n * c.k);
    let copies = c.copies(bytes.len());
    run(bencher, c, &vec![bytes; copies], false, false);
}

/// With weights packed in panels, as products outside of experts have them.
#[divan::bench(args = Matrix::all(&[DType::F32, DType::BF16, DType::F16], &[1, 512]), sample_count = 12)]
fn linear_panels(bencher: Bencher<'_, '_>, c: Matrix) {
    run(bencher, c, &in_panels(&c), true, false);
}

/// With packed weights and activations in bf16, rounded before each product, as ops run it.
#[divan::bench(args = Matrix::all(&[DType::BF16], &[1, 512]), sample_count = 12)]
fn linear_bf16(bencher: Bencher<'_, '_>, c: Matrix) {
    run(bencher, c, &in_panels(&c), true, true);
}

/// Copies of a weight packed in panels.
fn in_panels(c: &Matrix) -> Vec<Vec<f32>> {
    let stored = weight(c.dtype, c.n * c.k);
    let stored = WeightView { dtype: c.dtype, bytes: &stored, rows: c.n, cols: c.k };
    let bytes = c.n.div_ceil(panels::ROWS) * panels::panel_bytes(c.dtype, c.k);
    let mut packed = vec![0.0; bytes / 4];
    panels::pack_panels(c.isa, stored, bytemuck::cast_slice_mut(&mut packed));
    vec![packed; c.copies(bytes)]
}

/// Products with copies of a weight, taken in turn.
fn run<T: bytemuck::NoUninit>(
    bencher: Bencher<'_, '_>,
    c: Matrix,
    weights: &[Vec<T>],
    panels: bool,
    bf16: bool,
) {
    let x = floats(c.rows * c.k);
    let (mut work, mut y) = (vec![0.0; x.len()], vec![0.0; c.rows * c.n]);
    let (mut turn, size) = (0, size_of_val(&weights[0][..]));
    with(c.isa, |cx| {
        let bencher = bencher.counter(ItemsCount::new(c.ops())).counter(BytesCount::new(size));
        bencher.bench_local(|| {
            turn = (turn + 1) % weights.len();
            let bytes = bytemuck::cast_slice(&weights[turn]);
            let x = Input::new(cx, &x, c.k, bf16, &mut work).expect("no panic");
            let p = Product {
                weight: WeightView { dtype: c.dtype, bytes, rows: c.n, cols: c.k },
                bias: None,
                x: RowsView::dense(x.data, x.width),
                y: OutView::dense(SharedMut::new(&mut y), c.n),
                pairs: x.pairs,
                panels,
            };
            // SAFETY: nobody else has the results.
            unsafe { linear(cx, c.rows, 1, &|_| p) }.expect("no panic")
        });
    });
}
