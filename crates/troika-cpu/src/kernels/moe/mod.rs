//! The experts' feed-forwards.
//!
//! Pairs (row, slot) are sorted by expert. One parallel region computes `act(gate) * up` for all
//! pairs, a second the down projections, a third adds each row's experts in the order of its
//! slots. A weight is widened once per part, for all pairs of its expert.

pub mod int8;
pub mod scalar;

use std::ops::Range;

use troika_graph::Activation;

use crate::SharedMut;
use crate::kernels::elementwise::{Element, Run, each_row};
use crate::kernels::linear::{self, Input, OutView, Part, Product, RowsView, WeightView, run_part};
use crate::kernels::simd::dispatch;
use crate::kernels::{Context, KernelError};
use crate::select;

/// Activation rows whose gate and up are held at once by a part.
const TILE_ROWS: usize = 64;

/// The weights of one expert.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// `[inter, k]`.
    pub gate: WeightView<'a>,
    /// `[inter, k]`.
    pub up: WeightView<'a>,
    /// `[k, inter]`.
    pub down: WeightView<'a>,
    /// Biases of gate, up and down.
    pub bias: [Option<&'a [f32]>; 3],
}

/// Operands of the experts.
#[derive(Clone, Copy)]
pub struct Operands<'a, E> {
    /// Experts.
    pub experts: usize,
    /// The weights of an expert.
    pub expert: &'a (dyn Fn(usize) -> E + Sync),
    /// Activation of the gate.
    pub act: Activation,
    /// Rows.
    pub x: &'a [f32],
    /// Columns of a row.
    pub k: usize,
    /// Width between the projections.
    pub inter: usize,
    /// Chosen experts, `top_k` per row.
    pub ids: &'a [i32],
    /// Their weights.
    pub weights: &'a [f32],
    /// Experts per row.
    pub top_k: usize,
}

/// Working memory, sizes by [`floats`] and [`words`].
pub struct Memory<'a> {
    /// Floats.
    pub floats: &'a mut [f32],
    /// Indices.
    pub words: &'a mut [u32],
}

/// Floats of working memory for rows that choose `top_k` experts each; with `bf16`, activations
/// are rounded before both projections.
pub fn floats((rows, top_k): (usize, usize), k: usize, inter: usize, bf16: bool) -> usize {
    let rounded = if bf16 { k + top_k * inter } else { 0 };
    rows * (top_k * (k + inter) + rounded)
}

/// Words of working memory for `pairs` pairs.
pub fn words(pairs: usize, experts: usize) -> usize {
    pairs + 2 * experts + 1
}

/// Scratch floats of a worker: a widened panel, and gate and up of some rows.
pub fn worker_floats() -> usize {
    linear::worker_floats() + 2 * TILE_ROWS * select::MAX_PANEL
}

/// Pairs sorted by expert.
struct Sorted<'a> {
    /// Pairs, by expert, then by number.
    order: &'a [u32],
    /// Experts that have pairs.
    used: &'a [u32],
    /// Where each expert's pairs begin in `order`.
    starts: &'a [u32],
}

impl Sorted<'_> {
    fn pairs(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}

/// Counting sort; stable, so everything after is in a fixed order.
fn sort<'a>(ids: &[i32], experts: usize, words: &'a mut [u32]) -> Result<Sorted<'a>, KernelError> {
    let (order, rest) = words.split_at_mut(ids.len());
    let (used, rest) = rest.split_at_mut(experts);
    let starts = &mut rest[..experts + 1];
    starts.fill(0);
    for id in ids {
        match usize::try_from(*id) {
            Ok(id) if id < experts => starts[id + 1] += 1,
            _ => {
                let why = format!("expert {id} is not among {experts}");
                return Err(KernelError::Operand(why));
            }
        }
    }
    let mut count = 0;
    for e in 0..experts {
        if starts[e + 1] > 0 {
            used[count] = e as u32;
            count += 1;
        }
        starts[e + 1] += starts[e];
    }
    // Filling moves each start to its expert's end, which is the next one's start.
    for (pair, id) in ids.iter().enumerate() {
        let at = &mut starts[*id as usize];
        order[*at as usize] = pair as u32;
        *at += 1;
    }
    starts.copy_within(..experts, 1);
    starts[0] = 0;
    Ok(Sorted { order, used: &used[..count], starts })
}

