//! How a prompt is cut into chunks.

use super::request::Alternative;
use super::search::Search;
use troika_plan::{Plan, PlanError};

/// A prompt is cut into chunks of at least so many rows.
const LEAST_CHUNK: usize = 32;

impl Search<'_> {
    /// The lengths of chunks to look at: the longest, and shorter ones of which a prompt has several.
    pub(super) fn chunk_lengths(&self) -> Vec<usize> {
        let (longest, prompt) = (self.chunk, self.request.prompt);
        let all = [1, 2, 4, 8].map(|shorter| longest.div_ceil(shorter));
        let of_several = |n: &usize| *n == longest || (LEAST_CHUNK..prompt).contains(n);
        let mut all: Vec<usize> = all.into_iter().filter(of_several).collect();
        all.dedup();
        all
    }

    /// Variants of a plan with other chunk lengths, each with its best number of chunks in flight.
    pub(super) fn with_chunks(
        &mut self,
        name: &str,
        base: &Plan,
    ) -> Result<Vec<Alternative>, PlanError> {
        let mut all = Vec::new();
        for chunk in self.chunk_lengths() {
            let mut plan = base.clone();
            if chunk < plan.prefill.chunk {
                // Full chunks now use the rules of the bucket of their length.
                let at = plan.prefill.lengths.iter().position(|l| chunk <= l.up_to);
                if let Some(at) = at {
                    plan.prefill.rules.clone_from(&plan.prefill.lengths[at].rules);
                    plan.prefill.lengths.truncate(at);
                }
                plan = plan.with_chunk(chunk, self.request.devices);
            }
            all.extend(self.in_flight(name, &plan)?);
        }
        Ok(all)
    }
}
