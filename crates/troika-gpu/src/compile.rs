//! A subgraph becomes a list of steps: what each op dispatches, on values with places, and which
//! weights it needs in which form. All of it is data; nothing here touches a device.

use troika_graph::{ActivationFormat, Experts, Node, Op, RopeFreqs, Subgraph, ValueId, WeightRef};

use crate::kernels::{
    self, AttentionShape, BatchWords, CacheFormat, Dispatch, ExpertShape, Floats, KernelError, Loc,
    Matrix, NormShape, Stack, WeightFormat, unsupported,
};
use crate::packs::{Pack, Split, has_bias, matrices, matrix, packs};
use crate::places::{ValuePlace, places};

/// What a step binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A value.
    Value(usize),
    /// A part of one of the node's packs.
    Weight(usize, usize),
    /// A weight that no thread reads.
    Spare,
    /// The words of the forward batch.
    Words,
    /// Memory between the dispatches of an op.
    Inner,
}

/// A dispatch and what it binds.
#[derive(Clone, Debug)]
pub(crate) struct PlacedDispatch {
    /// The node, whose packs are meant.
    pub node: usize,
    pub dispatch: Dispatch,
    pub operands: Vec<Operand>,
}

/// The code of a subgraph.
pub(crate) struct Code {
    pub graph: Subgraph,
    /// The graph's values.
    pub slots: Vec<ValuePlace>,
    /// For each node its packs.
    pub packs: Vec<Vec<Pack>>,
    /// Bytes of a row of each scratch memory (or of all, for values of fixed rows).
    pub scratch: Vec<usize>,
    /// Outputs that repeat another value: (value, output).
    pub repeats: Vec<(usize, usize)>,
    /// Page groups of each state that attention and appends use, as (state, group).
    pub groups: Vec<(usize, usize)>,
    /// Whether each state is written.
    pub written: Vec<bool>,
    /// Whether a node's result depends on how long sequences are known to be.
    pub has_long: bool,
    /// The limit of a binding.
    pub limit: u64,
}

/// What steps depend on besides the code.
pub(crate) struct Shape<'a> {
    /// Rows of the submission.
    pub rows: usize,
    /// Where each value begins in what is bound, and how far its rows are apart, in words.
    pub locs: &'a [Loc],
    /// Positions of a page in each page group.
    pub page_lens: &'a [usize],
    /// Rows whose sequences take the long frequencies, as runs of (first, count, long).
    pub runs: &'a [(usize, usize, bool)],
}

/// Words before the records of rows in the batch's words.
pub(crate) const HEAD_WORDS: u32 = 4;
/// Words of a row's record.
pub(crate) const RECORD_WORDS: u32 = 4;

impl Code {
    /// Compiles a verified graph.
    ///
    /// # Errors
    /// The first op that has no kernel, with the reason.
    pub fn new(graph: &Subgraph, limit: u64) -> Result<Code, (usize, String)> {
        let packs: Result<Vec<Vec<Pack>>, (usize, String)> = graph
            .nodes
            .iter()
            .enumerate()
            .map(|(i, node)| packs(graph, node, limit).map_err(|e| (i, e.to_string())))
            .collect();
        let (slots, scratch, repeats) = places(graph);
        let mut groups = Vec::new();
        let mut written = vec![false; graph.states.len()];
        for node in &graph.nodes {
            let group = match &node.op {
                Op::KvAppend(k) => k.page_group,
                Op::Attention(a) => a.page_group,
                _ => continue,
            };
            for id in &node.states {
                let Some(at) = graph.states.iter().position(|s| s == id) else { continue };
                written[at] |= matches!(node.op, Op::KvAppend(_));
                if !groups.contains(&(at, group)) {
                    groups.push((at, group));
                }
            }
        }
        let is_long = |n: &Node| matches!(&n.op, Op::Rope(r) if r.long.is_some());
        let has_long = graph.nodes.iter().any(is_long);
        let graph = graph.clone();
        let packs = packs?;
        let code = Code { graph, slots, packs, scratch, repeats, groups, written, has_long, limit };
        for (i, why) in code.refusals().into_iter().enumerate() {
            if let Some(why) = why {
                return Err((i, why));
            }
        }
        Ok(code)
    }

