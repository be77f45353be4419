//! Forms of a product with the same result, which devices may compute in different times.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A form of a product other than `x * weight^T` as it is. Devices to which forms make no difference
/// ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProductForm {
    /// `(weight * x^T)^T`, with the weight as the first operand: for devices that stream the first
    /// operand past the second (HeteroInfer, section 3.2).
    Exchanged,
    /// Rows are seen as groups of so many, where groups divide them without a rest (llm.npu, section
    /// 4: equivalent shapes).
    Groups(usize),
}

impl ProductForm {
    /// Groups to choose from: as many rows as groups for 64, 256 and 1024 rows, and some beside.
    pub const GROUPS: [ProductForm; 4] = [
        ProductForm::Groups(8),
        ProductForm::Groups(16),
        ProductForm::Groups(32),
        ProductForm::Groups(64),
    ];

    /// The rows of a group, if so many rows have several.
    pub fn group(self, rows: usize) -> Option<usize> {
        match self {
            ProductForm::Groups(n) if n > 0 && n < rows && rows.is_multiple_of(n) => Some(n),
            _ => None,
        }
    }
}

impl fmt::Display for ProductForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProductForm::Exchanged => f.write_str("exchanged operands"),
            ProductForm::Groups(rows) => write!(f, "rows in groups of {rows}"),
        }
    }
}
