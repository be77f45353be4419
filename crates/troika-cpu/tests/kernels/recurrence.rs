//! Recurrences, compared with plain references.

use troika_cpu::kernels::kv::CacheMut;
use troika_cpu::kernels::recurrence::{self, delta, mamba2, short_conv};
use troika_cpu::kernels::{Context, KernelError};
use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::{Decay, DecayingSum, DeltaRule, Mamba2, ShortConv, StateKind, WeightRef};

use crate::{Random, reference, runnable, with};

const PAGE: usize = 4;

/// A sequence's rows behind `pos` positions.
fn batch(pos: usize, rows: usize) -> ForwardBatch {
    let pages = vec![3, 0, 4, 1, 2];
    let table = PageTable::new(StateKind::Fixed, PAGE, pages);
    let known_len = pos + rows;
    let seq = SeqRows { seq: 1, rows: 0..rows, pos, known_len, tables: vec![table] };
    ForwardBatch { seqs: vec![seq] }
}

#[test]
fn sums_go_on_from_chunk_to_chunk() {
    let width = 150;
    let op = DecayingSum { width, decay: 0.75, page_group: 0 };
    let x = Random(5).floats(width * LEN);
    let want = reference::decaying_sum(&x, width, op.decay);
    goes_on(&want, width, |cx, from, rows, state| {
        let (to, forward, mut y) = (from + rows, batch(from, rows), vec![f32::NAN; rows * width]);
        let CacheMut::F32(cache) = CacheMut::f32(state) else { panic!() };
        let x = &x[from * width..to * width];
        recurrence::decaying_sum(cx, &forward, &op, cache, x, &mut y).unwrap();
        assert_eq!(y, &want[from * width..to * width], "{rows} rows from {from}");
        // The sums at the ends of pages, and behind the last row, are kept.
        let table = &forward.seqs[0].tables[0];
        for pos in (PAGE - 1..to).step_by(PAGE).chain([to - 1]) {
            let row = table.row(pos).unwrap() * width;
            assert_eq!(state[row..row + width], want[pos * width..][..width], "{pos}");
        }
        y
    });
}

#[test]
fn positions_without_a_row_are_errors() {
    let op = DecayingSum { width: 2, decay: 0.5, page_group: 0 };
    let mut paged = batch(0, 2);
    paged.seqs[0].tables[0].fixed = false;
    let mut passed = batch(8, 2);
    passed.seqs[0].tables[0].first = 2;
    for forward in [paged, passed, batch(20, 2), batch(6, 4)] {
        let rows = forward.rows();
        let (mut state, mut y) = (vec![0.0; 4 * 2], vec![0.0; rows * 2]);
        let x = vec![1.0; rows * 2];
        with(runnable().next().unwrap(), 1, |cx| {
            let CacheMut::F32(state) = CacheMut::f32(&mut state) else { panic!() };
            let refused = recurrence::decaying_sum(cx, &forward, &op, state, &x, &mut y);
            assert!(matches!(refused, Err(KernelError::Operand(_))), "{forward:?}: {refused:?}");
        });
    }
}

/// `silu(bias + sum of the last inputs)`, the inputs and results gated.
fn convolved(op: &ShortConv, weight: &[f32], bias: &[f32], x: &[f32]) -> Vec<f32> {
    let (width, taps) = (op.width, op.taps);
    let input = |row: usize, c: usize| {
        let x = &x[row * op.input().unwrap()..];
        f64::from(if op.gated { x[c] * x[2 * width + c] } else { x[c] })
    };
    let one = |i: usize| {
        let (row, c) = (i / width, i % width);
        let mut sum = f64::from(bias[c]);
        for tap in (0..taps).filter(|tap| row + tap + 1 >= taps) {
            sum += f64::from(weight[tap * width + c]) * input(row + tap + 1 - taps, c);
        }
        let y = if op.silu { sum / (1.0 + (-sum).exp()) } else { sum };
        let gate = if op.gated { x[row * 3 * width + width + c] } else { 1.0 };
        (y * f64::from(gate)) as f32
    };
    (0..x.len() / op.input().unwrap() * width).map(one).collect()
}