/// `y[row] = sum over slots of weight * expert(x[row])`; with `bf16`, the weights are BF16 and
/// activations are rounded to it before each projection.
///
/// # Errors
/// An id that is no expert; a panic of a part.
pub fn experts(
    cx: &mut Context<'_>,
    x: Operands<'_, Expert<'_>>,
    bf16: bool,
    memory: Memory<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let pairs = x.ids.len();
    let rows = y.len() / x.k.max(1);
    assert!(pairs == rows * x.top_k && pairs == x.weights.len(), "lengths of experts' operands");
    if pairs == 0 {
        return Ok(());
    }
    let sorted = sort(x.ids, x.experts, memory.words)?;
    let (hidden, rest) = memory.floats.split_at_mut(pairs * x.inter);
    let (down, rest) = rest.split_at_mut(pairs * x.k);
    let (outer, inner) = rest.split_at_mut(if bf16 { x.x.len() } else { 0 });
    let input = Input::new(cx, (x.x, x.k), bf16, outer)?;
    gate_up(cx, &x, &sorted, input, SharedMut::new(hidden))?;
    let input = Input::new(cx, (hidden, x.inter), bf16, inner)?;
    project_down(cx, &x, &sorted, input, SharedMut::new(down))?;
    combine(cx, x.weights, (down, x.k), y)
}

/// `y[row] = sum over slots of weight * down[row, slot]`, in the order of the slots.
fn combine(
    cx: &mut Context<'_>,
    weights: &[f32],
    (down, k): (&[f32], usize),
    y: &mut [f32],
) -> Result<(), KernelError> {
    let top_k = weights.len() * k / y.len().max(1);
    each_row(cx, y, k, &|row, y| {
        y.fill(0.0);
        for pair in row * top_k..(row + 1) * top_k {
            let w = weights[pair];
            y.iter_mut().zip(&down[pair * k..][..k]).for_each(|(y, d)| *y += w * d);
        }
    })
}

/// Weight rows of a part, for weights of `n` rows used by `used` experts.
fn panel_rows(cx: &Context<'_>, rows: usize, weight: WeightView<'_>, used: usize) -> usize {
    let (n, k, dtype) = (weight.rows, weight.cols, weight.dtype);
    let shape = select::LinearShape { rows, n, k, dtype, count: used };
    select::linear(cx.isa, shape, cx.pool.threads()).panel
}

/// `hidden[i] = act(gate x) * up x` for the sorted pairs `i`.
fn gate_up(
    cx: &mut Context<'_>,
    x: &Operands<'_, Expert<'_>>,
    sorted: &Sorted<'_>,
    input: Input<'_>,
    hidden: SharedMut<'_, f32>,
) -> Result<(), KernelError> {
    let first = (x.expert)(sorted.used[0] as usize).gate;
    let per_expert = x.ids.len().div_ceil(sorted.used.len());
    let panel = panel_rows(cx, per_expert, first, sorted.used.len());
    let panels = x.inter.div_ceil(panel);
    let (isa, scratch) = (cx.isa, cx.scratch);
    cx.pool.run(sorted.used.len() * panels, &|worker, part| {
        let e = sorted.used[part / panels] as usize;
        let n = part % panels * panel..(part % panels * panel + panel).min(x.inter);
        let pairs = sorted.pairs(e);
        // SAFETY: each worker asks for its own scratch once per part.
        let scratch = unsafe { scratch.get(worker) };
        let (wide, tiles) = scratch.split_at_mut(linear::worker_floats());
        let (gate, up) = tiles.split_at_mut(TILE_ROWS * select::MAX_PANEL);
        let rows = RowsView {
            data: input.data,
            offset: 0,
            stride: input.width,
            index: Some(&sorted.order[pairs.clone()]),
            divide: x.top_k,
        };
        let tile = Tile { rows, n: n.clone(), expert: (x.expert)(e), pairs: input.pairs, isa };
        let mut m = 0;
        while m < pairs.len() {
            let rows = m..(m + TILE_ROWS).min(pairs.len());
            tile.compute(rows.clone(), wide, gate, up);
            for (i, row) in rows.clone().enumerate() {
                let start = (pairs.start + row) * x.inter;
                // SAFETY: these columns of these pairs belong to this part.
                let y = unsafe { hidden.slice(start + n.start..start + n.end) };
                let r = i * n.len()..(i + 1) * n.len();
                let (a, b) = (&gate[r.clone()], &up[r]);
                dispatch(isa, Run { op: Element::Gate(x.act), a, b, y });
            }
            m = rows.end;
        }
    })?;
    Ok(())
}