    /// For each node why it cannot run with the most rows, if so.
    fn refusals(&self) -> Vec<Option<String>> {
        let locs: Vec<Loc> =
            self.slots.iter().map(|s| Loc { offset: 0, stride: s.cols as u32 }).collect();
        let groups = self.groups.iter().map(|g| g.1 + 1).max().unwrap_or(0);
        let page_lens = vec![16; groups];
        let rows = self.graph.max_rows().max(1);
        let runs = [(0, rows, false)];
        let shape = Shape { rows, locs: &locs, page_lens: &page_lens, runs: &runs };
        let too_large = |id: &ValueId| {
            let slot = &self.slots[id.0 as usize];
            let bytes = (slot.row_bytes() as u64).saturating_mul(slot.rows_of(rows) as u64);
            (bytes > self.limit).then(|| {
                let limit = self.limit;
                format!("value {} has {bytes} bytes, and a binding at most {limit}", slot.name)
            })
        };
        let mut all = Vec::new();
        for (i, node) in self.graph.nodes.iter().enumerate() {
            let mut ids = node.inputs.iter().chain(&node.states).chain(&node.outputs);
            let large = ids.find_map(too_large);
            let inner = self.inner_bytes(i, rows) as u64;
            let large = large.or_else(|| {
                let limit = self.limit;
                (inner > limit).then(|| {
                    format!("its experts need {inner} bytes between products, and a binding has at most {limit}")
                })
            });
            let mut steps = Vec::new();
            all.push(
                large.or_else(|| self.emit(i, &shape, &mut steps).err().map(|e| e.to_string())),
            );
        }
        all
    }

    /// Why each op of a graph is refused, or `None`.
    pub fn examine(graph: &Subgraph, limit: u64) -> Vec<Option<String>> {
        let asked: Vec<Result<Vec<Pack>, KernelError>> =
            graph.nodes.iter().map(|node| packs(graph, node, limit)).collect();
        let why = |p: &Result<_, KernelError>| p.as_ref().err().map(ToString::to_string);
        let mut verdicts: Vec<Option<String>> = asked.iter().map(why).collect();
        // The others are asked one by one, in the graph without those that have no kernel.
        let (slots, scratch, repeats) = places(graph);
        let code = Code {
            packs: asked.into_iter().map(Result::unwrap_or_default).collect(),
            graph: graph.clone(),
            slots,
            scratch,
            repeats,
            groups: graph
                .nodes
                .iter()
                .filter_map(|n| match &n.op {
                    Op::KvAppend(k) => Some((0, k.page_group)),
                    Op::Attention(a) => Some((0, a.page_group)),
                    _ => None,
                })
                .collect(),
            written: Vec::new(),
            has_long: false,
            limit,
        };
        for (verdict, why) in verdicts.iter_mut().zip(code.refusals()) {
            if verdict.is_none() {
                *verdict = why;
            }
        }
        verdicts
    }

    /// All steps of a run.
    ///
    /// # Errors
    /// An op that has no kernel for this shape.
    pub fn steps(&self, shape: &Shape<'_>) -> Result<Vec<PlacedDispatch>, KernelError> {
        let mut steps = Vec::new();
        for node in 0..self.graph.nodes.len() {
            self.emit(node, shape, &mut steps)?;
        }
        for &(value, output) in &self.repeats {
            let slot = &self.slots[value];
            let cols = slot.cols as u32;
            let rows = slot.rows_of(shape.rows) as u32;
            // The place of an output that repeats a value follows those of the values.
            let to = self.slots.len() + output;
            let (x, y) = (shape.locs[value], shape.locs[to]);
            steps.push(PlacedDispatch {
                node: 0,
                dispatch: kernels::slice_cols([rows, 1], cols, [0, cols], x, y)?,
                operands: vec![Operand::Value(value), Operand::Value(value), Operand::Value(to)],
            });
        }
        steps.retain(|s| !s.dispatch.is_empty());
        Ok(steps)
    }

