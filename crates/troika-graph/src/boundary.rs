//! Converts the types of a subgraph's inputs and outputs.

use crate::dtype::DType;
use crate::op::Op;
use crate::subgraph::{Node, Subgraph, Value, ValueId};

/// A copy of the subgraph whose f32 inputs and outputs have other types, given in their order.
/// Inputs are widened before all other ops, outputs rounded after them. Values that are not f32
/// keep their type.
///
/// The ops still compute on f32. If they read an output again, they read it unrounded.
pub fn convert_boundary(graph: &Subgraph, inputs: &[DType], outputs: &[DType]) -> Subgraph {
    let mut converted = graph.clone();
    // Each with the index of the op that it comes before.
    let (mut widened, mut rounded, mut passed) = (Vec::new(), Vec::new(), Vec::new());
    for (i, (&inner, &to)) in graph.inputs.iter().zip(inputs).enumerate() {
        if let Some(outer) = beside(&mut converted, inner, to) {
            converted.inputs[i] = outer;
            widened.push((before_readers(graph, inner), conversion(outer, inner)));
        }
    }
    for (i, (&inner, &to)) in graph.outputs.iter().zip(outputs).enumerate() {
        if let Some(outer) = beside(&mut converted, inner, to) {
            converted.outputs[i] = outer;
            let node = conversion(inner, outer);
            match graph.nodes.iter().position(|n| n.outputs.contains(&inner)) {
                Some(maker) => rounded.push((behind(graph, maker), node)),
                None => passed.push((before_readers(graph, inner), node)),
            }
        }
    }
    let mut conversions: Vec<(usize, Node)> =
        rounded.into_iter().chain(widened).chain(passed).collect();
    conversions.sort_by_key(|(before, _)| *before);
    let mut conversions = conversions.into_iter().peekable();
    let ops = std::mem::take(&mut converted.nodes);
    for (at, op) in ops.into_iter().enumerate() {
        while let Some((_, node)) = conversions.next_if(|(before, _)| *before <= at) {
            converted.nodes.push(node);
        }
        converted.nodes.push(op);
    }
    converted.nodes.extend(conversions.map(|(_, node)| node));
    converted
}

/// The place before the first op that reads a value, and before the products that it follows.
fn before_readers(graph: &Subgraph, value: ValueId) -> usize {
    let reader = graph.nodes.iter().position(|n| n.inputs.contains(&value)).unwrap_or(0);
    let first = (0..reader).rev().take_while(|at| are_products(graph, *at)).last();
    first.unwrap_or(reader)
}

/// The place behind an op, and behind the products that follow it.
fn behind(graph: &Subgraph, op: usize) -> usize {
    let follow = (op..graph.nodes.len()).take_while(|at| are_products(graph, *at)).count();
    op + follow + 1
}

/// Whether an op and the next one are products.
fn are_products(graph: &Subgraph, op: usize) -> bool {
    let mut pair = graph.nodes.iter().skip(op).take(2).map(|n| n.op.is_product());
    pair.next() == Some(true) && pair.next() == Some(true)
}

/// Adds a value with the shape of an f32 one and another type.
fn beside(graph: &mut Subgraph, inner: ValueId, to: DType) -> Option<ValueId> {
    let like = graph.value(inner);
    if like.dtype != DType::F32 || to == DType::F32 {
        return None;
    }
    let outer = Value { dtype: to, ..like.clone() };
    graph.values.push(outer);
    Some(ValueId(graph.values.len() as u32 - 1))
}

fn conversion(from: ValueId, to: ValueId) -> Node {
    Node { op: Op::Convert, inputs: vec![from], states: Vec::new(), outputs: vec![to] }
}

#[cfg(test)]
mod tests {
    use super::convert_boundary;
    use crate::{DType, Op, SubgraphBuilder, verify};

    #[test]
    fn only_floats_at_the_boundary_change_their_type() {
        let mut b = SubgraphBuilder::new("g", 4);
        let (x, ids) = (b.input("x", 8, DType::F32), b.input("positions", 1, DType::I32));
        let y = b.op("y", Op::Scale { factor: 2.0 }, &[x], 8);
        let z = b.op("z", Op::Add, &[x, y], 8);
        [y, z, ids, x].into_iter().for_each(|v| b.output(v));
        let graph = b.finish().unwrap();
        let (half, none) = (DType::BF16, DType::F32);
        assert_eq!(convert_boundary(&graph, &[none; 2], &[none; 4]), graph);
        let converted = convert_boundary(&graph, &[half; 2], &[half, DType::F16, half, none]);
        verify(&converted).unwrap();
        let types = |ids: &[crate::ValueId]| -> Vec<DType> {
            ids.iter().map(|v| converted.value(*v).dtype).collect()
        };
        assert_eq!(types(&converted.inputs), [half, DType::I32]);
        assert_eq!(types(&converted.outputs), [half, DType::F16, DType::I32, none]);
        let names: Vec<&str> = converted.nodes.iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["convert", "scale", "convert", "add", "convert"]);
        // The sum reads the unrounded value.
        assert_eq!(converted.nodes[3].inputs, [x, y]);
    }
}