/// Gate and up of some pairs and weight rows.
struct Tile<'a> {
    rows: RowsView<'a>,
    n: Range<usize>,
    expert: Expert<'a>,
    pairs: bool,
    isa: crate::Isa,
}

impl Tile<'_> {
    fn compute(&self, m: Range<usize>, wide: &mut [f32], gate: &mut [f32], up: &mut [f32]) {
        let e = &self.expert;
        let rows = RowsView { index: self.rows.index.map(|ix| &ix[m.clone()]), ..self.rows };
        for (weight, bias, tile) in [(e.gate, e.bias[0], gate), (e.up, e.bias[1], up)] {
            weight.check();
            let bytes = weight.row_bytes();
            let bytes = &weight.bytes[self.n.start * bytes..self.n.end * bytes];
            let weight = WeightView { bytes, rows: self.n.len(), ..weight };
            let bias = bias.map(|b| &b[self.n.clone()]);
            let y = OutView::dense(SharedMut::new(tile), weight.rows);
            let product = Product { weight, bias, x: rows, y, pairs: self.pairs };
            let (n, m) = (0..weight.rows, 0..m.len());
            run_part(self.isa, Part { product, n, m, scratch: &mut *wide });
        }
    }
}

/// `down[pair]` for all pairs, from the sorted `hidden`.
fn project_down(
    cx: &mut Context<'_>,
    x: &Operands<'_, Expert<'_>>,
    sorted: &Sorted<'_>,
    input: Input<'_>,
    down: SharedMut<'_, f32>,
) -> Result<(), KernelError> {
    let first = (x.expert)(sorted.used[0] as usize).down;
    let per_expert = x.ids.len().div_ceil(sorted.used.len());
    let panel = panel_rows(cx, per_expert, first, sorted.used.len());
    let panels = x.k.div_ceil(panel);
    let (isa, scratch) = (cx.isa, cx.scratch);
    cx.pool.run(sorted.used.len() * panels, &|worker, part| {
        let e = sorted.used[part / panels] as usize;
        let n = part % panels * panel..(part % panels * panel + panel).min(x.k);
        let pairs = sorted.pairs(e);
        let expert = (x.expert)(e);
        let product = Product {
            weight: expert.down,
            bias: expert.bias[2],
            x: RowsView {
                offset: pairs.start * input.width,
                ..RowsView::dense(input.data, input.width)
            },
            y: OutView {
                data: down,
                offset: 0,
                stride: x.k,
                index: Some(&sorted.order[pairs.clone()]),
            },
            pairs: input.pairs,
        };
        product.weight.check();
        // SAFETY: each worker asks for its own scratch once per part.
        let scratch = unsafe { scratch.get(worker) };
        run_part(isa, Part { product, n, m: 0..pairs.len(), scratch });
    })?;
    Ok(())
}