    /// Bytes that a node needs between its dispatches.
    pub fn inner_bytes(&self, node: usize, rows: usize) -> usize {
        let node = &self.graph.nodes[node];
        let (experts, pairs) = match &node.op {
            Op::Experts(e) => {
                let top_k = node.inputs.get(1).map_or(1, |id| self.slots[id.0 as usize].cols);
                (e, rows.saturating_mul(top_k))
            }
            Op::ExpertGroup(g) => {
                let own =
                    node.inputs.first().map_or(rows, |id| self.slots[id.0 as usize].rows_of(rows));
                (&g.experts, own)
            }
            _ => return 0,
        };
        let inter = experts.gate.first().map_or(0, |w| self.graph.weight(*w).rows);
        pairs.saturating_mul(inter).saturating_mul(4)
    }

    /// Multiplications of a node, of all its dispatches together: so many, and so many for each
    /// position that rows attend to.
    pub fn work(&self, node: usize, rows: usize) -> (u64, u64) {
        let op = &self.graph.nodes[node].op;
        let elements = |w: &WeightRef| {
            let decl = self.graph.weight(*w);
            (decl.rows as u64).saturating_mul(decl.cols as u64)
        };
        let rows = rows as u64;
        let of = |list: &[WeightRef]| list.first().map_or(0, elements);
        match op {
            Op::Linear { weight, .. } => (rows.saturating_mul(elements(weight)), 0),
            Op::HeadLinear(h) => (rows.saturating_mul(h.weights.iter().map(elements).sum()), 0),
            Op::Experts(e) | Op::ExpertGroup(troika_graph::ExpertGroup { experts: e, .. }) => {
                let pairs = (self.inner_bytes(node, rows as usize) / 4) as u64;
                let each = [&e.gate, &e.up, &e.down].iter().map(|list| of(list)).sum::<u64>();
                let inter = e.gate.first().map_or(1, |w| self.graph.weight(*w).rows as u64);
                ((pairs / inter.max(1)).saturating_mul(each), 0)
            }
            Op::Attention(a) => (0, rows.saturating_mul((a.heads * (a.k_dim + a.v_dim)) as u64)),
            _ => (0, 0),
        }
    }

    fn matrix(&self, w: WeightRef) -> Result<(WeightFormat, Split, u32), KernelError> {
        matrix(&self.graph, w, self.limit)
    }

