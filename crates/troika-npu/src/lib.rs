//! NPU devices: subgraphs as ONNX models, compiled by the vendors' execution providers of ONNX
//! Runtime, which is loaded at run time.

mod device;
mod emit;
mod error;
mod onnx;
mod provider;
mod queue;
mod runtime;
mod session;

pub use device::{NpuDevice, NpuOptions};
pub use error::NpuError;
pub use provider::{Hardware, NpuSpec, Provider};
pub use runtime::RuntimePlaces;
