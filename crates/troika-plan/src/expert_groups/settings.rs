//! Which techniques share experts out, and with which numbers.

use super::capacity::Tiers;
use super::grouping::WorthALaunch;
use crate::experts::{Dispatch, Overflow};
use crate::routing::ExpertUse;

troika_model::named! {
    /// Which techniques share experts out (NPUMoE, section 5.8).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ExpertPolicy {
        /// A graph for each expert, with room for all rows of a chunk.
        Base = "base",
        /// A graph for each expert, with a capacity of its tier.
        Tiers = "t",
        /// Graphs of several experts of one tier.
        Groups = "tg",
        /// The same, and only those on the device that are worth a launch.
        #[default]
        All = "all",
        /// A graph for each expert, loaded when rows choose it.
        Cache = "cache",
    }
}

/// How experts are grouped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertSettings {
    /// Rows of each expert.
    pub tiers: Tiers,
    /// The most experts of a group; `None`: what the device takes, or one where rows gather over
    /// chunks.
    pub group: Option<usize>,
    /// What becomes of rows beyond a capacity.
    pub overflow: Overflow,
    /// When groups run.
    pub dispatch: Dispatch,
    /// The most bytes of weights in groups at once; `None`: what the device holds.
    pub bytes: Option<u64>,
    /// How often experts were chosen, by a calibration; layers without it are taken as balanced.
    pub used: Vec<ExpertUse>,
    /// Bytes of an expert's weights as they are stored, the most of any layer; `None`: as floats.
    pub stored_bytes: Option<u64>,
    /// Whether the groups' device computes attention, too.
    pub attention: bool,
    /// What makes a graph worth a launch, where only such graphs are on the device.
    pub worth: WorthALaunch,
}

impl ExpertSettings {
    /// Whether rows gather over chunks.
    pub fn gathers(&self) -> bool {
        self.dispatch == Dispatch::LayerMajor
    }
}

/// Rows of a chunk for prompts of a length, where graphs of experts are static: more for longer
/// prompts (NPUMoE, section 5.8).
pub fn expert_chunk(prompt: usize) -> usize {
    match prompt {
        0..=512 => 256,
        513..=2048 => 512,
        _ => 1024,
    }
}
