//! Experts shared out over devices: groups of them, what becomes of rows beyond their capacity, and
//! when groups run.

use serde::{Deserialize, Serialize};

use crate::json::is_default;
use crate::ratio::Share;

/// How devices share the experts of a layer. The rule's device chooses rows for the groups, and
/// computes all else: experts of no group, the shared expert, and the sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertSplit {
    /// The groups. An expert may be in several: its rows fill the first one, then the next. Where
    /// full rows run at once, its groups take turns.
    pub groups: Vec<ExpertGroupPlan>,
    /// What becomes of rows beyond an expert's capacity.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overflow: Overflow,
    /// When groups run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dispatch: Dispatch,
    /// How often each expert is expected to be chosen, in parts of a million of all choices; absent:
    /// all alike. Predictions and virtual devices go by it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<u32>,
}

/// Experts that one static graph computes, or an expert whose products are divided by columns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertGroupPlan {
    /// The device; of an expert that is divided, that with the largest share.
    pub device: String,
    /// The experts, by their number in the layer.
    pub experts: Vec<usize>,
    /// Rows that the graph has for each of them.
    pub capacity: usize,
    /// The devices that divide the products of the only expert by columns: first gate and up, then
    /// down. Empty: the device computes them alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Share>,
}

impl ExpertGroupPlan {
    /// A group of one device.
    pub fn new(device: &str, experts: Vec<usize>, capacity: usize) -> ExpertGroupPlan {
        let (device, parts) = (device.into(), Vec::new());
        ExpertGroupPlan { device, experts, capacity, parts }
    }

    /// The devices that compute it.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        let own = Some(self.device.as_str()).filter(|_| self.parts.is_empty());
        own.into_iter().chain(self.parts.iter().map(|p| p.device.as_str()))
    }
}

/// Groups of experts on a device, of which some are loaded at a time: a group that is chosen takes
/// the place of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertCachePlan {
    /// The device.
    pub device: String,
    /// The most bytes of the weights that are loaded at once.
    pub bytes: u64,
    /// A group that is not there is loaded for this many rows or more; the rule's device computes
    /// fewer. Absent: it is always loaded.
    #[serde(default, skip_serializing_if = "is_default")]
    pub least_rows: usize,
    /// Which groups stay.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kept_by: KeptBy,
}

troika_model::named! {
    /// Which groups of a cache stay.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum KeptBy {
        /// Those that were chosen last: the next chunk chooses them, too.
        #[default]
        Lru = "lru",
        /// Those that tokens choose most often; a use counts half after some time.
        Frequency = "frequency",
    }
}

troika_model::named! {
    /// What becomes of rows beyond an expert's capacity, where a group runs once for each chunk.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Overflow {
        /// The rule's device computes them: nothing is lost.
        #[default]
        Cpu = "cpu",
        /// There are none: each expert has room for all rows of a chunk.
        Pad = "pad",
        /// The expert leaves out the rows to which attention added least (NPUMoE).
        Prune = "prune",
    }
}

troika_model::named! {
    /// When groups run.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Dispatch {
        /// Once for each chunk.
        #[default]
        PerChunk = "per-chunk",
        /// As soon as the rows of one of its experts are full, over the chunks in flight or half of
        /// them, which go through the model layer by layer; at the end of a layer with what is left.
        LayerMajor = "layer-major",
    }
}
