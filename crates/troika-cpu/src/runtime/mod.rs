//! What kernels run on: a pool of threads, the memory its threads share, prefetches.

mod memory;
mod pool;
pub(crate) mod prefetch;

pub(crate) use memory::{LINE, Lines};
pub use memory::{PerWorker, SharedMut, SharedRef};
pub use pool::{Panicked, Pool};
pub(crate) use pool::{message, pin};
