//! The gated delta rule.

use std::ops::Range;

use troika_device::{ForwardBatch, PageTable};
use troika_graph::{Decay, DeltaRule};

use crate::kernels::kv::{CacheRows, operand};
use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, dispatch};
use crate::kernels::{Context, KernelError};
use crate::runtime::SharedMut;

/// Columns of a head's state that a part computes. The columns of a state are independent.
const COLUMNS: usize = 64;
/// Registers that are summed at once.
const REGISTERS: usize = 4;
/// Added to the square of a length.
const EPS: f32 = 1e-6;

/// The operands of a gated delta rule, in rows.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Values.
    pub v: &'a [f32],
    /// Queries.
    pub q: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// What the decays follow from.
    pub decay: &'a [f32],
    /// What the shares of new values follow from.
    pub beta: &'a [f32],
    /// One number for each head of values.
    pub rates: &'a [f32],
}

/// Scratch floats of a worker.
pub fn worker_floats(op: &DeltaRule) -> usize {
    let keys = op.key_dim.next_multiple_of(MAX_LANES);
    keys.saturating_mul(COLUMNS + 6).saturating_add(COLUMNS * 3)
}

/// The outputs of the rule for each row in turn. A sequence goes on with the state behind its last
/// position; the states at the ends of its pages and behind its last row are kept.
///
/// # Errors
/// A position without a page or outside of the state, a rate that is no number; a panic of a part.
pub fn delta_rule(
    cx: &mut Context<'_>,
    forward: &ForwardBatch,
    op: &DeltaRule,
    state: CacheRows<'_, f32>,
    x: Operands<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let state = state.0;
    super::check(forward, op.page_group, state.len() / op.state().unwrap_or(1).max(1))?;
    let rates: Vec<f32> =
        x.rates.iter().map(|r| if op.rates_are_logs { r.exp() } else { -r }).collect();
    if let Some(head) = rates.iter().position(|r| !r.is_finite()) {
        let (rate, form) = (x.rates[head], if op.rates_are_logs { "A_log" } else { "ssm_a" });
        return Err(operand(format!("{form} of head {head} is {rate}: its decay overflows")));
    }
    let (isa, blocks, y) = (cx.isa, op.value_dim.div_ceil(COLUMNS), SharedMut::new(y));
    cx.run(op.value_heads * blocks, &|scratch, part| {
        let (head, first) = (part / blocks, part % blocks * COLUMNS);
        let cols = first..(first + COLUMNS).min(op.value_dim);
        let (rate, state, y) = (rates[head], &state, &y);
        dispatch(isa, HeadColumns { op, forward, state, x, y, head, rate, cols, scratch });
    })
}

/// Some columns of a head, for all sequences.
struct HeadColumns<'a> {
    op: &'a DeltaRule,
    forward: &'a ForwardBatch,
    state: &'a SharedMut<'a, f32>,
    x: Operands<'a>,
    y: &'a SharedMut<'a, f32>,
    head: usize,
    rate: f32,
    cols: Range<usize>,
    scratch: &'a mut [f32],
}

/// A position's vectors of the width of a key, padded with zeros.
struct Vectors<'a> {
    k: &'a mut [f32],
    /// What is kept of each row of the state.
    decay: &'a mut [f32],
}

/// What a part works on: its columns of the state, `[key_dim, wide]`, and a position's vectors.
struct Scratch<'a> {
    state: &'a mut [f32],
    wide: usize,
    /// What the last position adds to the state for each element of its key, unless it is added.
    new: &'a mut [f32],
    /// A position's values, and then its outputs.
    values: &'a mut [f32],
    /// The query, decayed.
    q: &'a mut [f32],
    /// The key, decayed.
    kd: &'a mut [f32],
    /// A position's share of new values.
    beta: f32,
    /// The product of key and query.
    both: f32,
}

