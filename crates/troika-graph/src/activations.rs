//! Activation formats of a subgraph. Lowering names, for each product, the most compact format its
//! weights' type has a path for; what a placement allows then restricts it.

use crate::op::{Acts, Op};
use crate::subgraph::Subgraph;

/// A copy of the subgraph whose products take their activations in one of the allowed formats, or
/// in f32: products that name another one compute in f32.
pub fn restrict_activations(graph: &Subgraph, allowed: &[Acts]) -> Subgraph {
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        if let Some(acts) = activations(&mut node.op)
            && !allowed.contains(acts)
        {
            *acts = Acts::F32;
        }
    }
    graph
}

/// The activation format of an op that has one.
fn activations(op: &mut Op) -> Option<&mut Acts> {
    match op {
        Op::Linear { acts, .. } => Some(acts),
        Op::Attention(a) => Some(&mut a.acts),
        Op::Experts(e) => Some(&mut e.acts),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::restrict_activations;
    use crate::{Acts, DType, Op, Subgraph, SubgraphBuilder, WeightDecl};

    fn products() -> Subgraph {
        let mut g = SubgraphBuilder::new("products", 4);
        let mut x = g.input("x", 64, DType::F32);
        for (dtype, acts) in
            [(DType::Q8_0, Acts::Int8), (DType::BF16, Acts::Bf16), (DType::F32, Acts::F32)]
        {
            let name = dtype.name().into();
            let decl = WeightDecl { name, rows: 64, cols: 64, dtype, slice: None };
            let weight = g.weight(decl);
            x = g.op("y", Op::Linear { weight, bias: None, acts }, &[x], 64);
        }
        g.output(x);
        g.finish().unwrap()
    }

    #[test]
    fn formats_that_are_not_allowed_become_f32() {
        let formats = |graph: &Subgraph| -> Vec<Acts> {
            let of = |op: &Op| match op {
                Op::Linear { acts, .. } => *acts,
                other => panic!("{other:?}"),
            };
            graph.nodes.iter().map(|n| of(&n.op)).collect()
        };
        let graph = products();
        for (allowed, expected) in [
            (&[][..], [Acts::F32, Acts::F32, Acts::F32]),
            (&[Acts::Int8], [Acts::Int8, Acts::F32, Acts::F32]),
            (&[Acts::Bf16], [Acts::F32, Acts::Bf16, Acts::F32]),
            (&[Acts::Bf16, Acts::Int8], [Acts::Int8, Acts::Bf16, Acts::F32]),
        ] {
            let restricted = restrict_activations(&graph, allowed);
            assert_eq!(formats(&restricted), expected);
            crate::verify(&restricted).unwrap();
        }
    }
}
