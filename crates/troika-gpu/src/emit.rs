//! The dispatches of a submission: what each op dispatches, and what that binds.

use std::iter::zip;

use troika_graph::{ActivationFormat, ExpertGroup, HeadLinear, Op, ValueId, WeightRef};

use crate::bound::MultiplyCount;
use crate::code::{Code, Shape};
use crate::kernels::{
    self, Before, Binding, Columns, Dispatch, ExpertShape, Floats, KernelError, KernelResult, Loc,
    unsupported,
};
use crate::packs::{Layout, has_bias, matrices, matrix};
use crate::places::PlacedValue;
use crate::units::{Chain, Heads};

/// What a dispatch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A value.
    Value(usize),
    /// A part of a pack: of a node's, or, behind those of all nodes, of a unit's.
    Weight { of: usize, pack: usize, part: usize },
    /// What no thread reads.
    Unused,
    /// The words of the forward batch.
    Words,
    /// Memory between the dispatches of an op.
    Inner,
}

use Operand::{Inner, Unused, Value, Words};

impl From<Option<usize>> for Operand {
    /// A value that is not always there.
    fn from(value: Option<usize>) -> Operand {
        value.map_or(Unused, Value)
    }
}

/// The first part of a pack.
pub(crate) fn weight(of: usize, pack: usize) -> Operand {
    Operand::Weight { of, pack, part: 0 }
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

/// Collects dispatches.
pub(crate) struct Emitter<'a> {
    pub code: &'a Code,
    pub shape: &'a Shape,
    /// Where each value, then each output, begins in what is bound, and how far its rows are apart.
    pub locs: &'a [Loc],
    pub out: Vec<PlacedDispatch>,
}

