//! How a prompt is cut into chunks.

use super::request::Alternative;
use super::search::Search;
use troika_plan::{Plan, PlanError, Policy};

impl Search<'_> {
    /// Variants of a plan with other chunk lengths and numbers of chunks in flight.
    pub(super) fn with_chunks(
        &mut self,
        name: &str,
        base: &Plan,
    ) -> Result<Vec<Alternative>, PlanError> {
        let (mut all, mut best): (Vec<Alternative>, f64) = (Vec::new(), f64::INFINITY);
        for shorter in [1, 2, 4, 8] {
            let before = all.len();
            let in_flights = self.request.base.chunks_in_flight.map_or(vec![1, 2, 4], |n| vec![n]);
            for in_flight in in_flights {
                let chunk = self.chunk.div_ceil(shorter);
                let asked = self.request.base.chunks_in_flight.is_some();
                if (shorter > 1 && (chunk < 32 || self.request.prompt <= chunk))
                    || (in_flight > 1 && !asked && self.request.prompt <= chunk)
                {
                    continue;
                }
                let mut plan = base.clone();
                plan.prefill.chunks_in_flight = in_flight;
                if chunk < plan.prefill.chunk {
                    // Full chunks now use the rules of the bucket of their length.
                    let at = plan.prefill.lengths.iter().position(|l| chunk <= l.up_to);
                    if let Some(at) = at {
                        plan.prefill.rules.clone_from(&plan.prefill.lengths[at].rules);
                        plan.prefill.lengths.truncate(at);
                    }
                    plan = plan.with_chunk(chunk, self.request.devices);
                }
                if self.request.base.policy == Policy::OutOfOrder {
                    plan.prefill.policy = Policy::OutOfOrder;
                }
                let name = format!("{name} in chunks of {chunk}, {in_flight} in flight");
                all.extend(self.alternative(name, plan)?);
            }
            let score = |a: &Alternative| a.predicted.score(self.request.goal);
            let here = all[before..].iter().map(score).fold(f64::INFINITY, f64::min);
            // Where shorter chunks are slower, still shorter ones are slower yet.
            if here > best {
                break;
            }
            best = here;
        }
        Ok(all)
    }
}
