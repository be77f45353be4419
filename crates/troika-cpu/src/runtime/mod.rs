//! The basis of kernels: a thread pool, memory shared by its threads, and prefetching.

mod maker;
mod memory;
mod pool;
pub(crate) mod prefetch;

pub(crate) use maker::is_intel;
pub(crate) use memory::{LINE, Lines};
pub use memory::{PerWorker, SharedMut, SharedRef};
pub(crate) use pool::pin;
pub use pool::{Panicked, Pool};
