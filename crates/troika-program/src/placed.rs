//! The pieces of a segment under a rule, and which rows of a forward batch each of them computes.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::partition::{Computed, Partition, PartitionError};
use troika_graph::{DType, Subgraph};
use troika_plan::{Dispatch, ExpertSplit};

use crate::experts::{ExpertBuffer, ExpertStep, PackedCols, step_bytes};
use crate::residency::common;

/// A value that a piece reads or writes, as its segment knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentValue {
    /// The segment's input of this index.
    Input(usize),
    /// The segment's output of this index.
    Output(usize),
    /// A value between the segment's pieces, by index.
    Between(usize),
}

/// A range of columns of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The value.
    pub value: SegmentValue,
    /// Its columns.
    pub cols: Range<usize>,
}

/// A range of columns of one of the segment's states: all, or the columns of a device's attention
/// heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateOperand {
    /// Index among the segment's states.
    pub state: usize,
    /// Its columns.
    pub cols: Range<usize>,
}

impl StateOperand {
    /// Whether both have a column in common.
    pub(crate) fn meets(&self, other: &StateOperand) -> bool {
        self.state == other.state && !common(&self.cols, &other.cols).is_empty()
    }
}

/// The width and type of a value between the pieces of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between {
    /// Its columns.
    pub cols: usize,
    /// Its type.
    pub dtype: DType,
}

/// A part of a segment on a device.
#[derive(Debug)]
pub struct PlacedPiece {
    /// Its place among the segment's pieces.
    pub index: usize,
    /// Index of the device in the list that the segment was placed on.
    pub device: usize,
    /// The name in traces.
    pub name: Arc<str>,
    /// What it computes, with the symbol `rows` unbound.
    pub graph: Arc<Subgraph>,
    /// The values it reads.
    pub inputs: Vec<Operand>,
    /// The states it uses.
    pub states: Vec<StateOperand>,
    /// The values it writes.
    pub outputs: Vec<Operand>,
    /// The numbers of rows it is compiled for, ascending; a single one, the most at once, if shapes
    /// are not static.
    pub shapes: Vec<usize>,
    /// Whether runs are padded to a shape.
    pub static_shapes: bool,
}

/// One run of a piece over some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsRun {
    /// Index of the shape.
    pub shape: usize,
    /// Number of rows to compute.
    pub rows: usize,
    /// Number of rows that views need room for: all rows of the shape if it is static.
    pub room: usize,
}

impl PlacedPiece {
    /// The next run when `left` rows remain; `None` when none do. If other rows follow (`others`),
    /// it avoids padding where the shapes allow that.
    pub fn next_run(&self, left: usize, others: bool) -> Option<RowsRun> {
        let largest = self.shapes.len().checked_sub(1)?;
        let full = self.shapes.iter().rposition(|s| *s <= left).filter(|_| others);
        let enough = || self.shapes.iter().position(|s| *s >= left).unwrap_or(largest);
        let shape = full.unwrap_or_else(enough);
        let rows = left.min(self.shapes[shape]);
        let room = if self.static_shapes { self.shapes[shape] } else { rows };
        (rows > 0).then_some(RowsRun { shape, rows, room })
    }
}

/// A range of rows, and the pieces that compute it.
pub struct RowsOf<'a> {
    /// The rows.
    pub rows: Range<usize>,
    /// The pieces, in an order in which they can run.
    pub pieces: &'a [PlacedPiece],
}

/// The experts of a segment whose rule shares them out.
#[derive(Debug)]
pub struct PlacedExperts {
    /// How they are shared out.
    pub split: ExpertSplit,
    /// The graphs of each group, in order; then the graph of all experts on the rule's device, for
    /// rows that chose one expert each.
    pub pieces: Vec<PlacedPiece>,
    /// The groups of the former, and the packed rows that they read and write.
    pub(crate) packed: Vec<PackedOperands>,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts that a row chooses.
    pub top_k: usize,
    /// Columns of rows.
    pub cols: usize,
    /// How many of the segment's stages run before them, and before their sum is there.
    pub(crate) stages: [usize; 2],
    /// The rows, the experts that they chose, and their weights.
    pub(crate) inputs: [Operand; 3],
    /// Their sum.
    pub(crate) output: Operand,
    /// The values before and after attention, whose difference is what it added.
    pub(crate) attention: Option<[usize; 2]>,
}

