//! The scheduler: tasks, their dependencies, the policy that orders them, and the loop that keeps
//! device queues fed. One scheduler for real and virtual devices.

mod conflicts;
mod dag;
#[cfg(test)]
mod fake;
mod grow;
#[cfg(test)]
mod grow_tests;
mod hazard;
#[cfg(test)]
mod host_tests;
mod job;
mod key;
mod lane;
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
pub use grow::{Additions, GrowingGraph, Grown, Growth, MayUse};
pub use hazard::HazardTracker;
pub use job::{Grower, JobId};
pub use key::Key;
pub use order::Order;
pub use policy::Costs;
pub use run::{Canceller, Runner, Waited};
pub use state::{ListId, State};
pub use task::{Task, TaskGraph};
