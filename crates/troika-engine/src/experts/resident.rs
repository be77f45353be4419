//! Weights that come and go: groups of experts may leave their device and come back between prompts.

use std::sync::{Arc, Mutex, PoisonError};

use troika_device::{DeviceError, WeightSource, Weights};

use crate::engine::Engine;
use crate::error::EngineError;

/// A graph's code and weights, while they are on its device.
#[derive(Clone, Debug)]
pub(crate) struct LoadedGraph(Arc<Mutex<Option<Arc<Weights>>>>);

impl LoadedGraph {
    pub fn new(weights: Arc<Weights>) -> LoadedGraph {
        LoadedGraph(Arc::new(Mutex::new(Some(weights))))
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

    fn set(&self, weights: Option<Arc<Weights>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = weights;
    }
}

impl Engine {
    /// Takes a group of a layer's experts off its device (`source` is `None`), or compiles and loads
    /// it again. Its rows go to the rule's device meanwhile: the results are the same wherever
    /// devices compute alike.
    ///
    /// # Errors
    /// There is no such group; something is in flight; the device's error.
    pub fn move_group(
        &mut self,
        (layer, group): (usize, usize),
        source: Option<&dyn WeightSource>,
    ) -> Result<(), EngineError> {
        if self.slots.iter().any(|slot| slot.job.is_some()) {
            return Err(EngineError::InFlight);
        }
        let of_layer = self.model.program.experts.iter().filter(|e| e.layer == layer);
        // Chunks of other lengths may have groups of their own.
        let all: Vec<(usize, usize)> =
            of_layer.filter_map(|e| e.groups.get(group)).map(|g| (g.graph, g.device)).collect();
        if all.is_empty() {
            return Err(EngineError::NoGroup { layer, group });
        }
        for (graph, device) in all {
            let loaded = &self.model.loaded[graph];
            let listed = &self.model.program.graphs.graphs()[graph].graph;
            match source {
                None => loaded.set(None),
                Some(_) if loaded.get().is_some() => {}
                Some(source) => {
                    let weights = Weights::compiled(&*self.model.devices[device], listed, source)?;
                    loaded.set(Some(weights));
                }
            }
        }
        Ok(())
    }
}
