use half::{bf16, f16};
use proptest::prelude::*;
use troika_cpu::Isa;
use troika_cpu::kernels::attention::{self, Operands};
use troika_cpu::kernels::kv::CacheRef;
use troika_cpu::kernels::{Context, KernelError, linear};
use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::{ActivationFormat, Attention, StateKind, WeightRef};

use crate::{Random, close, on_each_isa, with};

struct Case {
    op: Attention,
    forward: ForwardBatch,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    sinks: Vec<f32>,
}

const PAGE: usize = 16;

/// Pages in no order, none twice.
fn tables(r: &mut Random, lens: &[usize]) -> (Vec<PageTable>, usize) {
    let total: usize = lens.iter().map(|l| l.div_ceil(PAGE)).sum::<usize>() + 2;
    let mut free: Vec<u32> = (0..total as u32).collect();
    let table = |len: &usize| {
        let pages = (0..len.div_ceil(PAGE)).map(|_| free.swap_remove(r.below(free.len())));
        PageTable::new(StateKind::Paged(None), PAGE, pages.collect())
    };
    (lens.iter().map(table).collect(), total * PAGE)
}

impl Case {
    fn new(op: Attention, seqs: &[(usize, usize)], seed: u64) -> Case {
        let mut r = Random(seed);
        let lens: Vec<usize> = seqs.iter().map(|(pos, rows)| pos + rows).collect();
        let (tables, cached) = tables(&mut r, &lens);
        let mut forward = ForwardBatch::default();
        for ((pos, rows), mut table) in seqs.iter().zip(tables) {
            let start = forward.rows();
            if let Some(w) = op.window {
                // Pages the window has left behind are gone.
                table.first = (pos + 1).saturating_sub(w) / PAGE;
                table.pages.drain(..table.first);
            }
            let rows = start..start + rows;
            forward.seqs.push(SeqRows {
                seq: 0,
                rows,
                pos: *pos,
                known_len: 0,
                tables: vec![table],
            });
        }
        let rows = forward.rows();
        Case {
            q: r.floats(rows * op.heads * op.k_dim),
            k: r.floats(cached * op.kv_heads * op.k_dim),
            v: r.floats(cached * op.kv_heads * op.v_dim),
            sinks: r.floats(op.heads),
            op,
            forward,
        }
    }

    fn operands<'a>(&'a self, keys: CacheRef<'a>, values: CacheRef<'a>) -> Operands<'a> {
        let sinks = self.op.sinks.map(|_| &self.sinks[..]);
        let values = if self.op.value_in_key { keys } else { values };
        Operands {
            op: &self.op,
            sinks,
            q: &self.q,
            keys,
            values,
            forward: &self.forward,
            pairs: false,
        }
    }

    fn plain(&self) -> Operands<'_> {
        self.operands(CacheRef::f32(&self.k), CacheRef::f32(&self.v))
    }
}

fn run(cx: &mut Context<'_>, x: Operands<'_>) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.forward.rows() * x.op.heads * x.op.v_dim];
    let mut partials =
        vec![f32::NAN; attention::partial_floats(x.op, x.forward, cx.pool.threads())];
    attention::attention(cx, x, &mut partials, &mut y).unwrap();
    y
}

fn rounded(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|x| bf16::from_f32(*x)).collect()
}

fn reference(x: Operands<'_>) -> Vec<f32> {
    let (heads, v_dim) = (x.op.heads, x.op.v_dim);
    let mut y = vec![0.0; x.forward.rows() * heads * v_dim];
    for s in &x.forward.seqs {
        for (row, head) in s.rows.clone().flat_map(|r| (0..heads).map(move |h| (r, h))) {
            let out = &mut y[(row * heads + head) * v_dim..][..v_dim];
            crate::reference::attention_line(&x, s, row, head, out);
        }
    }
    y
}

fn op() -> impl Strategy<Value = Attention> {
    let dims =
        prop::sample::select(vec![(8, 8), (64, 64), (40, 24), (20, 5), (128, 128), (80, 64)]);
    let window = prop::option::of(prop::sample::select(vec![1usize, 3, 16, 50, 200]));
    let cap = prop::option::of(Just(2.0f32));
    let heads = prop::sample::select(vec![(1, 1), (4, 4), (6, 2), (12, 1), (16, 4)]);
    (dims, heads, window, cap, any::<bool>(), any::<bool>()).prop_map(
        |((k_dim, v_dim), (heads, kv_heads), window, softcap, sinks, value_in_key)| Attention {
            k_dim,
            v_dim,
            scale: 1.0 / (k_dim as f32).sqrt() * 4.0,
            window,
            softcap,
            sinks: sinks.then_some(WeightRef(0)),
            value_in_key,
            ..simple(heads, kv_heads)
        },
    )
}

/// Positions before a sequence's rows: at times several splits.
fn before() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0usize..150, 1 => 480usize..540, 1 => 900usize..1300]
}

