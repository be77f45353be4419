//! Errors of experiments. Errors of the library are passed on unchanged.

use troika::Error;
use troika::sim::SocError;
use troika_device::DeviceError;
use troika_model::lower::LowerError;

pub(crate) type Result<T, E = LabError> = std::result::Result<T, E>;

/// Why an experiment is impossible.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An error in the SoC's file.
    #[error(transparent)]
    Soc(#[from] SocError),
    /// Something is asked for that is not there, or cannot be done: a sentence.
    #[error("{0}")]
    Asked(String),
    /// What the experiment needs is missing, or does not work: a sentence.
    #[error("{0}")]
    Impossible(String),
    /// An error of another part.
    #[error(transparent)]
    Other(#[from] Error),
}

impl From<troika_engine::EngineError> for LabError {
    fn from(e: troika_engine::EngineError) -> Self {
        LabError::Other(e.into())
    }
}

impl From<DeviceError> for LabError {
    fn from(e: DeviceError) -> Self {
        LabError::Other(e.into())
    }
}

impl From<LowerError> for LabError {
    fn from(e: LowerError) -> Self {
        troika_engine::EngineError::from(e).into()
    }
}
