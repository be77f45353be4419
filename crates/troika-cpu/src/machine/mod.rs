//! The machine: instruction sets, cores, and peak performance.

pub mod instructions;
mod isa;
mod multiply;
pub mod peaks;
mod topology;

pub use isa::{Amx, Isa, cores, features};
pub use multiply::Multiply;
pub use topology::{Core, default_threads, parse_cores, physical_cores, topology};
