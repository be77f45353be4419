//! The scheduler: tasks, their dependencies, and the loop that keeps
//! device queues fed. One scheduler for real and virtual devices.

#[cfg(test)]
mod fake;
#[cfg(test)]
mod grow_tests;
#[cfg(test)]
mod hazard_tests;
#[cfg(test)]
mod host_tests;
mod lane;
mod run;
#[cfg(test)]
mod run_tests;
mod task;

pub use run::{Canceller, JobId, Runner, Waited};
pub use task::{Growth, Task, TaskGraph};
