//! Whether every share of a plan's splits by columns is large enough to be something.

use troika_graph::Subgraph;
use troika_plan::{Plan, PlanDevice, Rule, Split, TILE};

use crate::error::ProgramError;
use crate::placed::PlacedSegment;

/// The devices that have columns of the segments that a plan splits.
pub struct UsedShares<'a> {
    plan: &'a Plan,
    devices: &'a [PlanDevice],
    used: Vec<bool>,
    /// Rows of the widest product that is split.
    widest: usize,
}

impl<'a> UsedShares<'a> {
    /// Begins with a plan on these devices, no segment seen.
    pub fn new(plan: &'a Plan, devices: &'a [PlanDevice]) -> UsedShares<'a> {
        UsedShares { plan, devices, used: vec![false; devices.len()], widest: 0 }
    }

    /// Notes which devices have a part of a segment's graph, as a rule of the plan places it.
    pub fn see(&mut self, rule: &Rule, placed: &PlacedSegment, graph: &Subgraph) {
        if rule.split.as_ref().is_none_or(|split| split.parts().is_empty()) {
            return;
        }
        placed.pieces().for_each(|piece| self.used[piece.device] = true);
        self.widest = graph.weights.iter().map(|w| w.rows).fold(self.widest, usize::max);
    }

    /// Checks that each device of a split by columns has some, unless it refuses ops.
    ///
    /// # Errors
    /// [`ProgramError::NothingLeft`].
    pub fn check(self) -> Result<(), ProgramError> {
        let rules = || self.plan.all_rules();
        for share in rules().filter_map(|r| r.split.as_ref()).flat_map(Split::parts) {
            let at = self.devices.iter().position(|d| d.name == share.device);
            let refuses = rules().flat_map(|r| &r.refused).any(|r| r.device == share.device);
            if !refuses && !at.is_some_and(|at| self.used[at]) {
                return Err(nothing_left(&share.device, self.widest));
            }
        }
        Ok(())
    }
}

/// The error of a device without columns, by the rows of the widest product that is split.
pub(crate) fn nothing_left(device: &str, widest: usize) -> ProgramError {
    // Shares are rounded to tiles of the widest product: half of one is enough.
    let least = (500 / (widest / TILE).max(2) + 1) as f64 / 1e3;
    ProgramError::NothingLeft { device: device.into(), least, most: 1.0 - least }
}
