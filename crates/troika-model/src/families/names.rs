//! From logical weights to tensors of files.

use crate::spec::Recipe;
use crate::spec::{Key, ModelSpec};

/// Candidates for a weight, best first: the first whose tensor exists in the files is taken.
pub type Candidates = Vec<Recipe>;

/// A family's table of tensor names. Pure: it only says where a weight would be.
pub trait TensorNames: Send + Sync {
    /// Where the weight may be found.
    fn candidates(&self, spec: &ModelSpec, key: Key) -> Candidates;
}
