//! Experts that are not all in memory: devices read them when rows have chosen them.

use std::fmt::Debug;
use std::sync::Arc;

use crate::error::DeviceError;
use crate::weight_bytes::{PackFn, PackLayout, WeightBytes};

/// The weights of an expert: gate, up and down.
pub const EXPERT_PARTS: usize = 3;

/// The weights of an expert in memory. It stays there as long as somebody holds these.
pub type ExpertBytes = [WeightBytes; EXPERT_PARTS];

/// A weight of an expert, in a device's layout on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertPart {
    /// The weight's name.
    pub weight: Arc<str>,
    /// The layout's name.
    pub layout: String,
    /// Bytes in this layout.
    pub bytes: usize,
}

/// Where devices get experts that are read when they are needed.
pub trait ExpertSource: Sync {
    /// Sees to it that a weight is on disk in a device's layout.
    ///
    /// # Errors
    /// [`DeviceError::Weight`] naming the tensor, or the error of `pack`.
    fn keep(
        &self,
        weight: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<(), DeviceError>;

    /// The experts of a layer, found by their weights. All of them must have been kept.
    ///
    /// # Errors
    /// An expert that is larger than all memory for experts.
    fn layer(
        &self,
        experts: Vec<[ExpertPart; EXPERT_PARTS]>,
    ) -> Result<Arc<dyn ExpertsOnDisk>, DeviceError>;
}

/// The experts of a layer. They are read into memory that they share with experts of other layers,
/// and leave it when others need it.
///
/// A run calls [`choose`](ExpertsOnDisk::choose) once, and then [`take`](ExpertsOnDisk::take) until
/// it has computed all of them.
pub trait ExpertsOnDisk: Debug + Send + Sync {
    /// Notes which experts `tokens` rows chose, each with the number of its rows; begins to read
    /// those that are not in memory; and puts those first that are. `row` is what the router read of
    /// a row that is alone: it may tell what later layers choose.
    fn choose(&self, chosen: &mut [(u32, u32)], tokens: usize, row: Option<&[f32]>);

    /// Takes some of the chosen experts that are left to compute, from the first one on: at least
    /// one, for which it may wait, and no more than are in memory.
    ///
    /// # Errors
    /// They cannot be read, or are not what was written.
    fn take(&self, left: &[(u32, u32)], into: &mut Vec<ExpertBytes>) -> Result<(), DeviceError>;
}

/// Says which experts a row will probably choose, by what the router of a layer read of it: calls the
/// function with another layer, and the experts that it probably chooses, the most probable first.
pub type ExpertForecast = dyn Fn(usize, &[f32], &mut dyn FnMut(usize, &[u16])) + Send + Sync;
