//! The experts' feed-forwards, of rows that chose them and of groups whose experts have rows of
//! their own.
//!
//! Pairs (row, slot) are sorted by expert. One parallel region computes `act(gate) * up` for all
//! pairs, a second the down projections, a third adds each row's experts in the order of its
//! slots. A weight is widened once per part, for all pairs of its expert. With few rows the chosen
//! experts' panels are cut as if they were one weight, which streams from memory.
//!
//! Where only some experts are in memory, the first two regions run in waves ([`ExpertRun::wave`]): of
//! those that are there, while others are read.

mod weight;

use std::ops::Range;

use troika_graph::{Activation, ActivationFormat};

use crate::kernels::elementwise::{Element, ElementwiseRun, each_row};
use crate::kernels::linear::{self, Input, OutView, RowsView};
use crate::kernels::select::{self, Stream};
use crate::kernels::simd::dispatch;
use crate::kernels::{Context, KernelError, int8};
use crate::{Isa, SharedMut};

pub use weight::{ExpertPiece, Weight};

/// Weight rows of the panels in which experts are cut: what packed weights and registers have.
const PANEL: usize = int8::ROWS;
/// Activation rows whose gate and up are held at once by a part.
const TILE_ROWS: usize = 64;

/// The weights of one expert. Packed ones: all gates are of one type, all ups, and all downs.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a, W> {
    /// `[inter, k]`.
    pub gate: W,
    /// `[inter, k]`.
    pub up: W,
    /// `[k, inter]`.
    pub down: W,
    /// Biases of gate, up and down.
    pub bias: [Option<&'a [f32]>; 3],
}

/// Operands of the experts.
#[derive(Clone, Copy)]
pub struct Operands<'a, E> {
    /// Experts that rows chose from.
    pub experts: usize,
    /// The weights of an expert.
    pub expert: &'a (dyn Fn(usize) -> E + Sync),
    /// Activation of the gate.
    pub act: Activation,
    /// Rows.
    pub x: &'a [f32],
    /// The format in which the projections take the rows. With packed weights it has eight or seven
    /// bits.
    pub activations: ActivationFormat,
    /// Columns of a row.
    pub k: usize,
    /// Width between the projections.
    pub inter: usize,
    /// Chosen experts, `top_k` per row. A group has none.
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

/// Floats of working memory for rows that choose `top_k` experts each; activations may be made
/// ready for products before both projections.
pub fn floats(
    rows: usize,
    top_k: usize,
    k: usize,
    inter: usize,
    activations: ActivationFormat,
) -> usize {
    let pair = k.saturating_add(inter).saturating_add(ready(activations, inter));
    rows.saturating_mul(top_k.saturating_mul(pair).saturating_add(2 * ready(activations, k)))
}

/// Floats that `cols` activations made ready take at most.
fn ready(activations: ActivationFormat, cols: usize) -> usize {
    match activations {
        ActivationFormat::F32 | ActivationFormat::F16 | ActivationFormat::F16Int4 => 0,
        ActivationFormat::Bf16 => cols,
        ActivationFormat::Int(_) => int8::floats(cols),
    }
}

/// Words of working memory for `pairs` pairs.
pub fn words(pairs: usize, experts: usize) -> usize {
    pairs + 3 * experts
}

/// Scratch floats of a worker: a widened panel, and gate and up of some rows.
pub fn worker_floats() -> usize {
    linear::worker_floats() + 2 * TILE_ROWS * select::MAX_PANEL
}

/// Pairs of a row and an expert, sorted by expert.
#[derive(Clone, Copy)]
struct Sorted<'a> {
    /// Pairs, by expert, then by number.
    order: &'a [u32],
    /// Experts that have pairs, in the order of their pairs.
    used: &'a [u32],
    /// Where each expert's pairs begin and end in `order`.
    starts: &'a [u32],
    ends: &'a [u32],
    /// Rows that chose.
    rows: usize,
}

impl Sorted<'_> {
    fn pairs(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.ends[expert] as usize
    }

    /// The pairs of all used experts.
    fn all_pairs(&self) -> Range<usize> {
        match self.used {
            [first, .., last] => self.pairs(*first as usize).start..self.pairs(*last as usize).end,
            [one] => self.pairs(*one as usize),
            [] => 0..0,
        }
    }

    /// Whether experts have so few rows that their weights are read as streams.
    fn is_few(&self) -> bool {
        self.all_pairs().len() <= int8::STREAM_ROWS * self.used.len()
    }
}

