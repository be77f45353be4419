//! Virtual devices: processors that a file describes. Their runs take modelled time; their numbers
//! are computed by the CPU crate's kernels, or not at all.
//!
//! The engine, planner and policies see them through the very traits that real devices have. See
//! `socs/README.md` for the files.

mod bucket;
mod clock;
mod cost;
mod demand;
mod device;
mod error;
mod fields;
mod limits;
mod loaded;
mod queue;
mod resident;
mod soc;
mod worker;

pub use clock::VirtualClock;
pub use device::VirtualDevice;
pub use error::SocError;
pub use soc::{PeakRates, Processor, ProcessorKind, Soc};
