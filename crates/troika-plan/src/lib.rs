//! Plans: which device runs which segment at which shape.
//!
//! This is the one place that decides placement. Today's planner knows one strategy, everything
//! on one device; a plan is already the file that later planners write and people edit.

mod check;
mod make;

use serde::{Deserialize, Serialize};

pub use check::PlanError;
pub use make::{PlanRequest, one_device};

/// Version of the plan file this build reads and writes.
pub const PLAN_VERSION: u32 = 1;

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// Which model it is for.
    pub model: ModelId,
    /// How it came about, for people.
    pub strategy: String,
    /// Rows of a prompt chunk: the bound of the symbol `rows`.
    pub chunk: usize,
    /// Longest sequence, in tokens.
    pub context: usize,
    /// Element type of the KV cache: `F32` or `F16`.
    pub kv_dtype: troika_graph::DType,
    /// The numbers, beside f32, that products may take activations as: each where the weight's
    /// type has such a path.
    #[serde(default)]
    pub activations: Vec<troika_graph::Acts>,
    /// Positions per page of the KV cache (a power of two).
    pub page_len: usize,
    /// Device names; placements index into them.
    pub devices: Vec<String>,
    /// Placements; the last that matches a segment counts.
    pub placements: Vec<Placement>,
}

/// What a plan must agree with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelId {
    /// Family.
    pub family: String,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Vocabulary.
    pub vocab: usize,
}

/// Segments and the device they run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Name of the segment kind (`qkv`, `attention`, ...), or `*`.
    pub segment: String,
    /// First and one past the last layer; absent: all, and the segments outside layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<(usize, usize)>,
    /// Index into the plan's devices.
    pub device: usize,
}

impl Plan {
    /// The device of a segment (an index into [`Plan::devices`]), if any placement matches.
    pub fn device_of(&self, segment: &str, layer: Option<usize>) -> Option<usize> {
        let matches = |p: &&Placement| {
            (p.segment == "*" || p.segment == segment)
                && p.layers.is_none_or(|(a, b)| layer.is_some_and(|l| a <= l && l < b))
        };
        self.placements.iter().rev().find(matches).map(|p| p.device)
    }
}
