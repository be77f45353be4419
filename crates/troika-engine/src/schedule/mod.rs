//! The scheduler: tasks, their dependencies, the policy that orders them, and the loop that keeps
//! device queues fed. One scheduler for real and virtual devices.

mod dag;
#[cfg(test)]
mod fake;
mod hazard;
mod order;
mod policy;
mod run;
#[cfg(test)]
mod run_tests;
mod state;
mod task;
#[cfg(test)]
mod tests;

pub use dag::Dag;
pub use hazard::HazardTracker;
pub use order::Order;
pub use policy::Costs;
pub use run::{Canceller, Runner};
pub use state::{ListId, State};
pub use task::{Task, TaskGraph};
