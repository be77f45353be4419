//! Operands that end, or begin, where memory does: the page beside them may not be touched, so a
//! kernel that reads or writes a byte too much ends the tests.

use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use half::{bf16, f16};
use troika_cpu::kernels::attention::{self, Operands};
use troika_cpu::kernels::elementwise::{self, Element, Slice};
use troika_cpu::kernels::int8::{self, INT7, Layout, PackedView, Quantization};
use troika_cpu::kernels::kv::{self, CacheMut, CacheRef};
use troika_cpu::kernels::linear::{self, OutView, Product, RowsView, WeightView, panels};
use troika_cpu::kernels::moe::{self, Expert, Memory};
use troika_cpu::kernels::norm::{self, Norm};
use troika_cpu::kernels::{Context, embed, rope, router};
use troika_cpu::{Isa, PerWorker, Pool, SharedMut};
use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::{
    Activation, ActivationFormat, Attention, DType, Rope, RopeFreqs, RopeStyle, Router, Score,
    StateKind, WeightRef,
};

use crate::Random;
use crate::linear::DTYPES;

/// Which end of the memory has nothing beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    Begin,
    End,
}

const EDGES: [Edge; 2] = [Edge::Begin, Edge::End];

/// Elements between two pages that may not be touched, at one of them.
struct Guarded<T> {
    base: *mut libc::c_void,
    mapped: usize,
    first: *mut T,
    len: usize,
}

// SAFETY: owns its elements, as a vector does.
unsafe impl<T: Sync> Sync for Guarded<T> {}

impl<T: Pod> Guarded<T> {
    fn new(data: &[T], edge: Edge) -> Guarded<T> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        let room = bytes.len().next_multiple_of(page).max(page);
        let mapped = room + 2 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory anywhere; all but the first and the last page is opened, and the
        // elements lie in these pages. A page's end is a multiple of every element's size.
        unsafe {
            let base = libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let open = base.cast::<u8>().add(page);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(open.cast(), room, access), 0);
            let at = if edge == Edge::End { room - bytes.len() } else { 0 };
            let first = open.add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), first, bytes.len());
            Guarded { base, mapped, first: first.cast(), len: data.len() }
        }
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the elements put there.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: what was mapped.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}

/// Runs `f` on each instruction set and at each edge; the scratch, too, is as much as asked for.
fn guarded(scratch: usize, mut f: impl FnMut(&mut Context<'_>, Edge)) {
    for isa in crate::runnable() {
        for edge in EDGES {
            let each = scratch.next_multiple_of(16);
            let mut scratch = Guarded::new(&vec![f32::NAN; each], edge);
            let mut pool = Pool::new(1, None).unwrap();
            let scratch = PerWorker::new(&mut scratch, each);
            f(&mut Context { pool: &mut pool, isa, scratch }, edge);
        }
    }
}

/// Results that nobody wrote.
fn empty(len: usize, edge: Edge) -> Guarded<f32> {
    Guarded::new(&vec![f32::NAN; len], edge)
}

fn finite(y: &[f32], what: &dyn std::fmt::Debug) {
    assert!(y.iter().all(|y| y.is_finite()), "{what:?}: {y:?}");
}

/// The pages beside are there: a byte too much ends the process. So the tests below can fail.
#[test]
fn a_byte_beside_guarded_memory_ends_the_process() {
    for edge in EDGES {
        let data = Guarded::new(&[1u8; 33], edge);
        let beside = match edge {
            Edge::Begin => data.first.wrapping_sub(1),
            Edge::End => data.first.wrapping_add(33),
        };
        // SAFETY: the child calls nothing but what may be called after a fork; it is to die of the
        // read.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let byte = std::ptr::read_volatile(beside);
                libc::_exit(i32::from(byte));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            let signal = libc::WTERMSIG(status);
            let died = libc::WIFSIGNALED(status);
            assert!(died && [libc::SIGSEGV, libc::SIGBUS].contains(&signal), "{edge:?}: {status}");
        }
    }
}

