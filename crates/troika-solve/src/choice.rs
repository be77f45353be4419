//! What the search chooses: a placement of each kind of segment, for each chunk length and for
//! decode.

use troika_model::lower::SegmentKind;

use super::options::Placement;
use troika_plan::{Phase, Split, Stage};

/// Where each kind of segment runs.
pub(super) type Placed = Vec<(SegmentKind, Placement)>;

/// Chunks of some lengths, or decode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scope {
    pub phase: Phase,
    /// The lengths that represent the scope.
    pub rows: [usize; 2],
    /// Positions cached before.
    pub cached: usize,
}

/// Placements for all scopes.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// By length bucket, with its longest chunk; the last is for full chunks.
    pub prefill: Vec<(usize, Placed)>,
    pub decode: Placed,
}

impl Choice {
    /// The placement of a prefill bucket by index, or of decode (`None`).
    pub fn get(&self, which: Option<usize>) -> &Placed {
        which.and_then(|i| self.prefill.get(i)).map_or(&self.decode, |p| &p.1)
    }

    /// Places what keeps a state in all buckets as in one of them, since prompts share it.
    pub fn share_states(&mut self, of: usize) {
        let placed = self.prefill[of].1.clone();
        for (kind, at) in placed.iter().filter(|p| p.0.traits().keeps_state) {
            for p in self.prefill.iter_mut().flat_map(|(_, p)| p).filter(|p| p.0 == *kind) {
                p.1.clone_from(at);
            }
        }
    }

    pub fn set(&mut self, which: Option<usize>, placed: Placed) {
        match which {
            None => self.decode = placed,
            Some(i) => self.prefill[i].1 = placed,
        }
    }
}

/// A placement adapted to a single row.
pub(super) fn one_row(p: &Placement) -> Placement {
    let row_buckets = p.row_buckets.as_ref().map(|_| vec![1]);
    let placed = match &p.split {
        Some(Split::Columns { .. } | Split::Residual { .. }) | None => p.clone(),
        Some(Split::Rows { rest, .. }) => Placement::whole(rest),
        Some(Split::Hybrid { .. } | Split::Experts(_)) => Placement::whole(&p.device),
        Some(Split::Stages { stages }) => {
            let one = |s: &Stage| {
                let Placement { device, split, .. } = one_row(&Placement::of(s));
                Stage { device, split }
            };
            staged(stages.iter().map(one).collect())
        }
    };
    Placement { row_buckets, ..placed }
}

/// A placement by stages; simplified if all stages are whole on one device.
pub(super) fn staged(mut stages: Vec<Stage>) -> Placement {
    let first = stages[0].clone();
    if stages.len() == 1 || (first.split.is_none() && stages.iter().all(|s| *s == first)) {
        return Placement::of(&stages.swap_remove(0));
    }
    Placement::split(&first.device, Split::Stages { stages })
}

/// Placements adapted to single rows.
pub(super) fn for_decode(placed: &Placed) -> Placed {
    placed.iter().map(|(k, p)| (*k, one_row(p))).collect()
}

/// A scope whose best placement is sought.
#[derive(Clone, Copy)]
pub(super) struct Sought<'a> {
    pub scope: Scope,
    /// The prefill bucket by index, or decode (`None`).
    pub which: Option<usize>,
    /// The placements found so far.
    pub choice: &'a Choice,
    /// The scopes that they were found for.
    pub done: &'a [Option<usize>],
    /// Whether the request names the scope: then more is tried, and remembered.
    pub asked: bool,
}

impl Sought<'_> {
    /// Whether a kind of segment stays where it is: with its state of prefill.
    pub fn keeps(&self, kind: SegmentKind) -> bool {
        kind.traits().keeps_state
            && self.scope.phase == Phase::Prefill
            && self.done.iter().flatten().count() > 0
    }
}
