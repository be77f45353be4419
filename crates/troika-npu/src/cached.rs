//! Graphs with a cache of keys and values. The cache lies in pages and grows, and models have fixed
//! shapes: so the host writes new rows to the cache, gathers what a sequence sees of it, and picks
//! the model of the next larger number of positions.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16};
use troika_device::{PagesView, Run, SeqRows, SpaceId, View};
use troika_graph::blocks::dequantize;
use troika_graph::{Attention, DType, Node, Op, Subgraph, ValueId};

use crate::emit::{HIDDEN, Port};
use crate::session::{CompiledModel, RunError};

/// The least number of positions that a model is made for; the others are its doubles.
const LEAST_POSITIONS: usize = 128;

/// A compiled graph with a cache.
pub(crate) struct CachedModel {
    /// Inputs, states and outputs of the graph.
    counts: [usize; 3],
    rows: usize,
    appends: Vec<Append>,
    attend: Option<Attend>,
}

/// A state of the graph.
struct Cache {
    /// Its index among the states.
    state: usize,
    width: usize,
    dtype: DType,
    group: usize,
    /// Heads of a row that is attended to.
    heads: usize,
}

/// Rows of an input that go into a cache.
struct Append {
    input: usize,
    dtype: DType,
    cache: Cache,
}

/// An attention with its models by their number of positions, ascending.
struct Attend {
    window: Option<usize>,
    caches: Vec<Cache>,
    /// For each input of the models that the graph has, which one it is.
    of: Vec<usize>,
    models: Vec<PositionsModel>,
}

/// A model for a number of positions.
struct PositionsModel {
    positions: usize,
    model: CompiledModel,
    /// The positions that its last run filled.
    filled: AtomicUsize,
}

/// The numbers of positions to compile a graph's attention for: none if it has no attention.
///
/// # Errors
/// Why the graph cannot be run like this.
pub(crate) fn positions(graph: &Subgraph) -> Result<Vec<usize>, String> {
    if graph.nodes.iter().any(|n| matches!(n.op, Op::Rope(_))) {
        return Err("it rotates beside its cache".into());
    }
    let appends = |n: &&Node| matches!(n.op, Op::KvAppend(_));
    let of_inputs = |n: &Node| n.inputs.iter().all(|id| input_behind(graph, *id).is_some());
    if !graph.nodes.iter().filter(appends).all(of_inputs) {
        return Err("what goes into its cache is none of its inputs".into());
    }
    let mut of = graph.nodes.iter().filter_map(|n| match &n.op {
        Op::Attention(a) => Some((a, n.states.first())),
        _ => None,
    });
    let Some((attention, Some(keys))) = of.next() else {
        let why = "it has results beside its cache, and no attention";
        return if graph.outputs.is_empty() { Ok(Vec::new()) } else { Err(why.into()) };
    };
    if of.next().is_some() {
        return Err("it has more than one attention".into());
    }
    let (most, rows) = (graph.value(*keys).shape.max_rows(), graph.max_rows());
    // A chunk of `rows` rows sees at least as many positions.
    let most = attention.window.map_or(most, |w| most.min(w.saturating_add(rows)));
    let doubles = std::iter::successors(Some(LEAST_POSITIONS), |n| n.checked_mul(2));
    let mut all: Vec<usize> = doubles.take_while(|n| *n < most).filter(|n| *n >= rows).collect();
    all.push(most);
    Ok(all)
}

impl CachedModel {
    /// A graph, with the models of its attention by their number of positions.
    pub fn new(
        graph: &Subgraph,
        rows: usize,
        of: Vec<usize>,
        models: Vec<(usize, CompiledModel)>,
    ) -> CachedModel {
        let (mut appends, mut attend) = (Vec::new(), None);
        for node in &graph.nodes {
            match &node.op {
                Op::KvAppend(append) => {
                    let from = node.inputs.first().and_then(|id| input_behind(graph, *id));
                    // `positions` refuses what the graph computes itself: the host cannot see it.
                    let Some(input) = from else { continue };
                    let cache = cache(graph, node.states[0], append.page_group, 1);
                    let dtype = graph.value(graph.inputs[input]).dtype;
                    appends.push(Append { input, dtype, cache });
                }
                Op::Attention(Attention { window, page_group, kv_heads, .. }) => {
                    let states = node.states.iter();
                    let cache = |s: &ValueId| cache(graph, *s, *page_group, *kv_heads);
                    let caches = states.map(cache).collect();
                    attend = Some((*window, caches));
                }
                _ => {}
            }
        }
        let counts = [graph.inputs.len(), graph.states.len(), graph.outputs.len()];
        let of_model = |(positions, model)| PositionsModel { positions, model, filled: 0.into() };
        let models = models.into_iter().map(of_model).collect();
        let attend = attend.map(|(window, caches)| Attend { window, caches, of, models });
        CachedModel { counts, rows, appends, attend }
    }

