//! Where the values of a subgraph are: bindings, and scratch memory.

use troika_graph::{DType, Dim, Subgraph, ValueId};

use crate::units::Unit;

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// An input's binding.
    Input(usize),
    /// A state's binding.
    State(usize),
    /// An output's binding.
    Output(usize),
    /// Scratch memory of the queue, by number.
    Scratch(usize),
    /// Nothing reads it.
    Nowhere,
}

/// A value as steps see it.
#[derive(Clone, Debug)]
pub(crate) struct ValuePlace {
    pub name: String,
    pub place: Place,
    pub rows: Dim,
    pub cols: usize,
    pub dtype: DType,
}

impl ValuePlace {
    pub fn row_bytes(&self) -> usize {
        self.cols.saturating_mul(self.dtype.block_bytes())
    }

    /// Its rows, where a submission has so many.
    pub fn rows_of(&self, rows: usize) -> usize {
        match self.rows {
            Dim::Rows(_) => rows,
            Dim::Fixed(n) | Dim::KvLen(n) => n,
        }
    }
}

/// Places for all values: bindings, and scratch memory that values share which do not live at once.
/// All values of a unit live at once, so that its ops may run in any number of dispatches.
pub(crate) fn places(
    graph: &Subgraph,
    units: &[Unit],
) -> (Vec<ValuePlace>, Vec<usize>, Vec<(usize, usize)>) {
    let mut slots: Vec<ValuePlace> = graph
        .values
        .iter()
        .map(|v| ValuePlace {
            name: v.name.clone(),
            place: Place::Nowhere,
            rows: v.shape.0.first().copied().unwrap_or(Dim::Fixed(1)),
            cols: v.shape.row_len(),
            dtype: v.dtype,
        })
        .collect();
    let mut repeats = Vec::new();
    for (i, id) in graph.inputs.iter().enumerate() {
        slots[id.0 as usize].place = Place::Input(i);
    }
    for (i, id) in graph.states.iter().enumerate() {
        slots[id.0 as usize].place = Place::State(i);
    }
    for (i, id) in graph.outputs.iter().enumerate() {
        let slot = &mut slots[id.0 as usize];
        match slot.place {
            Place::Nowhere => slot.place = Place::Output(i),
            _ => repeats.push((id.0 as usize, i)),
        }
    }
    let mut last = vec![0; graph.values.len()];
    let outputs = |unit: &Unit| -> Vec<ValueId> {
        unit.nodes.iter().flat_map(|n| graph.nodes[*n].outputs.iter().copied()).collect()
    };
    for (at, unit) in units.iter().enumerate() {
        for id in unit.reads(graph).chain(outputs(unit)) {
            last[id.0 as usize] = at;
        }
    }
    let mut scratch: Vec<usize> = Vec::new();
    // Until which unit each scratch memory is taken.
    let mut taken: Vec<usize> = Vec::new();
    for (at, unit) in units.iter().enumerate() {
        for id in outputs(unit) {
            let value = id.0 as usize;
            if slots[value].place != Place::Nowhere {
                continue;
            }
            let free = taken.iter().position(|until| *until < at);
            let number = free.unwrap_or_else(|| {
                taken.push(0);
                scratch.push(0);
                taken.len() - 1
            });
            taken[number] = last[value].max(at);
            slots[value].place = Place::Scratch(number);
            let bytes = slots[value].row_bytes().saturating_mul(slots[value].rows_of(1));
            scratch[number] = scratch[number].max(bytes);
        }
    }
    (slots, scratch, repeats)
}
