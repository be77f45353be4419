//! The solver: of the ways to divide a model over devices, the plan that a cost model says is best.
//! See the README beside this file.

mod choice;
mod chunks;
mod events;
mod layout;
mod options;
mod others;
mod predict;
mod ranges;
mod search;
mod staged;

use troika_model::lower::Lowered;
use troika_model::spec::ModelSpec;

use crate::cost::{CostModel, Goal, Predicted, SolveDevice};
use crate::{Plan, PlanError, PlanRequest, Refusal};

pub use predict::{PredictRequest, predict};

/// What the solver is asked.
#[derive(Clone, Copy)]
pub struct SolveRequest<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The model, lowered for [`PlanRequest::chunk`] and the plan's context.
    pub lowered: &'a Lowered,
    /// The devices that may be used.
    pub devices: &'a [SolveDevice],
    /// What they cost.
    pub cost: &'a dyn CostModel,
    /// Ops that devices do not take.
    pub refusals: &'a [Refusal],
    /// What the plan is to be best at.
    pub goal: Goal,
    /// Context, chunk length, formats and so on. Its strategy is not looked at.
    pub base: &'a PlanRequest,
    /// Tokens of the prompt that the plan is to be best for. Prompts of other lengths are placed
    /// by length buckets.
    pub prompt: usize,
    /// Tokens that are generated after it.
    pub generate: usize,
    /// Weights may be held in several forms, so that phases and lengths are placed without regard to
    /// each other. If not, each row of a weight is there once.
    pub several_copies: bool,
    /// The longest length of each length bucket, ascending; empty: the solver's own.
    pub lengths: &'a [usize],
    /// Plans made by other means, each with its name: they are priced beside what is found.
    pub candidates: &'a [(String, Plan)],
    /// The plan is to hold other ways for its chunks, for who decides by load.
    pub by_load: bool,
}

/// The solver's answer.
#[derive(Clone, Debug)]
pub struct Solved {
    /// The best plan, with its prediction in [`Plan::predicted`].
    pub plan: Plan,
    /// What it is predicted to cost.
    pub predicted: Predicted,
    /// The plans that it beat, the best first. Each has its prediction.
    pub alternatives: Vec<Alternative>,
}

/// A plan that another one beat.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// What is different, for people: a strategy's name, or "ffn whole on a".
    pub name: String,
    /// The plan.
    pub plan: Plan,
    /// What it is predicted to cost.
    pub predicted: Predicted,
}

/// Checks that the weights that a plan places on each device fit into its memory.
///
/// # Errors
/// A device that would hold more than it can, or a rule that cannot be applied.
pub fn check_memory(
    plan: &Plan,
    lowered: &Lowered,
    devices: &[SolveDevice],
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
/// It is never predicted to be worse than the best plan on one device, nor than the candidates.
///
/// # Errors
/// A request that no plan can be made for, or devices that cannot run the model together.
pub fn solve(request: &SolveRequest<'_>) -> Result<Solved, PlanError> {
    let mut solved = search::Search::new(request)?.solve()?;
    if request.by_load && request.devices.len() > 1 {
        others::add(request, &mut solved.plan)?;
        if solved.plan.by_load.is_empty() {
            // Nothing is gained from what was left out for the sake of other ways.
            let request = SolveRequest { by_load: false, ..*request };
            return search::Search::new(&request)?.solve();
        }
    }
    Ok(solved)
}