impl Kernel for HeadColumns<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        let scratch = std::mem::take(&mut self.scratch);
        let keys = self.op.key_dim.next_multiple_of(MAX_LANES);
        let (state, rest) = scratch.split_at_mut(keys * COLUMNS);
        rest.fill(0.0);
        let (new, rest) = rest.split_at_mut(COLUMNS);
        let (values, rest) = rest.split_at_mut(COLUMNS);
        let mut rest = rest.chunks_exact_mut(keys);
        let mut next = || rest.next().unwrap_or_default();
        let (q, kd) = (next(), next());
        let wide = self.cols.len().next_multiple_of(REGISTERS * V::N);
        let (beta, both) = (0.0, 0.0);
        let mut work = Scratch { state, wide, new, values, q, kd, beta, both };
        let mut now = Vectors { k: next(), decay: next() };
        let mut last = Vectors { k: next(), decay: next() };
        for s in &self.forward.seqs {
            let table = &s.tables[self.op.page_group];
            self.read(&mut work, s.pos.checked_sub(1).and_then(|last| table.row(last)));
            let mut pending = false;
            for (i, row) in s.rows.clone().enumerate() {
                self.token::<V>(&mut work, &mut now, pending.then_some(&last), row);
                std::mem::swap(&mut now, &mut last);
                pending = !keeps(table, s.pos + i) && row + 1 != s.rows.end;
                if !pending {
                    add::<V>(&mut work, &last, self.op.key_dim);
                    table.row(s.pos + i).into_iter().for_each(|at| self.write(&work, at));
                }
            }
        }
    }
}

/// Whether the state behind a position is kept.
fn keeps(table: &PageTable, pos: usize) -> bool {
    (pos + 1).is_multiple_of(table.page_len)
}

impl HeadColumns<'_> {
    /// This part's columns of a row of a head's state in a row of states.
    #[allow(clippy::mut_from_ref)]
    fn kept(&self, at: usize, key: usize) -> &mut [f32] {
        let head = at * self.op.value_heads + self.head;
        let start = (head * self.op.key_dim + key) * self.op.value_dim + self.cols.start;
        // SAFETY: these columns belong to this part, and `CacheRows` promises the rows of the
        // state; no two slices of one row live together.
        unsafe { self.state.slice(start..start + self.cols.len()) }
    }

    fn read(&self, work: &mut Scratch<'_>, at: Option<usize>) {
        let rows = work.state.chunks_exact_mut(work.wide).take(self.op.key_dim);
        for (key, row) in rows.enumerate() {
            row.fill(0.0);
            if let Some(at) = at {
                row[..self.cols.len()].copy_from_slice(self.kept(at, key));
            }
        }
    }

    fn write(&self, work: &Scratch<'_>, at: usize) {
        let rows = work.state.chunks_exact(work.wide).take(self.op.key_dim);
        for (key, row) in rows.enumerate() {
            self.kept(at, key).copy_from_slice(&row[..self.cols.len()]);
        }
    }

    /// A row: adds the position before it to the state, if that is not done, and computes outputs
    /// and what this position will add.
    #[inline(always)]
    fn token<V: Lanes>(
        &self,
        work: &mut Scratch<'_>,
        now: &mut Vectors<'_>,
        last: Option<&Vectors<'_>>,
        row: usize,
    ) {
        let (op, x, n) = (self.op, &self.x, self.op.key_dim);
        let of_key = match op.tiled {
            true => self.head % op.key_heads,
            false => self.head / (op.value_heads / op.key_heads),
        };
        let at = (row * op.key_heads + of_key) * n;
        unit::<V>(&x.k[at..at + n], now.k, 1.0);
        unit::<V>(&x.q[at..at + n], work.q, 1.0 / (n as f32).sqrt());
        let line = row * op.value_heads + self.head;
        if op.by_channel {
            let from = &x.decay[line * n..(line + 1) * n];
            now.decay.iter_mut().zip(from).for_each(|(d, x)| *d = self.decay(*x));
        } else {
            now.decay[..n].fill(self.decay(x.decay[line]));
        }
        work.beta = op.beta_scale / (1.0 + (-x.beta[line]).exp());
        work.both = dot::<V>(now.k, work.q);
        for (kd, (k, d)) in work.kd.iter_mut().zip(now.k.iter().zip(&*now.decay)) {
            *kd = k * d;
        }
        for (q, d) in work.q.iter_mut().zip(&*now.decay) {
            *q *= d;
        }
        let width = self.cols.len();
        let at = line * op.value_dim + self.cols.start;
        work.values[..width].copy_from_slice(&x.v[at..at + width]);
        for c in (0..work.wide).step_by(REGISTERS * V::N) {
            columns::<V>(work, last, c, n);
        }
        // SAFETY: these columns belong to this part.
        let y = unsafe { self.y.slice(at..at + width) };
        y.copy_from_slice(&work.values[..width]);
        // The next position's values are narrower than a register.
        work.values[width..].fill(0.0);
    }

    fn decay(&self, x: f32) -> f32 {
        match self.op.decay {
            Decay::Softplus => (-self.rate * super::softplus(x)).exp(),
            Decay::Bounded { least } => (least / (1.0 + (-self.rate * x).exp())).exp(),
        }
    }
}

