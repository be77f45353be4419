//! Which order of a prompt's segments is the fastest, in predicted time.

use troika_plan::{Plan, PlanError, Policy};

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
    let in_order = times(request, plan, Policy::InOrder, &long)?;
    let (mut best, mut least) = (Policy::InOrder, WORTH_REORDERING);
    for policy in [Policy::OutOfOrder, Policy::CriticalPath] {
        let own = times(request, plan, policy, &long)?;
        let shares = || own.iter().zip(&in_order).map(|(own, by)| (own.0 / by.0, own.1 / by.1));
        let share = shares().map(|s| s.1).sum::<f64>() / long.len() as f64;
        if share < least && shares().all(|s| s.0.max(s.1) <= NEVER_SLOWER) {
            (best, least) = (policy, share);
        }
    }
    plan.prefill.policy = best;
    Ok(())
}

impl Search<'_> {
    /// Plans in their fastest orders for the request's prompt.
    pub(super) fn in_best_orders(
        &mut self,
        plans: Vec<Alternative>,
    ) -> Result<Vec<Alternative>, PlanError> {
        plans.into_iter().map(|of| self.in_best_order(of)).collect()
    }

    /// A plan in the order that is fastest for the request's prompt, unless it has another than
    /// program order, or the goal would suffer.
    fn in_best_order(&mut self, of: Alternative) -> Result<Alternative, PlanError> {
        if of.plan.prefill.policy != Policy::InOrder || shares_experts(&of.plan) {
            return Ok(of);
        }
        let mut plan = of.plan.clone();
        choose_policy(&self.predictor.request, &mut plan, &[self.request.prompt])?;
        if plan.prefill.policy == Policy::InOrder {
            return Ok(of);
        }
        let predicted = self.predictor.plan(&plan)?;
        let goal = self.request.goal;
        let better = predicted.score(goal) <= of.predicted.score(goal);
        Ok(if better { Alternative { plan, predicted, ..of } } else { of })
    }
}

/// The time of a prompt of each length, in nanoseconds: of the first one, and of one after it, when
/// the policy knows what tasks take.
fn times(
    request: &PredictRequest<'_>,
    plan: &Plan,
    policy: Policy,
    prompts: &[usize],
) -> Result<Vec<(f64, f64)>, PlanError> {
    let mut plan = plan.clone();
    plan.prefill.policy = policy;
    let timed = TimedPlan::new(request, &plan, plan.prefill.lengths.is_empty())?;
    let of = |&prompt: &usize| {
        let mut run = timed.start()?;
        run.tokens(prompt)?;
        let first = run.now_ns();
        run.begin_again()?;
        run.tokens(prompt)?;
        Ok((first, run.now_ns() - first))
    };
    prompts.iter().map(of).collect()
}
