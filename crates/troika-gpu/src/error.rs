//! Why a GPU cannot be opened, and how drivers' messages are read.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The step on the way to an open GPU that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// No driver offers an adapter.
    #[error(
        "no GPU adapter was found: no driver for Vulkan, Metal or Direct3D 12 is installed, or it \
         has no device"
    )]
    NoAdapter,
    /// Only software adapters are there, and none was named.
    #[error(
        "no GPU was found but the software adapter {name}; it is slow, and is taken only when it \
         is named, as in --device gpu:{short}"
    )]
    OnlySoftware {
        /// Its whole name.
        name: String,
        /// A part of the name that is enough.
        short: String,
    },
    /// There is no adapter with this number or name.
    #[error("no GPU adapter is {wanted}; there are {known}")]
    Unknown {
        /// What was asked for.
        wanted: String,
        /// The adapters, by number and name.
        known: String,
    },
    /// The adapter lacks something that kernels need.
    #[error("GPU adapter {name} cannot be used: {why}")]
    Unusable {
        /// Its name.
        name: String,
        /// What is missing.
        why: String,
    },
    /// The driver refused to open the adapter.
    #[error("GPU adapter {name} does not open: {why}")]
    Closed {
        /// Its name.
        name: String,
        /// The driver's reason.
        why: String,
    },
}

/// The value of a lock, also after a thread that held it panicked.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first line of a driver's message, which may have many.
pub(crate) fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}
