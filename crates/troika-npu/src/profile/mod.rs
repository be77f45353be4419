//! What an NPU adds to a trace: the host's work around runs, and what the vendor's profiler reports.
//!
//! Profilers write files, one for each session, and most have no clock: their files are read when
//! the session ends, and their events placed within the host's span of the same run (`place`). What
//! QNN's own interface says of a run comes from the helper, when a graph is opened.

mod event;
mod place;
mod qnn;
mod recorder;
mod replay;
mod runtime;
mod session;

pub(crate) use recorder::{Lane, Recorder};
pub use replay::{QNN_RECORDING, replay_qnn};
pub(crate) use session::SessionRecord;