/// Rows of the tests that run in chunks.
const LEN: usize = 18;

/// Runs all rows in chunks of several lengths, with a state of so many floats in a row: the results
/// are near what is wanted, and the same bits for all chunks.
fn goes_on(
    want: &[f32],
    state: usize,
    run: impl Fn(&mut Context<'_>, usize, usize, &mut [f32]) -> Vec<f32>,
) {
    for isa in runnable() {
        let mut whole = Vec::new();
        for (chunk, threads) in [(LEN, 4), (1, 1), (2, 2), (3, 2), (4, 3), (5, 1)] {
            let mut state = vec![f32::NAN; 5 * state];
            let mut all = Vec::new();
            for from in (0..LEN).step_by(chunk) {
                let rows = chunk.min(LEN - from);
                with(isa, threads, |cx| all.extend(run(cx, from, rows, &mut state)));
            }
            for (got, want) in all.iter().zip(want) {
                assert!((got - want).abs() <= 1e-5, "{got}, not {want}");
            }
            if whole.is_empty() {
                whole = all;
            } else {
                assert_eq!(whole, all, "{chunk} rows at once");
            }
        }
    }
}

#[test]
fn convolutions_go_on_from_chunk_to_chunk() {
    let (width, taps) = (150, 4);
    for gated in [false, true] {
        let weight = WeightRef(0);
        let op = ShortConv { weight, bias: None, width, taps, silu: !gated, gated, page_group: 0 };
        let wide = op.input().unwrap();
        let x = Random(6).floats(wide * LEN);
        let (weight, bias) = (Random(7).floats(taps * width), Random(8).floats(width));
        let want = convolved(&op, &weight, &bias, &x);
        goes_on(&want, op.state().unwrap(), |cx, from, rows, state| {
            let mut y = vec![f32::NAN; rows * width];
            let CacheMut::F32(state) = CacheMut::f32(state) else { panic!() };
            let (op, bias, forward) = (&op, Some(&*bias), &batch(from, rows));
            let (weight, x) = (&weight, &x[from * wide..(from + rows) * wide]);
            let x = short_conv::Operands { op, weight, bias, forward, state, x };
            short_conv::short_conv(cx, x, &mut y).unwrap();
            y
        });
    }
}

/// The operands of a scan of random numbers.
struct Scan {
    op: Mamba2,
    a: Vec<f32>,
    d: Vec<f32>,
    dt_bias: Vec<f32>,
    x: Vec<f32>,
    dt: Vec<f32>,
}

impl Scan {
    fn new(head_dim: usize, len: usize) -> Scan {
        let (heads, groups, state_size) = (6, 2, 9);
        let [a, d, dt_bias] = [0, 1, 2].map(WeightRef);
        let (a_log, dt_min, dt_max, page_group) = (true, 0.01, 1.5, 0);
        let op = Mamba2 {
            heads,
            head_dim,
            groups,
            state_size,
            a,
            a_log,
            d,
            dt_bias,
            dt_min,
            dt_max,
            page_group,
        };
        let x = Random(9).floats(op.input().unwrap() * len);
        let [a, d, dt_bias] = [10, 11, 12].map(|seed| Random(seed).floats(heads));
        Scan { op, a, d, dt_bias, x, dt: Random(13).floats(heads * len) }
    }

    /// All rows, one number after another in f64.
    fn reference(&self) -> Vec<f32> {
        let op = &self.op;
        let (dim, n, inner) = (op.head_dim, op.state_size, op.inner().unwrap());
        let mut out = vec![0.0; self.dt.len() / op.heads * inner];
        for (head, p) in (0..op.heads).flat_map(|h| (0..dim).map(move |p| (h, p))) {
            let mut state = vec![0.0; n];
            for (row, x) in self.x.chunks_exact(op.input().unwrap()).enumerate() {
                let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let dt = f64::from(self.dt[row * op.heads + head] + self.dt_bias[head]);
                let dt = dt.exp().ln_1p().clamp(f64::from(op.dt_min), f64::from(op.dt_max));
                let keep = (-dt * f64::from(self.a[head]).exp()).exp();
                let group = inner + head / (op.heads / op.groups) * n;
                let input = x[head * dim + p];
                let mut y = f64::from(self.d[head]) * input;
                for (at, s) in state.iter_mut().enumerate() {
                    *s = keep * *s + dt * input * x[group + at];
                    y += *s * x[group + op.groups * n + at];
                }
                out[row * inner + head * dim + p] = y as f32;
            }
        }
        out
    }

    /// Some rows behind others.
    fn run(
        &self,
        cx: &mut Context<'_>,
        from: usize,
        rows: usize,
        state: &mut [f32],
    ) -> Result<Vec<f32>, KernelError> {
        let op = &self.op;
        let (wide, forward) = (op.input().unwrap(), &batch(from, rows));
        let mut y = vec![f32::NAN; rows * op.inner().unwrap()];
        let CacheMut::F32(state) = CacheMut::f32(state) else { panic!() };
        let (a, d, dt_bias) = (&self.a, &self.d, &self.dt_bias);
        let x = &self.x[from * wide..(from + rows) * wide];
        let dt = &self.dt[from * op.heads..(from + rows) * op.heads];
        let x = mamba2::Operands { op, a, d, dt_bias, forward, state, x, dt };
        mamba2::mamba2(cx, x, &mut y)?;
        Ok(y)
    }
}

#[test]
fn scans_go_on_from_chunk_to_chunk() {
    for head_dim in [16, 21] {
        let scan = Scan::new(head_dim, LEN);
        goes_on(&scan.reference(), scan.op.state().unwrap(), |cx, from, rows, state| {
            scan.run(cx, from, rows, state).unwrap()
        });
    }
}

#[test]
fn a_rate_that_overflows_is_an_error() {
    let mut scan = Scan::new(16, 4);
    scan.a[2] = 1000.0;
    let mut state = vec![0.0; 5 * scan.op.state().unwrap()];
    with(runnable().next().unwrap(), 1, |cx| {
        let refused = scan.run(cx, 0, 4, &mut state).unwrap_err().to_string();
        assert_eq!(refused, "A of Mamba-2's head 2 is 1000, which overflows");
    });
}

/// Three pairs of heads with wide values.
const RULE: DeltaRule = DeltaRule {
    key_heads: 3,
    value_heads: 6,
    key_dim: 20,
    value_dim: 70,
    tiled: false,
    rates: WeightRef(0),
    rates_are_logs: true,
    decay: Decay::Softplus,
    by_channel: false,
    beta_scale: 1.0,
    page_group: 0,
};

/// The operands of a delta rule in rows, of all positions.
struct Rule {
    v: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    rates: Vec<f32>,
}

impl Rule {
    fn new(op: &DeltaRule, len: usize) -> Rule {
        let (keys, heads) = (op.key_heads * op.key_dim, op.value_heads);
        let floats = |seed, n: usize| Random(seed).floats(n);
        let decays = if op.by_channel { heads * op.key_dim } else { heads };
        let rates =
            floats(16, heads).into_iter().map(|r| if op.rates_are_logs { r } else { -r.exp() });
        Rule {
            v: floats(11, len * heads * op.value_dim),
            q: floats(12, len * keys),
            k: floats(13, len * keys),
            decay: floats(14, len * decays),
            beta: floats(15, len * heads),
            rates: rates.collect(),
        }
    }

    /// Some of `len` rows.
    fn rows(&self, from: usize, to: usize, len: usize) -> delta::Operands<'_> {
        let all = [&self.v, &self.q, &self.k, &self.decay, &self.beta];
        let [v, q, k, decay, beta] = all.map(|x| &x[x.len() / len * from..x.len() / len * to]);
        delta::Operands { v, q, k, decay, beta, rates: &self.rates }
    }

    /// The rule as it is written, in f64.
    fn plain(&self, op: &DeltaRule, len: usize) -> Vec<f32> {
        let (n, width) = (op.key_dim, op.value_dim);
        let mut y = vec![0.0; len * op.value_heads * width];
        for head in 0..op.value_heads {
            let each = op.value_heads / op.key_heads;
            let of_key = if op.tiled { head % op.key_heads } else { head / each };
            let mut s = vec![0.0; n * width];
            for row in 0..len {
                let line = row * op.value_heads + head;
                let vector = |x: &[f32], scale: f64| -> Vec<f64> {
                    let x = &x[(row * op.key_heads + of_key) * n..][..n];
                    let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                    x.iter().map(|x| f64::from(*x) / (square + 1e-6).sqrt() * scale).collect()
                };
                let (k, q) = (vector(&self.k, 1.0), vector(&self.q, (n as f64).powf(-0.5)));
                let raw = f64::from(self.rates[head]);
                let rate = if op.rates_are_logs { raw.exp() } else { -raw };
                let beta = f64::from(op.beta_scale) / (1.0 + f64::from(-self.beta[line]).exp());
                for (i, row) in s.chunks_exact_mut(width).enumerate() {
                    let x = self.decay[if op.by_channel { line * n + i } else { line }];
                    let log = match op.decay {
                        Decay::Softplus => -rate * f64::from(x).exp().ln_1p(),
                        Decay::Bounded { least } => {
                            f64::from(least) / (1.0 + (-rate * f64::from(x)).exp())
                        }
                    };
                    row.iter_mut().for_each(|s| *s *= log.exp());
                }
                for c in 0..width {
                    let along = |x: &[f64], s: &[f64]| -> f64 {
                        x.iter().zip(s.chunks_exact(width)).map(|(x, s)| x * s[c]).sum()
                    };
                    let new = beta * (f64::from(self.v[line * width + c]) - along(&k, &s));
                    for (k, s) in k.iter().zip(s.chunks_exact_mut(width)) {
                        s[c] += k * new;
                    }
                    y[line * width + c] = along(&q, &s) as f32;
                }
            }
        }
        y
    }
}

