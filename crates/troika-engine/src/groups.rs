//! Groups of experts move between prompts.

use troika_device::{WeightSource, Weights};
use troika_program::GroupGraph;

use crate::engine::Engine;
use crate::error::EngineError;

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
        // Chunks of other lengths may have groups of their own, and a group has parts.
        let at = |g: &GroupGraph| (g.graph, g.device);
        let all: Vec<(usize, usize)> =
            of_layer.filter_map(|e| e.groups.get(group)).flatten().map(at).collect();
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
