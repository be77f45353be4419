//! Measures products of quantized weights with activations in eight or seven bits by type, shape,
//! instruction set and number of threads.
//!
//! `cargo run --release -p troika-cpu --example linear_speed -- [threads [words]]`
//!
//! Only lines with all the words are measured (`vnni Q8_0 512`). GB/s are packed bytes read once
//! per product (with one row from memory, since several copies of the weight are used in turn);
//! GOP/s are two operations per weight and row. The last column is the time to quantize
//! activations; it is not in the others, since several products share it.

#![allow(clippy::expect_used, clippy::print_stdout, unsafe_code)]

use std::time::{Duration, Instant};

use troika_cpu::kernels::Context;
use troika_cpu::kernels::int8::{
    ActivationRows, KINDS, Layout, PackedView, Product, Quantization, floats, linear, name,
    quantize,
};
use troika_cpu::kernels::linear::{OutView, RowsView};
use troika_cpu::{Isa, PerWorker, Pool, SharedMut};
use troika_graph::{ActivationFormat, DType};

/// Bytes of all copies of a weight together: more than the caches hold.
const MEMORY: usize = 256 << 20;
/// At least this many measurements, for at least this long; the best counts.
const RUNS: usize = 7;
const TIME: Duration = Duration::from_millis(500);

struct Case {
    dtype: DType,
    activations: ActivationFormat,
    n: usize,
    k: usize,
    rows: usize,
}

/// Seconds of the product and of quantizing its activations.
fn time(cx: &mut Context<'_>, c: &Case) -> [f64; 2] {
    let layout = Layout::new(c.dtype, c.n, c.k).expect("a shape of whole blocks");
    let row = c.dtype.row_bytes(c.k).unwrap_or(0);
    let raw: Vec<u8> = (0..row * c.n).map(|i| (i * 37 % 64) as u8).collect();
    let packed = layout.pack(&raw, 1);
    let copies = if c.rows < 4 { (MEMORY / layout.bytes()).max(1) } else { 1 };
    let weights: Vec<Vec<u8>> = (0..copies).map(|_| packed.clone()).collect();
    let x: Vec<f32> = (0..c.rows * c.k).map(|i| (i % 83) as f32 / 83.0 - 0.5).collect();
    let mut q = vec![0.0; c.rows * floats(c.k)];
    let mut y = vec![0.0; c.rows * c.n];
    let quantization = Quantization::of(c.dtype, c.activations);
    let mut best = [f64::MAX; 2];
    let (mut runs, begin) = (0, Instant::now());
    while runs < RUNS || begin.elapsed() < TIME {
        runs += 1;
        let start = Instant::now();
        quantize(cx, (ActivationRows::Plain(&x), c.k), &mut [(quantization, &mut q)])
            .expect("no panic");
        best[1] = best[1].min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for bytes in &weights {
            let product = Product {
                weight: PackedView { layout, bytes },
                bias: None,
                x: RowsView::dense(&q, floats(c.k)),
                quantization,
                y: OutView::dense(SharedMut::new(&mut y), c.n),
            };
            // SAFETY: nobody else has the results.
            unsafe { linear(cx, c.rows, &[product]) }.expect("no panic");
        }
        best[0] = best[0].min(start.elapsed().as_secs_f64() / copies as f64);
    }
    std::hint::black_box(&y);
    best
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(2);
    let words: Vec<String> = std::env::args().skip(2).collect();
    println!("{threads} threads");
    println!(
        "| kernels | type, activations | n x k | rows | us | GOP/s | GB/s | quantize us |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for isa in Isa::available().into_iter().rev() {
        for ((dtype, activations), (n, k)) in
            KINDS.into_iter().flat_map(|kind| [(kind, (3072, 1024)), (kind, (1024, 3072))])
        {
            for rows in [1, 512] {
                if isa == Isa::Scalar && (dtype != DType::Q8_0 || rows > 1) {
                    continue;
                }
                let line =
                    format!("| {} | {dtype} {activations:?} | {n} x {k} | {rows} |", name(isa));
                if !words.iter().all(|w| line.contains(&format!(" {w} "))) {
                    continue;
                }
                let each = 1 << 17;
                let mut scratch = vec![0.0; each * threads];
                let mut pool = Pool::new(threads, None).expect("threads");
                let scratch = PerWorker::new(&mut scratch, each);
                let mut cx = Context { pool: &mut pool, isa, scratch };
                let [seconds, quantize] = time(&mut cx, &Case { dtype, activations, n, k, rows });
                let bytes = Layout::new(dtype, n, k).map_or(0, |l| l.bytes());
                println!(
                    "{line} {:.0} | {:.0} | {:.1} | {:.0} |",
                    seconds * 1e6,
                    2.0 * (n * k * rows) as f64 / seconds / 1e9,
                    bytes as f64 / seconds / 1e9,
                    quantize * 1e6
                );
            }
        }
    }
}
