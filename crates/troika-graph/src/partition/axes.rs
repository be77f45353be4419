//! Groups values whose columns must be cut at the same places.
//!
//! The results of gate and up are multiplied column by column, so both are cut alike; keys are cut
//! like the query heads that read them. Such values share an *axis*: a number of equal units, each
//! of one or more columns per value. Parts begin at units and, for results of weight matrices, at
//! tiles.

use std::ops::Range;

use super::ColumnSplit;
use super::stages::{Mode, OpStage, groups};
use super::take::{Reads, Take, reads_input, reads_states};
use crate::op::Op;
use crate::subgraph::{Node, Subgraph, ValueId};

/// The axes of all values.
pub(super) struct Axes {
    /// For each value, another value on its axis; the root of an axis refers to itself.
    parent: Vec<usize>,
    /// For roots: the number of units; 0 until a split op is seen.
    units: Vec<usize>,
    /// For roots: the columns of values that are cut at tiles.
    tiled: Vec<Vec<usize>>,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The values of an op that lie on its axis.
fn on_axis(node: &Node) -> impl Iterator<Item = ValueId> + '_ {
    let inputs = node.inputs.iter().enumerate();
    let inputs = inputs.filter(|(i, _)| reads_input(&node.op, *i) == Reads::Columns);
    let states = node.states.iter().filter(|_| reads_states(&node.op) == Reads::Columns);
    node.outputs.iter().chain(inputs.map(|(_, v)| v)).chain(states).copied()
}

impl Axes {
    /// The axes of a graph whose ops are placed.
    pub fn of(graph: &Subgraph, places: &[OpStage], split: &ColumnSplit) -> Axes {
        let n = graph.values.len();
        let mut axes =
            Axes { parent: (0..n).collect(), units: vec![0; n], tiled: vec![Vec::new(); n] };
        for (node, place) in graph.nodes.iter().zip(places) {
            if place.mode == Mode::Split {
                axes.add(graph, node);
            }
        }
        let asked = split.groups.filter(|g| *g > 1);
        for units in &mut axes.units {
            *units = asked.filter(|g| units.is_multiple_of(*g)).unwrap_or(*units);
        }
        axes
    }

    fn root(&self, value: ValueId) -> usize {
        let mut at = value.0 as usize;
        while self.parent[at] != at {
            at = self.parent[at];
        }
        at
    }

    fn add(&mut self, graph: &Subgraph, node: &Node) {
        let mut values = on_axis(node);
        let Some(first) = values.next() else { return };
        let root = self.root(first);
        for value in values {
            let other = self.root(value);
            if other != root {
                self.parent[other] = root;
                self.units[root] = gcd(self.units[root], self.units[other]);
                let tiled = std::mem::take(&mut self.tiled[other]);
                self.tiled[root].extend(tiled);
            }
        }
        self.units[root] = gcd(self.units[root], groups(graph, node).unwrap_or(1));
        if matches!(node.op, Op::Linear { .. }) {
            self.tiled[root].push(graph.value(first).shape.row_len());
        }
    }

    /// Number of units between places where a part may begin.
    fn step(&self, root: usize, tile: usize) -> usize {
        let units = self.units[root].max(1);
        self.tiled[root].iter().fold(1, |step, cols| {
            let here = tile / gcd(tile, cols / units);
            step / gcd(step, here) * here
        })
    }

    /// Any value of an op on its axis.
    fn any(node: &Node) -> Option<ValueId> {
        on_axis(node).next()
    }

    /// Whether an op has too few tiles and heads for two parts.
    pub fn is_too_narrow(&self, node: &Node, tile: usize) -> bool {
        let root = Axes::any(node).map(|value| self.root(value));
        root.is_some_and(|root| self.units[root] / self.step(root, tile) < 2)
    }

    /// The units of a split op that a part takes; `None` if it gets none.
    pub fn take(&self, node: &Node, split: &ColumnSplit, part: usize) -> Option<Take> {
        let root = self.root(Axes::any(node)?);
        let (of, step) = (self.units[root].max(1), self.step(root, split.tile));
        let steps = share(of.div_ceil(step), &split.shares, part);
        let units = (steps.start * step).min(of)..(steps.end * step).min(of);
        (!units.is_empty()).then_some(Take { units, of })
    }
}

/// A part's share of `n`: from the sum of the shares before it to the sum including its own,
/// rounded to nearest. The shares of all parts cover `0..n` exactly once.
fn share(n: usize, shares: &[u32], part: usize) -> Range<usize> {
    let sum = |parts: &[u32]| parts.iter().map(|s| u128::from(*s)).sum::<u128>();
    let all = sum(shares).max(1);
    let end = |parts: usize| {
        let scaled = 2 * n as u128 * sum(&shares[..parts]) + all;
        usize::try_from(scaled / (2 * all)).unwrap_or(n).min(n)
    };
    end(part)..end(part + 1)
}