proptest! {
    #![proptest_config(crate::cases(100))]

    #[test]
    fn attention_matches_the_reference(
        op in op(),
        seqs in prop::collection::vec((before(), 1usize..20), 1..4),
        seed: u64,
    ) {
        let case = Case::new(op, &seqs, seed);
        let half = |x: &[f32]| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
        let (k, v) = (half(&case.k), half(&case.v));
        let (bk, bv) = (rounded(&case.k), rounded(&case.v));
        let halves = case.operands(CacheRef::f16(&k), CacheRef::f16(&v));
        for x in [case.plain(), halves, case.operands(CacheRef::bf16(&bk), CacheRef::bf16(&bv))] {
            let want = reference(x);
            on_each_isa(2, |cx| close(&run(cx, x), &want, 3e-6, "attention"));
        }
    }

    /// Products of pairs, natively where they exist and in plain Rust. The reference has the
    /// queries rounded, but not the weights.
    #[test]
    fn pairs_match_the_reference(
        op in op(),
        seqs in prop::collection::vec((before(), 1usize..20), 1..3),
        seed: u64,
    ) {
        let mut case = Case::new(op, &seqs, seed);
        // Rounding a scaled query is not scaling a rounded one, unless by a power of two.
        case.op.scale = 0.5;
        case.q.iter_mut().for_each(|q| *q = bf16::from_f32(*q).to_f32());
        let [k, v] = [&case.k, &case.v].map(|c| rounded(c));
        let x = Operands { pairs: true, ..case.operands(CacheRef::bf16(&k), CacheRef::bf16(&v)) };
        let want = reference(x);
        let plain = with(Isa::Scalar, 2, |cx| run(cx, x));
        close(&plain, &want, 4e-3, "in plain Rust");
        for isa in Isa::available().into_iter().filter(|i| linear::bf16::has_pairs(*i)) {
            close(&with(isa, 2, |cx| run(cx, x)), &want, 4e-3, "natively");
        }
    }

    /// A prompt in one piece, in chunks and token by token.
    #[test]
    fn cutting_a_prompt_does_not_change_bits(
        op in op(),
        len in 1usize..100,
        cut in 0usize..100,
        pairs: bool,
        seed: u64,
    ) {
        let whole = Case::new(op, &[(0, len)], seed);
        let [k, v] = [&whole.k, &whole.v].map(|c| rounded(c));
        let operands = || match pairs {
            true => {
                let x = whole.operands(CacheRef::bf16(&k), CacheRef::bf16(&v));
                Operands { pairs, ..x }
            }
            false => whole.plain(),
        };
        let cut = cut.min(len - 1);
        let width = whole.op.heads * whole.op.k_dim;
        let part = |from: usize, to: usize| {
            let mut s = whole.forward.seqs[0].clone();
            (s.rows, s.pos) = (0..to - from, from);
            (ForwardBatch { seqs: vec![s] }, &whole.q[from * width..to * width])
        };
        on_each_isa(2, |cx| {
            let all = run(cx, operands());
            let v_width = whole.op.heads * whole.op.v_dim;
            for (from, to) in [(0, cut.max(1)), (cut, len), (len - 1, len)] {
                let (forward, q) = part(from, to);
                let got = run(cx, Operands { forward: &forward, q, ..operands() });
                assert_eq!(got, &all[from * v_width..to * v_width]);
            }
        });
    }
}

/// Rows far into a sequence, all at once, in pairs and one by one, with any number of threads.
#[test]
fn splits_do_not_change_bits() {
    for (heads, kv_heads, window) in [(16, 8, None), (5, 1, Some(700)), (28, 4, None), (3, 3, None)]
    {
        let op = Attention { window, k_dim: 40, v_dim: 24, ..simple(heads, kv_heads) };
        let (pos, len) = (1010, 21);
        let whole = Case::new(op, &[(pos, len)], 5);
        let (width, v_width) = (whole.op.heads * whole.op.k_dim, whole.op.heads * whole.op.v_dim);
        let [k, v] = [&whole.k, &whole.v].map(|c| rounded(c));
        let pairs = whole.operands(CacheRef::bf16(&k), CacheRef::bf16(&v));
        let each = [whole.plain(), Operands { pairs: true, ..pairs }];
        for (isa, operands) in Isa::available().into_iter().flat_map(|i| each.map(|x| (i, x))) {
            let all = with(isa, 2, |cx| run(cx, operands));
            for (rows, threads) in [(1, 2), (2, 8), (10, 3), (len, 5)] {
                for from in (0..len).step_by(rows) {
                    let to = (from + rows).min(len);
                    let mut s = whole.forward.seqs[0].clone();
                    (s.rows, s.pos) = (0..to - from, pos + from);
                    let (forward, q) =
                        (ForwardBatch { seqs: vec![s] }, &whole.q[from * width..to * width]);
                    let x = Operands { forward: &forward, q, ..operands };
                    let got = with(isa, threads, |cx| run(cx, x));
                    assert_eq!(got, &all[from * v_width..to * v_width], "{rows} rows from {from}");
                }
            }
        }
    }
}

pub fn simple(heads: usize, kv_heads: usize) -> Attention {
    Attention {
        heads,
        kv_heads,
        k_dim: 16,
        v_dim: 16,
        scale: 0.25,
        window: None,
        softcap: None,
        sinks: None,
        value_in_key: false,
        page_group: 0,
        activations: ActivationFormat::F32,
    }
}

#[test]
fn threads_do_not_change_bits() {
    let case = Case::new(simple(8, 2), &[(100, 40), (0, 3), (300, 1)], 9);
    for isa in crate::runnable() {
        let one = with(isa, 1, |cx| run(cx, case.plain()));
        for threads in 2..=3 {
            assert_eq!(one, with(isa, threads, |cx| run(cx, case.plain())));
        }
    }
}

#[test]
fn a_visible_position_that_is_not_kept_is_an_error() {
    let mut case = Case::new(simple(2, 1), &[(40, 2)], 9);
    let table = &mut case.forward.seqs[0].tables[0];
    table.first = 1;
    table.pages.remove(0);
    let mut y = vec![0.0; 2 * 2 * 16];
    on_each_isa(1, |cx| {
        let refused = attention::attention(cx, case.plain(), &mut [], &mut y);
        assert!(matches!(refused, Err(KernelError::Operand(_))), "{refused:?}");
    });
    // With a window that ends before the lost page, all is well.
    case.op.window = Some(20);
    let want = reference(case.plain());
    on_each_isa(1, |cx| close(&run(cx, case.plain()), &want, 3e-6, "windowed"));
}
