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
    /// Positions of the longest cache.
    pub positions: usize,
    /// Rows of the function.
    pub rows: usize,
    /// The layer of each of the current part's states, in its cache.
    pub layers: HashMap<ValueId, usize>,
    /// The caches by the window that their layers see.
    pub caches: Vec<Cache>,
    /// The tensors of rotations so far.
    pub rotations: Vec<(Rope, [String; 2])>,
    /// The windows that masks are declared for.
    pub masks: Vec<Option<usize>>,
}

/// The keys and values of layers that see alike. Of layers with a window only the last positions are
/// kept: what they see are these and the function's own rows behind them.
pub(crate) struct Cache {
    /// The window; `None`: they see all positions.
    pub window: Option<usize>,
    /// Positions that are kept.
    pub positions: usize,
    /// The tensors of keys and of values: their last values.
    pub tensors: [String; 2],
    /// By layer: new keys and values, `[1, heads, rows, dim]`, which a stateless function gives; of a
    /// state for a window, all that its rows see, `[heads, positions + rows, dim]`.
    pub fresh: [Vec<Option<String>>; 2],
}

impl Kept {
    /// The cache of layers with a window.
    pub fn cache(&mut self, window: Option<usize>) -> Option<&mut Cache> {
        let own = self.caches.iter().position(|c| c.window.is_some() && c.window == window);
        let long = self.caches.iter().position(|c| c.window.is_none());
        own.or(long).map(|i| &mut self.caches[i])
    }
}

/// The position of a function's first row.
pub(super) const POSITION: &str = "position";
/// The last of a function's rows that hold a token.
pub(super) const LAST_ROW: &str = "last_row";

/// The name of the keys (0) or values (1) of layers with a window.
pub(super) fn cache_name(which: usize, window: Option<usize>) -> String {
    let name = if which == 0 { "key_cache" } else { "value_cache" };
    window.map_or(name.into(), |w| format!("{name}_window_{w}"))
}

/// The name of the mask for a window.
pub(super) fn mask_name(window: Option<usize>) -> String {
    window.map_or("mask".into(), |w| format!("mask_window_{w}"))
}