/// Counting sort; stable, so everything after is in a fixed order. `arrange` gets the used experts,
/// each with its rows, and may change their order.
fn sort<'a, E>(
    x: &Operands<'_, E>,
    rows: usize,
    words: &'a mut [u32],
    arrange: &mut dyn FnMut(&mut [u32], &[u32]),
) -> Result<Sorted<'a>, KernelError> {
    let (ids, experts) = (x.ids, x.experts);
    let (order, rest) = words.split_at_mut(ids.len());
    let (used, rest) = rest.split_at_mut(experts);
    let (starts, rest) = rest.split_at_mut(experts);
    let ends = &mut rest[..experts];
    ends.fill(0);
    for id in ids {
        let pairs = usize::try_from(*id).ok().and_then(|id| ends.get_mut(id));
        let outside = || KernelError::Operand(format!("expert {id} is not among {experts}"));
        *pairs.ok_or_else(outside)? += 1;
    }
    let mut count = 0;
    for (e, _) in ends.iter().enumerate().filter(|(_, pairs)| **pairs > 0) {
        used[count] = e as u32;
        count += 1;
    }
    let used = &mut used[..count];
    arrange(used, ends);
    let mut all = 0;
    for e in &*used {
        let e = *e as usize;
        let pairs = ends[e];
        (starts[e], ends[e]) = (all, all);
        all += pairs;
    }
    // Filling moves each expert's end to its place.
    for (pair, id) in ids.iter().enumerate() {
        let at = &mut ends[*id as usize];
        order[*at as usize] = pair as u32;
        *at += 1;
    }
    Ok(Sorted { order: &order[..all as usize], used, starts, ends, rows })
}

/// `y[row] = sum over slots of weight * expert(x[row])`.
/// Activations are rounded or quantized before each projection: the layer's input once for all
/// experts, what is between the projections once for all pairs.
///
/// # Errors
/// An id without an expert; a panic of a part.
pub fn experts<W: Weight>(
    cx: &mut Context<'_>,
    x: Operands<'_, Expert<'_, W>>,
    memory: Memory<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let mut run = ExpertRun::new(x, memory, y.len(), &mut |_, _| {})?;
    run.wave(cx, x.expert, run.used().len())?;
    run.finish(cx, y)
}

/// The experts of a group, each on rows of its own: row `r` of `x` belongs to expert `r /
/// capacity`, and `y` gets what [`experts`] would weight for it, to the bit.
///
/// # Errors
/// A panic of a part.
pub fn group<W: Weight>(
    cx: &mut Context<'_>,
    x: Operands<'_, Expert<'_, W>>,
    capacity: usize,
    memory: Memory<'_>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let rows = y.len() / x.k.max(1);
    assert!(x.top_k == 1 && rows <= x.experts * capacity, "lengths of a group's operands");
    let (order, rest) = memory.words.split_at_mut(rows);
    let (used, rest) = rest.split_at_mut(x.experts);
    let (starts, rest) = rest.split_at_mut(x.experts);
    let ends = &mut rest[..x.experts];
    let used = &mut used[..rows.div_ceil(capacity.max(1))];
    order.iter_mut().zip(0..).for_each(|(row, i)| *row = i);
    used.iter_mut().zip(0..).for_each(|(expert, i)| *expert = i);
    for (e, (start, end)) in starts.iter_mut().zip(&mut *ends).enumerate() {
        *start = (e * capacity).min(rows) as u32;
        *end = ((e + 1) * capacity).min(rows) as u32;
    }
    let sorted = Sorted { order, used, starts, ends, rows };
    let mut run = ExpertRun::of(x, sorted, memory.floats, y);
    run.wave(cx, x.expert, run.used().len())
}

