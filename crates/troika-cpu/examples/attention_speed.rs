//! Measures attention by instruction set, number of rows, and positions before them.
//!
//! `cargo run --release -p troika-cpu --example attention_speed -- [threads] [rows depth kernels]`
//!
//! GFLOP/s count the keys each row sees; GB/s are the bytes of keys and values, read once. Several
//! caches are used in turn, so that they come from memory.

#![allow(clippy::expect_used, clippy::print_stdout)]

use std::time::Instant;

use bytemuck::Pod;
use half::{bf16, f16};
use troika_cpu::kernels::Context;
use troika_cpu::kernels::attention::{Operands, attention, partial_floats, worker_floats};
use troika_cpu::kernels::kv::CacheRef;
use troika_cpu::kernels::linear;
use troika_cpu::{Isa, PerWorker, Pool};
use troika_device::{ForwardBatch, PageTable, SeqRows, ZeroedBytes};
use troika_graph::{ActivationFormat, Attention};

/// Number of measurements; the best counts.
const RUNS: usize = 5;
/// Positions of a page.
const PAGE: usize = 32;

struct Case {
    heads: usize,
    kv_heads: usize,
    rows: usize,
    depth: usize,
}

/// Types of caches.
#[derive(Clone, Copy, Debug)]
enum Cache {
    F16,
    /// With products of pairs.
    Bf16,
}

/// Numbers in huge pages, like most of an engine's caches.
fn cache<T: Pod>(numbers: impl ExactSizeIterator<Item = T>) -> ZeroedBytes {
    let bytes = ZeroedBytes::new(numbers.len() * size_of::<T>()).expect("memory of a cache");
    let mut bytes = bytes.huge_pages();
    for (to, number) in bytemuck::cast_slice_mut(&mut bytes).iter_mut().zip(numbers) {
        *to = number;
    }
    bytes
}

fn op(c: &Case) -> Attention {
    Attention {
        heads: c.heads,
        kv_heads: c.kv_heads,
        k_dim: 128,
        v_dim: 128,
        scale: 0.088,
        window: None,
        softcap: None,
        sinks: None,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    }
}

/// Seconds of one attention.
fn time(isa: Isa, threads: usize, c: &Case, kind: Cache) -> f64 {
    let op = op(c);
    let len = c.depth + c.rows;
    let pages = len.div_ceil(PAGE);
    let table = PageTable { page_len: PAGE, first: 0, pages: (0..pages as u32).collect() };
    let seq =
        SeqRows { seq: 0, rows: 0..c.rows, pos: c.depth, known_len: len, tables: vec![table] };
    let forward = ForwardBatch { seqs: vec![seq] };
    let width = c.kv_heads * op.k_dim;
    let copies =
        if c.rows < 8 { ((256 << 20) / (pages * PAGE * width * 4)).clamp(1, 64) } else { 1 };
    let floats = |seed: usize| {
        (0..pages * PAGE * width).map(move |i| ((i * 7 + seed) % 97) as f32 / 97.0 - 0.5)
    };
    let bytes = |seed| match kind {
        Cache::F16 => cache(floats(seed).map(f16::from_f32)),
        Cache::Bf16 => cache(floats(seed).map(bf16::from_f32)),
    };
    let view = |bytes| match kind {
        Cache::F16 => CacheRef::f16(bytemuck::cast_slice(bytes)),
        Cache::Bf16 => CacheRef::bf16(bytemuck::cast_slice(bytes)),
    };
    let caches: Vec<_> = (0..copies).map(|i| (bytes(i), bytes(i + 5))).collect();
    let caches: Vec<_> = caches.iter().map(|(k, v)| (view(k), view(v))).collect();
    let pairs = matches!(kind, Cache::Bf16);
    let q: Vec<f32> =
        (0..c.rows * c.heads * op.k_dim).map(|i| (i % 83) as f32 / 83.0 - 0.5).collect();
    let mut y = vec![0.0; c.rows * c.heads * op.v_dim];
    let mut partials = vec![0.0; partial_floats(&op, &forward, threads)];
    let each = worker_floats(&op).next_multiple_of(16);
    let mut scratch = vec![0.0; each * threads];
    let mut pool = Pool::new(threads, None).expect("threads");
    let scratch = PerWorker::new(&mut scratch, each);
    let mut cx = Context { pool: &mut pool, isa, scratch };
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        for &(keys, values) in &caches {
            let x =
                Operands { op: &op, sinks: None, q: &q, keys, values, forward: &forward, pairs };
            attention(&mut cx, x, &mut partials, &mut y).expect("all positions are kept");
        }
        best = best.min(start.elapsed().as_secs_f64() / copies as f64);
    }
    std::hint::black_box(&y);
    best
}

fn print(isa: Isa, threads: usize, c: &Case, cache: Cache) {
    let &Case { heads, kv_heads, rows, depth } = c;
    let seconds = time(isa, threads, c, cache);
    let seen = rows * depth + rows * (rows + 1) / 2;
    let bytes = 2 * 2 * (depth + rows) * kv_heads * 128;
    println!(
        "| {} | {cache:?} | {heads}/{kv_heads} | {rows} | {depth} | {:.0} | {:.0} | {:.1} |",
        isa.name(),
        seconds * 1e6,
        (seen * heads * 128 * 4) as f64 / seconds / 1e9,
        bytes as f64 / seconds / 1e9
    );
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(2);
    let arg = |i: usize| std::env::args().nth(i);
    let number = |i: usize| arg(i).and_then(|n| n.parse::<usize>().ok());
    let only = number(2).zip(number(3));
    println!("{threads} threads, heads of 128; with a bf16 cache products are those of pairs");
    println!(
        "| kernels | cache | heads | rows | depth | us | GFLOP/s | GB/s |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for isa in Isa::available().into_iter().rev().filter(|i| *i != Isa::Scalar) {
        if arg(4).is_some_and(|name| name != isa.name()) {
            continue;
        }
        for (heads, kv_heads) in [(16, 8), (32, 8), (16, 16)] {
            for (rows, depth) in only.map_or(
                vec![(512, 0), (512, 4096), (64, 4096), (4, 4096), (1, 4096), (1, 100)],
                |c| vec![c],
            ) {
                if (heads, kv_heads) != (16, 8) && depth == 100 {
                    continue;
                }
                let c = Case { heads, kv_heads, rows, depth };
                print(isa, threads, &c, Cache::F16);
                if linear::bf16::has_pairs(isa) {
                    print(isa, threads, &c, Cache::Bf16);
                }
            }
        }
    }
}
