//! What the scheduler decides, as pure data and functions: which task waits for which, in which
//! order queues run them, which ready task an idle device takes, and what follows from the ends of lists.

mod dag;
mod hazard;
mod jobs;
mod order;
mod policy;
mod state;
#[cfg(test)]
mod tests;

pub use dag::Dag;
pub use hazard::HazardTracker;
pub use jobs::{Failure, Graph, JobList, Jobs, Queues, TaskList, TaskTimes};
pub use order::{DeviceOrder, Order, Schedule};
pub use policy::Costs;
pub use state::{LATE_DEPTH, ListId, State, lists_in_flight};