const ROWS: [usize; 8] = [1, 2, 3, 5, 6, 13, 32, 33];

/// Runs a product with its weight as stored and in panels, which gives the same bits.
fn products_stay_inside(cx: &mut Context<'_>, rows: usize, product: Product<'_>, edge: Edge) {
    let w = product.weight;
    let floats = w.rows.div_ceil(panels::ROWS) * panels::panel_bytes(w.dtype, w.cols) / 4;
    let mut packed = empty(floats, edge);
    panels::pack_panels(cx.isa, w, bytemuck::cast_slice_mut(&mut packed));
    let mut results = Vec::new();
    for panels in [false, true] {
        let bytes = if panels { bytemuck::cast_slice(&packed) } else { w.bytes };
        let mut y = empty(rows * w.rows, edge);
        let out = OutView::dense(SharedMut::new(&mut y), w.rows);
        let p = Product { weight: WeightView { bytes, ..w }, y: out, panels, ..product };
        // SAFETY: nobody else has the results.
        unsafe { linear::linear(cx, rows, 1, &|_| p) }.unwrap();
        finite(&y, &(w.dtype, cx.isa, rows, w.rows, w.cols, edge, panels));
        results.push(y.to_vec());
    }
    assert_eq!(results[0], results[1]);
}

/// A product without results.
fn product<'a>(weight: WeightView<'a>, bias: &'a [f32], x: RowsView<'a>) -> Product<'a> {
    let y = OutView::dense(SharedMut::new(&mut []), weight.rows);
    Product { weight, bias: Some(bias), x, y, pairs: false, panels: false }
}

#[test]
fn products_of_floats_stay_inside() {
    let mut r = Random(1);
    for &dtype in DTYPES {
        let len = dtype.block_len();
        for (i, rows) in ROWS.into_iter().enumerate() {
            let n = 1 + r.below(70);
            let k = len * if len == 1 { [1, 7, 16, 31, 257, 300, 513, 512][i] } else { 1 + i % 3 };
            let bytes = r.weight(dtype, n * k);
            let (x, b) = (r.floats(rows * k), r.floats(n));
            guarded(linear::worker_floats(), |cx, edge| {
                let bytes = Guarded::new(&bytes, edge);
                let (x, b) = (Guarded::new(&x, edge), Guarded::new(&b, edge));
                let w = WeightView { dtype, bytes: &bytes, rows: n, cols: k };
                products_stay_inside(cx, rows, product(w, &b, RowsView::dense(&x, k)), edge);
            });
        }
    }
}

#[test]
fn products_of_pairs_stay_inside() {
    let mut r = Random(2);
    for (i, rows) in ROWS.into_iter().enumerate() {
        let (n, k) = (1 + r.below(70), [1, 2, 31, 33, 511, 513, 1100, 544][i]);
        let bytes = r.weight(DType::BF16, n * k);
        let (x, b) = (r.floats(rows * k), r.floats(n));
        guarded(linear::worker_floats(), |cx, edge| {
            let (x, b) = (Guarded::new(&x, edge), Guarded::new(&b, edge));
            let bytes = Guarded::new(&bytes, edge);
            let width = linear::bf16::words(k);
            let mut words = empty(rows * width, edge);
            linear::bf16::round(cx, &x, k, true, &mut words).unwrap();
            let w = WeightView { dtype: DType::BF16, bytes: &bytes, rows: n, cols: k };
            let p = product(w, &b, RowsView::dense(&words, width));
            products_stay_inside(cx, rows, Product { pairs: true, ..p }, edge);
        });
    }
}

