//! Shapes: a dimension is a number or one of two named symbols with an upper bound.

use serde::{Deserialize, Serialize};

/// One dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dim {
    /// A constant.
    Fixed(usize),
    /// The number of rows (tokens) of a forward batch, at most the given bound.
    Rows(usize),
    /// The number of key/value positions a forward batch can see, at most the given bound.
    KvLen(usize),
}

impl Dim {
    /// The largest value this dimension takes.
    pub const fn bound(self) -> usize {
        match self {
            Dim::Fixed(n) | Dim::Rows(n) | Dim::KvLen(n) => n,
        }
    }
}

/// The dimensions of a value, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// `[rows, cols]` with at most `max_rows` rows.
    pub fn rows(max_rows: usize, cols: usize) -> Shape {
        Shape(vec![Dim::Rows(max_rows), Dim::Fixed(cols)])
    }

    /// Elements of one row: the product of all dimensions but the first.
    pub fn row_len(&self) -> usize {
        self.0.iter().skip(1).fold(1, |n, d| n.saturating_mul(d.bound()))
    }

    /// The bound of the first dimension (0 for a shape without dimensions).
    pub fn max_rows(&self) -> usize {
        self.0.first().map_or(0, |d| d.bound())
    }
}
