//! How experts are grouped, by options and a calibration.

use std::path::PathBuf;
use std::sync::Arc;

use troika_model::spec::{Key, ModelSpec, WeightRole};
use troika_plan::{Calibration, ExpertSettings, Strategy, expert_chunk};
use troika_weights::WeightStore;

use crate::error::Error;

/// How [`Strategy::Experts`] groups experts.
#[derive(Clone, Debug, Default)]
pub struct ExpertOptions {
    /// Capacities, groups and what becomes of other rows. What is known of the model is filled in.
    pub settings: ExpertSettings,
    /// How often experts were chosen; `None`: all are taken as equally popular.
    pub calibration: Option<(Arc<Calibration>, PathBuf)>,
    /// Tokens of the prompts that chunks are for; `None`: chunks of the usual length.
    pub prompt: Option<usize>,
}

impl ExpertOptions {
    /// Checks that the calibration is of a model.
    pub(crate) fn check(&self, spec: &ModelSpec) -> Result<(), Error> {
        let Some((calibration, file)) = &self.calibration else { return Ok(()) };
        calibration.check(spec).map_err(|e| Error::of_calibration(file, e))
    }

    /// The settings for a model, with a calibration that is given for other ends.
    pub(crate) fn of_model(
        &self,
        spec: &ModelSpec,
        store: &WeightStore,
        given: Option<&Calibration>,
    ) -> ExpertSettings {
        let counted = self.calibration.as_ref().map(|c| &*c.0).or(given);
        let layers = spec.layers.iter().enumerate();
        let moe = layers.filter(|(_, l)| l.moe().is_some());
        ExpertSettings {
            used: counted.map_or(Vec::new(), |c| c.routing()),
            stored_bytes: moe.filter_map(|(layer, _)| stored_bytes(store, layer)).max(),
            ..self.settings.clone()
        }
    }

    /// Rows of a chunk, if the options leave them open.
    pub(crate) fn chunk(&self, strategy: &Strategy) -> Option<usize> {
        let shares = matches!(strategy, Strategy::Experts(_));
        self.prompt.filter(|_| shares).map(expert_chunk)
    }

    /// What there is to know of a plan that shares a model's experts out.
    pub(crate) fn notes(
        &self,
        spec: &ModelSpec,
        strategy: &Strategy,
        given: Option<&Calibration>,
    ) -> Vec<String> {
        if !matches!(strategy, Strategy::Experts(_)) {
            return Vec::new();
        }
        if !spec.layers.iter().any(|l| l.moe().is_some()) {
            return vec![
                "the model has no experts to share out: one device computes all of it".into(),
            ];
        }
        if self.calibration.is_some() || given.is_some() {
            return Vec::new();
        }
        vec![
            "experts are taken as equally popular; a file that troika calibrate wrote \
             (--calibration FILE) says which are not"
                .into(),
        ]
    }
}

/// Bytes of an expert of a layer as stored, without biases.
fn stored_bytes(store: &WeightStore, layer: usize) -> Option<u64> {
    let roles = [WeightRole::ExpertGate, WeightRole::ExpertUp, WeightRole::ExpertDown];
    let bytes = roles.map(|role| {
        let shape = store.shape(Key { role, layer: Some(layer), index: Some(0) })?;
        Some((shape.rows * shape.dtype.row_bytes(shape.cols)?) as u64)
    });
    bytes.into_iter().sum()
}
