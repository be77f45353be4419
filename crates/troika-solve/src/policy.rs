//! Which order of a prompt's segments is the fastest, in predicted time.

use troika_plan::{Plan, PlanError, Policy};

use super::predict::only_for;
use super::request::{Alternative, PredictRequest};
use super::search::{Search, shares_experts};
use super::timed::TimedPlan;

/// Another order than program order must reduce the time of prompts below this share: predictions
/// are inexact.
const WORTH_REORDERING: f64 = 0.99;
/// No prompt may take longer than in program order by more than this factor.
const NEVER_SLOWER: f64 = 1.01;

/// Predicts each order of a plan whose chunks are computed together, for prompts of some lengths,
/// and gives the plan the fastest one. There is nothing to choose where one
/// chunk is in flight, one device is used, or no prompt is longer than a chunk.
///
/// # Errors
/// The plan does not fit, or cannot be priced.
pub fn choose_policy(
    request: &PredictRequest<'_>,
    plan: &mut Plan,
    prompts: &[usize],
) -> Result<(), PlanError> {
    let of = &plan.prefill;
    let long: Vec<usize> = prompts.iter().copied().filter(|n| *n > of.chunk).collect();
    if of.chunks_in_flight < 2 || plan.devices.len() < 2 || long.is_empty() {
        return Ok(());
    }
    let timed = TimedPlan::new(request, plan, of.lengths.is_empty())?;
    let chosen = fastest(&timed, of.chunks_in_flight, &long)?.0;
    plan.prefill.policy = chosen;
    Ok(())
}

/// The order of so many chunks in flight that is the fastest, and what the first of the prompts takes.
fn fastest(
    timed: &TimedPlan<'_>,
    together: usize,
    prompts: &[usize],
) -> Result<(Policy, f64), PlanError> {
    let in_order = times(timed, together, Policy::InOrder, prompts)?;
    let (mut best, mut least) = ((Policy::InOrder, in_order[0]), WORTH_REORDERING);
    for policy in [Policy::OutOfOrder, Policy::CriticalPath] {
        let own = times(timed, together, policy, prompts)?;
        let shares = || own.iter().zip(&in_order).map(|(own, by)| own / by);
        let share = shares().sum::<f64>() / prompts.len() as f64;
        if share < least && shares().all(|s| s <= NEVER_SLOWER) {
            (best, least) = ((policy, own[0]), share);
        }
    }
    Ok(best)
}

impl Search<'_> {
    /// A plan with the number of chunks in flight, and their order, with which the request's prompt
    /// is the fastest. `None` as for [`Search::alternative`].
    pub(super) fn in_flight(
        &mut self,
        name: &str,
        plan: &Plan,
    ) -> Result<Option<Alternative>, PlanError> {
        let (asked, prompt) = (self.request.base, self.request.prompt);
        let avoided = self.avoided(plan.clone());
        let Some(mut plan) = self.noted(name, avoided)? else { return Ok(None) };
        let chunks = prompt.div_ceil(plan.prefill.chunk);
        let numbers = match asked.chunks_in_flight {
            _ if asked.policy == Some(Policy::ChunkAtATime) => vec![1],
            Some(n) => vec![n],
            None if plan.devices.len() < 2 => vec![1],
            // One chunk needs memory for one only.
            None => [4, 2, 1].into_iter().filter(|n| n / 2 < chunks).collect(),
        };
        let by = asked.policy.unwrap_or_default();
        (plan.prefill.chunks_in_flight, plan.prefill.policy) = (numbers[0], by);
        if numbers.len() > 1 || numbers[0] > 1 {
            let (needed, request) = (only_for(&plan, prompt), self.predictor.request);
            let timed = TimedPlan::new(&request, &needed, plan.prefill.lengths.is_empty());
            let Some(timed) = self.noted(name, timed)? else { return Ok(None) };
            let orders = asked.policy.is_none() && !shares_experts(&plan) && chunks > 1;
            let mut least = f64::INFINITY;
            for together in numbers {
                let (policy, ns) = match orders && together == plan.prefill.chunks_in_flight {
                    true => fastest(&timed, together, &[prompt])?,
                    false => (by, times(&timed, together, by, &[prompt])?[0]),
                };
                if ns < least {
                    (plan.prefill.chunks_in_flight, plan.prefill.policy) = (together, policy);
                    least = ns;
                }
            }
        }
        let (chunk, together) = (plan.prefill.chunk, plan.prefill.chunks_in_flight);
        self.alternative(format!("{name} in chunks of {chunk}, {together} in flight"), plan)
    }
}

/// The time of a prompt of each length, in nanoseconds.
fn times(
    timed: &TimedPlan<'_>,
    together: usize,
    policy: Policy,
    prompts: &[usize],
) -> Result<Vec<f64>, PlanError> {
    let of = |&prompt: &usize| {
        let mut run = timed.start_in(together, policy)?;
        run.tokens(prompt)?;
        Ok(run.now_ns())
    };
    prompts.iter().map(of).collect()
}
