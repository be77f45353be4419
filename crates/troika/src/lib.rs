//! Troika as a library: open a model, generate.
//!
//! ```no_run
//! use troika::{Control, Model, OpenOptions, Request, Source};
//!
//! let mut model = Model::open(Source::BuiltIn, &OpenOptions::default())?;
//! let (prompt, _) = model.tokenize("It was a dark night")?;
//! let request = Request { max_tokens: Some(32), ..Request::default() };
//! model.generate(&prompt, &request, &mut |_token, text| {
//!     print!("{text}");
//!     Control::Continue
//! })?;
//! # Ok::<(), troika::Error>(())
//! ```
//!
//! Models, and weights kept of a former start, are mapped into memory. A mapped file that another
//! program shortens while the model is open cannot be read any more: on Unix the system ends the
//! process by SIGBUS when it is. No call can return an error there; a program that wants to end
//! with a sentence that names the file calls [`exit_when_shortened`] first. Files that are
//! replaced (written beside and renamed) are no problem.

mod devices;
mod error;
mod generation;
mod open;
mod perplexity;
mod prompt;
mod sequence;
mod session;
mod source;
mod text;

pub use devices::{
    DeviceOptions, DeviceSpec, DeviceSpecError, Peak, Peaks, ProcessorSpec, instruction_sets,
    measure_bandwidth, measure_peaks, multiply_of, open_devices, parse_cores, usable_cores,
};
pub use error::Error;
pub use generation::GenerationDefaults;
pub use open::{Described, LoadProgress, Model, OpenOptions, Planned, describe, make_plan};
pub use perplexity::{Perplexity, Scored};
pub use session::{Control, Finish, OnToken, Output, Request, Stats};
pub use source::Source;

pub use troika_weights::exit_when_shortened;

pub use troika_device as device;
pub use troika_engine as engine;
pub use troika_graph as graph;
pub use troika_model as model;
pub use troika_plan as plan;
pub use troika_trace as trace;
pub use troika_weights as weights;
