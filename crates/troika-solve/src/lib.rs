//! The solver: finds the division of a model over devices that a cost model rates best. See the
//! README beside this file.

mod choice;
mod chunks;
mod cost;
mod fit;
mod options;
mod placements;
mod predict;
mod profile;
mod ranges;
mod request;
mod score;
mod search;
mod staged;
mod timed;
mod weights;

use std::sync::Arc;

use troika_model::lower::Lowered;
use troika_plan::{Plan, PlanDevice, PlanError};

pub use cost::{CostModel, PricedRun, QueueCosts};
pub use fit::{Fits, RunFit};
pub use predict::predict;
pub use profile::{
    CHUNK_ROWS, ChunkTime, DeviceSample, PROFILE_VERSION, PairSample, Profile, ProfileError,
    ProfileSubject, ProfiledCosts, ProfiledDevice, ProfiledGraph, Regret, RunSample, Slowdown,
    Spread, profiled_graphs,
};
pub use request::{Alternative, PredictRequest, SolveRequest, Solved};
pub use staged::{InStages, StagedRequest, Ways};

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
