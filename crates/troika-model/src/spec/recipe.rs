//! How a logical weight is cut out of a tensor of a file.

use std::ops::Range;

/// Which part of a stored tensor a weight is.
///
/// The tensor is seen as a matrix: its last dimension is the columns, all others together the
/// rows (a vector is one row). Rows are taken first, then columns, then the result may be
/// transposed. The weight is a view of the file when this amounts to one run of whole rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Name in the file.
    pub tensor: String,
    /// Rows taken, in this order; empty: all.
    pub rows: Vec<Range<usize>>,
    /// Columns taken; `None`: all.
    pub cols: Option<Cols>,
    /// Transpose what was taken.
    pub transpose: bool,
}

/// Every `step`-th column from `start`, `len` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cols {
    /// First column.
    pub start: usize,
    /// How many.
    pub len: usize,
    /// Distance.
    pub step: usize,
}

impl Recipe {
    /// The whole tensor.
    pub fn whole(tensor: impl Into<String>) -> Recipe {
        Recipe { tensor: tensor.into(), rows: Vec::new(), cols: None, transpose: false }
    }

    /// A run of rows.
    pub fn rows(tensor: impl Into<String>, rows: Range<usize>) -> Recipe {
        Recipe { rows: vec![rows], ..Recipe::whole(tensor) }
    }

    /// Columns of a vector (or of every row).
    pub fn cols(tensor: impl Into<String>, start: usize, len: usize) -> Recipe {
        Recipe { cols: Some(Cols { start, len, step: 1 }), ..Recipe::whole(tensor) }
    }
}

impl Recipe {
    /// Whether this is the tensor as it is.
    pub fn is_whole(&self) -> bool {
        self.rows.is_empty() && self.cols.is_none() && !self.transpose
    }

    /// Rows and columns of the result for a tensor of `rows` x `cols`; `None` when it asks for
    /// more than the tensor has.
    pub fn result(&self, rows: usize, cols: usize) -> Option<(usize, usize)> {
        let inside = |r: &Range<usize>| r.start <= r.end && r.end <= rows;
        if !self.rows.iter().all(inside) {
            return None;
        }
        let taken_rows =
            if self.rows.is_empty() { rows } else { self.rows.iter().map(|r| r.len()).sum() };
        let taken_cols = match self.cols {
            None => cols,
            Some(c) => {
                let last = c.len.checked_sub(1)?.checked_mul(c.step)?.checked_add(c.start)?;
                (last < cols).then_some(c.len)?
            }
        };
        Some(if self.transpose { (taken_cols, taken_rows) } else { (taken_rows, taken_cols) })
    }
}
