//! Activation formats of a subgraph. Lowering gives each product the most compact format that suits
//! its weights' type; a placement may then restrict it.

use crate::activation_format::ActivationFormat;
use crate::op::{ExpertGroup, Op};
use crate::product_form::ProductForm;
use crate::subgraph::Subgraph;
use crate::weight::WeightRef;

/// A copy of the subgraph whose products use only the allowed activation formats, or else f32
/// ([`ActivationFormat::restricted`]).
pub fn restrict_activations(graph: &Subgraph, allowed: &[ActivationFormat]) -> Subgraph {
    with_activations(graph, |format, all_bits| format.restricted(allowed, all_bits))
}

/// A copy of a subgraph that was restricted before, for a device that allows these formats: formats
/// that the device allows stay, so that it computes the same bits. Others become what
/// [`restrict_activations`] makes of them.
pub fn adapt_activations(graph: &Subgraph, allowed: &[ActivationFormat]) -> Subgraph {
    with_activations(graph, |format, all_bits| {
        if allowed.contains(&format) { format } else { format.restricted(allowed, all_bits) }
    })
}

/// A copy with other formats, by the old one and whether the op's weights use all bits.
fn with_activations(
    graph: &Subgraph,
    of: impl Fn(ActivationFormat, bool) -> ActivationFormat,
) -> Subgraph {
    let mut graph = graph.clone();
    for i in 0..graph.nodes.len() {
        let all_bits = uses_all_bits(&graph, &graph.nodes[i].op);
        if let Some(activations) = activations(&mut graph.nodes[i].op) {
            *activations = of(*activations, all_bits);
        }
    }
    graph
}

/// A copy of the subgraph whose products with single weights, and whose groups of experts, take a
/// format that needs weights to be converted, but for those that take such a format already. A
/// calibration knows no inputs of single experts, so groups take no format that needs one.
pub fn convert_products(graph: &Subgraph, format: ActivationFormat) -> Subgraph {
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        let activations = match &mut node.op {
            Op::Linear { activations, .. } => activations,
            Op::ExpertGroup(g) if !format.is_calibrated() => &mut g.experts.activations,
            _ => continue,
        };
        if !activations.converts_weights() {
            *activations = format;
        }
    }
    graph
}

/// A copy of the subgraph whose products have forms, by the names of their weights.
pub fn form_products(graph: &Subgraph, of: impl Fn(&str) -> Option<ProductForm>) -> Subgraph {
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        if let Op::Linear { weight, form, .. } = &mut node.op {
            *form = of(&graph.weights[weight.0 as usize].name);
        }
    }
    graph
}

/// Whether a weight of an op with an activation format uses all bits of its bytes.
fn uses_all_bits(graph: &Subgraph, op: &Op) -> bool {
    let of = |w: &WeightRef| graph.weight(*w).dtype.uses_all_bits();
    match op {
        Op::Linear { weight, .. } => of(weight),
        Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
            e.gate.iter().chain(&e.up).chain(&e.down).any(of)
        }
        _ => false,
    }
}

/// The activation format of an op, if it has one.
fn activations(op: &mut Op) -> Option<&mut ActivationFormat> {
    match op {
        Op::Linear { activations, .. } => Some(activations),
        Op::Attention(a) => Some(&mut a.activations),
        Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
            Some(&mut e.activations)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{adapt_activations, restrict_activations};
    use crate::ActivationFormat::{self, Bf16, F32};
    use crate::{DType, Op, Subgraph, SubgraphBuilder, WeightDecl};

    const INT7: ActivationFormat = ActivationFormat::by_32_columns(7);
    const INT8: ActivationFormat = ActivationFormat::INT8;

    fn products() -> Subgraph {
        let mut g = SubgraphBuilder::new("products", 4);
        let mut x = g.input("x", 64, DType::F32);
        for (dtype, activations) in [(DType::Q8_0, INT8), (DType::BF16, Bf16), (DType::F32, F32)] {
            let weight = g.weight(WeightDecl::whole(dtype.name().into(), 64, 64, dtype));
            x = g.op("y", Op::Linear { weight, bias: None, activations, form: None }, &[x], 64);
        }
        g.output(x);
        g.finish().unwrap()
    }

    fn formats(graph: &Subgraph) -> Vec<ActivationFormat> {
        let of = |op: &Op| match op {
            Op::Linear { activations, .. } => *activations,
            other => panic!("{other:?}"),
        };
        graph.nodes.iter().map(|n| of(&n.op)).collect()
    }

    /// Seven bits are only for eight-bit weights: activations of four-bit weights have eight.
    #[test]
    fn seven_bits_are_for_weights_that_use_all_bits() {
        let mut graph = products();
        graph.weights[0].dtype = DType::Q4_0;
        for (allowed, expected) in [(&[INT8, INT7][..], INT8), (&[Bf16], F32)] {
            assert_eq!(formats(&restrict_activations(&graph, allowed))[0], expected);
        }
    }

    #[test]
    fn formats_that_are_not_allowed_become_f32() {
        let graph = products();
        for (allowed, expected) in [
            (&[][..], [F32, F32, F32]),
            (&[INT8], [INT8, F32, F32]),
            (&[Bf16], [F32, Bf16, F32]),
            (&[Bf16, INT8], [INT8, Bf16, F32]),
            (&[INT8, INT7], [INT7, F32, F32]),
        ] {
            let restricted = restrict_activations(&graph, allowed);
            assert_eq!(formats(&restricted), expected);
            crate::verify(&restricted).unwrap();
        }
        // A device that could do with fewer bits keeps what a plan chose, or else takes its own.
        let eight = restrict_activations(&graph, &[INT8]);
        let first = |allowed: &[ActivationFormat]| formats(&adapt_activations(&eight, allowed))[0];
        assert_eq!((first(&[INT8, INT7]), first(&[INT7]), first(&[Bf16])), (INT8, INT7, F32));
    }
}