    /// Runs it on the rows of a submission, one sequence after the other.
    pub fn run(&self, run: &Run) -> Result<(), RunError> {
        let b = &run.bindings;
        let got = [b.inputs.len(), b.states.len(), b.outputs.len()];
        let whole = run.forward.is_whole() && run.forward.rows() == run.rows;
        if got != self.counts || run.rows > self.rows || !whole {
            let (need, rows) = (self.counts, self.rows);
            return Err(RunError::Misfit(format!(
                "binds {got:?} inputs, states and outputs and {} rows, but needs {need:?}, and at \
                 most {rows} rows, all of sequences",
                run.rows
            )));
        }
        for append in &self.appends {
            run.forward.seqs.iter().try_for_each(|seq| append.write(run, seq))?;
        }
        let Some(attend) = &self.attend else { return Ok(()) };
        run.forward.seqs.iter().try_for_each(|seq| attend.run(run, seq))
    }
}

/// The graph's input that a value is, perhaps in another type.
fn input_behind(graph: &Subgraph, id: ValueId) -> Option<usize> {
    if let Some(at) = graph.inputs.iter().position(|i| *i == id) {
        return Some(at);
    }
    let maker = graph.nodes.iter().find(|n| n.outputs.contains(&id));
    let maker = maker.filter(|n| matches!(n.op, Op::Convert))?;
    input_behind(graph, *maker.inputs.first()?)
}

fn cache(graph: &Subgraph, state: ValueId, group: usize, heads: usize) -> Cache {
    let value = graph.value(state);
    let at = graph.states.iter().position(|s| *s == state).unwrap_or(usize::MAX);
    Cache { state: at, width: value.shape.row_len(), dtype: value.dtype, group, heads }
}

impl Cache {
    fn row_bytes(&self) -> usize {
        self.dtype.row_size(self.width)
    }

    /// Calls `each` for each range of neighbouring cache rows of some positions, with the number of
    /// positions before it.
    fn ranges(
        &self,
        run: &Run,
        seq: &SeqRows,
        positions: Range<usize>,
        mut each: impl FnMut(View, usize) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let gone = |what: &str| RunError::Misfit(format!("sequence {} has {what}", seq.seq));
        let state = run.bindings.states.get(self.state).ok_or_else(|| gone("no cache"))?;
        let pages = PagesView::new(seq, self.group).ok_or_else(|| gone("no page table"))?;
        if state.buffer().space() != SpaceId::HOST {
            return Err(gone("its cache in memory of another device"));
        }
        let (start, bytes, wanted) = (state.rect().offset(), self.row_bytes(), positions.len());
        let (mut done, mut result) = (0, Ok(()));
        pages.rows_of(positions, |rows| {
            if result.is_err() {
                return;
            }
            let inside = rows.end.saturating_mul(bytes) <= state.rect().span().len();
            let at = start.saturating_add(rows.start.saturating_mul(bytes));
            let view = View::dense(state.buffer(), at, (rows.len(), bytes)).ok();
            result = match view.filter(|_| inside) {
                Some(view) => each(view, done),
                None => Err(gone("pages beyond its cache")),
            };
            done += rows.len();
        });
        result?;
        if done == wanted { Ok(()) } else { Err(gone("positions that are visible but not kept")) }
    }

    /// Gathers cached rows of a sequence for an input, in which each head may have room behind it
    /// that stays as it is.
    fn gather(
        &self,
        run: &Run,
        seq: &SeqRows,
        positions: &Range<usize>,
        port: &Port,
        to: &mut [u8],
    ) -> Result<(), RunError> {
        let row = port.row_bytes();
        let head = |cols: usize| port.dtype.row_size(cols / self.heads).max(1);
        let mut floats = Vec::new();
        self.ranges(run, seq, positions.clone(), |from, done| {
            let (count, from) = (from.rect().rows(), from.read()?);
            let Some(mut from) = from.as_slice::<u8>() else {
                return Err(RunError::Misfit("its cached rows lie apart".into()));
            };
            if port.dtype != self.dtype {
                floats.resize(count * self.width, 0.0);
                dequantize(self.dtype, from, &mut floats);
                from = bytemuck::cast_slice(&floats);
            }
            let to = &mut to[done * row..][..count * row];
            let heads = from.chunks_exact(head(self.width));
            match port.cols == self.width {
                true => to.copy_from_slice(from),
                false => to
                    .chunks_exact_mut(head(port.cols))
                    .zip(heads)
                    .for_each(|(to, from)| to[..from.len()].copy_from_slice(from)),
            }
            Ok(())
        })
    }
}

impl Append {
    /// Writes the rows of a sequence.
    fn write(&self, run: &Run, seq: &SeqRows) -> Result<(), RunError> {
        let (width, bytes) = (self.cache.width, self.cache.row_bytes());
        let from = rows_of(&run.bindings.inputs[self.input], &seq.rows, width, self.dtype)?;
        let from = from.read()?;
        let mut floats = vec![0.0; width];
        self.cache.ranges(run, seq, seq.pos..seq.pos + seq.rows.len(), |to, done| {
            let count = to.rect().rows();
            let mut to = to.write()?;
            for i in 0..count {
                let (Some(from), Some(to)) = (from.row::<u8>(done + i), to.row_mut::<u8>(i)) else {
                    return Err(RunError::Misfit(format!(
                        "a row has not the cache's {bytes} bytes"
                    )));
                };
                dequantize(self.dtype, from, &mut floats);
                write_floats(self.cache.dtype, &floats, to);
            }
            Ok(())
        })
    }
}

