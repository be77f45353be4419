//! How weights are stored in a package, and what its functions keep of a sequence.

use std::collections::HashMap;

use troika_graph::{DType, Rope, ValueId, WeightDecl};

use super::proto::DataType;

/// How products' weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackageWeights {
    /// Halves.
    #[default]
    F16,
    /// Numbers of 4 bits with a scale for each row (an output channel), or for so many columns of it.
    Int4(Option<usize>),
    /// Numbers of 8 bits with a scale for each row.
    Int8,
    /// Blocks that have scales alone as they are: Q4_0 and Q8_0. Others are halves.
    Stored,
}

impl PackageWeights {
    /// The name in flags.
    pub fn name(self) -> String {
        match self {
            PackageWeights::F16 => "f16".into(),
            PackageWeights::Int4(None) => "int4".into(),
            PackageWeights::Int4(Some(columns)) => format!("int4-{columns}"),
            PackageWeights::Int8 => "int8".into(),
            PackageWeights::Stored => "stored".into(),
        }
    }

    /// Bytes of a weight.
    pub(super) fn bytes(self, decl: &WeightDecl) -> u64 {
        let (n, k) = (decl.rows as u64, decl.cols as u64);
        match self.form(decl.dtype, decl.cols).filter(|_| n > 1) {
            Some((DataType::I4, each)) => n * k / 2 + 2 * n * k / each as u64,
            Some((_, each)) => n * k + 2 * n * k / each as u64,
            None => 2 * n * k,
        }
    }

    /// How a weight of a type and so many columns is stored: the type of its numbers, and how many of
    /// them have a scale; `None`: as halves.
    pub(super) fn form(self, dtype: DType, cols: usize) -> Option<(DataType, usize)> {
        let fits = |columns: usize| cols.is_multiple_of(columns);
        match self {
            PackageWeights::F16 => None,
            PackageWeights::Int4(None) => Some((DataType::I4, cols)),
            PackageWeights::Int4(Some(columns)) => fits(columns).then_some((DataType::I4, columns)),
            PackageWeights::Int8 => Some((DataType::I8, cols)),
            PackageWeights::Stored => match dtype {
                DType::Q4_0 => Some((DataType::I4, dtype.group_len())),
                DType::Q8_0 => Some((DataType::I8, dtype.group_len())),
                _ => None,
            },
        }
    }
}

/// What a function keeps of a sequence, and what it has made of it so far.
pub(crate) struct Kept {
    /// Whether keys and values are states; else they are inputs, and new ones outputs.
    pub stateful: bool,
    /// Positions of the cache.
    pub positions: usize,
    /// Rows of the function.
    pub rows: usize,
    /// The layer of each of the current part's states.
    pub layers: HashMap<ValueId, usize>,
    /// The tensors of the caches: their last values.
    pub caches: [String; 2],
    /// New keys and values by layer, `[1, heads, rows, dim]`.
    pub fresh: [Vec<Option<String>>; 2],
    /// The tensors of rotations so far.
    pub rotations: Vec<(Rope, [String; 2])>,
    /// The windows that masks are declared for.
    pub masks: Vec<Option<usize>>,
}

/// The names of both caches.
pub(super) const CACHES: [&str; 2] = ["key_cache", "value_cache"];
/// The position of a function's first row.
pub(super) const POSITION: &str = "position";

/// The name of the mask for a window.
pub(super) fn mask_name(window: Option<usize>) -> String {
    window.map_or("mask".into(), |w| format!("mask_window_{w}"))
}