/// Some columns of a state and a position. What the position before it adds is added on the way.
#[inline(always)]
fn columns<V: Lanes>(work: &mut Scratch<'_>, last: Option<&Vectors<'_>>, c: usize, keys: usize) {
    let register = |of: &[f32], i: usize| V::from_slice(&of[c + i * V::N..]);
    let new: [V; REGISTERS] = std::array::from_fn(|i| register(work.new, i));
    let zero = [V::splat(0.0); REGISTERS];
    let (mut seen, mut out) = (zero, zero);
    for key in 0..keys {
        let row = &mut work.state[key * work.wide + c..][..REGISTERS * V::N];
        let (kd, qd) = (V::splat(work.kd[key]), V::splat(work.q[key]));
        let before = last.map(|l| (V::splat(l.decay[key]), V::splat(l.k[key])));
        for i in 0..REGISTERS {
            let row = &mut row[i * V::N..][..V::N];
            let mut s = V::from_slice(row);
            if let Some((decay, k)) = before {
                s = new[i].fma(k, s.mul(decay));
                s.write_to(row);
            }
            seen[i] = s.fma(kd, seen[i]);
            out[i] = s.fma(qd, out[i]);
        }
    }
    for i in 0..REGISTERS {
        let at = c + i * V::N;
        let v = V::from_slice(&work.values[at..]);
        let new = v.sub(seen[i]).mul(V::splat(work.beta));
        new.write_to(&mut work.new[at..]);
        new.fma(V::splat(work.both), out[i]).write_to(&mut work.values[at..]);
    }
}

/// Adds what the last position adds to the state.
#[inline(always)]
fn add<V: Lanes>(work: &mut Scratch<'_>, last: &Vectors<'_>, keys: usize) {
    for key in 0..keys {
        let (decay, k) = (V::splat(last.decay[key]), V::splat(last.k[key]));
        let row = &mut work.state[key * work.wide..][..work.wide];
        for (s, new) in row.chunks_exact_mut(V::N).zip(work.new.chunks_exact(V::N)) {
            V::from_slice(new).fma(k, V::from_slice(s).mul(decay)).write_to(s);
        }
    }
}

/// A vector divided by its length, times `scale`.
#[inline(always)]
fn unit<V: Lanes>(x: &[f32], out: &mut [f32], scale: f32) {
    out[..x.len()].copy_from_slice(x);
    let by = scale / (dot::<V>(out, out) + EPS).sqrt();
    out.iter_mut().for_each(|x| *x *= by);
}

#[inline(always)]
fn dot<V: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let mut sum = V::splat(0.0);
    for (a, b) in a.chunks_exact(V::N).zip(b.chunks_exact(V::N)) {
        sum = V::from_slice(a).fma(V::from_slice(b), sum);
    }
    sum.sum()
}