/// A run of the experts in waves. The results do not depend on the waves.
pub struct ExpertRun<'a, E> {
    x: Operands<'a, E>,
    sorted: Sorted<'a>,
    /// What is left to compute begins with this one of the used experts.
    next: usize,
    /// The layer's input as gates and ups take it, once it is known.
    input: Option<[Input<'a>; 2]>,
    outer: Option<&'a mut [f32]>,
    hidden: &'a mut [f32],
    inner: &'a mut [f32],
    down: &'a mut [f32],
}

impl<'a, E> ExpertRun<'a, E> {
    /// Sorts. `arrange` may change the order in which experts are computed: it gets the used ones,
    /// and the rows of each expert.
    ///
    /// # Errors
    /// An id without an expert.
    pub fn new(
        x: Operands<'a, E>,
        memory: Memory<'a>,
        results: usize,
        arrange: &mut dyn FnMut(&mut [u32], &[u32]),
    ) -> Result<ExpertRun<'a, E>, KernelError> {
        let pairs = x.ids.len();
        let rows = results / x.k.max(1);
        let fits = pairs == rows * x.top_k && pairs == x.weights.len();
        assert!(fits, "lengths of experts' operands");
        let sorted = sort(&x, rows, memory.words, arrange)?;
        let (down, floats) = memory.floats.split_at_mut(pairs * x.k);
        Ok(ExpertRun::of(x, sorted, floats, down))
    }

    /// `down` gets what the sorted pairs' experts make of their rows.
    fn of(
        x: Operands<'a, E>,
        sorted: Sorted<'a>,
        floats: &'a mut [f32],
        down: &'a mut [f32],
    ) -> ExpertRun<'a, E> {
        let (hidden, rest) = floats.split_at_mut(sorted.order.len() * x.inter);
        let (outer, rest) = rest.split_at_mut(sorted.rows * 2 * ready(x.activations, x.k));
        let inner = &mut rest[..sorted.order.len() * ready(x.activations, x.inter)];
        ExpertRun { x, sorted, next: 0, input: None, outer: Some(outer), hidden, inner, down }
    }

    /// The experts that are left to compute, in order.
    pub fn used(&self) -> &'a [u32] {
        &self.sorted.used[self.next..]
    }

    /// Computes the next `count` experts; `expert` gives the weights of an expert.
    ///
    /// # Errors
    /// A panic of a part.
    pub fn wave<'e, W: Weight>(
        &mut self,
        cx: &mut Context<'_>,
        expert: &(dyn Fn(usize) -> Expert<'e, W> + Sync),
        count: usize,
    ) -> Result<(), KernelError> {
        let used = &self.used()[..count];
        let Some(first) = used.first() else { return Ok(()) };
        self.next += count;
        let wave = Wave { x: &self.x, sorted: Sorted { used, ..self.sorted }, expert };
        let first = expert(*first as usize);
        // Workers that wait while the input is made ready fetch what is multiplied first.
        let prefetch = |cx: &mut Context<'_>, weight: W| {
            let bytes = weight.bytes();
            if wave.sorted.is_few() {
                cx.pool.prefetch(&bytes[..bytes.len().min(select::PREFETCH_BYTES)]);
            }
        };
        prefetch(cx, first.gate);
        let x = &self.x;
        let input = match (self.input, self.outer.take()) {
            (Some(input), _) => input,
            (None, outer) => {
                let outer = outer.unwrap_or_default();
                let (of_gate, of_up) = outer.split_at_mut(outer.len() / 2);
                let gate = first.gate.input(cx, x.x, x.k, x.activations, of_gate)?;
                let up = match first.gate.shares_input(&first.up, x.activations) {
                    true => gate,
                    false => first.up.input(cx, x.x, x.k, x.activations, of_up)?,
                };
                *self.input.insert([gate, up])
            }
        };
        wave.gate_up(cx, input, self.hidden)?;
        prefetch(cx, first.down);
        let pairs = wave.sorted.all_pairs();
        let hidden = &self.hidden[pairs.start * x.inter..pairs.end * x.inter];
        let inner = &mut self.inner[..pairs.len() * ready(x.activations, x.inter)];
        let input = first.down.input(cx, hidden, x.inter, x.activations, inner)?;
        wave.project_down(cx, input, self.down)
    }

    /// Adds each row's experts.
    ///
    /// # Errors
    /// A panic of a part.
    pub fn finish(self, cx: &mut Context<'_>, y: &mut [f32]) -> Result<(), KernelError> {
        combine(cx, &self.x, self.down, y)
    }
}

