//! Graphs whose weights are in a device's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::code::Code;
use crate::weights::NodeWeights;

/// The number of a device, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(u64);

impl DeviceId {
    /// One that no other device has.
    pub fn unique() -> DeviceId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        DeviceId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A graph with its weights on the device.
pub(crate) struct LoadedGraph {
    pub device: DeviceId,
    /// The graph's name.
    pub name: String,
    pub code: Arc<Code>,
    pub weights: NodeWeights,
}
