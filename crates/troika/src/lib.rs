//! Troika as a library: open a model, generate.
//!
//! ```no_run
//! use troika::{Control, Model, OpenOptions, Request, Source};
//!
//! let model = Model::open(Source::BuiltIn, &OpenOptions::default())?;
//! let (prompt, _) = model.tokenize("It was a dark night")?;
//! let request = Request { max_tokens: Some(32), ..Request::default() };
//! model.session()?.generate(&prompt, &request, &mut |_token, text| {
//!     print!("{text}");
//!     Control::Continue
//! })?;
//! # Ok::<(), troika::Error>(())
//! ```
//!
//! Several sessions of a model are computed together, on threads of their own or on one:
//!
//! ```no_run
//! use troika::engine::Sharing;
//! use troika::{Model, OpenOptions, Request, Source};
//!
//! let sharing = Sharing { sequences: 2, ..Sharing::default() };
//! let model = Model::open(Source::BuiltIn, &OpenOptions { sharing, ..OpenOptions::default() })?;
//! let request = Request { max_tokens: Some(32), ..Request::default() };
//! let (mut night, mut day) = (model.session()?, model.session()?);
//! night.start(&model.tokenize("It was a dark night")?.0, &request)?;
//! day.start(&model.tokenize("It was a bright day")?.0, &request)?;
//! while model.step()? {
//!     for (name, session) in [("night", &mut night), ("day", &mut day)] {
//!         while let Some(piece) = session.try_next()? {
//!             println!("{name}: {}", piece.text);
//!         }
//!     }
//! }
//! # Ok::<(), troika::Error>(())
//! ```
//!
//! Model files and cached weights are mapped into memory. If another program shortens a mapped file
//! while the model is open, reading it raises SIGBUS on Unix, which ends the process; no call can
//! return an error then. To end with a message that names the file, call [`exit_when_shortened`]
//! first. Replacing a file by renaming is safe.

mod auto;
mod budget;
mod calibrate;
mod calibrated;
mod checked_device;
mod choosers;
mod describe;
mod devices;
mod driver;
mod energy;
mod error;
mod expert_options;
mod export;
mod final_norm;
mod fit;
mod floats;
mod free_memory;
mod generate;
mod generation;
mod kept_of_devices;
mod loss;
mod memory;
mod observer;
mod open;
mod options;
mod perplexity;
mod planning;
mod pooling;
mod profile_file;
mod prompt;
mod routing;
mod session;
mod session_state;
mod soc_costs;
mod source;
mod text;
mod turn;
mod use_meter;

pub use budget::{HostMemory, MemoryLimits};
pub use calibrate::{Calibrated, calibrate};
pub use calibrated::{CalibrationOptions, Outliers, SegmentOutliers, ShadowCost};
pub use checked_device::keep_checked;
pub use describe::{BoundModel, Described, describe, outline};
pub use devices::limits::{Limit, Limits, measure_bandwidth, measure_limits, multiply_of};
pub use devices::weight_types::{WeightType, weight_types};
pub use devices::{
    AutoDevices, DeviceOptions, DeviceSpec, DeviceSpecError, GpuAdapter, GpuSpec, GpuUse,
    NpuSettings, ProcessorSpec, check_device, gpu_adapters, instruction_sets, npu, open_devices,
    parse_cores, sim, usable_cores, virtual_clock,
};
pub use driver::EngineGuard;
pub use energy::{EnergyMeter, Metering, PowerMeter, on_battery};
pub use error::Error;
pub use expert_options::ExpertOptions;
pub use export::{CoreMlOptions, ExpertFunctions, export_core_ml};
pub use free_memory::free_memory;
pub use generate::Finish;
pub use generation::GenerationDefaults;
pub use kept_of_devices::{GpuSettings, Notes};
pub use observer::OpenObserver;
pub use open::Model;
pub use options::{NpuNumbers, OpenOptions, PlanSource, PredictorOptions, SolveOptions};
pub use perplexity::{Perplexity, Scored};
pub use planning::{Planned, make_plan};
pub use pooling::{Embeddings, Pooling};
pub use profile_file::{ProfileAt, subject_of};
pub use prompt::Conversation;
pub use routing::{
    PredictedRecall, PredictorTraining, PruneBy, Pruning, RecordedRouting, predictor_recall,
    pruned_perplexity, record_routing, router_weights, train_predictor,
};
pub use session::{
    Control, OnToken, Output, Request, Session, SessionCanceller, SessionOptions, Stats, TextPiece,
};
pub use soc_costs::SocCosts;
pub use source::Source;
pub use use_meter::{CpuMeter, Measuring, TokenUse, cpu_time};

pub use troika_check::CheckedKernel;
pub use troika_weights::{can_write, exit_when_shortened, write_file};

pub use troika_device as device;
pub use troika_engine as engine;
pub use troika_graph as graph;
pub use troika_model as model;
pub use troika_plan as plan;
pub use troika_program as program;
pub use troika_solve as solve;
pub use troika_trace as trace;
pub use troika_weights as weights;

/// Examples of the documents, as tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
}
