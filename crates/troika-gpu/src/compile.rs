//! A subgraph becomes a list of steps: what each op dispatches, on values with places, and which
//! weights it needs in which form. All of it is data; nothing here touches a device.

use troika_graph::{
    ActivationFormat, ExpertGroup, HeadLinear, Node, Op, Subgraph, ValueId, WeightRef,
};

use crate::bound::MultiplyCount;
use crate::kernels::{
    self, Before, Columns, Dispatch, ExpertShape, FEW, Floats, KernelError, Loc, Matrix, Stack,
    WeightFormat, is_eight_bits, unsupported,
};
use crate::packs::{Pack, Split, has_bias, matrices, matrix, packs};
use crate::places::{ValuePlace, places};
use crate::units::{Chain, Unit, units};

/// What a step binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A value.
    Value(usize),
    /// A part of a pack.
    Weight(PackPart),
    /// A weight that no thread reads.
    Spare,
    /// The words of the forward batch.
    Words,
    /// Memory between the dispatches of an op.
    Inner,
}

/// A part of a pack: of a node's, or, behind those of all nodes, of a unit's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackPart {
    pub of: usize,
    pub pack: usize,
    pub part: usize,
}

/// A dispatch and what it binds.
#[derive(Clone, Debug)]
pub(crate) struct PlacedDispatch {
    pub dispatch: Dispatch,
    pub operands: Vec<Operand>,
    pub work: MultiplyCount,
}

/// Nothing, or why there is no kernel.
pub(crate) type Emitted = Result<(), KernelError>;
/// Dispatches in their order.
pub(crate) type Dispatches = Vec<PlacedDispatch>;

impl PlacedDispatch {
    pub fn new(dispatch: Dispatch, operands: Vec<Operand>) -> PlacedDispatch {
        PlacedDispatch { dispatch, operands, work: MultiplyCount::default() }
    }
}

/// The code of a subgraph.
pub(crate) struct Code {
    pub graph: Subgraph,
    /// The graph's values.
    pub slots: Vec<ValuePlace>,
    /// What runs together, in order.
    pub units: Vec<Unit>,
    /// The packs of each node, then those of each unit.
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
    /// Whether products of many rows use matrix units.
    pub matrix_units: bool,
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
    /// The most positions that a row sees, or more.
    pub longest: usize,
    /// Whether each row is the only one of its sequence.
    pub one_row_each: bool,
}

