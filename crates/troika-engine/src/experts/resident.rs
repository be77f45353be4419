//! Weights that come and go: groups of experts may leave their device and come back between prompts.

use std::sync::{Arc, Mutex, PoisonError};

use troika_device::{DeviceError, Weights};

/// A graph's code and weights, while they are on its device.
#[derive(Clone, Debug)]
pub(crate) struct LoadedGraph(Arc<Mutex<Option<Arc<Weights>>>>);

impl LoadedGraph {
    pub fn new(weights: Option<Arc<Weights>>) -> LoadedGraph {
        LoadedGraph(Arc::new(Mutex::new(weights)))
    }

    /// The weights, for a task by its name.
    ///
    /// # Errors
    /// They are not loaded.
    pub fn of(&self, task: &str) -> Result<Arc<Weights>, DeviceError> {
        self.get().ok_or_else(|| DeviceError::Submission {
            task: task.into(),
            why: "its weights are not on the device".into(),
        })
    }

    /// The weights, if they are loaded.
    pub fn get(&self) -> Option<Arc<Weights>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loads them or lets them go.
    pub fn set(&self, weights: Option<Arc<Weights>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = weights;
    }
}
