//! Counting weights: by where they live and by what they are for.

use std::collections::BTreeMap;

use troika_graph::DType;

use crate::spec::Slot;

/// Bytes the store accounts for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Used straight from the memory-mapped file.
    pub mapped: u64,
    /// Copies made because the file's layout or type did not serve.
    pub owned: u64,
    /// Packed forms by layout.
    pub packed: BTreeMap<String, u64>,
}

/// Parameters and bytes of a class of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassBytes {
    /// `embedding`, `attention`, `feed-forward`, `experts`, `router`, `norms`, `head`.
    pub class: &'static str,
    /// Type in the store.
    pub dtype: DType,
    /// Parameters.
    pub parameters: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Whether a token visits only some of the weights of this kind.
pub(super) fn is_expert(slot: Slot) -> bool {
    use Slot::*;
    matches!(
        slot,
        ExpertGate | ExpertUp | ExpertDown | ExpertGateBias | ExpertUpBias | ExpertDownBias
    )
}

/// The class a weight is counted in.
pub(super) fn class_of(slot: Slot, rows: usize) -> &'static str {
    use Slot::*;
    match slot {
        Embed => "embedding",
        Head | HeadBias => "head",
        Router | RouterBias => "router",
        ExpertGate | ExpertUp | ExpertDown | ExpertGateBias | ExpertUpBias | ExpertDownBias
        | SharedGate | SharedUp | SharedDown | SharedOutGate => "experts",
        Gate | Up | Down | GateBias | UpBias | DownBias => "feed-forward",
        Q | K | V | O | QDown | QUp | KvDown | KRope | KAbsorb | VUp => "attention",
        _ if rows == 1 => "norms",
        _ => "attention",
    }
}