impl<'a> Emitter<'a> {
    pub fn new(code: &'a Code, shape: &'a Shape, locs: &'a [Loc]) -> Emitter<'a> {
        Emitter { code, shape, locs, out: Vec::new() }
    }

    /// All dispatches of a submission.
    pub fn all(
        code: &'a Code,
        shape: &'a Shape,
        locs: &'a [Loc],
    ) -> Result<Vec<PlacedDispatch>, KernelError> {
        let mut emitter = Emitter::new(code, shape, locs);
        (0..code.units.len()).try_for_each(|unit| emitter.unit(unit))?;
        emitter.repeats()?;
        emitter.out.retain(|placed| !placed.dispatch.is_empty());
        Ok(emitter.out)
    }

    /// Copies to outputs that repeat other values.
    pub fn repeats(&mut self) -> Emitted {
        for &(value, output) in &self.code.repeats {
            let (rows, cols) = (self.rows(value), self.cols(value));
            // An output's place follows those of the values.
            let to = self.code.values.len() + output;
            let all = Columns { rows, groups: 1, group: cols, start: 0, kept: cols, joined: 0 };
            let at = [value, value, to].map(|v| self.locs[v]);
            self.push(kernels::columns(all, at), &[Value(value), Unused, Value(to)])?;
        }
        Ok(())
    }

    /// Adds a dispatch. Bindings that have no operand are never read: values among them are bound to
    /// the first value again, which costs the device no waiting.
    pub fn push(&mut self, made: KernelResult, operands: &[Operand]) -> Emitted {
        let dispatch = made?;
        let first = operands.iter().find(|operand| matches!(operand, Value(_)));
        let given = operands.iter().copied().chain(std::iter::repeat(Unused));
        let fill = |(binding, operand): (&Binding, Operand)| match (binding, operand) {
            (Binding::Value, Unused) => first.copied().unwrap_or(Unused),
            _ => operand,
        };
        let operands = zip(dispatch.spec.bindings, given).map(fill).collect();
        self.out.push(PlacedDispatch { dispatch, operands, work: MultiplyCount::default() });
        Ok(())
    }

    pub fn input(&self, node: usize, i: usize) -> usize {
        self.code.input(node, i)
    }

    pub fn output(&self, node: usize, i: usize) -> usize {
        self.code.output(node, i)
    }

    pub fn rows(&self, value: usize) -> u32 {
        self.code.values[value].rows_of(self.shape.rows) as u32
    }

    pub fn cols(&self, value: usize) -> u32 {
        self.code.values[value].cols as u32
    }

    /// How the weight of a product lies in bindings.
    pub fn linear(&self, at: usize) -> Result<Layout, KernelError> {
        let Op::Linear { weight, activations, .. } = self.code.graph.nodes[at].op else {
            return unsupported("a product of another op");
        };
        matrix(&self.code.graph, weight, activations, self.code.limit)
    }

    fn stacked(
        &self,
        list: &[WeightRef],
        activations: ActivationFormat,
    ) -> Result<Layout, KernelError> {
        matrices(&self.code.graph, list, activations, self.code.limit)
    }

    /// The dispatches of a node by itself.
    pub fn node(&mut self, at: usize) -> Emitted {
        let node = &self.code.graph.nodes[at];
        match &node.op {
            Op::Embed { table, scale } => self.embed(at, *table, *scale),
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::Rescale(_) => {
                let like = node.inputs.get(1).map(|_| self.input(at, 1));
                self.norm(at, like, self.output(at, 0))
            }
            Op::Linear { .. } => self.product(&Chain::of(at, node.outputs[0]), None),
            Op::Outliers { weight, .. } => self.outliers(at, *weight),
            Op::HeadLinear(h) => self.head_linear(at, h),
            Op::DecayingSum(_) | Op::ShortConv(_) | Op::Mamba2(_) | Op::DeltaRule(_) => {
                self.recurrence(at)
            }
            Op::Rope(_) => self.heads(&Heads { ropes: Some([at; 2]), norms: None }, Unused),
            Op::KvAppend(_) => self.append(at, None),
            Op::Attention(_) => self.attention(at, None),
            Op::Convert => self.convert(at),
            Op::Router(router) => {
                let list = [self.input(at, 0), self.output(at, 0), self.output(at, 1)];
                let (rows, node_at, at) = (self.rows(list[0]), at, list.map(|v| self.locs[v]));
                let own = |is_there, pack| if is_there { weight(node_at, pack) } else { Unused };
                let biased = router.bias.is_some();
                let scales = own(router.expert_scales.is_some(), usize::from(biased));
                let [logits, ids, weights] = list.map(Value);
                let operands = [logits, ids, weights, own(biased, 0), scales];
                self.push(kernels::router(router, rows, at), &operands)
            }
            Op::Experts(_) | Op::ExpertGroup(_) => self.experts(at, None, self.output(at, 0)),
            op => {
                // Ops of one operand bind it twice.
                let list = [0, node.inputs.len() - 1].map(|i| self.input(at, i));
                let list = [list[0], list[1], self.output(at, 0)];
                let (rows, cols) = (self.rows(list[0]), self.cols(list[0]));
                let at = list.map(|v| self.locs[v]);
                let made = match *op {
                    Op::SliceCols { group, start, len } => {
                        let [group, start, kept] = [group, start, len].map(|n| n as u32);
                        let groups = cols / group;
                        let of = Columns { rows, groups, group, start, kept, joined: 0 };
                        kernels::columns(of, at)
                    }
                    Op::ConcatCols { groups } => {
                        let groups = groups as u32;
                        let (group, joined) = (cols / groups, self.cols(list[1]) / groups);
                        let of = Columns { rows, groups, group, start: 0, kept: group, joined };
                        kernels::columns(of, at)
                    }
                    Op::Mix { streams } => {
                        let (n, width) = (streams as u32, cols / streams as u32);
                        kernels::mix(rows, width, n, self.cols(list[2]) / width, at)
                    }
                    _ => kernels::elements(op, rows, cols, at),
                };
                self.push(made, &list.map(Value))
            }
        }
    }

    /// Rows of a table.
    fn embed(&mut self, at: usize, table: WeightRef, scale: f32) -> Emitted {
        let (x, y) = (self.input(at, 0), self.output(at, 0));
        let table = matrix(&self.code.graph, table, ActivationFormat::F32, self.code.limit)?;
        for (part, rows) in table.parts().enumerate() {
            let made = kernels::embed(rows, scale, self.rows(x), self.locs[x], self.locs[y]);
            self.push(made, &[Operand::Weight { of: at, pack: 0, part }, Value(x), Value(y)])?;
        }
        Ok(())
    }

    /// The product of what clipping takes from a value.
    fn outliers(&mut self, at: usize, w: WeightRef) -> Emitted {
        let (x, y) = (self.input(at, 0), self.output(at, 0));
        let all = matrix(&self.code.graph, w, ActivationFormat::F32, self.code.limit)?;
        for (part, rows) in all.parts().enumerate() {
            let made = kernels::outliers(rows, self.rows(x), self.locs[x], self.locs[y]);
            let stored = Operand::Weight { of: at, pack: 0, part };
            self.push(made, &[stored, weight(at, 1), Value(x), Value(y)])?;
        }
        Ok(())
    }

    /// Products of heads, each with a weight of its own.
    fn head_linear(&mut self, at: usize, h: &HeadLinear) -> Emitted {
        let (x, y) = (self.input(at, 0), self.output(at, 0));
        let mut all = self.stacked(&h.weights, ActivationFormat::F32)?.whole()?;
        let heads = h.weights.len() as u32;
        all.rows *= heads;
        let made = kernels::head_linear(all, heads, self.rows(x), self.locs[x], self.locs[y]);
        self.push(made, &[weight(at, 0), Unused, Value(x), Value(y)])
    }

    /// Experts' feed-forwards, whose results may be added to a value.
    pub fn experts(&mut self, at: usize, addend: Option<usize>, y: usize) -> Emitted {
        let x = self.input(at, 0);
        let (experts, ids, weights, top_k, capacity) = match &self.code.graph.nodes[at].op {
            Op::Experts(e) => {
                let (ids, weights) = (self.input(at, 1), self.input(at, 2));
                (e, ids, weights, self.cols(ids), None)
            }
            // Neither ids nor weights are read.
            Op::ExpertGroup(ExpertGroup { experts, capacity }) => {
                (experts, x, x, 1, Some(*capacity as u32))
            }
            _ => return unsupported("experts of another op"),
        };
        let gates = self.stacked(&experts.gate, experts.activations)?;
        let downs = self.stacked(&experts.down, experts.activations)?;
        if self.stacked(&experts.up, experts.activations)? != gates {
            return unsupported("experts whose gates and ups have different types");
        }
        let locs = self.locs;
        let bias = has_bias(experts);
        let shape = ExpertShape { rows: self.rows(x), top_k, capacity, bias };
        let h = Loc { offset: 0, stride: gates.matrix.rows };
        for (part, stack) in gates.stacks().enumerate() {
            let weight = |pack: usize| Operand::Weight { of: at, pack, part };
            let made = kernels::experts_gate_up(stack, experts.act, shape, [locs[x], locs[ids], h]);
            let [b, c] = if bias { [3, 4].map(weight) } else { [Unused; 2] };
            self.push(made, &[weight(0), weight(1), b, c, Value(x), Value(ids), Inner])?;
        }
        for (part, stack) in downs.stacks().enumerate() {
            let weight = |pack: usize| Operand::Weight { of: at, pack, part };
            let before = match addend {
                _ if part > 0 => Before::Results,
                Some(addend) => Before::Value(locs[addend]),
                None => Before::Nothing,
            };
            let at = [h, locs[ids], locs[weights], locs[y]];
            let made = kernels::experts_down(stack, shape, before, at);
            let biases = if bias { weight(5) } else { Unused };
            let [ids, weights, y] = [ids, weights, y].map(Value);
            self.push(made, &[weight(2), biases, Inner, ids, weights, y, addend.into()])?;
        }
        Ok(())
    }

    /// What changes a state of one row.
    fn recurrence(&mut self, at: usize) -> Emitted {
        let (node, batch, own) = (&self.code.graph.nodes[at], self.batch(at)?, weight(at, 0));
        let value = |id: &ValueId| Value(id.0 as usize);
        let all = node.inputs.iter().chain(&node.outputs);
        let mut locs: Vec<Loc> = all.map(|id| self.locs[id.0 as usize]).collect();
        let mut operands: Vec<_> = [own].into_iter().chain(node.inputs.iter().map(value)).collect();
        let made = match &node.op {
            Op::ShortConv(op) => kernels::short_conv(op, batch, &locs),
            Op::Mamba2(op) => kernels::mamba2(op, batch, &locs),
            Op::DeltaRule(op) => {
                let gates = Loc { offset: 0, stride: kernels::gate_floats(op) as u32 };
                let made = kernels::delta_gates(op, batch.count, [locs[3], locs[4], gates]);
                self.push(made, &[own, operands[4], operands[5], Inner])?;
                locs.splice(3..5, [gates]);
                operands = vec![operands[1], operands[2], operands[3], Inner];
                kernels::delta_rule(op, batch, &locs)
            }
            _ => return unsupported("decaying sums"),
        };
        operands.extend([Words, value(&node.states[0]), value(&node.outputs[0])]);
        self.push(made, &operands)
    }

    /// Rows with gaps are converted one by one.
    fn convert(&mut self, at: usize) -> Emitted {
        let (x, y) = (self.input(at, 0), self.output(at, 0));
        let (from, to) = (&self.code.values[x], &self.code.values[y]);
        let Some((a, b)) = Floats::of(from.dtype).zip(Floats::of(to.dtype)) else {
            return unsupported(format!("a conversion from {} to {}", from.dtype, to.dtype));
        };
        if [from, to].iter().any(|value| !value.row_bytes().is_multiple_of(4)) {
            return unsupported(format!("rows of {} floats of two bytes", from.cols));
        }
        let (rows, locs) = (self.rows(x), [self.locs[x], self.locs[y]]);
        // Strides are in words of four bytes.
        let dense =
            |(value, loc): (&PlacedValue, Loc)| loc.stride as usize * 4 == value.row_bytes();
        let (runs, count) = match zip([from, to], locs).all(dense) {
            true => (1, rows * self.cols(x)),
            false => (rows, self.cols(x)),
        };
        for i in 0..runs {
            let [from, to] = locs.map(|loc| loc.offset + i * loc.stride);
            self.push(kernels::convert(a, b, count, from, to), &[Value(x), Value(y)])?;
        }
        Ok(())
    }
}