/// What a graph of a group works on.
#[derive(Clone, Debug)]
pub(crate) struct PackedOperands {
    pub group: usize,
    /// The number of its part, if the group is divided.
    pub part: usize,
    /// Whole rows.
    pub reads: ExpertBuffer,
    pub writes: PackedCols,
    /// Columns of the buffer that it writes.
    pub of: usize,
}

impl PlacedExperts {
    /// Bytes that a step reads and writes for `rows` rows.
    pub fn bytes(&self, step: ExpertStep, rows: usize) -> u64 {
        step_bytes(step, rows, self.top_k, self.cols)
    }

    /// Whether chunks go through the model layer by layer.
    pub(crate) fn is_layer_major(&self) -> bool {
        self.split.dispatch == Dispatch::LayerMajor
    }
}

/// A segment as it runs in a phase: its stages in order.
#[derive(Debug)]
pub struct PlacedSegment {
    pub(crate) stages: Vec<PlacedStage>,
    /// The values between its pieces.
    pub between: Vec<Between>,
    /// Experts that are shared out at run time.
    pub experts: Option<PlacedExperts>,
}

/// A stage of a segment, or all of it.
#[derive(Debug)]
pub(crate) struct PlacedStage {
    pub partition: Partition,
    /// For each part of the partition that computes whole rows, its pieces.
    pub wholes: Vec<Vec<PlacedPiece>>,
    /// The pieces of all parts, where they divide the columns.
    pub columns: Vec<PlacedPiece>,
}

impl PlacedSegment {
    /// A segment of some stages, with the values between its pieces. Numbers its pieces; those of
    /// experts come last.
    pub(crate) fn new(
        mut stages: Vec<PlacedStage>,
        between: Vec<Between>,
        mut experts: Option<PlacedExperts>,
    ) -> PlacedSegment {
        let pieces = stages.iter_mut().flat_map(|stage| {
            let PlacedStage { wholes, columns, .. } = stage;
            wholes.iter_mut().flatten().chain(columns.iter_mut())
        });
        let last = experts.iter_mut().flat_map(|experts| experts.pieces.iter_mut());
        pieces.chain(last).enumerate().for_each(|(index, piece)| piece.index = index);
        PlacedSegment { stages, between, experts }
    }

    /// Divides rows `0..rows` among the pieces, without the pieces of divided experts.
    ///
    /// # Errors
    /// A standard length of 0.
    pub fn areas(&self, rows: usize) -> Result<Vec<RowsOf<'_>>, PartitionError> {
        let mut all = Vec::new();
        for stage in &self.stages {
            all.extend(stage.areas(rows)?);
        }
        Ok(all)
    }

    /// The graphs of groups of experts that one device computes alone.
    pub fn groups(&self) -> impl Iterator<Item = &PlacedPiece> {
        self.experts.iter().flat_map(|experts| {
            let alone = |number: usize| experts.split.groups[number].parts.is_empty();
            let of_groups = experts.pieces.iter().zip(&experts.packed);
            of_groups.filter(move |(_, of)| alone(of.group)).map(|(piece, _)| piece)
        })
    }

    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &PlacedPiece> {
        let experts = self.experts.iter().flat_map(|experts| &experts.pieces);
        self.stages.iter().flat_map(PlacedStage::pieces).chain(experts)
    }
}

impl PlacedStage {
    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &PlacedPiece> {
        self.wholes.iter().flatten().chain(&self.columns)
    }

    /// Divides rows `0..rows` among the pieces. They come in turns: no device waits for another one
    /// in the middle of some rows while it has others to compute.
    ///
    /// # Errors
    /// A standard length of 0.
    pub fn areas(&self, rows: usize) -> Result<Vec<RowsOf<'_>>, PartitionError> {
        let areas = self.partition.areas(rows)?.into_iter().map(|area| match area.by {
            Computed::Part(part) => (area.rows, &self.wholes[part]),
            Computed::Columns => (area.rows, &self.columns),
        });
        let areas: Vec<_> = areas.collect();
        let most = areas.iter().map(|(_, pieces)| pieces.len()).max().unwrap_or(0);
        let in_turn = |turn: usize| {
            areas.iter().filter_map(move |(rows, pieces)| {
                Some(RowsOf { rows: rows.clone(), pieces: pieces.get(turn..=turn)? })
            })
        };
        Ok((0..most).flat_map(in_turn).collect())
    }
}
