//! The scheduler: tasks, their dependencies, the policy that orders them, and the loop that keeps
//! device queues fed. One scheduler for real and virtual devices.

mod dag;
mod hazard;
mod policy;
mod run;
mod state;
mod task;
#[cfg(test)]
mod tests;

pub use dag::Dag;
pub use hazard::HazardTracker;
pub use policy::Costs;
pub use run::Runner;
pub use state::{ListId, State};
pub use task::{Task, TaskGraph};
