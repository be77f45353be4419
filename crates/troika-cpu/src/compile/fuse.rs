//! Fuses ops. Adjacent products of one input (queries, keys and values; gate and up) quantize or
//! round it once and share one parallel region. A norm or gate in front is computed row by row
//! while its result is quantized.

use smallvec::SmallVec;
use troika_graph::Subgraph;

use crate::compile::weights::{MatrixAt, PackedAt, VectorAt};
use crate::compile::{Code, CompiledOp};
use crate::kernels::elementwise::Element;
use crate::kernels::int8::Quantization;

/// Packed weights of products with a common input, each with its bias and the kind of quantized
/// input that it needs.
pub(crate) type Integers = SmallVec<[(PackedAt, Option<VectorAt>, Quantization); 3]>;

/// The kinds of quantized input that such weights need.
pub(crate) type Kinds = SmallVec<[Quantization; 2]>;

/// Float weights of products with a common input, each with its bias.
pub(crate) type Floats = SmallVec<[(MatrixAt, Option<VectorAt>); 3]>;

/// Joins ops that can run as one. Memory is assigned afterwards: an op's operands keep theirs until
/// all its results exist.
pub(crate) fn fuse(graph: &Subgraph, ops: Vec<CompiledOp>) -> Vec<CompiledOp> {
    let mut fused: Vec<CompiledOp> = Vec::with_capacity(ops.len());
    for op in ops {
        let Some(last) = fused.last_mut() else {
            fused.push(op);
            continue;
        };
        match (&mut last.code, op.code) {
            (
                Code::PackedLinear { weights, kinds, before: None },
                Code::PackedLinear { weights: more, kinds: others, before: None },
            ) if last.inputs == op.inputs => {
                weights.extend(more);
                for kind in others {
                    if !kinds.contains(&kind) {
                        kinds.push(kind);
                    }
                }
                last.outputs.extend(op.outputs);
            }
            (Code::Linear { weights, bf16 }, Code::Linear { weights: more, bf16: same })
                if *bf16 == same && last.inputs == op.inputs =>
            {
                weights.extend(more);
                last.outputs.extend(op.outputs);
            }
            (_, code) => fused.push(CompiledOp { code, ..op }),
        }
    }
    fuse_inputs(graph, fused)
}

/// Joins quantized products with the norm or gate that makes their input, if no other op reads that
/// input.
fn fuse_inputs(graph: &Subgraph, ops: Vec<CompiledOp>) -> Vec<CompiledOp> {
    let mut fused: Vec<CompiledOp> = Vec::with_capacity(ops.len());
    for (at, mut op) in ops.iter().cloned().enumerate() {
        if let (Code::PackedLinear { before: before @ None, .. }, Some(last)) =
            (&mut op.code, fused.last())
        {
            let made = op.inputs[0];
            let whole = match &last.code {
                Code::RmsNorm { group, .. } | Code::LayerNorm { group, .. } => {
                    let cols = graph.values[made].shape.row_len();
                    *group == cols
                }
                Code::Element(Element::Gate(_)) => true,
                _ => false,
            };
            let alone = !ops[at + 1..].iter().any(|s| s.inputs.contains(&made))
                && !graph.outputs.iter().any(|v| v.0 as usize == made);
            if whole && alone && last.outputs == [made] {
                op.inputs.clone_from(&last.inputs);
                *before = fused.pop().map(|s| Box::new(s.code));
            }
        }
        fused.push(op);
    }
    fused
}
