//! Ops that run as one: neighbouring products of one input (queries, keys and values; gate and
//! up) quantize or round it once and share one parallel region; the norm or gate in front of them
//! is computed row by row as it is quantized.

use smallvec::SmallVec;
use troika_graph::Subgraph;

use crate::compile::weights::PackedMatrix;
use crate::compile::{Code, Matrix, Step, Vector};
use crate::kernels::elementwise::Element;
use crate::kernels::int8::Extra;

/// Weights of products that share an input, each with its bias.
pub(crate) type Weights = SmallVec<[(PackedMatrix, Option<Vector>); 1]>;

/// Float weights of products that share an input, each with its bias.
pub(crate) type Floats = SmallVec<[(Matrix, Option<Vector>); 1]>;

/// Joins the steps that can run as one. Places are given afterwards: what a step reads keeps its
/// own until all of its results are there.
pub(crate) fn fuse(graph: &Subgraph, steps: Vec<Step>) -> Vec<Step> {
    let mut fused: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let Some(last) = fused.last_mut() else {
            fused.push(step);
            continue;
        };
        match (&mut last.code, step.code) {
            (Code::PackedLinear { weights, .. }, Code::PackedLinear { weights: more, .. })
                if last.inputs == step.inputs =>
            {
                weights.extend(more);
                last.outputs.extend(step.outputs);
            }
            (Code::Linear { weights, bf16 }, Code::Linear { weights: more, bf16: same })
                if *bf16 == same && last.inputs == step.inputs =>
            {
                weights.extend(more);
                last.outputs.extend(step.outputs);
            }
            (_, code) => fused.push(Step { code, ..step }),
        }
    }
    fuse_inputs(graph, fused)
}

/// Joins quantized products with the norm or the gate that makes their input, if nobody else
/// reads it.
fn fuse_inputs(graph: &Subgraph, steps: Vec<Step>) -> Vec<Step> {
    let mut fused: Vec<Step> = Vec::with_capacity(steps.len());
    for (at, mut step) in steps.iter().cloned().enumerate() {
        if let (Code::PackedLinear { before, .. }, Some(last)) = (&mut step.code, fused.last()) {
            let made = step.inputs[0];
            let whole = match &last.code {
                Code::RmsNorm { group, .. } | Code::LayerNorm { group, .. } => {
                    let cols = graph.values[made].shape.row_len();
                    *group == cols
                }
                Code::Element(Element::Gate(_)) => true,
                _ => false,
            };
            let alone = !steps[at + 1..].iter().any(|s| s.inputs.contains(&made))
                && !graph.outputs.iter().any(|v| v.0 as usize == made);
            if whole && alone && last.outputs == [made] {
                step.inputs.clone_from(&last.inputs);
                *before = fused.pop().map(|s| Box::new(s.code));
            }
        }
        fused.push(step);
    }
    fused
}

/// The kinds of quantized input that products with these weights need.
pub(crate) fn extras(weights: &Weights) -> SmallVec<[Extra; 2]> {
    let mut extras = SmallVec::new();
    for (weight, _) in weights {
        let extra = Extra::of(weight.view().layout.dtype);
        if !extras.contains(&extra) {
            extras.push(extra);
        }
    }
    extras
}