/// The values of experts: what they read, an addend of their results, and these.
struct ExpertValues {
    x: usize,
    ids: usize,
    weights: usize,
    addend: Option<usize>,
    y: usize,
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
        let of_nodes: Result<Vec<Vec<Pack>>, (usize, String)> = graph
            .nodes
            .iter()
            .enumerate()
            .map(|(i, node)| packs(graph, node, limit).map_err(|e| (i, e.to_string())))
            .collect();
        let mut packs = of_nodes?;
        let units = units(graph);
        packs.extend(units.iter().map(|unit| joined(graph, unit)));
        let (slots, scratch, repeats) = places(graph, &units);
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
        let code = Code {
            graph,
            slots,
            units,
            packs,
            scratch,
            repeats,
            groups,
            written,
            has_long,
            limit,
            matrix_units: false,
        };
        for (i, why) in code.refusals().into_iter().enumerate() {
            if let Some(why) = why {
                return Err((i, why));
            }
        }
        Ok(code)
    }

    /// A place for each value that begins its memory, and as many page lengths as there are groups.
    pub(crate) fn plain_places(&self) -> (Vec<Loc>, Vec<usize>) {
        let plain = |s: &ValuePlace| Loc { offset: 0, stride: s.cols as u32 };
        let outputs = self.graph.outputs.iter().map(|id| &self.slots[id.0 as usize]);
        let groups = self.groups.iter().map(|g| g.1 + 1).max().unwrap_or(0);
        (self.slots.iter().chain(outputs).map(plain).collect(), vec![16; groups])
    }

    /// For each node why it cannot run with the most rows, if so.
    fn refusals(&self) -> Vec<Option<String>> {
        let (locs, page_lens) = self.plain_places();
        let rows = self.graph.max_rows().max(1);
        let runs = [(0, rows, false)];
        let shape = Shape {
            rows,
            locs: &locs,
            page_lens: &page_lens,
            runs: &runs,
            longest: 0,
            one_row_each: false,
        };
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
            let inner = self.inner_bytes(i, rows, 0) as u64;
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
        let units: Vec<Unit> = (0..graph.nodes.len()).map(Unit::alone).collect();
        let (slots, scratch, repeats) = places(graph, &units);
        let code = Code {
            units,
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
            matrix_units: false,
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
        for at in 0..self.units.len() {
            self.unit_steps(at, shape, &mut steps)?;
        }
        for &(value, output) in &self.repeats {
            let slot = &self.slots[value];
            let cols = slot.cols as u32;
            let rows = slot.rows_of(shape.rows) as u32;
            // The place of an output that repeats a value follows those of the values.
            let to = self.slots.len() + output;
            let (x, y) = (shape.locs[value], shape.locs[to]);
            let all = Columns { rows, groups: 1, group: cols, start: 0, kept: cols, joined: 0 };
            steps.push(PlacedDispatch::new(
                kernels::columns(all, [x, x, y])?,
                [value, value, to].map(Operand::Value).to_vec(),
            ));
        }
        steps.retain(|s| !s.dispatch.is_empty());
        Ok(steps)
    }

    /// Bytes that a node needs between its dispatches.
    pub fn inner_bytes(&self, node: usize, rows: usize, longest: usize) -> usize {
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
            Op::Attention(a) => match self.parts(a, rows, longest) {
                1 => return 0,
                parts => return rows * kernels::part_floats(a, parts) * 4,
            },
            _ => return 0,
        };
        let inter = experts.gate.first().map_or(0, |w| self.graph.weight(*w).rows);
        pairs.saturating_mul(inter).saturating_mul(4)
    }

    /// Multiplications of a node, of all its dispatches together.
    pub fn work(&self, node: usize, rows: usize) -> MultiplyCount {
        let op = &self.graph.nodes[node].op;
        let elements = |w: &WeightRef| {
            let decl = self.graph.weight(*w);
            (decl.rows as u64).saturating_mul(decl.cols as u64)
        };
        let rows = rows as u64;
        let of = |list: &[WeightRef]| list.first().map_or(0, elements);
        let fixed = |fixed: u64| MultiplyCount { fixed, each: 0 };
        match op {
            Op::Linear { weight, .. } => fixed(rows.saturating_mul(elements(weight))),
            Op::HeadLinear(h) => fixed(rows.saturating_mul(h.weights.iter().map(elements).sum())),
            Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
                let pairs = (self.inner_bytes(node, rows as usize, 0) / 4) as u64;
                let each = [&e.gate, &e.up, &e.down].iter().map(|list| of(list)).sum::<u64>();
                let inter = e.gate.first().map_or(1, |w| self.graph.weight(*w).rows as u64);
                fixed((pairs / inter.max(1)).saturating_mul(each))
            }
            Op::Attention(a) => {
                let each = rows.saturating_mul((a.heads * (a.k_dim + a.v_dim)) as u64);
                MultiplyCount { fixed: 0, each }
            }
            _ => MultiplyCount::default(),
        }
    }

    pub(crate) fn matrix(&self, w: WeightRef) -> Result<(WeightFormat, Split, u32), KernelError> {
        matrix(&self.graph, w, self.limit)
    }

    /// The steps of a node by itself.
    pub(crate) fn emit(&self, at: usize, s: &Shape<'_>, out: &mut Dispatches) -> Emitted {
        let node = &self.graph.nodes[at];
        let id = |list: &[ValueId], i: usize| list.get(i).map_or(0, |v| v.0 as usize);
        let (input, output) = (|i| id(&node.inputs, i), |i| id(&node.outputs, i));
        let loc = |value: usize| s.locs[value];
        let (x, y) = (input(0), output(0));
        // Ops of one operand bind it twice.
        let second = if node.inputs.len() > 1 { input(1) } else { x };
        let rows = if node.inputs.is_empty() { s.rows } else { self.slots[x].rows_of(s.rows) };
        let (rows, cols) = (rows as u32, |value: usize| self.slots[value].cols as u32);
        let mut step = |dispatch: Result<Dispatch, KernelError>, operands: &[Operand]| {
            out.push(PlacedDispatch::new(dispatch?, operands.to_vec()));
            Ok::<(), KernelError>(())
        };
        use Operand::Value;
        match &node.op {
            Op::Embed { .. } => self.embed(at, s, out),
            Op::RmsNorm { .. } | Op::LayerNorm { .. } => self.norm(at, None, y, s, out),
            Op::Linear { .. } => {
                let Some(result) = node.outputs.first() else { return unsupported("no result") };
                self.product(&Chain::of(at, *result), None, s, out)
            }
            Op::Outliers { .. } => unsupported("what clipping takes from a product"),
            Op::HeadLinear(h) => self.head_linear(at, h, s, out),
            Op::Rope(_) => self.rotate(at, at, None, s, out),
            Op::KvAppend(_) => self.append(at, None, s, out),
            Op::Attention(_) => self.attention(at, None, s, out),
            Op::Activate(_)
            | Op::Gate(_)
            | Op::Add
            | Op::Scale { .. }
            | Op::Clamp { .. }
            | Op::SoftCap { .. }
            | Op::SigmoidGate => {
                let made = kernels::elements(&node.op, rows, cols(x), [x, second, y].map(loc));
                step(made, &[x, second, y].map(Value))
            }
            Op::Convert => self.convert(at, s, out),
            Op::SliceCols { .. } | Op::ConcatCols { .. } => {
                let made = kernels::columns(self.columns(node, rows)?, [x, second, y].map(loc));
                step(made, &[x, second, y].map(Value))
            }
            Op::Router(router) => {
                let made = kernels::router(router, rows, [x, y, output(1)].map(loc));
                step(made, &[x, y, output(1)].map(Value))
            }
            Op::Experts(_) => self.experts(at, None, y, s, out),
            Op::ExpertGroup(group) => {
                let (capacity, bias) = (Some(group.capacity as u32), has_bias(&group.experts));
                let shape = ExpertShape { rows, top_k: 1, capacity, bias };
                // Neither ids nor weights are read.
                let values = ExpertValues { x, ids: x, weights: x, addend: None, y };
                self.feed_forwards(at, shape, values, s, out)
            }
        }
    }

    /// What an op that moves columns keeps and joins.
    fn columns(&self, node: &Node, rows: u32) -> Result<Columns, KernelError> {
        let cols = |i: usize| node.inputs.get(i).map_or(0, |v| self.slots[v.0 as usize].cols);
        let (groups, group, start, kept, joined) = match node.op {
            Op::SliceCols { group, start, len } => (cols(0) / group.max(1), group, start, len, 0),
            Op::ConcatCols { groups } => {
                let groups = groups.max(1);
                (groups, cols(0) / groups, 0, cols(0) / groups, cols(1) / groups)
            }
            _ => return unsupported("columns of another op"),
        };
        let [groups, group, start] = [groups, group, start].map(|n| n as u32);
        let [kept, joined] = [kept, joined].map(|n| n as u32);
        Ok(Columns { rows, groups, group, start, kept, joined })
    }

    /// Rows of a table.
    fn embed(&self, at: usize, s: &Shape<'_>, out: &mut Dispatches) -> Emitted {
        let node = &self.graph.nodes[at];
        let (Op::Embed { table, scale }, [x, ..], [y, ..]) =
            (&node.op, &node.inputs[..], &node.outputs[..])
        else {
            return unsupported("rows of another op");
        };
        let [x, y] = [x, y].map(|v| v.0 as usize);
        let rows = self.slots[x].rows_of(s.rows) as u32;
        let (format, split, cols) = self.matrix(*table)?;
        for (i, (first, count)) in split.parts().enumerate() {
            let of = part(format, first, count, cols, false);
            let made = kernels::embed(of, *scale, rows, s.locs[x], s.locs[y])?;
            let table = Operand::Weight(PackPart { of: at, pack: 0, part: i });
            out.push(PlacedDispatch::new(made, vec![table, Operand::Value(x), Operand::Value(y)]));
        }
        Ok(())
    }

    /// Products of heads, each with a weight of its own.
    fn head_linear(
        &self,
        at: usize,
        h: &HeadLinear,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let node = &self.graph.nodes[at];
        let (Some(first), [x, ..], [y, ..]) =
            (h.weights.first(), &node.inputs[..], &node.outputs[..])
        else {
            return unsupported("a product of no heads");
        };
        let [x, y] = [x, y].map(|v| v.0 as usize);
        let (format, split, k) = matrices(&self.graph, &h.weights, self.limit)?;
        if split.each < split.all {
            return unsupported("weights of heads beyond the limit of a binding");
        }
        let (rows, heads) = (self.slots[x].rows_of(s.rows) as u32, h.weights.len() as u32);
        let n = self.graph.weight(*first).rows as u32;
        let all = part(format, 0, (n * heads) as usize, k, false);
        let made = kernels::head_linear(all, heads, rows, s.locs[x], s.locs[y])?;
        let mut operands = vec![Operand::Weight(PackPart { of: at, pack: 0, part: 0 }); 2];
        operands.extend([x, y, x, x, x, x].map(Operand::Value));
        out.push(PlacedDispatch::new(made, operands));
        Ok(())
    }

    /// Experts' feed-forwards, whose results may be added to a value.
    pub(crate) fn experts(
        &self,
        at: usize,
        addend: Option<usize>,
        y: usize,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let node = &self.graph.nodes[at];
        let (Op::Experts(experts), &[x, ids, weights]) = (&node.op, &node.inputs[..]) else {
            return unsupported("experts of another op");
        };
        let [x, ids, weights] = [x, ids, weights].map(|v| v.0 as usize);
        let rows = self.slots[x].rows_of(s.rows) as u32;
        let (top_k, bias) = (self.slots[ids].cols as u32, has_bias(experts));
        let shape = ExpertShape { rows, top_k, capacity: None, bias };
        self.feed_forwards(at, shape, ExpertValues { x, ids, weights, addend, y }, s, out)
    }

    fn feed_forwards(
        &self,
        at: usize,
        shape: ExpertShape,
        values: ExpertValues,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        use Operand::{Inner, Value};
        let ExpertValues { x, ids, weights, addend, y } = values;
        let (Op::Experts(experts) | Op::ExpertGroup(ExpertGroup { experts, .. })) =
            &self.graph.nodes[at].op
        else {
            return unsupported("experts of another op");
        };
        let pack = |pack: usize, part: usize| Operand::Weight(PackPart { of: at, pack, part });
        let eight_bits = is_eight_bits(experts.activations)?;
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
            let each = Matrix { format, rows: gate_rows, cols: k, first: 0, eight_bits };
            let gates = Stack { each, first: first as u32, count: count as u32 };
            let at_x = [s.locs[x], s.locs[ids], h];
            let dispatch = kernels::experts_gate_up(gates, experts.act, shape, at_x)?;
            let biases =
                if shape.bias { [pack(3, i), pack(4, i)] } else { [pack(0, i), pack(0, i)] };
            let [b, c] = biases;
            let operands = vec![pack(0, i), pack(1, i), b, c, Value(x), Value(ids), Inner];
            out.push(PlacedDispatch::new(dispatch, operands));
        }
        for (i, (first, count)) in downs.parts().enumerate() {
            let (format, rows, cols) = (down_format, down_rows, inter);
            let each = Matrix { format, rows, cols, first: 0, eight_bits };
            let stack = Stack { each, first: first as u32, count: count as u32 };
            let at_h = [h, s.locs[ids], s.locs[weights], s.locs[y]];
            let before = match addend {
                _ if i > 0 => Before::Results,
                Some(addend) => Before::Value(s.locs[addend]),
                None => Before::Nothing,
            };
            let dispatch = kernels::experts_down(stack, shape, before, at_h)?;
            let bias = if shape.bias { pack(5, i) } else { pack(2, i) };
            let mut operands = vec![pack(2, i), bias, Inner];
            operands.extend([ids, weights, y, addend.unwrap_or(y)].map(Value));
            out.push(PlacedDispatch::new(dispatch, operands));
        }
        Ok(())
    }

    /// Rows with gaps are converted one by one.
    fn convert(&self, at: usize, s: &Shape<'_>, out: &mut Dispatches) -> Emitted {
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
            let [from, to] = [x, y].map(|v| s.locs[v].offset + i * s.locs[v].stride);
            let dispatch = kernels::convert(a, b, count as u32, from, to)?;
            out.push(PlacedDispatch::new(dispatch, vec![Operand::Value(x), Operand::Value(y)]));
        }
        Ok(())
    }
}

