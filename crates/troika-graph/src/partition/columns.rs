//! Splits a graph by columns of its results.

use super::axes::Axes;
use super::piece::{Piece, PieceBuilder, whole};
use super::stages::{Mode, OpStage, assign};
use super::take::Take;
use super::{ColumnSplit, PartitionError, Partitioned, Stage};
use crate::subgraph::{Node, Subgraph, ValueId};
use crate::verify::verify;

/// Splits a graph by columns of its results. Each part computes its share.
///
/// A stage ends where an op needs whole rows of the parts' results. Ops that cannot be split go to
/// the part with the largest share. If that is all of them, the graph itself is the only piece.
///
/// Results are bit-identical to the whole graph's on devices that sum each column of a product
/// separately: no sum is split.
///
/// # Errors
/// A malformed graph; a tile of 0; shares that are all 0.
pub fn split_columns(graph: &Subgraph, split: &ColumnSplit) -> Result<Partitioned, PartitionError> {
    verify(graph)?;
    if split.tile == 0 {
        return Err(PartitionError::Zero { what: "tile" });
    }
    let Some(owner) = largest(&split.shares) else { return Err(PartitionError::Shares) };
    let (places, axes) = settle(graph, split);
    let pieces = Pieces { graph, split, owner, places: &places, axes: &axes };
    let parts = 0..split.shares.len();
    let used: Vec<usize> = parts.filter(|part| pieces.uses(*part)).collect();
    if let [] | [_] = used[..] {
        let part = used.first().copied().unwrap_or(owner);
        let stages = vec![Stage { pieces: vec![whole(graph, part)] }];
        return Ok(Partitioned { stages });
    }
    let last = places.iter().map(|p| p.stage).max().unwrap_or(0);
    let stages = (0..=last).map(|s| pieces.stage(s)).collect::<Result<_, _>>()?;
    Ok(Partitioned { stages })
}

/// The part with the largest share, the first among equals; `None` if all are 0.
fn largest(shares: &[u32]) -> Option<usize> {
    let most = shares.iter().copied().max().filter(|most| *most > 0)?;
    shares.iter().position(|s| *s == most)
}

/// Places the ops. Repeats with ops that turn out too narrow kept whole, until all fit.
fn settle(graph: &Subgraph, split: &ColumnSplit) -> (Vec<OpStage>, Axes) {
    let mut kept = vec![false; graph.nodes.len()];
    loop {
        let places = assign(graph, &kept);
        let axes = Axes::of(graph, &places, split);
        let mut settled = true;
        for (i, node) in graph.nodes.iter().enumerate() {
            if places[i].mode != Mode::Split {
                continue;
            }
            if axes.is_too_narrow(node, split.tile) {
                (kept[i], settled) = (true, false);
            }
        }
        if settled {
            return (places, axes);
        }
    }
}

/// A graph with placed ops.
struct Pieces<'a> {
    graph: &'a Subgraph,
    split: &'a ColumnSplit,
    owner: usize,
    places: &'a [OpStage],
    axes: &'a Axes,
}

impl<'a> Pieces<'a> {
    fn ops(&self) -> impl Iterator<Item = (&'a Node, &'a OpStage)> + 'a {
        self.graph.nodes.iter().zip(self.places)
    }

    /// Whether a part gets columns of any split op.
    fn uses(&self, part: usize) -> bool {
        let mut split_ops = self.ops().filter(|(_, p)| p.mode == Mode::Split);
        split_ops.any(|(node, _)| self.axes.take(node, self.split, part).is_some())
    }

    fn stage(&self, stage: usize) -> Result<Stage, PartitionError> {
        let parts = 0..self.split.shares.len();
        let pieces = parts.map(|part| self.piece(stage, part));
        let pieces: Result<Vec<Option<Piece>>, _> = pieces.collect();
        Ok(Stage { pieces: pieces?.into_iter().flatten().collect() })
    }

    /// The piece of a part in a stage; `None` if it is empty.
    fn piece(&self, stage: usize, part: usize) -> Result<Option<Piece>, PartitionError> {
        let takes = self.takes(stage, part);
        let passed = self.graph.outputs.iter().filter(|v| self.graph.inputs.contains(v));
        let passes = stage == 0 && part == self.owner && passed.clone().next().is_some();
        if takes.iter().all(Option::is_none) && !passes {
            return Ok(None);
        }
        let name = format!("{} [stage {stage}, part {part}]", self.graph.name);
        let mut b = PieceBuilder::new(self.graph, name);
        for ((node, _), take) in self.ops().zip(&takes) {
            if let Some(take) = take {
                b.node(node, take);
            }
        }
        for ((node, place), take) in self.ops().zip(&takes) {
            let Some(take) = take else { continue };
            let hands_out = place.mode != Mode::Copied || part == self.owner;
            let out = node.outputs.iter().filter(|v| hands_out && self.leaves(**v, stage));
            out.for_each(|v| b.output(*v, take));
        }
        if passes {
            passed.for_each(|v| b.output(*v, &Take::whole()));
        }
        Ok(Some(b.finish(part)?))
    }

    /// The share of each op that a part takes in a stage.
    fn takes(&self, stage: usize, part: usize) -> Vec<Option<Take>> {
        let mut takes: Vec<Option<Take>> = vec![None; self.places.len()];
        for i in (0..self.places.len()).rev() {
            let (node, place) = (&self.graph.nodes[i], &self.places[i]);
            if place.stage != stage {
                continue;
            }
            let owned = || (part == self.owner).then(Take::whole);
            takes[i] = match place.mode {
                Mode::Split => self.axes.take(node, self.split, part),
                Mode::Alone => owned(),
                Mode::Copied => {
                    let mut behind = self.graph.nodes.iter().zip(&takes).skip(i + 1);
                    let read = behind.any(|(n, take)| {
                        take.is_some() && n.inputs.iter().any(|v| node.outputs.contains(v))
                    });
                    let leaves = node.outputs.iter().any(|v| self.leaves(*v, stage));
                    if read { Some(Take::whole()) } else { owned().filter(|_| leaves) }
                }
            };
        }
        takes
    }

    /// Whether a value is an output, or read in a later stage than its own.
    fn leaves(&self, value: ValueId, stage: usize) -> bool {
        let read = |(n, p): (&Node, &OpStage)| p.stage > stage && n.inputs.contains(&value);
        self.graph.outputs.contains(&value) || self.ops().any(read)
    }
}