/// Experts that are computed together.
struct Wave<'w, 'a, 'e, W, E> {
    x: &'w Operands<'a, E>,
    sorted: Sorted<'a>,
    expert: &'w (dyn Fn(usize) -> Expert<'e, W> + Sync),
}

/// `y[row] = sum over slots of weight * down[row, slot]`, in the order of the slots.
fn combine<E>(
    cx: &mut Context<'_>,
    x: &Operands<'_, E>,
    down: &[f32],
    y: &mut [f32],
) -> Result<(), KernelError> {
    let (k, weights, top_k) = (x.k, x.weights, x.top_k);
    each_row(cx, y, k, &|row, y| {
        y.fill(0.0);
        let pairs = row * top_k..(row + 1) * top_k;
        for pair in pairs {
            let w = weights[pair];
            y.iter_mut().zip(&down[pair * k..][..k]).for_each(|(y, d)| *y += w * d);
        }
    })
}

/// How the experts in use are cut into parts.
enum ExpertCut {
    /// Each expert has `steps` parts of `step` weight rows.
    Even { step: usize, steps: usize },
    /// With few rows: the panels of all experts one after another, as if they were one weight.
    Stream { cut: Stream, panels: usize },
}

impl ExpertCut {
    /// For weights like `first`, `count` of each expert.
    fn new<W: Weight>(
        cx: &Context<'_>,
        first: W,
        count: usize,
        sorted: &Sorted<'_>,
        rows: usize,
    ) -> ExpertCut {
        let used = sorted.used.len();
        if W::STREAMS && sorted.is_few() {
            let (panels, bytes) = (rows.div_ceil(PANEL), used * count * first.bytes().len());
            // Parts that are multiples of the panels read at once are not faster: 0.8 to 1.03 times
            // the tokens/s on an Emerald Rapids, with Q8_0 and Q4_K_M.
            let cut = select::stream(panels * used, 1, bytes, cx.pool.threads());
            return ExpertCut::Stream { cut, panels };
        }
        let step = first.part_rows(cx, sorted.all_pairs().len().div_ceil(used), used);
        ExpertCut::Even { step, steps: rows.div_ceil(step) }
    }

    /// Parts in all.
    fn parts(&self, sorted: &Sorted<'_>) -> usize {
        match self {
            ExpertCut::Even { steps, .. } => sorted.used.len() * steps,
            ExpertCut::Stream { cut, .. } => cut.parts(),
        }
    }

    /// Calls `work` for the experts of a part, with the weight rows of a part of them: as many as
    /// kernels take at once.
    fn visit(
        &self,
        part: usize,
        sorted: &Sorted<'_>,
        rows: usize,
        mut work: impl FnMut(usize, Range<usize>),
    ) {
        match self {
            ExpertCut::Even { step, steps } => {
                let from = part % steps * step;
                work(sorted.used[part / steps] as usize, from..(from + step).min(rows));
            }
            ExpertCut::Stream { cut, panels } => {
                let each = std::iter::repeat_n(*panels, sorted.used.len());
                cut.visit(part, each, |i, of| {
                    let e = sorted.used[i] as usize;
                    // A row alone is multiplied as long as it may be, without a stop.
                    let most = match sorted.pairs(e).len() {
                        1 => TILE_ROWS * select::MAX_PANEL,
                        _ => select::MAX_PANEL,
                    };
                    let n = of.start * PANEL..(of.end * PANEL).min(rows);
                    for from in n.clone().step_by(most) {
                        work(e, from..(from + most).min(n.end));
                    }
                });
            }
        }
    }
}

