//! The interface of devices: capabilities, compiling, queues, completions, buffers, weights.
//!
//! Devices depend on the graph types only; no device crate can import a model. All traits together
//! have fewer than 26 methods, since ops are data and not methods.

mod caps;
mod clock;
mod device;
mod error;
mod executable;
mod expert_stats;
mod experts;
mod forward_batch;
mod host;
mod list;
mod loader;
mod lock;
mod memory;
mod residents;
mod text;
mod thread_queue;
mod timeline;
mod wait_times;
mod weight;
mod weight_bytes;

pub use caps::{Caps, CodeWeights, DeviceKind};
pub use clock::{Clock, RealClock};
pub use device::{
    Bindings, CommandList, CompileRequest, CompileResults, Completion, CopyRows, Device, DeviceId,
    Queue, Run, Submission, TaskTime, Work,
};
pub use error::DeviceError;
pub use executable::{Executable, ExecutableId, Weights};
pub use expert_stats::ExpertStats;
pub use experts::{
    EXPERT_PARTS, ExpertBytes, ExpertForecast, ExpertPart, ExpertSource, ExpertsOnDisk,
};
pub use forward_batch::{Checkpoint, ForwardBatch, PageTable, PagesView, SeqRows};
pub use host::{HostData, HostTask, panic_message};
pub use list::ListRunner;
pub use loader::{LOADER_DEPTH, loader, loader_name};
pub use lock::lock;
pub use memory::{
    Access, AccessError, Buffer, BufferWatch, Claim, HeldClaim, OutOfMemory, ReadGuard, ReadRows,
    Rect, SpaceId, View, ViewError, WriteGuard, WriteRows, ZeroedBytes, trim_heap,
};
pub use residents::{EXPECTED_SHARE, Eviction, LayerChoices, PROMPT_TOKENS, Residents};
pub use text::{read_all, read_text, size, size_needed};
pub use thread_queue::{ThreadQueueOptions, thread_queue};
pub use timeline::{Lost, Point, Signal, Timeline, Timelines, Wait, Waiting};
pub use weight::{WeightSource, calibrated};
pub use weight_bytes::{PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightOwner};
