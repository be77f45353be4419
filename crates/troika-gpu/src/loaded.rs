//! Graphs whose weights are in a device's memory.

use std::sync::Arc;

use troika_device::DeviceId;

use crate::code::Code;
use crate::weights::NodeWeights;

/// A graph with its weights on the device.
pub(crate) struct LoadedGraph {
    pub device: DeviceId,
    /// The graph's name.
    pub name: String,
    pub code: Arc<Code>,
    pub weights: NodeWeights,
}