    /// The steps of a node.
    fn emit(
        &self,
        at: usize,
        s: &Shape<'_>,
        out: &mut Vec<PlacedDispatch>,
    ) -> Result<(), KernelError> {
        let node = &self.graph.nodes[at];
        let id = |list: &[ValueId], i: usize| list.get(i).map_or(0, |v| v.0 as usize);
        let input = |i: usize| id(&node.inputs, i);
        let output = |i: usize| id(&node.outputs, i);
        let state = |i: usize| id(&node.states, i);
        let slot = |value: usize| &self.slots[value];
        let loc = |value: usize| s.locs[value];
        let own_rows = |value: usize| slot(value).rows_of(s.rows) as u32;
        let (x, y) = (input(0), output(0));
        let rows = if node.inputs.is_empty() { s.rows as u32 } else { own_rows(x) };
        let cols = |value: usize| slot(value).cols as u32;
        let mut step = |dispatch: Result<Dispatch, KernelError>, operands: &[Operand]| {
            let operands = operands.to_vec();
            out.push(PlacedDispatch { node: at, dispatch: dispatch?, operands });
            Ok::<(), KernelError>(())
        };
        use Operand::{Spare, Value, Weight, Words};
        let weight = |present: bool, pack: usize| if present { Weight(pack, 0) } else { Spare };
        match &node.op {
            Op::Embed { table, scale } => {
                let (format, split, cols) = self.matrix(*table)?;
                for (i, (first, count)) in split.parts().enumerate() {
                    let part = part(format, first, count, cols);
                    let made = kernels::embed(part, *scale, rows, loc(x), loc(y));
                    step(made, &[Weight(0, i), Value(x), Value(y)])?;
                }
                Ok(())
            }
            Op::RmsNorm { weight: w, eps, offset, group } => {
                let shape = norm(rows, cols(x), *group, *eps)?;
                let made = kernels::rms_norm(shape, w.map(|_| *offset), loc(x), loc(y));
                step(made, &[weight(w.is_some(), 0), Spare, Value(x), Value(y)])
            }
            Op::LayerNorm { bias, eps, group, .. } => {
                let shape = norm(rows, cols(x), *group, *eps)?;
                let made = kernels::layer_norm(shape, bias.is_some(), loc(x), loc(y));
                let second = if bias.is_some() { Weight(1, 0) } else { Weight(0, 0) };
                step(made, &[Weight(0, 0), second, Value(x), Value(y)])
            }
            Op::Linear { weight: w, bias, activations } => {
                is_f32(*activations)?;
                let (format, split, cols) = self.matrix(*w)?;
                for (i, (first, count)) in split.parts().enumerate() {
                    let part = part(format, first, count, cols);
                    let made = kernels::linear(part, bias.is_some(), rows, loc(x), loc(y));
                    let second = if bias.is_some() { Weight(1, 0) } else { Weight(0, i) };
                    step(made, &[Weight(0, i), second, Value(x), Value(y)])?;
                }
                Ok(())
            }
            Op::Outliers { .. } => unsupported("what clipping takes from a product"),
            Op::HeadLinear(h) => {
                let (first, heads) = (h.weights.first(), h.weights.len() as u32);
                let Some(first) = first else { return unsupported("a product of no heads") };
                let (format, split, k) = matrices(&self.graph, &h.weights, self.limit)?;
                if split.each < split.all {
                    return unsupported("weights of heads beyond the limit of a binding");
                }
                let n = self.graph.weight(*first).rows as u32;
                let all = Matrix { format, rows: n * heads, cols: k, first: 0 };
                let made = kernels::head_linear(all, heads, rows, loc(x), loc(y));
                step(made, &[Weight(0, 0), Weight(0, 0), Value(x), Value(y)])
            }
            Op::Rope(rope) => {
                let heads = cols(x) / (rope.head_dim.max(1) as u32);
                let positions = input(1);
                let runs: &[(usize, usize, bool)] =
                    if rope.long.is_some() { s.runs } else { &[(0, rows as usize, false)] };
                for (first, count, is_long) in runs {
                    let (freqs, pack): (&RopeFreqs, usize) = match &rope.long {
                        Some((long, _)) if *is_long => (long, 1),
                        _ => (&rope.freqs, 0),
                    };
                    let from = |v: usize| {
                        let Loc { offset, stride } = loc(v);
                        Loc { offset: offset + stride * *first as u32, stride }
                    };
                    let at = [from(x), from(positions), from(y)];
                    let made = kernels::rope(rope, freqs.factor, [*count as u32, heads], at);
                    step(made, &[Weight(pack, 0), Value(x), Value(positions), Value(y)])?;
                }
                Ok(())
            }
            Op::KvAppend(k) => {
                let cache = cache(slot(state(0)))?;
                let batch = batch(k.page_group, s)?;
                let made = kernels::kv_append(batch, k.width as u32, loc(x), cache);
                step(made, &[Value(x), Words, Value(state(0))])
            }
            Op::Attention(a) => {
                is_f32(a.activations)?;
                let keys = state(0);
                let values = if a.value_in_key { keys } else { state(1) };
                let shape = AttentionShape {
                    op: a,
                    batch: batch(a.page_group, s)?,
                    keys: cache(slot(keys))?,
                    values: cache(slot(values))?,
                };
                let made = kernels::attention(shape, loc(x), loc(y));
                let sinks = weight(a.sinks.is_some(), 0);
                step(made, &[sinks, Value(x), Words, Value(keys), Value(values), Value(y)])
            }
            Op::Activate(act) => {
                let made = kernels::activate(*act, [rows, cols(x)], loc(x), loc(y));
                step(made, &[Value(x), Value(x), Value(y)])
            }
            Op::Gate(act) => {
                let at = [loc(x), loc(input(1)), loc(y)];
                let made = kernels::gate(*act, [rows, cols(x)], at);
                step(made, &[Value(x), Value(input(1)), Value(y)])
            }
            Op::Add => {
                let made = kernels::add([rows, cols(x)], [loc(x), loc(input(1)), loc(y)]);
                step(made, &[Value(x), Value(input(1)), Value(y)])
            }
            Op::Scale { factor } => {
                let made = kernels::scale(*factor, [rows, cols(x)], loc(x), loc(y));
                step(made, &[Value(x), Value(x), Value(y)])
            }
            Op::Clamp { limit } => {
                let made = kernels::clamp(*limit, [rows, cols(x)], loc(x), loc(y));
                step(made, &[Value(x), Value(x), Value(y)])
            }
            Op::SoftCap { cap } => {
                let made = kernels::soft_cap(*cap, [rows, cols(x)], loc(x), loc(y));
                step(made, &[Value(x), Value(x), Value(y)])
            }
            Op::SigmoidGate => {
                let at = [loc(x), loc(input(1)), loc(y)];
                let made = kernels::sigmoid_gate([rows, cols(x)], at);
                step(made, &[Value(x), Value(input(1)), Value(y)])
            }
            Op::Convert => self.convert(at, s, out),
            Op::SliceCols { group, start, len } => {
                let (group, kept) = (*group as u32, [*start as u32, *len as u32]);
                let groups = cols(x) / group.max(1);
                let made = kernels::slice_cols([rows, groups], group, kept, loc(x), loc(y));
                step(made, &[Value(x), Value(x), Value(y)])
            }
            Op::ConcatCols { groups } => {
                let groups = (*groups as u32).max(1);
                let widths = [cols(x) / groups, cols(input(1)) / groups];
                let at = [loc(x), loc(input(1)), loc(y)];
                let made = kernels::concat_cols([rows, groups], widths, at);
                step(made, &[Value(x), Value(input(1)), Value(y)])
            }
            Op::Router(router) => {
                let (ids, weights) = (output(0), output(1));
                let made = kernels::router(router, rows, [loc(x), loc(ids), loc(weights)]);
                step(made, &[Value(x), Value(ids), Value(weights)])
            }
            Op::Experts(experts) => {
                let (ids, weights) = (input(1), input(2));
                let top_k = cols(ids);
                let bias = has_bias(experts);
                let shape = ExpertShape { rows, top_k, capacity: None, bias };
                self.experts(at, experts, shape, [x, ids, weights, y], s, out)
            }
            Op::ExpertGroup(group) => {
                let bias = has_bias(&group.experts);
                let capacity = Some(group.capacity as u32);
                let shape = ExpertShape { rows, top_k: 1, capacity, bias };
                // Neither ids nor weights are read.
                self.experts(at, &group.experts, shape, [x, x, x, y], s, out)
            }
        }
    }

