//! The CPU device: kernels, thread pool, executor of subgraphs.
//!
//! [`CpuDevice`] compiles a subgraph into a list of ops with resolved weights and memory slots
//! (`compile`, `place`), and runs it on the threads of a queue (`queue`, `executor`, `bindings`,
//! `ops`, `threads`). Kernels
//! are a folder per op, written once over SIMD lanes ([`kernels::simd`]) and instantiated per
//! instruction set; which variant runs is a pure function (`select`). See the crate's README for
//! the determinism rule.

mod bindings;
mod compile;
mod detect;
mod device;
mod executor;
mod fuse;
pub mod kernels;
pub mod limits;
mod memory;
mod ops;
mod packed;
mod place;
mod queue;
mod select;
mod threads;
mod topology;

pub use detect::{Amx, Isa, cores, features};
pub use device::{CpuDevice, CpuOptions};
pub use memory::{PerWorker, SharedMut};
pub use select::{LinearChoice, LinearShape};
pub use threads::{Panicked, Pool};
pub use topology::{Core, default_threads, parse_cores, physical_cores, topology};
