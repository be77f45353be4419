//! Experts shared out over devices at run time: which graphs there are, and which row goes where. The README of the engine's scheduler has the whole picture.

mod cache;
mod divided;
mod grown;
mod memory;
mod rows;
mod steps;
#[cfg(test)]
mod tests;

pub use cache::{ExpertCache, ExpertSlots, GroupAt, Placed};
pub(crate) use divided::step_bytes;
pub use divided::{DividedExperts, graph_bytes};
pub use grown::{Growing, Grown, GrownTask, GrownWork, PackedView, SlotLoad, SlotOf};
pub use memory::{CachedGroup, ExpertBuffer, ExpertMemory, ExpertStep, PackedCols, PackedSet};
pub use rows::{
    ExpertCounts, ExpertRows, LEFT_OUT, LayerCounts, PackedRun, RoutedShape, expected_pairs,
    rows_to_fill,
};
pub use steps::{GroupGraph, PackedSize};
