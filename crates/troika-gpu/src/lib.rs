//! GPU devices: subgraphs as dispatches of kernels in WGSL, through wgpu.
//!
//! Nothing outside this crate names `wgpu`. From the ground up:
//!
//! | module | what it holds |
//! |---|---|
//! | [`kernels`] | the WGSL sources, and for each op how they are run: data, tested without a driver |
//! | `adapter`, `quirks` | the adapters of this machine, which one is meant, what is wrong with it |
//! | `gpu` | an open adapter, its memory and its errors |
//! | `recorder` | copies between the host's memory and the device's; submitting |
//! | `pipelines`, `cache` | kernels as the driver compiled them, and where they are kept |
//! | `units` | which ops of a subgraph one dispatch serves together |
//! | `code`, `compile` | a subgraph becomes code: units, values with places, weights in some form |
//! | `emit`, `steps`, `attend` | the dispatches of code, and what they bind |
//! | `prefetch` | kernels that a graph will need, compiled when a model is opened |
//! | `weights` | weights in device memory, uploaded once |
//! | `vulkan` | the host's memory as the device's own, where both share it |
//! | `bindings` | what a run binds, checked against its graph |
//! | `run`, `queue` | runs of graphs, prepared once for each shape |
//! | `bound` | dispatches with what they are bound to |
//! | `top_k` | picking the largest numbers of rows for the host |
//! | `device` | [`GpuDevice`] |
//! | `limits` | what a device can do at most |

mod adapter;
mod attend;
mod bindings;
mod bound;
mod cache;
mod code;
mod compile;
mod device;
mod emit;
mod error;
mod gpu;
pub mod kernels;
mod limits;
mod packs;
mod pipelines;
mod places;
mod prefetch;
mod queue;
mod quirks;
mod recorder;
mod run;
mod steps;
mod top_k;
mod units;
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
mod vulkan;
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
#[path = "no_vulkan.rs"]
mod vulkan;
mod weights;

pub use adapter::{Adapter, AdapterKind, GpuSpec, adapters, choose};
pub use cache::PipelineStore;
pub use compile::kernels_of;
pub use device::{GpuDevice, GpuOptions};
pub use error::GpuError;
pub use limits::{GpuLimits, measure_limits};
