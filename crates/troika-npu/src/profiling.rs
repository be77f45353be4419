//! How much of an NPU is profiled, and where its profiler writes.

use std::path::PathBuf;

/// How much a vendor's profiler reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProfilingLevel {
    /// Times of runs.
    Basic,
    /// Also of the nodes of a graph.
    Detailed,
    /// All that the device can trace, for the vendor's own viewer.
    Optrace,
}

impl ProfilingLevel {
    /// All of them.
    pub const ALL: [ProfilingLevel; 3] =
        [ProfilingLevel::Basic, ProfilingLevel::Detailed, ProfilingLevel::Optrace];

    /// The name, which is Qualcomm's.
    pub fn name(self) -> &'static str {
        match self {
            ProfilingLevel::Basic => "basic",
            ProfilingLevel::Detailed => "detailed",
            ProfilingLevel::Optrace => "optrace",
        }
    }

    /// The level of a name.
    pub fn parse(name: &str) -> Option<ProfilingLevel> {
        ProfilingLevel::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// How to profile NPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiling {
    /// How much is reported.
    pub level: ProfilingLevel,
    /// The folder that keeps the profilers' own files; `None`: they are removed.
    pub folder: Option<PathBuf>,
    /// The most events of a compiled graph that go to the trace.
    pub most_events: usize,
}

/// The file that a profiler writes for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfileFile {
    pub level: ProfilingLevel,
    /// Qualcomm's provider writes to it, and its native log beside it; other files begin with its
    /// name.
    pub path: PathBuf,
}
