//! Attention: prompts, chunks of long prompts, and decoding at depth.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use half::{bf16, f16};
use troika_cpu::Isa;
use troika_cpu::kernels::attention::{Operands, attention, partial_floats};
use troika_cpu::kernels::kv::CacheRef;
use troika_cpu::kernels::linear::bf16::has_pairs;
use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::{ActivationFormat, Attention, StateKind};

use crate::{floats, isas, with};

/// `rows` queries after `depth` others.
#[derive(Clone, Copy)]
struct Case {
    isa: Isa,
    rows: usize,
    depth: usize,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} rows at {}", self.isa.name(), self.rows, self.depth)
    }
}

fn cases() -> Vec<Case> {
    let of = |isa| {
        [(512, 0), (512, 4096), (1, 512), (1, 4096)].map(|(rows, depth)| Case { isa, rows, depth })
    };
    isas().into_iter().flat_map(of).collect()
}

const PAGE: usize = 32;

/// 16 query heads on 8 key heads of 128 numbers, cache in f16. It counts the bytes of the cache,
/// and the operations of scores and sums over visible positions.
#[divan::bench(args = cases(), sample_count = 20)]
fn attention_f16(bencher: Bencher<'_, '_>, c: Case) {
    run(bencher, c, (f16::from_f32, |c| CacheRef::f16(c)), false);
}

/// The same with a cache in bf16 and products of pairs.
#[divan::bench(args = cases().into_iter().filter(|c| has_pairs(c.isa)), sample_count = 20)]
fn attention_bf16(bencher: Bencher<'_, '_>, c: Case) {
    run(bencher, c, (bf16::from_f32, |c| CacheRef::bf16(c)), true);
}

/// How a cache's elements are made, and what it is as an operand.
type Cache<T> = (fn(f32) -> T, fn(&[T]) -> CacheRef<'_>);

fn run<T: Clone>(bencher: Bencher<'_, '_>, c: Case, (make, view): Cache<T>, pairs: bool) {
    let (heads, kv_heads, dim) = (16, 8, 128);
    let op = Attention {
        heads,
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        scale: 1.0 / (dim as f32).sqrt(),
        window: None,
        softcap: None,
        sinks: None,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    };
    let len = c.rows + c.depth;
    let pages = len.div_ceil(PAGE);
    // Pages in no order, as after a while of use.
    let order = (0..pages).map(|p| (p * 7 % pages.next_power_of_two()) as u32 % pages as u32);
    let table = PageTable::new(StateKind::Paged(None), PAGE, order.collect());
    let seq = SeqRows { seq: 0, rows: 0..c.rows, pos: c.depth, known_len: 0, tables: vec![table] };
    let forward = ForwardBatch { seqs: vec![seq] };
    let cache: Vec<T> = floats(pages * PAGE * kv_heads * dim).into_iter().map(make).collect();
    let q = floats(c.rows * heads * dim);
    let mut y = vec![0.0; q.len()];
    // Decoding reads every layer's cache once: layers enough to leave the processor's caches.
    let layers = if c.rows > 1 { 1 } else { (crate::MEMORY / (cache.len() * 4)).clamp(1, 64) };
    let caches: Vec<[Vec<T>; 2]> = (0..layers).map(|_| [cache.clone(), cache.clone()]).collect();
    let seen: usize = (0..c.rows).map(|r| c.depth + r + 1).sum();
    let mut turn = 0;
    with(c.isa, |cx| {
        let mut partials = vec![0.0; partial_floats(&op, &forward, cx.pool.threads())];
        let bencher = bencher.counter(ItemsCount::new(4 * seen * heads * dim));
        bencher.counter(BytesCount::new(2 * 2 * len * kv_heads * dim)).bench_local(|| {
            turn = (turn + 1) % caches.len();
            let [keys, values] = caches[turn].each_ref().map(|c| view(c));
            let x =
                Operands { op: &op, sinks: None, q: &q, keys, values, forward: &forward, pairs };
            attention(cx, x, &mut partials, &mut y).expect("no panic")
        });
    });
}
