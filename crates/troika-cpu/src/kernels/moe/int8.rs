//! The experts with activations in eight bits: those of the layer's input are quantized once for
//! all experts, those between the projections once for all pairs.

use std::ops::Range;

use super::{Memory, Operands, Sorted, TILE_ROWS, combine, sort};
use crate::SharedMut;
use crate::kernels::elementwise::{Element, Run};
use crate::kernels::int8::{
    Extra, Layout, PackedView, Part, Product, ROWS, Rows, floats as q_floats, quantize, run_part,
};
use crate::kernels::linear::{self, OutView, RowsView};
use crate::kernels::simd::dispatch;
use crate::kernels::{Context, KernelError};
use crate::select;

/// The weights of one expert; all gates and ups are of one type, and all downs.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// `[inter, k]`.
    pub gate: PackedView<'a>,
    /// `[inter, k]`.
    pub up: PackedView<'a>,
    /// `[k, inter]`.
    pub down: PackedView<'a>,
    /// Biases of gate, up and down.
    pub bias: [Option<&'a [f32]>; 3],
}

/// Floats of working memory for rows that choose `top_k` experts each.
pub fn floats(rows: usize, top_k: usize, k: usize, inter: usize) -> usize {
    rows * (q_floats(k) + top_k * (k + inter + q_floats(inter)))
}

/// `y[row] = sum over slots of weight * expert(x[row])`.
///
/// # Errors
/// An id that is no expert; a panic of a part.
pub fn experts(
    cx: &mut Context<'_>,
    x: Operands<'_, Expert<'_>>,
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
    let first = (x.expert)(sorted.used[0] as usize);
    let (hidden, rest) = memory.floats.split_at_mut(pairs * x.inter);
    let (down, rest) = rest.split_at_mut(pairs * x.k);
    let (input, rest) = rest.split_at_mut(rows * q_floats(x.k));
    let inner = &mut rest[..pairs * q_floats(x.inter)];
    quantize(cx, (Rows::Plain(x.x), x.k), &mut [(Extra::of(first.gate.layout.dtype), input)])?;
    gate_up(cx, &x, &sorted, input, SharedMut::new(hidden))?;
    let kind = Extra::of(first.down.layout.dtype);
    quantize(cx, (Rows::Plain(hidden), x.inter), &mut [(kind, inner)])?;
    project_down(cx, &x, &sorted, inner, SharedMut::new(down))?;
    combine(cx, x.weights, (down, x.k), y)
}

/// Weight rows of a part.
fn part_rows(cx: &Context<'_>, pairs: usize, used: usize, layout: &Layout) -> usize {
    let (panels, bytes) = (layout.panels(), layout.bytes() / layout.panels().max(1));
    let shape = select::PanelShape { rows: pairs.div_ceil(used), panels, bytes, count: used };
    (select::panels(shape, cx.pool.threads()).panel * ROWS).min(select::MAX_PANEL)
}

/// `hidden[i] = act(gate x) * up x` for the sorted pairs `i`.
fn gate_up(
    cx: &mut Context<'_>,
    x: &Operands<'_, Expert<'_>>,
    sorted: &Sorted<'_>,
    input: &[f32],
    hidden: SharedMut<'_, f32>,
) -> Result<(), KernelError> {
    let first = (x.expert)(sorted.used[0] as usize).gate.layout;
    let step = part_rows(cx, x.ids.len(), sorted.used.len(), &first);
    let steps = x.inter.div_ceil(step);
    let (isa, scratch) = (cx.isa, cx.scratch);
    cx.pool.run(sorted.used.len() * steps, &|worker, part| {
        let e = sorted.used[part / steps] as usize;
        let n = part % steps * step..(part % steps * step + step).min(x.inter);
        let pairs = sorted.pairs(e);
        // SAFETY: each worker asks for its own scratch once per part.
        let scratch = unsafe { scratch.get(worker) };
        let (wide, tiles) = scratch.split_at_mut(linear::worker_floats());
        let (gate, up) = tiles.split_at_mut(TILE_ROWS * select::MAX_PANEL);
        let mut m = 0;
        while m < pairs.len() {
            let rows = m..(m + TILE_ROWS).min(pairs.len());
            let index = &sorted.order[pairs.start + rows.start..pairs.start + rows.end];
            let tile = Tile { x, input, index, n: n.clone(), expert: (x.expert)(e), isa };
            tile.compute(wide, gate, up);
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
struct Tile<'a, 'w> {
    x: &'a Operands<'a, Expert<'w>>,
    input: &'a [f32],
    /// The pairs.
    index: &'a [u32],
    /// Weight rows.
    n: Range<usize>,
    expert: Expert<'w>,
    isa: crate::Isa,
}

impl Tile<'_, '_> {
    fn compute(&self, wide: &mut [f32], gate: &mut [f32], up: &mut [f32]) {
        let e = &self.expert;
        let x = RowsView {
            index: Some(self.index),
            divide: self.x.top_k,
            ..RowsView::dense(self.input, q_floats(self.x.k))
        };
        for (weight, bias, tile) in [(e.gate, e.bias[0], gate), (e.up, e.bias[1], up)] {
            let y = OutView::dense(SharedMut::new(tile), self.n.len());
            let product = Product { weight, bias, x, y };
            let (n, m, origin) = (self.n.clone(), 0..self.index.len(), self.n.start);
            run_part(self.isa, Part { product, n, m, origin, scratch: &mut *wide });
        }
    }
}

/// `down[pair]` for all pairs, from the sorted quantized rows between the projections.
fn project_down(
    cx: &mut Context<'_>,
    x: &Operands<'_, Expert<'_>>,
    sorted: &Sorted<'_>,
    inner: &[f32],
    down: SharedMut<'_, f32>,
) -> Result<(), KernelError> {
    let first = (x.expert)(sorted.used[0] as usize).down.layout;
    let step = part_rows(cx, x.ids.len(), sorted.used.len(), &first);
    let (steps, width) = (x.k.div_ceil(step), q_floats(x.inter));
    let (isa, scratch) = (cx.isa, cx.scratch);
    cx.pool.run(sorted.used.len() * steps, &|worker, part| {
        let e = sorted.used[part / steps] as usize;
        let n = part % steps * step..(part % steps * step + step).min(x.k);
        let pairs = sorted.pairs(e);
        let expert = (x.expert)(e);
        let index = Some(&sorted.order[pairs.clone()]);
        let product = Product {
            weight: expert.down,
            bias: expert.bias[2],
            x: RowsView::dense(&inner[pairs.start * width..pairs.end * width], width),
            y: OutView { index, ..OutView::dense(down, x.k) },
        };
        // SAFETY: each worker asks for its own scratch once per part.
        let scratch = unsafe { scratch.get(worker) };
        run_part(isa, Part { product, n, m: 0..pairs.len(), origin: 0, scratch });
    })?;
    Ok(())
}
