//! Symbols of a subgraph: lowers their bounds, or binds them for devices with static shapes.

use crate::shape::Dim;
use crate::subgraph::Subgraph;

/// A copy of the subgraph for at most `rows` rows.
pub fn limit_rows(graph: &Subgraph, rows: usize) -> Subgraph {
    with_dims(graph, |dim| match dim {
        Dim::Rows(most) => Dim::Rows(most.min(rows)),
        other => other,
    })
}

/// A copy of the subgraph without symbols: with exactly `rows` rows and the most cached positions.
pub fn bind_static(graph: &Subgraph, rows: usize) -> Subgraph {
    with_dims(graph, |dim| match dim {
        Dim::Rows(_) => Dim::Fixed(rows),
        other => Dim::Fixed(other.bound()),
    })
}

fn with_dims(graph: &Subgraph, dim: impl Fn(Dim) -> Dim) -> Subgraph {
    let mut graph = graph.clone();
    for value in &mut graph.values {
        for d in &mut value.shape.0 {
            *d = dim(*d);
        }
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, KvAppend, Op, Shape, SubgraphBuilder, verify};

    #[test]
    fn symbols_are_bound_and_limited() {
        let mut b = SubgraphBuilder::new("append", 12);
        let x = b.input("x", 4, DType::F32);
        let cache = b.state("k", Shape(vec![Dim::KvLen(64), Dim::Fixed(4)]), DType::F16);
        b.node(Op::KvAppend(KvAppend { width: 4, page_group: 0 }), &[x], &[cache], &[]);
        let y = b.op("y", Op::Scale { factor: 2.0 }, &[x], 4);
        b.output(y);
        let graph = b.finish().unwrap();
        let bound = bind_static(&graph, 5);
        verify(&bound).unwrap();
        let symbolic = |d: &Dim| !matches!(d, Dim::Fixed(_));
        assert!(!bound.values.iter().flat_map(|v| &v.shape.0).any(symbolic));
        let (rows, kept) = (bound.max_rows(), bound.value(cache).shape.max_rows());
        assert_eq!((rows, kept), (5, 64));
        assert_eq!(limit_rows(&graph, 7).max_rows(), 7);
        assert_eq!(limit_rows(&graph, 70), graph);
        verify(&limit_rows(&graph, 1)).unwrap();
        assert_eq!(limit_rows(&bound, 3), bound);
    }
}
