//! The solver: finds the division of a model over devices that a cost model rates best. See the
//! README beside this file.

mod attention;
mod choice;
mod chunks;
mod cost;
mod experts;
mod fit;
mod forms;
mod held;
mod memory;
mod options;
mod placements;
mod policy;
mod predict;
mod profile;
mod ranges;
mod request;
mod score;
mod search;
mod segment_part;
mod sought;
mod staged;
mod timed;
mod weights;

use troika_plan::PlanError;

pub use attention::attention_pays;
pub use cost::{CostModel, Mover, PricedRun, QueueCosts, lasting};
pub use fit::{Fits, RunFit};
pub use forms::Forms;
pub use held::{HeldWeights, held_weights};
pub use memory::{MadePlan, MakeRequest, check_memory, make_within_memory};
pub use policy::choose_policy;
pub use predict::{predict, task_times};
pub use profile::{
    Apart, CHUNK_ROWS, ChunkTime, DeviceSample, PROFILE_VERSION, PairSample, Profile, ProfileError,
    ProfileSubject, ProfiledCosts, ProfiledDevice, ProfiledGraph, Regret, RunAt, RunSample,
    Slowdown, Spread, profiled_graphs,
};
pub use request::{Alternative, PredictRequest, SolveRequest, Solved};
pub use segment_part::SegmentPart;
pub use staged::{InStages, StagedRequest, Ways};
pub use weights::expert_bytes;

/// Chooses a plan.
///
/// It is never predicted to be worse than the best plan on one device or the candidates.
///
/// # Errors
/// No plan can be made for the request, or the devices together cannot run the model.
pub fn solve(request: &SolveRequest<'_>) -> Result<Solved, PlanError> {
    search::Search::new(request).solve()
}
