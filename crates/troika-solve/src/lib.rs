//! The solver: finds the division of a model over devices that a cost model rates best. See the
//! README beside this file.

mod choice;
mod chunks;
mod cost;
mod events;
mod fit;
mod options;
mod placements;
mod predict;
mod profile;
mod ranges;
mod search;
mod staged;
mod timed;

use std::sync::Arc;

use troika_model::lower::Lowered;
use troika_model::spec::ModelSpec;

use troika_plan::{Goal, PlanDevice, Predicted};
use troika_plan::{Plan, PlanError, PlanRequest, Refusal};

pub use cost::{CostModel, PricedRun, QueueCosts, RunWork};
pub use fit::{Fits, RunFit};
pub use predict::{PredictRequest, predict};
pub use profile::{
    DeviceSample, PROFILE_VERSION, PairSample, Profile, ProfileError, ProfileSubject,
    ProfiledCosts, ProfiledDevice, ProfiledGraph, Regret, RunSample, Slowdown, Spread,
    profiled_graphs,
};
pub use staged::{InStages, StagedRequest, Ways};

/// The input of the solver.
#[derive(Clone, Copy)]
pub struct SolveRequest<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The model, lowered for [`PlanRequest::chunk`] and the plan's context.
    pub lowered: &'a Arc<Lowered>,
    /// The devices that may be used.
    pub devices: &'a [PlanDevice],
    /// Their costs.
    pub cost: &'a dyn CostModel,
    /// The ops that devices refuse.
    pub refusals: &'a [Refusal],
    /// What the plan should optimise.
    pub goal: Goal,
    /// Context, chunk length, formats and so on. Its strategy is ignored.
    pub base: &'a PlanRequest,
    /// Tokens of the prompt to optimise for. Prompts of other lengths are placed by length buckets.
    pub prompt: usize,
    /// Tokens generated after it.
    pub generate: usize,
    /// Whether weights may be held in several forms, so that phases and lengths are placed
    /// independently. If not, each row of a weight is held once.
    pub several_copies: bool,
    /// The longest chunk of each length bucket, ascending; empty: the solver's own choice.
    pub lengths: &'a [usize],
    /// Plans made by other means, with names: they are priced beside those found.
    pub candidates: &'a [(String, Plan)],
}

/// The result of the solver.
#[derive(Clone, Debug)]
pub struct Solved {
    /// The best plan, with its prediction in [`Plan::predicted`].
    pub plan: Plan,
    /// Its predicted costs.
    pub predicted: Predicted,
    /// The plans it beat, the best first, with their predictions.
    pub alternatives: Vec<Alternative>,
}

/// A plan that was considered but not chosen.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The difference, for people: a strategy's name, or "ffn whole on a".
    pub name: String,
    /// The plan.
    pub plan: Plan,
    /// Its predicted costs.
    pub predicted: Predicted,
}

/// Checks that a plan's weights fit into the memory of each device.
///
/// # Errors
/// A device that would hold more than it can, or a rule that cannot be applied.
pub fn check_memory(
    plan: &Plan,
    lowered: &Arc<Lowered>,
    devices: &[PlanDevice],
) -> Result<(), PlanError> {
    if devices.iter().all(|d| d.caps.max_resident_bytes.is_none()) {
        return Ok(());
    }
    for (device, needs) in predict::weights_on(plan, lowered, devices)? {
        let caps = devices.iter().find(|d| d.name == device).map(|d| &d.caps);
        if let Some(holds) = caps.and_then(|c| c.max_resident_bytes).filter(|most| needs > *most) {
            return Err(PlanError::Memory { device, needs, holds });
        }
    }
    Ok(())
}

/// Chooses a plan.
///
/// It is never predicted to be worse than the best plan on one device or the candidates.
///
/// # Errors
/// No plan can be made for the request, or the devices together cannot run the model.
pub fn solve(request: &SolveRequest<'_>) -> Result<Solved, PlanError> {
    search::Search::new(request)?.solve()
}
