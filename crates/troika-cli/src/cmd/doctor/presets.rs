//! The shapes of a report's measurements.

/// A small one, one of experts, and one that many people run.
pub const SHAPES: [&str; 3] = ["qwen3-0.6b:Q4_K_M", "olmoe-1b-7b:Q4_K_M", "qwen3-8b:Q4_K_M"];
/// The one whose values are handed over between devices.
pub const SMALL: &str = "qwen3-moe-tiny:Q8_0";
