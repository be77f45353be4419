//! What a device is: caps, compile, queues, completions, buffers, weights.
//!
//! Devices depend on the graph types alone; no device crate can import a model. All traits here
//! together have under 15 methods: ops are data passed in, never methods.

mod buffer;
mod caps;
mod clock;
mod device;
mod error;
mod memory;
mod step;
mod weight;

pub use buffer::{Buffer, BufferBusy, ReadGuard, WriteGuard};
pub use caps::{Caps, DeviceKind};
pub use clock::{Clock, RealClock};
pub use device::{
    Batch, Binding, Bindings, Completion, Device, ExecutableId, ExecutableInfo, Queue, Submission,
    TaskTime,
};
pub use error::DeviceError;
pub use memory::{OutOfMemory, ZeroedBytes, trim_heap};
pub use step::{PageTable, SeqRows, Step};
pub use weight::{PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightOwner, WeightSource};
