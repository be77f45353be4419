//! Code of experts: of those that rows choose, and of groups.

use troika_device::{DeviceError, ExpertBytes};
use troika_graph::{ActivationFormat, Experts, Node, Op, WeightRef};

use super::on_disk::ExpertView;
use super::weights::VectorAt;
use super::{Code, CompiledOp, Compiler, Executable, Loaded};
use crate::kernels::moe;

/// The weights of an expert, by index.
#[derive(Clone, Debug)]
pub(crate) struct ExpertWeights<M> {
    gate: M,
    up: M,
    down: M,
    bias: [Option<VectorAt>; 3],
}

impl<M: ExpertView> ExpertWeights<M> {
    /// In the kernel's form, with these bytes if they were read from disk.
    pub fn view<'b>(
        &self,
        of: &'b Loaded,
        bytes: Option<&'b ExpertBytes>,
    ) -> moe::Expert<'b, M::View<'b>> {
        let view = |at: M, part: usize| at.view(of, bytes.map(|bytes| &bytes[part][..]));
        let (gate, up, down) = (view(self.gate, 0), view(self.up, 1), view(self.down, 2));
        moe::Expert { gate, up, down, bias: self.bias.map(|b| of.vector_if(b)) }
    }
}

/// What is common to an op's experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertsCode {
    /// The op's number among the graph's ops of experts.
    pub number: usize,
    /// Experts.
    pub count: usize,
    /// Rows of each expert, if they are a group.
    pub capacity: Option<usize>,
    /// Columns between up and down.
    pub inter: usize,
    pub act: troika_graph::Activation,
    pub activations: ActivationFormat,
}

/// Records the memory that experts need; returns the bytes that a worker needs.
pub(super) fn needs(exe: &mut Executable, op: &CompiledOp, of: &ExpertsCode) -> usize {
    let k = exe.slots[op.inputs[0]].cols;
    let top_k = of.capacity.map_or_else(|| exe.slots[op.inputs[1]].cols, |_| 1);
    let floats = moe::floats(1, top_k, k, of.inter, of.activations);
    exe.work_floats = exe.work_floats.max(floats);
    let words = moe::words(0, of.count);
    exe.work_words = (exe.work_words.0.max(top_k), exe.work_words.1.max(words));
    moe::worker_floats()
}

impl Compiler<'_> {
    /// The weights of all experts, with `matrix` applied to each.
    fn expert_weights<M>(
        &mut self,
        e: &Experts,
        matrix: impl Fn(&mut Self, WeightRef) -> Result<M, DeviceError>,
    ) -> Result<Vec<ExpertWeights<M>>, DeviceError> {
        let expert = |i: usize| {
            let (gate, up) = (matrix(self, e.gate[i])?, matrix(self, e.up[i])?);
            let down = matrix(self, e.down[i])?;
            let biases = [&e.gate_bias, &e.up_bias, &e.down_bias];
            let bias = biases.map(|list| self.vector_if(list.get(i).copied()));
            Ok(ExpertWeights { gate, up, down, bias })
        };
        (0..e.gate.len()).map(expert).collect()
    }

    /// Experts that rows choose, or with a capacity a group.
    pub(super) fn experts(
        &mut self,
        node: &Node,
        e: &Experts,
        capacity: Option<usize>,
    ) -> Result<Code, DeviceError> {
        let chosen = |i: usize| self.graph.value(node.inputs[i]).shape.row_len();
        let top_k = capacity.map_or_else(|| chosen(1), |_| 1);
        let pairs = self.graph.max_rows().checked_mul(top_k);
        if pairs.is_none_or(|pairs| u32::try_from(pairs).is_err()) {
            let why = format!("{top_k} experts a row are too many to count");
            return self.refuse(node.op.name(), why);
        }
        let of_experts = |n: &&Node| matches!(n.op, Op::Experts(_) | Op::ExpertGroup(_));
        let all = self.graph.nodes.iter().filter(of_experts);
        let number = all.take_while(|n| !std::ptr::eq(*n, node)).count();
        let (inter, activations) = (self.graph.weight(e.gate[0]).rows, e.activations);
        let (count, act) = (e.gate.len(), e.act);
        let of = ExpertsCode { number, count, capacity, inter, act, activations };
        if matches!(activations, ActivationFormat::Int(_)) || activations.is_halves() {
            self.made(node.op.name(), activations)?;
        }
        let mut all = e.gate.iter().chain(&e.up).chain(&e.down);
        if all.all(|w| self.graph.weight(*w).dtype.is_quantized()) {
            let experts = self.expert_weights(e, Self::packed)?;
            return Ok(Code::PackedExperts { experts, of });
        }
        let experts = self.expert_weights(e, |c, w| Ok(c.weights.matrix(w, false)))?;
        Ok(Code::Experts { experts, of })
    }
}
