//! Activation formats of a subgraph. Lowering names, for each product, the most compact format its
//! weights' type has a path for; what a placement allows then restricts it.

use crate::op::{ActivationFormat, Op};
use crate::subgraph::Subgraph;

/// A copy of the subgraph whose products take their activations in one of the allowed formats, or
/// in f32: products that name another one compute in f32.
pub fn restrict_activations(graph: &Subgraph, allowed: &[ActivationFormat]) -> Subgraph {
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        if let Some(activations) = activations(&mut node.op)
            && !allowed.contains(activations)
        {
            *activations = ActivationFormat::F32;
        }
    }
    graph
}

/// The activation format of an op that has one.
fn activations(op: &mut Op) -> Option<&mut ActivationFormat> {
    match op {
        Op::Linear { activations, .. } => Some(activations),
        Op::Attention(a) => Some(&mut a.activations),
        Op::Experts(e) => Some(&mut e.activations),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::restrict_activations;
    use crate::{ActivationFormat, DType, Op, Subgraph, SubgraphBuilder, WeightDecl};

    fn products() -> Subgraph {
        let mut g = SubgraphBuilder::new("products", 4);
        let mut x = g.input("x", 64, DType::F32);
        for (dtype, activations) in [
            (DType::Q8_0, ActivationFormat::Int8),
            (DType::BF16, ActivationFormat::Bf16),
            (DType::F32, ActivationFormat::F32),
        ] {
            let name = dtype.name().into();
            let decl = WeightDecl { name, rows: 64, cols: 64, dtype, slice: None };
            let weight = g.weight(decl);
            x = g.op("y", Op::Linear { weight, bias: None, activations }, &[x], 64);
        }
        g.output(x);
        g.finish().unwrap()
    }

    #[test]
    fn formats_that_are_not_allowed_become_f32() {
        let formats = |graph: &Subgraph| -> Vec<ActivationFormat> {
            let of = |op: &Op| match op {
                Op::Linear { activations, .. } => *activations,
                other => panic!("{other:?}"),
            };
            graph.nodes.iter().map(|n| of(&n.op)).collect()
        };
        let graph = products();
        for (allowed, expected) in [
            (&[][..], [ActivationFormat::F32, ActivationFormat::F32, ActivationFormat::F32]),
            (
                &[ActivationFormat::Int8],
                [ActivationFormat::Int8, ActivationFormat::F32, ActivationFormat::F32],
            ),
            (
                &[ActivationFormat::Bf16],
                [ActivationFormat::F32, ActivationFormat::Bf16, ActivationFormat::F32],
            ),
            (
                &[ActivationFormat::Bf16, ActivationFormat::Int8],
                [ActivationFormat::Int8, ActivationFormat::Bf16, ActivationFormat::F32],
            ),
        ] {
            let restricted = restrict_activations(&graph, allowed);
            assert_eq!(formats(&restricted), expected);
            crate::verify(&restricted).unwrap();
        }
    }
}