#[test]
fn products_of_bytes_stay_inside() {
    let mut r = Random(3);
    for (dtype, activations) in int8::kinds() {
        let quantization = Quantization::of(dtype, activations);
        for (i, rows) in ROWS.into_iter().enumerate() {
            let (n, k) = (1 + r.below(70), dtype.block_len() * (1 + i % 3));
            let layout = Layout::new(dtype, n, k).unwrap();
            let packed = layout.pack(&r.weight(dtype, n * k));
            let (x, up, b) = (r.floats(rows * k), r.floats(rows * k), r.floats(n));
            guarded(linear::worker_floats(), |cx, edge| {
                let (x, up) = (Guarded::new(&x, edge), Guarded::new(&up, edge));
                let (b, packed) = (Guarded::new(&b, edge), Guarded::new(&packed, edge));
                let weight = Guarded::new(&vec![1.5; k], edge);
                let norm = Norm::Rms { weight: Some(&weight), eps: 1e-5, offset: 0.0 };
                let width = int8::floats(k);
                let made = [
                    int8::ActivationRows::Plain(&x),
                    int8::ActivationRows::Norm(norm, &x),
                    int8::ActivationRows::Gate(Activation::Silu, [&x, &up]),
                ];
                for from in made {
                    let mut q = empty(rows * width, edge);
                    int8::quantize(cx, from, k, &mut [(quantization, &mut q)]).unwrap();
                    let mut y = empty(rows * n, edge);
                    let product = int8::Product {
                        weight: PackedView { layout, bytes: &packed },
                        bias: Some(&b),
                        x: RowsView::dense(&q, width),
                        quantization,
                        y: OutView::dense(SharedMut::new(&mut y), n),
                    };
                    // SAFETY: nobody else has the results.
                    unsafe { int8::linear(cx, rows, &[product]) }.unwrap();
                    finite(&y, &(dtype, cx.isa, rows, n, k, edge));
                }
            });
        }
    }
}

/// Weights of some experts, each part in guarded memory.
type Weights = Vec<[Guarded<u8>; 3]>;

const EXPERTS: usize = 3;
const TOP_K: usize = 2;
/// Columns of rows.
const K: usize = 64;
/// Columns between the projections.
const INTER: usize = 96;

/// Runs experts on rows that chose them, and on the rows of a group.
fn run_experts<'e, W: moe::Weight>(
    cx: &mut Context<'_>,
    dtype: DType,
    rows: usize,
    expert: &(dyn Fn(usize) -> Expert<'e, W> + Sync),
    activations: ActivationFormat,
    edge: Edge,
) {
    let mut r = Random(4);
    let x = Guarded::new(&r.floats(rows * K), edge);
    let share = Guarded::new(&r.floats(rows * TOP_K), edge);
    let ids: Vec<i32> = (0..rows * TOP_K).map(|i| (i % EXPERTS) as i32).collect();
    let ids = Guarded::new(&ids, edge);
    let group = crate::moe::operands(EXPERTS, K, INTER, expert, &x);
    let group = moe::Operands { activations, ..group };
    let chosen = moe::Operands { ids: &ids, weights: &share, top_k: TOP_K, ..group };
    for x in [chosen, group] {
        let mut floats = empty(moe::floats(rows, x.top_k, K, INTER, activations), edge);
        let words = vec![u32::MAX; moe::words(rows * x.top_k, EXPERTS)];
        let mut words = Guarded::new(&words, edge);
        let mut y = empty(rows * K, edge);
        let memory = Memory { floats: &mut floats, words: &mut words };
        match x.ids {
            [] => moe::group(cx, x, rows.div_ceil(EXPERTS), memory, &mut y).unwrap(),
            _ => moe::experts(cx, x, memory, &mut y).unwrap(),
        }
        finite(&y, &(dtype, cx.isa, rows, edge));
    }
}

