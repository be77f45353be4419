//! Assigns memory to the values of a subgraph during a run.

use troika_graph::Subgraph;

use crate::compile::CompiledOp;
use crate::runtime::LINE;

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueMemory {
    /// The binding of an input.
    Input(usize),
    /// The binding of a state.
    State(usize),
    /// The binding of an output.
    Output(usize),
    /// In the arena, after this many floats per row.
    Temp(usize),
    /// Neither computed nor bound.
    Nowhere,
}

/// Assigns a place to every value: its binding if there is one, else room in the arena until its
/// last use. Also returns outputs to copy at the end, and the arena's floats per row.
///
/// All operands and results of an op have distinct places.
pub(crate) fn place(
    graph: &Subgraph,
    ops: &[CompiledOp],
) -> (Vec<ValueMemory>, Vec<(usize, usize)>, usize) {
    let mut places = vec![ValueMemory::Nowhere; graph.values.len()];
    let mut copies = Vec::new();
    for (i, v) in graph.inputs.iter().enumerate() {
        places[v.0 as usize] = ValueMemory::Input(i);
    }
    for (i, v) in graph.states.iter().enumerate() {
        places[v.0 as usize] = ValueMemory::State(i);
    }
    for (i, v) in graph.outputs.iter().enumerate() {
        match &mut places[v.0 as usize] {
            p @ ValueMemory::Nowhere => *p = ValueMemory::Output(i),
            _ => copies.push((v.0 as usize, i)),
        }
    }
    let mut last_use = vec![0; graph.values.len()];
    for (i, s) in ops.iter().enumerate() {
        s.inputs.iter().chain(&s.outputs).for_each(|v| last_use[*v] = i);
    }
    let size = |v: usize| graph.values[v].shape.row_len().saturating_add(LINE - 1) / LINE * LINE;
    // Free rooms as (first float, floats) per row, in whole cache lines.
    let mut free: Vec<(usize, usize)> = Vec::new();
    let mut floats = 0;
    for (i, s) in ops.iter().enumerate() {
        for &v in &s.outputs {
            if places[v] == ValueMemory::Nowhere {
                places[v] = ValueMemory::Temp(take_room(&mut free, &mut floats, size(v)));
            }
        }
        let mut done: Vec<usize> = s.inputs.iter().chain(&s.outputs).copied().collect();
        done.sort_unstable();
        done.dedup();
        for v in done.into_iter().filter(|v| last_use[*v] == i) {
            if let ValueMemory::Temp(at) = places[v] {
                give_room(&mut free, at, size(v));
            }
        }
    }
    (places, copies, floats)
}

/// The smallest free room that fits, or new room at the end.
fn take_room(free: &mut Vec<(usize, usize)>, floats: &mut usize, size: usize) -> usize {
    let fits = free.iter().enumerate().filter(|(_, r)| r.1 >= size).min_by_key(|(_, r)| r.1);
    if let Some((i, &(at, len))) = fits {
        if len == size {
            free.swap_remove(i);
        } else {
            free[i] = (at + size, len - size);
        }
        return at;
    }
    // Compiling refuses graphs that need too many.
    *floats = floats.saturating_add(size);
    *floats - size
}

/// Frees room and joins it with free neighbours.
fn give_room(free: &mut Vec<(usize, usize)>, mut at: usize, mut len: usize) {
    free.retain(|&(a, l)| {
        let touches = a + l == at || at + len == a;
        if touches {
            at = at.min(a);
            len += l;
        }
        !touches
    });
    free.push((at, len));
}
