//! Modelled time: queues of processors that share memory bandwidth, in whole nanoseconds.
//!
//! Virtual devices run the engine's lists in it, and the solver runs the tasks of a plan in it. So
//! what a plan is predicted to take is what its run on virtual devices takes. There is no thread
//! and no clock here: a [`Machine`] is told how far time has come. How long a run takes may be
//! [fitted](FittedTime) to measurements.

mod fitted;
mod machine;
mod share;
mod work;

pub use fitted::{FittedTime, TERMS};
pub use machine::{CoRun, LaneCosts, LaneWork, Machine, Told, Usage};
pub use share::{Bandwidth, Sharing, TaskCost};
pub use work::RunWork;