/// Rows of a view of values of `cols` columns.
fn rows_of(view: &View, rows: &Range<usize>, cols: usize, dtype: DType) -> Result<View, RunError> {
    let (r, bytes) = (view.rect(), dtype.row_size(cols));
    let found = match r.is_dense() {
        true => {
            let fits = rows.end.saturating_mul(bytes) <= r.span().len();
            let from = r.offset().saturating_add(rows.start.saturating_mul(bytes));
            View::dense(view.buffer(), from, (rows.len(), bytes)).ok().filter(|_| fits)
        }
        false => view.rows(rows.clone()).ok().filter(|_| r.row_bytes() == bytes),
    };
    found.ok_or_else(|| {
        RunError::Misfit(format!("a view has no {} rows of {bytes} bytes", rows.end))
    })
}

/// Rounds floats to the nearest of a type.
fn write_floats(dtype: DType, from: &[f32], to: &mut [u8]) {
    match dtype {
        DType::F16 => each(from, to, |v| f16::from_f32(v).to_le_bytes()),
        DType::BF16 => each(from, to, |v| bf16::from_f32(v).to_le_bytes()),
        _ => each(from, to, f32::to_le_bytes),
    }
}

fn each<const N: usize>(from: &[f32], to: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    to.as_chunks_mut().0.iter_mut().zip(from).for_each(|(to, v)| *to = bytes(*v));
}

impl Attend {
    /// Attends for the rows of a sequence.
    fn run(&self, run: &Run, seq: &SeqRows) -> Result<(), RunError> {
        if seq.rows.is_empty() {
            return Ok(());
        }
        let end = seq.pos + seq.rows.len();
        let first = self.window.map_or(0, |w| (seq.pos + 1).saturating_sub(w));
        let seen = first..end;
        let found = self.models.iter().find(|m| m.positions >= seen.len());
        let Some(PositionsModel { model, filled, .. }) = found else {
            let most = self.models.last().map_or(0, |m| m.positions);
            let why = format!("{} positions are visible, at most {most} fit", seen.len());
            return Err(RunError::Misfit(why));
        };
        let b = &run.bindings;
        model.run_on(
            seq.rows.len(),
            &[],
            |ports, memory| {
                let of_graph = self.of.iter().zip(ports.iter().zip(&mut *memory));
                for (input, (port, memory)) in of_graph {
                    let from = rows_of(&b.inputs[*input], &seq.rows, port.cols, port.dtype)?;
                    let (from, to) = (from.read()?, bytemuck::cast_slice_mut::<u32, u8>(memory));
                    for (i, to) in to.chunks_exact_mut(port.row_bytes()).enumerate() {
                        from.row::<u8>(i).into_iter().for_each(|from| to.copy_from_slice(from));
                    }
                }
                let rest = memory[self.of.len()..].split_last_mut();
                let Some((mask, kept)) = rest else { return Ok(()) };
                let ports_of_caches = &ports[self.of.len()..];
                let before = filled.swap(seen.len(), Ordering::Relaxed);
                for ((cache, port), memory) in self.caches.iter().zip(ports_of_caches).zip(kept) {
                    let to: &mut [u8] = bytemuck::cast_slice_mut(memory);
                    let behind = seen.len()..before.max(seen.len());
                    to[behind.start * port.row_bytes()..behind.end * port.row_bytes()].fill(0);
                    cache.gather(run, seq, &seen, port, to)?;
                }
                let cols = ports.last().map_or(1, |mask| mask.cols);
                self.mask(seq, first, cols, bytemuck::cast_slice_mut(mask));
                Ok(())
            },
            |output, port, _, bytes| {
                let to = rows_of(&b.outputs[output], &seq.rows, port.cols, port.dtype)?;
                let mut to = to.write()?;
                for (i, from) in bytes.chunks_exact(port.row_bytes()).enumerate() {
                    to.row_mut::<u8>(i).into_iter().for_each(|to| to.copy_from_slice(from));
                }
                Ok(())
            },
        )
    }

    /// Hides from each row the positions that it does not see. `cols` positions follow `first`.
    fn mask(&self, seq: &SeqRows, first: usize, cols: usize, mask: &mut [f32]) {
        let mut rows = mask.chunks_exact_mut(cols);
        for (pos, row) in (seq.pos..seq.pos + seq.rows.len()).zip(&mut rows) {
            let from = self.window.map_or(0, |w| (pos + 1).saturating_sub(w).saturating_sub(first));
            row.fill(HIDDEN);
            row[from..=pos - first].fill(0.0);
        }
        // Rows behind see all, so that their shares are numbers.
        rows.for_each(|row| row.fill(0.0));
    }
}
