//! The scheduler: tasks, their dependencies, the policy that orders them, and the loop that keeps
//! device queues fed. One scheduler for real and virtual devices.

mod hazard;
mod policy;
mod run;
mod task;

pub use hazard::HazardTracker;
pub use policy::{Policy, Ready};
pub use run::Runner;
pub use task::{Task, TaskGraph};