    fn experts(
        &self,
        at: usize,
        experts: &Experts,
        shape: ExpertShape,
        [x, ids, weights, y]: [usize; 4],
        s: &Shape<'_>,
        out: &mut Vec<PlacedDispatch>,
    ) -> Result<(), KernelError> {
        use Operand::{Inner, Value, Weight};
        is_f32(experts.activations)?;
        let (format, split, k) = matrices(&self.graph, &experts.gate, self.limit)?;
        let of_ups = matrices(&self.graph, &experts.up, self.limit)?;
        if of_ups != (format, split, k) {
            return unsupported("experts whose gates and ups have different types");
        }
        let (down_format, downs, inter) = matrices(&self.graph, &experts.down, self.limit)?;
        let rows_of = |list: &[WeightRef]| list.first().map_or(0, |w| self.graph.weight(*w).rows);
        let (gate_rows, down_rows) = (rows_of(&experts.gate) as u32, rows_of(&experts.down) as u32);
        let h = Loc { offset: 0, stride: gate_rows };
        for (i, (first, count)) in split.parts().enumerate() {
            let each = Matrix { format, rows: gate_rows, cols: k, first: 0 };
            let gates = Stack { each, first: first as u32, count: count as u32 };
            let at_x = [s.locs[x], s.locs[ids], h];
            let dispatch = kernels::experts_gate_up(gates, experts.act, shape, at_x)?;
            let biases = if shape.bias {
                [Weight(3, i), Weight(4, i)]
            } else {
                [Weight(0, i), Weight(0, i)]
            };
            let [b, c] = biases;
            let operands = vec![Weight(0, i), Weight(1, i), b, c, Value(x), Value(ids), Inner];
            out.push(PlacedDispatch { node: at, dispatch, operands });
        }
        for (i, (first, count)) in downs.parts().enumerate() {
            let each = Matrix { format: down_format, rows: down_rows, cols: inter, first: 0 };
            let stack = Stack { each, first: first as u32, count: count as u32 };
            let at_h = [h, s.locs[ids], s.locs[weights], s.locs[y]];
            let dispatch = kernels::experts_down(stack, shape, i > 0, at_h)?;
            let bias = if shape.bias { Weight(5, i) } else { Weight(2, i) };
            let operands = vec![Weight(2, i), bias, Inner, Value(ids), Value(weights), Value(y)];
            out.push(PlacedDispatch { node: at, dispatch, operands });
        }
        Ok(())
    }

