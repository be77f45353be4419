//! Splits by rows. Rows are a symbol, so the graph does not change: it is bound to several ranges
//! of rows.

use std::ops::Range;

use super::{ColumnSplit, PartitionError};

/// How a plan divides one graph among parts. One device computes a part; the plan names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Partition {
    /// One part computes everything.
    Whole {
        /// The part.
        part: usize,
    },
    /// Each part computes some columns of all rows (weight-centric).
    Columns(ColumnSplit),
    /// Standard lengths of rows go to one part, the rest to another (activation-centric).
    Rows {
        /// Standard lengths.
        lengths: Vec<usize>,
        /// The part that computes them.
        standard: usize,
        /// The part that computes the rest.
        rest: usize,
    },
    /// Standard lengths of rows go to one part; of the rest, each part computes some columns.
    Hybrid {
        /// Standard lengths.
        lengths: Vec<usize>,
        /// The part that computes them.
        standard: usize,
        /// How to divide the columns of the rest.
        columns: ColumnSplit,
    },
}

/// Some rows, and how they are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// The rows; never empty.
    pub rows: Range<usize>,
    /// The part or parts that compute them.
    pub by: Computed,
}

/// Which part or parts compute some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Computed {
    /// A single part, with the whole graph.
    Part(usize),
    /// All parts of the partition's [`ColumnSplit`], some columns each.
    Columns,
}

impl Partition {
    /// The split of columns, if there is one. Call [`super::split_columns`] with it once before
    /// running.
    pub fn columns(&self) -> Option<&ColumnSplit> {
        match self {
            Partition::Columns(c) | Partition::Hybrid { columns: c, .. } => Some(c),
            Partition::Whole { .. } | Partition::Rows { .. } => None,
        }
    }

    /// Divides rows `0..rows` among parts, in order and without overlap.
    ///
    /// # Errors
    /// A standard length of 0.
    pub fn areas(&self, rows: usize) -> Result<Vec<Area>, PartitionError> {
        let all = |by| vec![Area { rows: 0..rows, by }];
        let mut areas = match self {
            Partition::Whole { part } => all(Computed::Part(*part)),
            Partition::Columns(_) => all(Computed::Columns),
            Partition::Rows { lengths, standard, rest } => {
                cut_areas(rows, lengths, *standard, Computed::Part(*rest))?
            }
            Partition::Hybrid { lengths, standard, .. } => {
                cut_areas(rows, lengths, *standard, Computed::Columns)?
            }
        };
        areas.retain(|a| !a.rows.is_empty());
        Ok(areas)
    }
}

/// Cuts rows `0..rows` into standard lengths for `part`, the longest first, and a rest that is
/// shorter than all of them. 700 rows with lengths 128 and 256 give 256, 256, 128 and a rest of 60.
/// A device with static shapes computes the first three without padding.
fn cut_areas(
    rows: usize,
    lengths: &[usize],
    part: usize,
    rest: Computed,
) -> Result<Vec<Area>, PartitionError> {
    if lengths.contains(&0) {
        return Err(PartitionError::Zero { what: "standard length" });
    }
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable();
    let (mut areas, mut at) = (Vec::new(), 0);
    for length in lengths.into_iter().rev() {
        while rows - at >= length {
            areas.push(Area { rows: at..at + length, by: Computed::Part(part) });
            at += length;
        }
    }
    areas.push(Area { rows: at..rows, by: rest });
    Ok(areas)
}
