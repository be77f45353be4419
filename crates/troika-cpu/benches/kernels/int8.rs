//! Products of activations in eight or seven bits with packed weights, and making those activations.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use troika_cpu::kernels::int8::{
    ActivationRows, DTYPES, INT7, Layout, PackedView, Product, Quantization, floats as q_floats,
    linear, quantize,
};
use troika_cpu::kernels::linear::{OutView, RowsView};
use troika_cpu::{Isa, SharedMut};
use troika_graph::{ActivationFormat, DType};

use crate::{Matrix, floats, weight, with};

#[divan::bench(args = Matrix::all(DTYPES, &[1, 8, 512]), sample_count = 12)]
fn linear_int8(bencher: Bencher<'_, '_>, c: Matrix) {
    product(bencher, &c, ActivationFormat::INT8);
}

#[divan::bench(args = Matrix::all(&[DType::Q8_0], &[1, 512]), sample_count = 12)]
fn linear_int7(bencher: Bencher<'_, '_>, c: Matrix) {
    product(bencher, &c, INT7);
}

/// The product with its activations quantized before, as ops run it.
fn product(bencher: Bencher<'_, '_>, c: &Matrix, activations: ActivationFormat) {
    let quantization = Quantization::of(c.dtype, activations);
    let layout = Layout::new(c.dtype, c.n, c.k).expect("a shape of whole blocks");
    let packed = layout.pack(&weight(c.dtype, c.n * c.k));
    let weights = vec![packed; c.copies(layout.bytes())];
    let x = floats(c.rows * c.k);
    let mut q = vec![0.0; c.rows * q_floats(c.k)];
    let mut y = vec![0.0; c.rows * c.n];
    let mut turn = 0;
    with(c.isa, |cx| {
        let bencher = bencher.counter(ItemsCount::new(c.ops()));
        bencher.counter(BytesCount::new(layout.bytes())).bench_local(|| {
            turn = (turn + 1) % weights.len();
            quantize(cx, ActivationRows::Plain(&x), c.k, &mut [(quantization, &mut q)])
                .expect("no panic");
            let product = Product {
                weight: PackedView { layout, bytes: &weights[turn] },
                bias: None,
                x: RowsView::dense(&q, q_floats(c.k)),
                quantization,
                y: OutView::dense(SharedMut::new(&mut y), c.n),
            };
            // SAFETY: nobody else has the results.
            unsafe { linear(cx, c.rows, &[product]) }.expect("no panic")
        });
    });
}

#[divan::bench(args = [1, 512])]
fn quantize_rows(bencher: Bencher<'_, '_>, rows: usize) {
    let k = 1024;
    let x = floats(rows * k);
    let mut q = vec![0.0; rows * q_floats(k)];
    let quantization = Quantization::of(DType::Q4_K, ActivationFormat::INT8);
    with(Isa::detect(), |cx| {
        let bytes = BytesCount::new(rows * k * 4 + q.len() * 4);
        bencher.counter(bytes).bench_local(|| {
            quantize(cx, ActivationRows::Plain(&x), k, &mut [(quantization, &mut q)])
                .expect("no panic")
        });
    });
}