#[test]
fn experts_stay_inside() {
    let mut r = Random(4);
    for (rows, dtype) in [(1, DType::F32), (5, DType::BF16), (70, DType::Q8_0), (2, DType::MXFP4)] {
        let raw: Vec<[Vec<u8>; 3]> =
            (0..EXPERTS).map(|_| std::array::from_fn(|_| r.weight(dtype, K * INTER))).collect();
        let bias = [r.floats(INTER), r.floats(INTER), r.floats(K)];
        let activations =
            if dtype == DType::BF16 { ActivationFormat::Bf16 } else { ActivationFormat::F32 };
        guarded(moe::worker_floats(), |cx, edge| {
            let bias = bias.each_ref().map(|b| Guarded::new(b, edge));
            let guard = |w: &[Vec<u8>; 3]| w.each_ref().map(|w| Guarded::new(w, edge));
            let weights: Weights = raw.iter().map(guard).collect();
            let view = |bytes, rows, cols| WeightView { dtype, bytes, rows, cols };
            let expert = |e: usize| Expert {
                gate: view(&weights[e][0], INTER, K),
                up: view(&weights[e][1], INTER, K),
                down: view(&weights[e][2], K, INTER),
                bias: bias.each_ref().map(|b| Some(&b[..])),
            };
            run_experts(cx, dtype, rows, &expert, activations, edge);
        });
    }
}

#[test]
fn packed_experts_stay_inside() {
    let mut r = Random(5);
    for (rows, dtype) in
        [(1, DType::Q8_0), (33, DType::Q8_0), (5, DType::Q4_0), (40, DType::Q4_G32)]
    {
        let layouts = [(INTER, K), (INTER, K), (K, INTER)]
            .map(|(rows, cols)| Layout::new(dtype, rows, cols).unwrap());
        let mut pack = |l: Layout| l.pack(&r.weight(dtype, K * INTER));
        let raw: Vec<[Vec<u8>; 3]> = (0..EXPERTS).map(|_| layouts.map(&mut pack)).collect();
        guarded(moe::worker_floats(), |cx, edge| {
            let guard = |w: &[Vec<u8>; 3]| w.each_ref().map(|w| Guarded::new(w, edge));
            let packed: Weights = raw.iter().map(guard).collect();
            let view = |e: usize, i: usize| PackedView { layout: layouts[i], bytes: &packed[e][i] };
            let expert = |e: usize| Expert {
                gate: view(e, 0),
                up: view(e, 1),
                down: view(e, 2),
                bias: [None; 3],
            };
            run_experts(cx, dtype, rows, &expert, INT7, edge);
        });
    }
}

/// A sequence whose positions lie one after another in a cache that has no others.
fn sequence(pos: usize, rows: usize) -> ForwardBatch {
    let pages = (0..(pos + rows).div_ceil(16) as u32).collect();
    let tables = vec![PageTable::new(StateKind::Paged(None), 16, pages)];
    ForwardBatch {
        seqs: vec![SeqRows { seq: 0, rows: 0..rows, pos, known_len: pos + rows, tables }],
    }
}

fn ops() -> Vec<Attention> {
    let op = |heads, kv_heads, k_dim, v_dim| Attention {
        k_dim,
        v_dim,
        ..crate::attention::simple(heads, kv_heads)
    };
    vec![
        op(4, 2, 64, 64),
        op(3, 3, 7, 9),
        Attention { window: Some(37), ..op(8, 1, 33, 20) },
        Attention { value_in_key: true, ..op(5, 1, 72, 50) },
        Attention { softcap: Some(20.0), sinks: Some(WeightRef(0)), ..op(6, 2, 128, 130) },
    ]
}

