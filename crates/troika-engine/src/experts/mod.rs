//! Divided experts at run time: rows are routed to packed buffers, groups that are full run on their
//! devices, and results are added up row by row.

mod cache;
mod dispatch;
mod packed;
mod route;
mod stats;

pub use cache::LastingWeights;
pub(crate) use cache::{CachedGraph, DeviceExperts};
pub(crate) use dispatch::{Dispatcher, Dispatchers, growth};
pub(crate) use packed::PackedBuffers;
pub(crate) use route::{OfChunk, Routing, host_task};
pub use stats::GroupStats;
pub(crate) use stats::SharedStats;
