//! Where the values of a subgraph are: bindings, and scratch memory.

use troika_graph::{DType, Dim, Subgraph, Value, ValueId};

use crate::units::Unit;

/// What holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueStorage {
    /// A binding, by its number among inputs, states and outputs.
    Binding(usize),
    /// Scratch memory of the queue, by number.
    Scratch(usize),
    /// Nothing, since nothing reads it.
    None,
}

/// A value and what holds it.
#[derive(Clone, Debug)]
pub(crate) struct PlacedValue {
    pub name: String,
    pub storage: ValueStorage,
    pub rows: Dim,
    pub cols: usize,
    pub dtype: DType,
}

impl PlacedValue {
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_size(self.cols)
    }

    /// Its rows, where a submission has `rows`.
    pub fn rows_of(&self, rows: usize) -> usize {
        match self.rows {
            Dim::Rows(_) => rows,
            Dim::Fixed(n) | Dim::KvLen(n) => n,
        }
    }
}

/// What holds the values of a graph.
pub(crate) struct Places {
    pub values: Vec<PlacedValue>,
    /// Bytes of a row of each scratch memory (or of all, for values of fixed rows).
    pub scratch: Vec<usize>,
    /// Outputs that repeat another value: (value, output).
    pub repeats: Vec<(usize, usize)>,
}

/// Finds storage for all values: bindings, and scratch memory that values share which do not live at
/// once. All values of a unit live at once, so that its ops may run in any number of dispatches.
pub(crate) fn places(graph: &Subgraph, units: &[Unit]) -> Places {
    let value = |v: &Value| PlacedValue {
        name: v.name.clone(),
        storage: ValueStorage::None,
        rows: v.shape.0.first().copied().unwrap_or(Dim::Fixed(1)),
        cols: v.shape.row_len(),
        dtype: v.dtype,
    };
    let mut values: Vec<PlacedValue> = graph.values.iter().map(value).collect();
    let mut repeats = Vec::new();
    for (i, id) in graph.inputs.iter().chain(&graph.states).enumerate() {
        values[id.0 as usize].storage = ValueStorage::Binding(i);
    }
    let first_output = graph.inputs.len() + graph.states.len();
    for (i, id) in graph.outputs.iter().enumerate() {
        let storage = &mut values[id.0 as usize].storage;
        match storage {
            ValueStorage::None => *storage = ValueStorage::Binding(first_output + i),
            _ => repeats.push((id.0 as usize, i)),
        }
    }
    let outputs = |unit: &Unit| -> Vec<ValueId> {
        unit.nodes.iter().flat_map(|n| graph.nodes[*n].outputs.iter().copied()).collect()
    };
    let mut last = vec![0; values.len()];
    for (at, unit) in units.iter().enumerate() {
        for id in unit.reads(graph).chain(outputs(unit)) {
            last[id.0 as usize] = at;
        }
    }
    let mut scratch: Vec<usize> = Vec::new();
    // Until which unit each scratch memory is taken.
    let mut taken: Vec<usize> = Vec::new();
    for (at, unit) in units.iter().enumerate() {
        for value in outputs(unit).into_iter().map(|id| id.0 as usize) {
            if values[value].storage != ValueStorage::None {
                continue;
            }
            let number = taken.iter().position(|until| *until < at).unwrap_or(taken.len());
            if number == taken.len() {
                taken.push(0);
                scratch.push(0);
            }
            taken[number] = last[value].max(at);
            values[value].storage = ValueStorage::Scratch(number);
            let bytes = values[value].row_bytes().saturating_mul(values[value].rows_of(1));
            scratch[number] = scratch[number].max(bytes);
        }
    }
    Places { values, scratch, repeats }
}