#[test]
fn attention_stays_inside() {
    let mut r = Random(6);
    for op in ops() {
        for (pos, rows) in [(0, 1), (69, 1), (0, 41), (300, 3), (1030, 1), (63, 2)] {
            let (forward, cached) = (sequence(pos, rows), pos + rows);
            let q = r.floats(rows * op.heads * op.k_dim);
            let k = r.floats(cached * op.kv_heads * op.k_dim);
            let v = r.floats(cached * op.kv_heads * op.v_dim);
            let sinks = r.floats(op.heads);
            guarded(attention::worker_floats(&op), |cx, edge| {
                let halves = |x: &[f32]| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
                let brains = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
                let [k32, v32] = [&k, &v].map(|x| Guarded::new(x, edge));
                let [k16, v16] = [&k, &v].map(|x| Guarded::new(&halves(x), edge));
                let [kb, vb] = [&k, &v].map(|x| Guarded::new(&brains(x), edge));
                let (q, sinks) = (Guarded::new(&q, edge), Guarded::new(&sinks, edge));
                let kinds = [
                    (CacheRef::f32(&k32), CacheRef::f32(&v32), false),
                    (CacheRef::f16(&k16), CacheRef::f16(&v16), false),
                    (CacheRef::bf16(&kb), CacheRef::bf16(&vb), false),
                    (CacheRef::bf16(&kb), CacheRef::bf16(&vb), true),
                ];
                for (keys, values, pairs) in kinds {
                    let values = if op.value_in_key { keys } else { values };
                    let sinks = op.sinks.map(|_| &sinks[..]);
                    let x =
                        Operands { op: &op, sinks, q: &q, keys, values, forward: &forward, pairs };
                    let mut partials = empty(attention::partial_floats(&op, &forward, 1), edge);
                    let mut y = empty(rows * op.heads * op.v_dim, edge);
                    attention::attention(cx, x, &mut partials, &mut y).unwrap();
                    finite(&y, &(&op, cx.isa, pos, rows, pairs, edge));
                }
            });
        }
    }
}

#[test]
fn appending_stays_inside() {
    let mut r = Random(7);
    for (width, pos, rows) in [(1, 0, 1), (7, 15, 3), (64, 3, 14), (130, 0, 40), (1100, 16, 33)] {
        let (forward, cached) = (sequence(pos, rows), pos + rows);
        let x = r.floats(rows * width);
        guarded(0, |cx, edge| {
            let x = Guarded::new(&x, edge);
            let (mut a, mut b, mut c) = (
                empty(cached * width, edge),
                Guarded::new(&vec![f16::NAN; cached * width], edge),
                Guarded::new(&vec![bf16::NAN; cached * width], edge),
            );
            kv::append(cx, &forward, 0, &x, width, CacheMut::f32(&mut a)).unwrap();
            kv::append(cx, &forward, 0, &x, width, CacheMut::f16(&mut b)).unwrap();
            kv::append(cx, &forward, 0, &x, width, CacheMut::bf16(&mut c)).unwrap();
            let new = pos * width..;
            assert_eq!(a[new.clone()], x[..]);
            assert!(b[new.clone()].iter().zip(&*x).all(|(b, x)| *b == f16::from_f32(*x)));
            assert!(c[new].iter().zip(&*x).all(|(c, x)| *c == bf16::from_f32(*x)));
        });
    }
}

#[test]
fn norms_and_elements_stay_inside() {
    let mut r = Random(8);
    let elements = [
        Element::Activate(Activation::Silu),
        Element::Activate(Activation::Gelu),
        Element::Activate(Activation::GeluTanh),
        Element::Activate(Activation::Relu),
        Element::Gate(Activation::Silu),
        Element::Gate(Activation::ClampedSwiglu { alpha: 1.7, limit: 7.0 }),
        Element::Add,
        Element::Scale(2.0),
        Element::Clamp(0.5),
        Element::SoftCap(3.0),
    ];
    for cols in [1, 3, 8, 15, 16, 17, 33, 100, 1030] {
        let rows = 1 + r.below(5);
        let (a, b, w) = (r.floats(rows * cols), r.floats(rows * cols), r.floats(cols));
        guarded(0, |cx, edge| {
            let [a, b, w] = [&a, &b, &w].map(|x| Guarded::new(x, edge));
            let norms = [
                Norm::Rms { weight: Some(&w), eps: 1e-5, offset: 1.0 },
                Norm::Rms { weight: None, eps: 1e-5, offset: 0.0 },
                Norm::Layer { weight: &w, bias: Some(&w), eps: 1e-5 },
                Norm::Columns(&w),
                Norm::Match { like: &b, least: 1e-5 },
                Norm::Largest { deviations: 1.0 },
            ];
            for norm in norms {
                let mut y = empty(rows * cols, edge);
                norm::norm(cx, norm, &a, &mut y, cols).unwrap();
                finite(&y, &(norm, cx.isa, cols, edge));
            }
            for op in elements {
                let two = matches!(op, Element::Gate(_) | Element::Add);
                let mut y = empty(rows * cols, edge);
                elementwise::elementwise(cx, op, &a, two.then_some(&b), &mut y).unwrap();
                finite(&y, &(op, cx.isa, cols, edge));
            }
            let gates = Guarded::new(&a[..rows], edge);
            let mut y = empty(rows * cols, edge);
            elementwise::sigmoid_gate(cx, &a, &gates, &mut y, cols).unwrap();
            finite(&y, &(cx.isa, cols, edge));
            let mut y = empty(2 * rows * cols, edge);
            elementwise::concat_cols(cx, 1, &a, &b, [cols, cols], &mut y).unwrap();
            finite(&y, &(cx.isa, cols, edge));
            let mut y = empty(rows * cols, edge);
            elementwise::mix(cx, 1, &a, &gates, &mut y, cols).unwrap();
            finite(&y, &(cx.isa, cols, edge));
            let slice = Slice { group: cols, start: cols / 2, len: cols - cols / 2 };
            let mut y = empty(rows * slice.len, edge);
            elementwise::slice_cols(cx, slice, &a, &mut y, cols).unwrap();
            finite(&y, &(cx.isa, cols, edge));
        });
    }
}

