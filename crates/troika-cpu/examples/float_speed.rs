//! Measures products with float weights by type, activations, shape, instruction set and number of
//! threads.
//!
//! `cargo run --release -p troika-cpu --example float_speed -- [threads [words]]` prints the lines
//! whose first columns contain all the words; `-- 2 amx bf16` selects tiles of bf16.
//!
//! GB/s are weight bytes read once per product (with few rows from memory, since several copies of
//! the weight are used in turn); GFLOP/s are two operations per weight and row.

#![allow(clippy::expect_used, clippy::print_stdout, unsafe_code)]

use std::time::Instant;

use troika_cpu::kernels::Context;
use troika_cpu::kernels::linear::{OutView, Product, RowsView, WeightView, bf16, linear, panels};
use troika_cpu::{Isa, PerWorker, Pool, SharedMut};
use troika_graph::DType;

/// Bytes of all copies of a weight together: more than the caches hold.
const MEMORY: usize = 256 << 20;
/// Number of measurements; the best counts.
const RUNS: usize = 7;
/// The most activation rows for which weights come from memory.
const FEW: usize = 8;

#[derive(Clone, Copy)]
struct Case {
    dtype: DType,
    pairs: bool,
    /// Whether weights are packed.
    panels: bool,
    n: usize,
    k: usize,
    rows: usize,
}

fn time(cx: &mut Context<'_>, c: &Case) -> f64 {
    let len = c.n * c.k;
    // Small numbers, whatever the type.
    let raw: Vec<u8> = (0..len)
        .flat_map(|i| {
            let x = (i * 37 % 64) as f32 / 64.0 - 0.5;
            match c.dtype {
                DType::F32 => x.to_le_bytes().to_vec(),
                DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
                _ => half::bf16::from_f32(x).to_le_bytes().to_vec(),
            }
        })
        .collect();
    let raw = if c.panels {
        let weight = WeightView { dtype: c.dtype, bytes: &raw, rows: c.n, cols: c.k };
        let words = c.n.div_ceil(panels::ROWS) * panels::panel_bytes(c.dtype, c.k) / 4;
        let mut packed = vec![0.0f32; words];
        panels::pack_panels(cx.isa, weight, bytemuck::cast_slice_mut(&mut packed));
        bytemuck::cast_slice(&packed).to_vec()
    } else {
        raw
    };
    let copies = if c.rows <= FEW { (MEMORY / raw.len()).max(1) } else { 1 };
    let weights: Vec<Vec<u8>> = (0..copies).map(|_| raw.clone()).collect();
    let x: Vec<f32> = (0..c.rows * c.k).map(|i| (i % 83) as f32 / 83.0 - 0.5).collect();
    let mut words = vec![0.0; c.rows * bf16::words(c.k)];
    let mut y = vec![0.0; c.rows * c.n];
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        for bytes in &weights {
            let x = if c.pairs {
                bf16::round(cx, (&x, c.k), true, &mut words).expect("no panic");
                RowsView::dense(&words, bf16::words(c.k))
            } else {
                RowsView::dense(&x, c.k)
            };
            let product = Product {
                weight: WeightView { dtype: c.dtype, bytes, rows: c.n, cols: c.k },
                bias: None,
                x,
                y: OutView::dense(SharedMut::new(&mut y), c.n),
                pairs: c.pairs,
                panels: c.panels,
            };
            // SAFETY: nobody else has the results.
            unsafe { linear(cx, c.rows, 1, &|_| product) }.expect("no panic");
        }
        best = best.min(start.elapsed().as_secs_f64() / copies as f64);
    }
    std::hint::black_box(&y);
    best
}

fn cases(isa: Isa) -> Vec<Case> {
    let mut all = Vec::new();
    let forms =
        [(DType::BF16, true), (DType::BF16, false), (DType::F16, false), (DType::F32, false)];
    for (dtype, pairs) in forms {
        for (n, k) in [(3072, 1024), (1024, 3072)] {
            for (rows, panels) in [1, 4, 16, 128, 512].map(|r| [(r, false), (r, true)]).concat() {
                let slow = isa == Isa::Scalar && (rows > 16 || dtype != DType::BF16);
                let packed =
                    !panels || panels::serve(isa, dtype) && (!pairs || bf16::has_panels(isa));
                if !slow && packed && (!pairs || bf16::is_native(isa)) {
                    all.push(Case { dtype, pairs, panels, n, k, rows });
                }
            }
        }
    }
    all
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(2);
    let words: Vec<String> = std::env::args().skip(2).collect();
    println!("{threads} threads");
    println!("| kernels | type | activations | weights | n x k | rows | us | GFLOP/s | GB/s |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for isa in Isa::available().into_iter().rev() {
        for c in cases(isa) {
            let activations = if c.pairs { "bf16" } else { "f32" };
            let (dtype, n, k, rows) = (c.dtype, c.n, c.k, c.rows);
            let form = if c.panels { "packed" } else { "plain" };
            let name = isa.name();
            let line =
                format!("| {name} | {dtype} | {activations} | {form} | {n} x {k} | {rows} |");
            if !words.iter().all(|w| line.contains(&format!(" {w} "))) {
                continue;
            }
            let each = 1 << 17;
            let mut scratch = vec![0.0; each * threads];
            let mut pool = Pool::new(threads, None).expect("threads");
            let scratch = PerWorker::new(&mut scratch, each);
            let seconds = time(&mut Context { pool: &mut pool, isa, scratch }, &c);
            let bytes = c.n * c.dtype.row_bytes(c.k).unwrap_or(0);
            println!(
                "{line} {:.0} | {:.0} | {:.1} |",
                seconds * 1e6,
                2.0 * (c.n * c.k * c.rows) as f64 / seconds / 1e9,
                bytes as f64 / seconds / 1e9
            );
        }
    }
}
