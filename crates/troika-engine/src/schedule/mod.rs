//! The scheduler: tasks, their dependencies, and the loop that keeps
//! device queues fed. One scheduler for real and virtual devices.

mod conflicts;
#[cfg(test)]
mod fake;
mod grow;
#[cfg(test)]
mod grow_tests;
#[cfg(test)]
mod hazard_tests;
#[cfg(test)]
mod host_tests;
mod job;
mod lane;
mod run;
#[cfg(test)]
mod run_tests;
mod task;

pub use grow::{Additions, GrowingGraph, Grown, Growth, MayUse};
pub use job::{Grower, JobId};
pub use run::{Canceller, Runner, Waited};
pub use task::{Task, TaskGraph};
pub use troika_program::schedule::Key;