#[test]
fn ropes_routers_and_embeddings_stay_inside() {
    let mut r = Random(9);
    for (heads, head_dim, rotary_dim) in [(1, 2, 2), (3, 10, 6), (2, 64, 64), (5, 33, 32)] {
        let (rows, cols) = (3, heads * head_dim);
        let (x, inv_freq) = (r.floats(rows * cols), r.floats(rotary_dim / 2));
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            let freqs = RopeFreqs { inv_freq: inv_freq.clone().into(), factor: 1.0, growth: None };
            let offset = head_dim - rotary_dim;
            let op = Rope { head_dim, offset, rotary_dim, style, freqs, long: None };
            guarded(rope::worker_floats(&op), |cx, edge| {
                let (x, positions) = (Guarded::new(&x, edge), Guarded::new(&[0, 7, 900], edge));
                let mut y = empty(rows * cols, edge);
                let forward = sequence(0, rows);
                rope::rope(cx, &op, &forward, &x, &positions, &mut y).unwrap();
                finite(&y, &(cx.isa, heads, head_dim, style, edge));
            });
        }
    }
    for (experts, top_k) in [(2, 2), (7, 2), (33, 4)] {
        let op = Router { normalize: true, ..crate::router::op(Score::Softmax, experts, top_k) };
        let logits = r.floats(5 * experts);
        guarded(router::worker_floats(&op), |cx, edge| {
            let logits = Guarded::new(&logits, edge);
            let mut ids = Guarded::new(&vec![-1i32; 5 * top_k], edge);
            let mut shares = empty(5 * top_k, edge);
            let choice = router::Choice { op: &op, bias: None, scales: None };
            router::router(cx, choice, &logits, &mut ids, &mut shares).unwrap();
            finite(&shares, &(cx.isa, experts, edge));
            assert!(ids.iter().all(|id| (0..experts as i32).contains(id)));
        });
    }
    for &dtype in DTYPES {
        let (rows, cols) = (3, dtype.block_len() * 2);
        let bytes = r.weight(dtype, rows * cols);
        guarded(0, |cx, edge| {
            let (bytes, ids) = (Guarded::new(&bytes, edge), Guarded::new(&[2, 0, 2, 1], edge));
            let table = WeightView { dtype, bytes: &bytes, rows, cols };
            let mut y = empty(4 * cols, edge);
            embed::embed(cx, table, 2.0, &ids, &mut y).unwrap();
            finite(&y, &(dtype, cx.isa, edge));
        });
    }
}

#[test]
fn the_sets_under_guard_are_all_that_run_here() {
    let mut seen = Vec::new();
    guarded(0, |cx, edge| seen.push((cx.isa, edge)));
    for isa in Isa::available() {
        for edge in EDGES {
            assert!(seen.contains(&(isa, edge)), "{}", isa.name());
        }
    }
}
