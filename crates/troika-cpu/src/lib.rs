//! The CPU device: compiles subgraphs to lists of kernel calls and runs them on a thread pool.
//!
//! From the ground up, each module using only those before it:
//!
//! | module | what it holds |
//! |---|---|
//! | `runtime` | the thread pool, the memory its threads share, prefetches |
//! | [`machine`] | instruction sets and their wrapped instructions, cores, measured peaks |
//! | [`kernels`] | a folder per op, written once over SIMD lanes and instantiated per instruction set |
//! | `compile` | a subgraph becomes a list of ops with resolved weights and places in memory |
//! | `device` | [`CpuDevice`], its queue, and the executor that walks such a list |
//!
//! See the crate's README for the determinism rule.

#![allow(unsafe_code, reason = "kernels use the instructions of processors and raw memory")]

mod compile;
mod device;
pub mod kernels;
pub mod machine;
mod runtime;

pub use device::{CpuDevice, CpuOptions, Observer, Routed};
pub use machine::peaks;
pub use machine::{
    Amx, Core, Isa, Multiply, cores, default_threads, features, parse_cores, physical_cores,
    topology,
};
pub use runtime::{Panicked, PerWorker, Pool, SharedMut, SharedRef};
