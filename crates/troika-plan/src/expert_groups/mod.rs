//! Making groups of experts (NPUMoE, section 4): from how often experts are chosen to static graphs
//! on a device.
//!
//! [`Tiers`] give each expert rows, [`group`] puts experts of one capacity into a graph, hot with
//! hot, [`resident`] keeps as many graphs as the device holds, and [`ExpertPolicy`] says which of
//! these steps are taken. All are pure functions of counts and limits.

mod capacity;
mod grouping;
mod settings;

pub(crate) use capacity::rounded;
pub use capacity::{LayerLoad, Tiers};
pub use grouping::{ExpertGroupShape, GroupLimits, WorthALaunch, group, group_size, resident};
pub use settings::{ExpertPolicy, ExpertSettings, expert_chunk};
