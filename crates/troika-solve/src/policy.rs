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
/// and gives the plan the fastest one: the first prompt after opening may not lose by it, when
/// nothing is known of tasks yet, and those after it must gain. There is nothing to choose where one
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

/// The order of so many chunks in flight that is the fastest, and what the first of the prompts takes
/// at first.
fn fastest(
    timed: &TimedPlan<'_>,
    together: usize,
    prompts: &[usize],
) -> Result<(Policy, f64), PlanError> {
    let in_order = times(timed, together, Policy::InOrder, prompts)?;
    let first = |all: &[(f64, f64)]| all.first().map_or(0.0, |times| times.0);
    let (mut best, mut least) = ((Policy::InOrder, first(&in_order)), WORTH_REORDERING);
    for policy in [Policy::OutOfOrder, Policy::CriticalPath] {
        let own = times(timed, together, policy, prompts)?;
        let shares = || own.iter().zip(&in_order).map(|(own, by)| (own.0 / by.0, own.1 / by.1));
        let share = shares().map(|s| s.0 + s.1).sum::<f64>() / (2 * prompts.len()) as f64;
        if share < least && shares().all(|s| s.0.max(s.1) <= NEVER_SLOWER) {
            (best, least) = ((policy, first(&own)), share);
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
            _ if asked.policy == Policy::ChunkAtATime => vec![1],
            Some(n) => vec![n],
            None if plan.devices.len() < 2 => vec![1],
            // One chunk needs memory for one only.
            None => [4, 2, 1].into_iter().filter(|n| n / 2 < chunks).collect(),
        };
        (plan.prefill.chunks_in_flight, plan.prefill.policy) = (numbers[0], asked.policy);
        if numbers.len() > 1 || numbers[0] > 1 {
            let (needed, request) = (only_for(&plan, prompt), self.predictor.request);
            let timed = TimedPlan::new(&request, &needed, plan.prefill.lengths.is_empty());
            let Some(timed) = self.noted(name, timed)? else { return Ok(None) };
            let orders = asked.policy == Policy::InOrder && !shares_experts(&plan) && chunks > 1;
            let mut least = f64::INFINITY;
            for together in numbers {
                let (policy, ns) = match orders && together == plan.prefill.chunks_in_flight {
                    true => fastest(&timed, together, &[prompt])?,
                    false => (asked.policy, times(&timed, together, asked.policy, &[prompt])?[0].0),
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

/// The time of a prompt of each length, in nanoseconds: of the first one, and of one after it, when
/// the policy knows what tasks take.
fn times(
    timed: &TimedPlan<'_>,
    together: usize,
    policy: Policy,
    prompts: &[usize],
) -> Result<Vec<(f64, f64)>, PlanError> {
    let of = |&prompt: &usize| {
        let mut run = timed.start_in(together, policy)?;
        run.tokens(prompt)?;
        let first = run.now_ns();
        run.begin_again()?;
        run.tokens(prompt)?;
        Ok((first, run.now_ns() - first))
    };
    prompts.iter().map(of).collect()
}