    /// Rows with gaps are converted one by one.
    fn convert(
        &self,
        at: usize,
        s: &Shape<'_>,
        out: &mut Vec<PlacedDispatch>,
    ) -> Result<(), KernelError> {
        let node = &self.graph.nodes[at];
        let (Some(x), Some(y)) = (node.inputs.first(), node.outputs.first()) else {
            return unsupported("a conversion of nothing");
        };
        let (x, y) = (x.0 as usize, y.0 as usize);
        let (from, to) = (&self.slots[x], &self.slots[y]);
        let types = Floats::of(from.dtype).zip(Floats::of(to.dtype));
        let Some((a, b)) = types else {
            return unsupported(format!("a conversion from {} to {}", from.dtype, to.dtype));
        };
        let rows = from.rows_of(s.rows);
        // Strides are in words, of which two-byte floats fill half of one.
        let words = |slot: &ValuePlace| slot.row_bytes().div_ceil(4);
        let odd = |slot: &ValuePlace| !slot.row_bytes().is_multiple_of(4);
        if odd(from) || odd(to) {
            return unsupported(format!("rows of {} floats of two bytes", from.cols));
        }
        let dense =
            s.locs[x].stride as usize == words(from) && s.locs[y].stride as usize == words(to);
        let (runs, count) = if dense { (1, rows * from.cols) } else { (rows, from.cols) };
        for i in 0..runs as u32 {
            let offsets = [x, y].map(|v| s.locs[v].offset + i * s.locs[v].stride);
            let dispatch = kernels::convert(a, b, count as u32, offsets)?;
            let operands = vec![Operand::Value(x), Operand::Value(y)];
            out.push(PlacedDispatch { node: at, dispatch, operands });
        }
        Ok(())
    }
}

/// The refusal of activations that are rounded.
fn is_f32(format: ActivationFormat) -> Result<(), KernelError> {
    if format == ActivationFormat::F32 {
        return Ok(());
    }
    unsupported("activations that are rounded: it computes in f32")
}

fn norm(rows: u32, cols: u32, group: usize, eps: f32) -> Result<NormShape, KernelError> {
    let group = group as u32;
    if group == 0 || !cols.is_multiple_of(group) {
        return unsupported(format!("groups of {group} of {cols} columns"));
    }
    Ok(NormShape { rows, groups: cols / group, group, eps })
}

fn cache(slot: &ValuePlace) -> Result<CacheFormat, KernelError> {
    match CacheFormat::of(slot.dtype) {
        Some(format) => Ok(format),
        None => unsupported(format!("a cache of {}", slot.dtype)),
    }
}

fn batch(group: usize, s: &Shape<'_>) -> Result<BatchWords, KernelError> {
    let count = s.rows as u32;
    let Some(&page_len) = s.page_lens.get(group) else {
        return unsupported(format!("a batch without tables of page group {group}"));
    };
    let rows = HEAD_WORDS + group as u32 * RECORD_WORDS * count;
    Ok(BatchWords { rows, count, page_len: page_len as u32, flag: 0 })
}

fn part(format: WeightFormat, first: usize, count: usize, cols: u32) -> Matrix {
    Matrix { format, rows: count as u32, cols, first: first as u32 }
}
