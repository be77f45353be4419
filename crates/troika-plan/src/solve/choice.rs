//! What the search decides: a placement of each kind of segment, for chunks of each length and for
//! decoding.

use troika_model::lower::SegmentKind;

use super::options::Placement;
use crate::{Phase, Split, Stage};

/// Where each kind of segment runs.
pub(super) type Placed = Vec<(SegmentKind, Placement)>;

/// Chunks of some lengths, or decoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scope {
    pub phase: Phase,
    /// The lengths that stand for all of it.
    pub rows: [usize; 2],
    /// What is cached before.
    pub cached: usize,
}

/// Placements for all scopes.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Of length buckets, by their most rows; the last is that of full chunks.
    pub prefill: Vec<(usize, Placed)>,
    pub decode: Placed,
}

impl Choice {
    /// The placement of a bucket of prefill by its number, or of decoding.
    pub fn get(&self, which: Option<usize>) -> &Placed {
        which.and_then(|i| self.prefill.get(i)).map_or(&self.decode, |p| &p.1)
    }

    /// All prompts keep the cache in the same place: where those of one scope do.
    pub fn share_attention(&mut self, of: usize) {
        let is = |p: &&mut (SegmentKind, Placement)| p.0 == SegmentKind::Attention;
        let Some(at) = self.prefill[of].1.iter_mut().find(is).map(|p| p.1.clone()) else { return };
        for p in self.prefill.iter_mut().flat_map(|(_, p)| p).filter(is) {
            p.1.clone_from(&at);
        }
    }

    pub fn set(&mut self, which: Option<usize>, placed: Placed) {
        match which {
            None => self.decode = placed,
            Some(i) => self.prefill[i].1 = placed,
        }
    }
}

/// A placement of a single row.
pub(super) fn one_row(p: &Placement) -> Placement {
    let row_buckets = p.row_buckets.as_ref().map(|_| vec![1]);
    let placed = match &p.split {
        Some(Split::Columns { .. }) | None => p.clone(),
        Some(Split::Rows { rest, .. }) => Placement::whole(rest),
        Some(Split::Hybrid { .. }) => Placement::whole(&p.device),
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

/// Stages, of which the rule's device computes some; as one where all are whole on one device.
pub(super) fn staged(mut stages: Vec<Stage>) -> Placement {
    let first = stages[0].clone();
    if stages.len() == 1 || (first.split.is_none() && stages.iter().all(|s| *s == first)) {
        return Placement::of(&stages.swap_remove(0));
    }
    let split = Some(Split::Stages { stages });
    Placement { device: first.device, split, row_buckets: None }
}

/// Placements of single rows.
pub(super) fn for_decode(placed: &Placed) -> Placed {
    placed.iter().map(|(k, p)| (*k, one_row(p))).collect()
}
