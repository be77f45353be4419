//! How to cut a logical weight out of a tensor in a file.

use std::ops::Range;

/// The part of a stored tensor that a weight consists of.
///
/// The tensor counts as a matrix: its last dimension is the columns, all others are the rows (a
/// vector is one row). Rows are selected first, then columns; then the result may be transposed. If
/// that gives one run of whole rows, the weight is a view of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Name in the file.
    pub tensor: String,
    /// Tensors of as many columns whose rows are counted behind those of the first.
    pub below: Vec<String>,
    /// The selected rows, in this order; empty: all.
    pub rows: Vec<Range<usize>>,
    /// The selected columns; `None`: all.
    pub cols: Option<Cols>,
    /// Whether to transpose the selection.
    pub transpose: bool,
    /// Whether files hold the numbers of a vector less one (Nemotron's norms).
    pub plus_one: bool,
}

/// Every `step`-th column from `start`, `len` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cols {
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub len: usize,
    /// Distance between columns.
    pub step: usize,
}

impl Recipe {
    /// The whole tensor.
    pub fn whole(tensor: impl Into<String>) -> Recipe {
        let (tensor, below, rows) = (tensor.into(), Vec::new(), Vec::new());
        Recipe { tensor, below, rows, cols: None, transpose: false, plus_one: false }
    }

    /// A run of rows.
    pub fn rows(tensor: impl Into<String>, rows: Range<usize>) -> Recipe {
        Recipe { rows: vec![rows], ..Recipe::whole(tensor) }
    }

    /// Columns of a vector (or of every row).
    pub fn cols(tensor: impl Into<String>, start: usize, len: usize) -> Recipe {
        Recipe { cols: Some(Cols { start, len, step: 1 }), ..Recipe::whole(tensor) }
    }

    /// The selected rows of a tensor that has the rows `all`.
    pub fn rows_of<'a>(&'a self, all: &'a Range<usize>) -> &'a [Range<usize>] {
        if self.rows.is_empty() { std::slice::from_ref(all) } else { &self.rows }
    }

    /// Whether it selects the unchanged tensor.
    pub fn is_whole(&self) -> bool {
        self.rows.is_empty() && self.cols.is_none() && !self.transpose
    }

    /// Rows and columns of the result for a tensor of `rows` x `cols`; `None` if it exceeds the
    /// tensor.
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
