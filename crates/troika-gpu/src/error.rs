//! Why a GPU cannot be opened, and how drivers' messages are read.

use std::fmt::Display;

pub(crate) use troika_device::lock as locked;

/// The step on the way to an open GPU that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub enum GpuError {
    /// There is no adapter, or none with this number or name.
    NotFound(String),
    /// An adapter that kernels cannot run on, that does not open, or that nobody named though it is
    /// slow.
    Unusable(String),
}

impl GpuError {
    /// The error of an adapter that kernels cannot run on.
    pub(crate) fn unusable(name: impl Display, why: impl Display) -> GpuError {
        GpuError::Unusable(format!("GPU adapter {name} cannot be used: {why}"))
    }
}

/// The first line of a driver's message, which may have many.
pub(crate) fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}