impl<W: Weight, E> Wave<'_, '_, '_, W, E> {
    /// `hidden[i] = act(gate x) * up x` for the wave's sorted pairs `i`.
    fn gate_up(
        &self,
        cx: &mut Context<'_>,
        input: [Input<'_>; 2],
        hidden: &mut [f32],
    ) -> Result<(), KernelError> {
        let (x, sorted) = (self.x, &self.sorted);
        let first = (self.expert)(sorted.used[0] as usize).gate;
        let cut = ExpertCut::new(cx, first, 2, sorted, x.inter);
        let part_of = GateUp { isa: cx.isa, wave: self, input, hidden: SharedMut::new(hidden) };
        cx.run(cut.parts(sorted), &|scratch, part| {
            cut.visit(part, sorted, x.inter, |e, n| {
                // SAFETY: these columns of these pairs belong to this part.
                unsafe { part_of.rows(e, n, scratch) }
            });
        })
    }

    /// `down[pair]` for the wave's pairs, from the rows between the projections; `input` has the
    /// rows of this wave only.
    fn project_down(
        &self,
        cx: &mut Context<'_>,
        input: Input<'_>,
        down: &mut [f32],
    ) -> Result<(), KernelError> {
        let (x, sorted) = (self.x, &self.sorted);
        let first = (self.expert)(sorted.used[0] as usize).down;
        let cut = ExpertCut::new(cx, first, 1, sorted, x.k);
        let (isa, down, width) = (cx.isa, SharedMut::new(down), input.width);
        let before = sorted.all_pairs().start;
        cx.run(cut.parts(sorted), &|scratch, part| {
            cut.visit(part, sorted, x.k, |e, n| {
                let (pairs, expert) = (sorted.pairs(e), (self.expert)(e));
                let index = Some(&sorted.order[pairs.clone()]);
                let rows = (pairs.start - before) * width..(pairs.end - before) * width;
                let y = OutView { index, ..OutView::dense(down, x.k) };
                let (bias, m, activations) = (expert.bias[2], pairs.len(), x.activations);
                let (x, pairs) = (RowsView::dense(&input.data[rows], width), input.pairs);
                let piece = ExpertPiece { bias, n, m, x, activations, y, origin: 0, pairs };
                // SAFETY: these columns of these pairs belong to this part.
                unsafe { expert.down.multiply(isa, piece, scratch) };
            });
        })
    }
}

/// Where gate and up of all pairs come from and go.
struct GateUp<'g, 'w, 'a, 'e, W, E> {
    isa: Isa,
    wave: &'g Wave<'w, 'a, 'e, W, E>,
    input: [Input<'g>; 2],
    hidden: SharedMut<'g, f32>,
}

impl<W: Weight, E> GateUp<'_, '_, '_, '_, W, E> {
    /// Some weight rows of an expert's gate and up, for all of its pairs.
    ///
    /// # Safety
    /// Nobody else accesses these columns of the pairs' results meanwhile.
    unsafe fn rows(&self, e: usize, n: Range<usize>, scratch: &mut [f32]) {
        let GateUp { isa, wave, input, hidden } = *self;
        let Wave { x, sorted, expert } = wave;
        let (pairs, expert, activations) = (sorted.pairs(e), expert(e), x.activations);
        let (wide, tiles) = scratch.split_at_mut(linear::worker_floats());
        let (gate, up) = tiles.split_at_mut(TILE_ROWS * select::MAX_PANEL);
        for m in pairs.clone().step_by(TILE_ROWS) {
            let index = &sorted.order[m..(m + TILE_ROWS).min(pairs.end)];
            let both =
                [(expert.gate, expert.bias[0], &mut *gate), (expert.up, expert.bias[1], &mut *up)];
            for ((weight, bias, tile), input) in both.into_iter().zip(input) {
                let y = OutView::dense(SharedMut::new(tile), n.len());
                let dense = RowsView::dense(input.data, input.width);
                let x = RowsView { index: Some(index), divide: x.top_k, ..dense };
                let (m, origin) = (index.len(), n.start);
                let (n, pairs) = (n.clone(), input.pairs);
                let piece = ExpertPiece { bias, n, m, x, activations, y, origin, pairs };
                // SAFETY: the results are in this worker's scratch.
                unsafe { weight.multiply(isa, piece, &mut *wide) };
            }
            for i in 0..index.len() {
                let start = (m + i) * x.inter;
                // SAFETY: by the caller.
                let y = unsafe { hidden.slice(start + n.start..start + n.end) };
                let r = i * n.len()..(i + 1) * n.len();
                let (a, b) = (&gate[r.clone()], &up[r]);
                dispatch(isa, ElementwiseRun { op: Element::Gate(x.act), a, b, y });
            }
        }
    }
}
