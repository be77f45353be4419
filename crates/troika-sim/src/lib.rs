//! Virtual devices: processors described by files. Their runs take modelled time. Their values are
//! computed by the CPU crate's kernels, or not at all.
//!
//! The engine, planner and policies use them through the same traits as real devices. See
//! `socs/README.md` for the files.

mod board;
mod bucket;
mod clock;
mod cost;
mod demand;
mod device;
mod error;
mod fields;
mod lane;
mod library;
mod limits;
mod loaded;
mod measured;
mod price;
mod queue;
mod resident;
mod soc;
mod worker;

pub use board::Board;
pub use clock::VirtualClock;
pub use device::VirtualDevice;
pub use error::SocError;
pub use library::{SourcedFigure, figures};
pub use measured::MeasuredRuns;
pub use price::{PricedRows, Prices};
pub use soc::{
    HandOver, MemoryPower, PeakRates, Power, Processor, ProcessorKind, ProductTraits, Soc, Tile,
};
pub use troika_time::{CoRun, TaskCost, Usage};
