//! Flags as the user gives them. Names follow llama.cpp where it has them. Those that
//! are set once for a machine have an environment variable `TROIKA_*`.

mod calibration;
mod doctor;
mod effect;
mod export;
mod help;
mod models;
mod npu;
mod one_dash;
mod open;
mod overwrite;
mod parse;
pub mod placement;
mod quant;
mod sampling;
mod serve;
mod sharing;
mod simulate;
mod types;
mod verbs;

pub use calibration::CalibrationArgs;
pub use doctor::DoctorArgs;
pub use models::{CacheArgs, CacheVerb, PullArgs, RmArgs};
pub use npu::{COMPILE_VERB, npu_settings};
pub use open::{OpenArgs, RENDER_VERB, chat_helper};
pub use parse::parse;
pub use placement::{named_apart, profile_at};
pub use quant::cache_or_default;
pub use serve::{DEFAULT_PORT, PsArgs, ServeArgs};
pub use simulate::{ReproduceArgs, SimulateArgs};
pub use verbs::{
    BenchArgs, CalibrateArgs, Cli, Command, DevicesArgs, ExportArgs, ModelArgs, PerplexityArgs,
    PlanArgs, ProfileArgs, RunArgs, ShowArgs, SubjectArgs, TableFlag, TokenizeArgs,
    TrainPredictorArgs, UnseenArgs,
};