/// The names of the kernels that a run of a graph dispatches, in order, for so many rows that see at
/// most so many positions, each of another sequence if there are at most eight. No device is needed.
///
/// # Errors
/// An op that has no kernel.
pub fn kernels_of(
    graph: &Subgraph,
    rows: usize,
    positions: usize,
) -> Result<Vec<&'static str>, KernelError> {
    let code = Code::new(graph, u64::MAX).map_err(|(_, why)| KernelError::Unsupported(why))?;
    let (locs, page_lens) = code.plain_places();
    let runs = [(0, rows, false)];
    let (locs, page_lens, longest) = (&locs[..], &page_lens[..], positions);
    let one_row_each = rows <= FEW as usize;
    let shape = Shape { rows, locs, page_lens, runs: &runs, longest, one_row_each };
    let steps = code.steps(&shape)?;
    Ok(steps.iter().map(|step| step.dispatch.spec.name).collect())
}

/// The refusal of attention whose activations are rounded.
pub(crate) fn is_f32(format: ActivationFormat) -> Result<(), KernelError> {
    if format == ActivationFormat::F32 {
        return Ok(());
    }
    unsupported("activations that are rounded: it computes in f32")
}

pub(crate) fn part(
    format: WeightFormat,
    first: usize,
    count: usize,
    cols: u32,
    eight_bits: bool,
) -> Matrix {
    Matrix { format, rows: count as u32, cols, first: first as u32, eight_bits }
}

/// The vectors that a unit binds as one.
fn joined(graph: &Subgraph, unit: &Unit) -> Vec<Pack> {
    let list = unit.vectors(graph);
    let split = Split { all: list.len(), each: list.len() };
    if list.is_empty() { Vec::new() } else { vec![Pack::Vectors(list, split)] }
}
