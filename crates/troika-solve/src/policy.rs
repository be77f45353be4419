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

/// What a policy is predicted to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyTime {
    /// The policy.
    pub policy: Policy,
    /// The time of prompts as a share of the time in program order: the mean over their lengths.
    pub share: f64,
    /// The largest such share of a prompt, the first one after opening included, when nothing is
    /// known of tasks yet.
    pub most: f64,
}

/// Predicts each order of a plan whose chunks are computed together, for prompts of some lengths,
/// and gives the plan the fastest one. There is nothing to choose, and no time returned, where one
/// chunk is in flight, one device is used, or no prompt is longer than a chunk.
///
/// # Errors
/// The plan does not fit, or cannot be priced.
pub fn choose_policy(
    request: &PredictRequest<'_>,
    plan: &mut Plan,
    prompts: &[usize],
) -> Result<Vec<PolicyTime>, PlanError> {
    let of = &plan.prefill;
    let long: Vec<usize> = prompts.iter().copied().filter(|n| *n > of.chunk).collect();
    if of.chunks_in_flight < 2 || plan.devices.len() < 2 || long.is_empty() {
        return Ok(Vec::new());
    }
    let in_order = times(request, plan, Policy::InOrder, &long)?;
    let mut all = Vec::new();
    for policy in [Policy::InOrder, Policy::OutOfOrder, Policy::CriticalPath] {
        let own = times(request, plan, policy, &long)?;
        let shares: Vec<[f64; 2]> =
            own.iter().zip(&in_order).map(|(a, b)| [a[0] / b[0], a[1] / b[1]]).collect();
        let share = shares.iter().map(|s| s[1]).sum::<f64>() / long.len() as f64;
        let most = shares.iter().flatten().copied().fold(0.0, f64::max);
        all.push(PolicyTime { policy, share, most });
    }
    let may = all.iter().filter(|t| t.share < WORTH_REORDERING && t.most <= NEVER_SLOWER);
    let best = may.min_by(|a, b| a.share.total_cmp(&b.share));
    plan.prefill.policy = best.map_or(Policy::InOrder, |best| best.policy);
    Ok(all)
}

impl Search<'_> {
    /// A plan in the order that is fastest for the request's prompt, unless the request names an
    /// order, or the first prompt would gain nothing.
    pub(super) fn in_best_order(&mut self, of: Alternative) -> Result<Alternative, PlanError> {
        if self.request.base.policy != Policy::InOrder || shares_experts(&of.plan) {
            return Ok(of);
        }
        let mut plan = of.plan.clone();
        choose_policy(&self.predictor.request, &mut plan, &[self.request.prompt])?;
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
) -> Result<Vec<[f64; 2]>, PlanError> {
    let mut plan = plan.clone();
    plan.prefill.policy = policy;
    let timed = TimedPlan::new(request, &plan, plan.prefill.lengths.is_empty())?;
    let of = |&prompt: &usize| {
        let mut run = timed.start()?;
        run.tokens(prompt)?;
        let first = run.now_ns();
        run.begin_again()?;
        run.tokens(prompt)?;
        Ok([first, run.now_ns() - first])
    };
    prompts.iter().map(of).collect()
}
