//! Making groups of experts (NPUMoE, section 4): from how often experts are chosen to static graphs
//! on a device.
//!
//! [`CapacityRule`] gives each expert rows, [`group`] puts experts of one capacity into a graph, hot
//! with hot, [`ExpertDivision`] divides them, [`resident`] keeps as many graphs as the device holds, and [`ExpertPolicy`] says which
//! of these steps are taken. All are pure functions of counts and limits. [`AdaptiveResidency`]
//! follows what rows choose while a model runs, and [`GroupUsage`] counts padding and drops.

mod adapt;
mod capacity;
mod divide;
mod grouping;
mod settings;
mod usage;

pub use adapt::{AdaptSettings, AdaptiveGroup, AdaptiveResidency, GroupMove};
pub use capacity::{BaseCapacity, CapacityRounding, CapacityRule, LayerLoad, Tiers};
pub use divide::ExpertDivision;
pub use grouping::{ExpertGroupShape, GroupLimits, WorthALaunch, group, group_size, resident};
pub use settings::{ExpertPolicy, ExpertSettings, expert_chunk};
pub use usage::GroupUsage;
