//! What became of the experts that tokens chose.

use std::time::Duration;

/// Counts of the experts that are loaded when tokens choose them, since the model was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertStats {
    /// Experts of all layers.
    pub experts: usize,
    /// Their bytes.
    pub bytes_of_all: u64,
    /// The most bytes of those in memory.
    pub budget: u64,
    /// Bytes of those in memory, now.
    pub held: u64,
    /// Experts that runs have chosen.
    pub chosen: u64,
    /// Those of them that were in memory.
    pub hits: u64,
    /// Those that were on the way.
    pub coming: u64,
    /// Experts that were loaded because they might be chosen next.
    pub expected: u64,
    /// Those of them that were.
    pub expected_used: u64,
    /// Experts that made way for others.
    pub evictions: u64,
    /// Bytes that were read or loaded.
    pub bytes_read: u64,
    /// How long computing waited for reads, or how long a device loaded.
    pub stall: Duration,
    /// How they are read: `io_uring` or `threads`; empty: a device loads them.
    pub reads: &'static str,
}

impl ExpertStats {
    /// What was counted since an earlier time.
    pub fn since(&self, earlier: &ExpertStats) -> ExpertStats {
        ExpertStats {
            chosen: self.chosen - earlier.chosen,
            hits: self.hits - earlier.hits,
            coming: self.coming - earlier.coming,
            expected: self.expected - earlier.expected,
            expected_used: self.expected_used - earlier.expected_used,
            evictions: self.evictions - earlier.evictions,
            bytes_read: self.bytes_read - earlier.bytes_read,
            stall: self.stall.saturating_sub(earlier.stall),
            ..self.clone()
        }
    }

    /// The share of chosen experts that were in memory.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.chosen as f64).max(1.0)
    }
}
