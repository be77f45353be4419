//! References to weights in a subgraph.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// Index of a weight in [`crate::Subgraph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightRef(pub u32);

/// The part of a stored weight that a subgraph reads. `first` and `of` count the stored weight's
/// rows or columns; the declaration gives the number that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeightSlice {
    /// Some rows of a matrix, with all columns.
    Rows {
        /// The first row to read.
        first: usize,
        /// Rows of the stored weight.
        of: usize,
    },
    /// Some columns of a vector, which is stored as one row.
    Cols {
        /// The first column to read.
        first: usize,
        /// Columns of the stored weight.
        of: usize,
    },
}

/// A weight that the subgraph needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightDecl {
    /// Logical name in the weight store, such as `layers.3.attn_q`.
    pub name: Arc<str>,
    /// Output rows (1 for vectors).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Type in the store.
    pub dtype: DType,
    /// The part of the stored weight that these rows and columns are; `None`: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<WeightSlice>,
}

impl WeightDecl {
    /// A whole weight.
    pub fn whole(name: Arc<str>, rows: usize, cols: usize, dtype: DType) -> WeightDecl {
        WeightDecl { name, rows, cols, dtype, slice: None }
    }

    /// Bytes of its rows, as they are stored.
    pub fn bytes(&self) -> u64 {
        (self.rows as u64).saturating_mul(self.dtype.row_size(self.cols) as u64)
    }

    /// Rows and columns of the weight in the store.
    pub fn stored(&self) -> (usize, usize) {
        match self.slice {
            None => (self.rows, self.cols),
            Some(WeightSlice::Rows { of, .. }) => (of, self.cols),
            Some(WeightSlice::Cols { of, .. }) => (self.rows, of),
        }
    }

    /// The rows of the stored weight that are read.
    pub fn stored_rows(&self) -> Range<usize> {
        match self.slice {
            Some(WeightSlice::Rows { first, .. }) => first..first.saturating_add(self.rows),
            _ => 0..self.rows,
        }
    }

    /// The columns of the stored weight that are read.
    pub fn stored_cols(&self) -> Range<usize> {
        match self.slice {
            Some(WeightSlice::Cols { first, .. }) => first..first.saturating_add(self.cols),
            _ => 0..self.cols,
        }
    }
}
