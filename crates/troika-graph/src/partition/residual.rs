//! Takes the outliers out of products.

use crate::activation_format::{ActivationFormat, IntFormat};
use crate::op::Op;
use crate::subgraph::{Node, Subgraph, Value, ValueId};

/// A copy of the graph in which each product with scales from a calibration is the sum of a clipped
/// product and of what clipping took from it (llm.npu, section 3.3, equation 1, in the form that is
/// exact). The sum is added in one place and order. Products of one input stay side by side.
pub fn residual(graph: &Subgraph) -> Subgraph {
    let mut out = graph.clone();
    out.nodes.clear();
    let (mut rests, mut sums): (Vec<Node>, Vec<Node>) = (Vec::new(), Vec::new());
    for node in &graph.nodes {
        let clipped = match &node.op {
            Op::Linear { activations, .. } => clipped(*activations),
            _ => None,
        };
        let (Op::Linear { weight, bias, form, .. }, Some(activations), &[x], &[y]) =
            (&node.op, clipped, &node.inputs[..], &node.outputs[..])
        else {
            out.nodes.append(&mut rests);
            out.nodes.append(&mut sums);
            out.nodes.push(node.clone());
            continue;
        };
        if rests.last().is_some_and(|r| r.inputs != [x]) {
            out.nodes.append(&mut rests);
            out.nodes.append(&mut sums);
        }
        let mut part = |about: &str| {
            let name = format!("{} {about}", graph.value(y).name);
            out.values.push(Value { name, ..graph.value(y).clone() });
            ValueId(out.values.len() as u32 - 1)
        };
        let (most, rest) = (part("clipped"), part("outliers"));
        let one =
            |op, inputs, output| Node { op, inputs, states: Vec::new(), outputs: vec![output] };
        let (weight, bias, form) = (*weight, *bias, *form);
        let product = Op::Linear { weight, bias, activations, form };
        out.nodes.push(one(product, vec![x], most));
        rests.push(one(Op::Outliers { weight, activations }, vec![x], rest));
        sums.push(one(Op::Add, vec![most, rest], y));
    }
    out.nodes.append(&mut rests);
    out.nodes.append(&mut sums);
    out
}

/// The format that clips, for one whose scales come from a calibration.
fn clipped(format: ActivationFormat) -> Option<ActivationFormat> {
    let whole = format.converted_numbers()?;
    Some(ActivationFormat::Int(IntFormat { scales: whole.scales.clipped()?, ..whole }))
}
