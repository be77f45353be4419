//! Modelled time: queues of processors that share memory bandwidth, in whole nanoseconds.
//!
//! Virtual devices run the engine's lists in it, and the solver runs the tasks of a plan in it. So
//! what a plan is predicted to take is what its run on virtual devices takes. There is no thread
//! and no clock here: a [`Machine`] is told how far time has come.

mod machine;
mod share;

pub use machine::{CoRun, LaneCosts, LaneWork, Machine, Span, Told, Usage};
pub use share::{Bandwidth, Sharing, TaskCost};
