//! The selective scan of Mamba-2.

use std::ops::Range;

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::Mamba2;

use super::{check, softplus};
use crate::SharedMut;
use crate::kernels::kv::{CacheRows, operand};
use crate::kernels::simd::{Kernel, Lanes, dispatch, part_of, put_part};
use crate::kernels::{Context, KernelError};

/// Rows that one pass over a state computes.
const ROWS: usize = 4;

/// The operands of a scan.
pub struct Operands<'a> {
    /// The op.
    pub op: &'a Mamba2,
    /// The rate of each head, or its logarithm.
    pub a: &'a [f32],
    /// What results keep of inputs, for each head.
    pub d: &'a [f32],
    /// Added to the steps of each head.
    pub dt_bias: &'a [f32],
    /// Sequences.
    pub forward: &'a ForwardBatch,
    /// For each head and state element, a number for each column of the head.
    pub state: CacheRows<'a, f32>,
    /// Inputs of heads, and `b` and `c` of groups.
    pub x: &'a [f32],
    /// Steps of heads.
    pub dt: &'a [f32],
}

/// See [`Mamba2`]; states at the ends of pages and behind the last row are kept.
///
/// # Errors
/// A position without a page or outside of the state, a rate that is not finite, or a panic of a
/// part.
pub fn mamba2(
    cx: &mut Context<'_>,
    operands: Operands<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let Operands { op, forward, .. } = operands;
    let row = op.state().unwrap_or(0);
    if row == 0 {
        return Ok(());
    }
    check(forward, op.page_group, operands.state.0.len() / row)?;
    let rates: Vec<f32> = operands.a.iter().map(|a| if op.a_log { -a.exp() } else { *a }).collect();
    if let Some(head) = rates.iter().position(|a| !a.is_finite()) {
        let a = operands.a[head];
        return Err(operand(format!("A of Mamba-2's head {head} is {a}, which overflows")));
    }
    let (isa, y) = (cx.isa, SharedMut::new(y));
    cx.run(op.heads, &|_, head| {
        dispatch(isa, Head { of: &operands, y: &y, head, rate: rates[head] });
    })
}

/// A head of all rows.
struct Head<'a> {
    of: &'a Operands<'a>,
    y: &'a SharedMut<'a, f32>,
    head: usize,
    rate: f32,
}

impl Kernel for Head<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for s in &self.of.forward.seqs {
            self.sequence::<V>(s);
        }
    }
}

/// How a row changes the state of a head.
#[derive(Clone, Copy, Default)]
struct Step {
    row: usize,
    /// The step's length.
    dt: f32,
    /// What is kept of the state.
    keep: f32,
}

impl Head<'_> {
    #[inline(always)]
    fn sequence<V: Lanes>(&self, s: &SeqRows) {
        let Operands { op, state, .. } = self.of;
        let (table, each) = (&s.tables[op.page_group], op.head_dim * op.state_size);
        // SAFETY: this head belongs to this part, and `CacheRows` promises the rows of the state; no
        // two slices that live together are of one row.
        let kept = |row: usize| unsafe {
            let first = (row * op.heads + self.head) * each;
            state.0.slice(first..first + each)
        };
        let mut before = s.pos.checked_sub(1).and_then(|last| table.row(last));
        let mut i = 0;
        while i < s.rows.len() {
            let pos = s.pos + i;
            // To the end of the page, in the row that keeps the state behind them.
            let rows = (table.page_len - pos % table.page_len).min(s.rows.len() - i);
            let Some(at) = table.row(pos + rows - 1) else { return };
            match before {
                Some(from) if from != at => kept(at).copy_from_slice(kept(from)),
                None => kept(at).fill(0.0),
                _ => {}
            }
            self.rows::<V>(s.rows.start + i..s.rows.start + i + rows, kept(at));
            before = Some(at);
            i += rows;
        }
    }

    #[inline(always)]
    fn rows<V: Lanes>(&self, rows: Range<usize>, state: &mut [f32]) {
        let mut first = rows.start;
        while first < rows.end {
            if first + ROWS <= rows.end {
                self.pass::<V, ROWS>(first, state);
                first += ROWS;
            } else {
                self.pass::<V, 1>(first, state);
                first += 1;
            }
        }
    }

    fn step(&self, row: usize) -> Step {
        let Operands { op, dt, dt_bias, .. } = self.of;
        let dt = softplus(dt[row * op.heads + self.head] + dt_bias[self.head]);
        let dt = dt.clamp(op.dt_min, op.dt_max);
        Step { row, dt, keep: (dt * self.rate).exp() }
    }

    /// Some rows: all of them change one column's state before the next column's is read.
    #[inline(always)]
    fn pass<V: Lanes, const R: usize>(&self, first: usize, state: &mut [f32]) {
        let Operands { op, d, x, .. } = self.of;
        let (dim, n, inner) = (op.head_dim, op.state_size, op.heads * op.head_dim);
        let width = inner + 2 * op.groups * n;
        let group = self.head / (op.heads / op.groups) * n;
        let steps: [Step; R] = std::array::from_fn(|r| self.step(first + r));
        let part = |s: &Step, start: usize, len: usize| &x[s.row * width + start..][..len];
        let b = steps.each_ref().map(|s| part(s, inner + group, n));
        let c = steps.each_ref().map(|s| part(s, inner + op.groups * n + group, n));
        let heads = steps.each_ref().map(|s| part(s, self.head * dim, dim));
        for p in (0..dim).step_by(V::N) {
            let inputs = heads.map(|x| part_of::<V>(&x[p..]));
            let mut y = inputs.map(|x| x.mul(V::splat(d[self.head])));
            let scaled: [V; R] = std::array::from_fn(|r| inputs[r].mul(V::splat(steps[r].dt)));
            for at in 0..n {
                let line = &mut state[at * dim..][..dim][p..];
                let mut s = part_of::<V>(line);
                for r in 0..R {
                    let new = scaled[r].mul(V::splat(b[r][at]));
                    s = s.fma(V::splat(steps[r].keep), new);
                    y[r] = s.fma(V::splat(c[r][at]), y[r]);
                }
                put_part(s, line);
            }
            for (step, y) in steps.iter().zip(y) {
                let at = step.row * inner + self.head * dim;
                // SAFETY: these columns belong to this part.
                put_part(y, unsafe { self.y.slice(at + p..at + dim) });
            }
        }
    }
}
