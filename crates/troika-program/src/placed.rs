//! The pieces of a segment under a rule, and which rows of a forward batch each of them computes.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::DType;
use troika_graph::partition::{Computed, Partition, PartitionError};

use crate::residency::common;

/// A value that a piece reads or writes, as its segment knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
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
    pub place: Place,
    /// Its columns.
    pub cols: Range<usize>,
}

/// A range of columns of one of the segment's states: all, or those of a device's attention heads.
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
pub(crate) struct Between {
    pub cols: usize,
    pub dtype: DType,
}

/// A part of a segment on a device.
#[derive(Debug)]
pub struct Piece {
    /// Index of the device in the plan.
    pub device: usize,
    /// The name in traces.
    pub name: Arc<str>,
    /// The values it reads.
    pub inputs: Vec<Operand>,
    /// The states it uses.
    pub states: Vec<StateOperand>,
    /// The values it writes.
    pub outputs: Vec<Operand>,
    /// By ascending rows; a single entry if shapes are not static.
    pub(crate) shapes: Vec<Shape>,
    pub(crate) static_shapes: bool,
}

/// A piece for a number of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub rows: usize,
    /// Index in the program's list of graphs.
    pub graph: usize,
}

/// One run of a piece over some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowsRun {
    /// Index in the program's list of graphs.
    pub graph: usize,
    /// Number of rows to compute.
    pub rows: usize,
    /// Number of rows that views need room for: those of the shape if it is static.
    pub room: usize,
}

impl Piece {
    /// The next run when `left` rows remain; `None` when none do. If other rows follow (`others`),
    /// it avoids padding where the shapes allow that.
    pub(crate) fn next_run(&self, left: usize, others: bool) -> Option<RowsRun> {
        let largest = self.shapes.last()?;
        let full = self.shapes.iter().rfind(|s| s.rows <= left).filter(|_| others);
        let enough = || self.shapes.iter().find(|s| s.rows >= left).unwrap_or(largest);
        let fits = full.unwrap_or_else(enough);
        let rows = left.min(fits.rows);
        let room = if self.static_shapes { fits.rows } else { rows };
        (rows > 0).then_some(RowsRun { graph: fits.graph, rows, room })
    }
}

/// A range of rows, and the pieces that compute it.
pub(crate) struct RowsOf<'a> {
    pub rows: Range<usize>,
    pub pieces: &'a [Piece],
}

/// A segment as it runs in a phase: its stages in order.
#[derive(Debug)]
pub(crate) struct PlacedSegment {
    pub stages: Vec<PlacedStage>,
    /// The values between its pieces.
    pub between: Vec<Between>,
}

/// A stage of a segment, or all of it.
#[derive(Debug)]
pub(crate) struct PlacedStage {
    pub partition: Partition,
    /// For each part of the partition that computes whole rows, its pieces.
    pub wholes: Vec<Vec<Piece>>,
    /// The pieces of all parts, where they divide the columns.
    pub columns: Vec<Piece>,
}

impl PlacedSegment {
    /// Divides rows `0..rows` among the pieces.
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

    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.stages.iter().flat_map(PlacedStage::pieces)
    }
}

impl PlacedStage {
    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.wholes.iter().flatten().chain(&self.columns)
    }

    /// Divides rows `0..rows` among the pieces.
    ///
    /// # Errors
    /// A standard length of 0.
    pub fn areas(&self, rows: usize) -> Result<Vec<RowsOf<'_>>, PartitionError> {
        let areas = self.partition.areas(rows)?.into_iter().map(|area| match area.by {
            Computed::Part(part) => RowsOf { rows: area.rows, pieces: &self.wholes[part] },
            Computed::Columns => RowsOf { rows: area.rows, pieces: &self.columns },
        });
        Ok(areas.collect())
    }
}
