//! Static shapes: converts between graphs with fixed numbers of rows and symbolic ones.

use troika_graph::{Dim, Subgraph};

/// The number of rows that a static graph is bound to; else what is not bound.
pub(crate) fn bucket_of(graph: &Subgraph) -> Result<usize, String> {
    let mut bucket = None;
    for id in graph.inputs.iter().chain(&graph.outputs).chain(&graph.states) {
        let value = graph.value(*id);
        let rows = match value.shape.0.first() {
            Some(Dim::Fixed(n)) => *n,
            Some(d) => return Err(format!("{} has up to {} rows", value.name, d.bound())),
            None => return Err(format!("{} has no rows", value.name)),
        };
        if graph.states.contains(id) {
            continue;
        }
        if *bucket.get_or_insert(rows) != rows {
            return Err(format!("{} has {rows} rows, other values have not", value.name));
        }
    }
    // A graph without bound values has no rows either.
    Ok(bucket.unwrap_or(0))
}

/// The graph with symbols instead of fixed numbers of rows, so that a device with dynamic shapes
/// computes only the valid rows.
pub(crate) fn with_symbols(graph: &Subgraph) -> Subgraph {
    let mut graph = graph.clone();
    let states = graph.states.clone();
    for (i, value) in graph.values.iter_mut().enumerate() {
        let state = states.iter().any(|s| s.0 as usize == i);
        if let Some(first @ Dim::Fixed(_)) = value.shape.0.first_mut() {
            *first = if state { Dim::KvLen(first.bound()) } else { Dim::Rows(first.bound()) };
        }
    }
    graph
}
