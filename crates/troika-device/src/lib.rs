//! What a device is: caps, compile, queues, completions, buffers, weights.
//!
//! Devices depend on the graph types alone; no device crate can import a model. All traits here
//! together have under 20 methods: ops are data passed in, never methods.

mod caps;
mod clock;
mod device;
mod error;
mod memory;
mod step;
mod weight;

pub use caps::{Caps, DeviceKind};
pub use clock::{Clock, RealClock};
pub use device::{
    Batch, Bindings, Completion, Device, Executable, ExecutableId, Executables, Queue, Submission,
    TaskTime,
};
pub use error::DeviceError;
pub use memory::{
    Access, Buffer, BufferBusy, Claim, OutOfMemory, ReadGuard, ReadRows, Rect, View, ViewError,
    WriteGuard, WriteRows, ZeroedBytes, trim_heap,
};
pub use step::{PageTable, PagesView, SeqRows, Step};
pub use weight::{PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightOwner, WeightSource};
