//! The named tensors of a model's files, in any format.

use troika_device::WeightBytes;
use troika_graph::DType;

/// A tensor of a file.
#[derive(Clone, Debug)]
pub struct StoredTensor<T = DType> {
    /// Element or block type.
    pub dtype: T,
    /// Shape, outermost dimension first (GGUF's order is reversed on reading).
    pub shape: Vec<usize>,
    /// The bytes in the memory map. May be unaligned.
    pub bytes: WeightBytes,
}

impl StoredTensor {
    /// Rows and columns of the matrix view: the last dimension is the columns.
    pub fn matrix(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        // Only shapes with a 0 could overflow here: the readers check all others.
        let rows = self.shape.iter().rev().skip(1).fold(1usize, |n, &d| n.saturating_mul(d));
        (rows, cols)
    }
}

/// A tensor by the name of its type in the file, whether a weight can have it or not.
pub type RawTensor = StoredTensor<String>;

/// Named tensors.
pub trait Checkpoint: Send + Sync {
    /// A tensor, if the files have it.
    fn tensor(&self, name: &str) -> Option<&StoredTensor>;

    /// A tensor of any type.
    fn raw(&self, name: &str) -> Option<RawTensor> {
        let StoredTensor { dtype, shape, bytes } = self.tensor(name)?.clone();
        Some(RawTensor { dtype: dtype.name().into(), shape, bytes })
    }

    /// All names of tensors that can be weights, sorted.
    fn names(&self) -> Vec<&str>;

    /// The file that holds a tensor (or the folder), for messages.
    fn origin(&self, name: &str) -> String;

    /// The type of a tensor that exists but cannot be a weight.
    fn unusable(&self, name: &str) -> Option<&str>;
}
