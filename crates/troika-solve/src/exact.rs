//! What the runs of the best plans take.

use troika_plan::PlanError;

use super::request::Alternative;
use super::search::{ONE_DEVICE, Search};

/// The most plans whose runs are predicted to the nanosecond and reported.
const SHOWN: usize = 6;

impl Search<'_> {
    /// The best plans and those on one device, with what their runs take.
    pub(super) fn exact(
        &mut self,
        ranked: Vec<Alternative>,
    ) -> Result<Vec<Alternative>, PlanError> {
        let mut exact: Vec<Alternative> = Vec::new();
        for mut a in ranked {
            if exact.len() >= SHOWN && !a.name.starts_with(ONE_DEVICE) {
                continue;
            }
            match self.predictor.exact(&a.plan) {
                // Its caches or graphs do not fit after all.
                Err(PlanError::Unpriced(_)) => continue,
                predicted => a.predicted = predicted?,
            }
            a.plan.predicted = Some(a.predicted.clone());
            exact.push(a);
        }
        Ok(exact)
    }
}