#[test]
fn delta_rules_go_on_from_chunk_to_chunk() {
    let bounded = Decay::Bounded { least: -5.0 };
    for op in [
        RULE,
        DeltaRule { tiled: true, rates_are_logs: false, beta_scale: 2.0, ..RULE },
        DeltaRule { by_channel: true, value_dim: 16, ..RULE },
        DeltaRule { by_channel: true, decay: bounded, key_dim: 5, value_dim: 3, ..RULE },
    ] {
        let (x, wide) = (Rule::new(&op, LEN), op.value_heads * op.value_dim);
        goes_on(&x.plain(&op, LEN), op.state().unwrap(), |cx, from, rows, state| {
            let mut y = vec![f32::NAN; rows * wide];
            let CacheMut::F32(state) = CacheMut::f32(state) else { panic!() };
            let x = x.rows(from, from + rows, LEN);
            delta::delta_rule(cx, &batch(from, rows), &op, state, x, &mut y).unwrap();
            y
        });
    }
}

#[test]
fn rates_that_overflow_are_errors() {
    let mut x = Rule::new(&RULE, 1);
    x.rates[4] = 1000.0;
    let (mut state, mut y) = (vec![0.0; 5 * RULE.state().unwrap()], vec![0.0; 6 * 70]);
    with(runnable().next().unwrap(), 1, |cx| {
        let CacheMut::F32(state) = CacheMut::f32(&mut state) else { panic!() };
        let x = x.rows(0, 1, 1);
        let refused = delta::delta_rule(cx, &batch(0, 1), &RULE, state, x, &mut y);
        let why = "A_log of head 4 is 1000: its decay overflows";
        assert_eq!(refused, Err(KernelError::Operand(why.into())));
    });
}
