//! NPU devices: subgraphs as ONNX models, compiled by the vendors' execution providers of ONNX
//! Runtime, which is loaded at run time.

mod cache;
mod cached;
mod core_ml;
mod device;
mod emit;
mod error;
mod helper;
mod loaded;
pub mod mil;
mod onnx;
mod profile;
mod profiling;
mod provider;
mod qnn;
mod queue;
mod release;
mod rewrites;
mod rotation;
mod runtime;
mod session;
mod stdout;

pub use cache::{GraphCache, GraphKey};
pub use core_ml::{CoreMlDevice, CoreMlDeviceOptions};
pub use device::{NpuDevice, NpuOptions};
pub use error::NpuError;
pub use helper::{HelperCommand, serve_compile};
pub use profile::{QNN_RECORDING, replay_qnn};
pub use profiling::{Profiling, ProfilingLevel};
pub use provider::{Hardware, NpuSpec, Provider};
pub use rewrites::{Rewrite, Rewrites};
pub use runtime::{RuntimePlaces, runtime_library, survey};
pub use stdout::own_stdout;
