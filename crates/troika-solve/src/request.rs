//! What is asked of the solver, and its answers.

use std::sync::Arc;

use troika_model::lower::Lowered;
use troika_model::spec::ModelSpec;
use troika_plan::{Goal, Plan, PlanDevice, PlanRequest, Predicted, Refusal};

use crate::cost::CostModel;

/// The input of a prediction.
#[derive(Clone, Copy)]
pub struct PredictRequest<'a> {
    /// The model, lowered for at least the plan's chunk and context.
    pub lowered: &'a Arc<Lowered>,
    /// All devices, including the plan's.
    pub devices: &'a [PlanDevice],
    /// Their costs.
    pub cost: &'a dyn CostModel,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens generated after it.
    pub generate: usize,
}

impl PredictRequest<'_> {
    /// The longest context that the model was lowered for.
    pub(super) fn lowered_context(&self) -> usize {
        let states = self
            .lowered
            .segments
            .iter()
            .flat_map(|s| s.graph.states.iter().map(|v| s.graph.value(*v).shape.max_rows()));
        states.max().unwrap_or(usize::MAX).max(1)
    }
}

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
    /// Plans without a price, each with the reason.
    pub unpriced: Vec<String>,
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
