//! What runs where: a plan applied to a lowered model, as data.
//!
//! A lowered model, a plan and the limits of devices give a [`Program`]: the pieces of each
//! segment, with the device that computes each of them. The shape of a forward batch then gives
//! tasks by name ([`Program::tasks`]): runs of pieces and copies between memory spaces, on views of
//! named buffers. The engine binds the names to memory. Nothing here takes memory of a device, runs or waits.

mod buffer_view;
mod copies;
mod error;
mod experts;
mod graphs;
mod handover;
pub mod kv;
mod name_experts;
mod pieces;
mod place;
mod place_experts;
mod placed;
mod program;
mod residency;
pub mod schedule;
mod shapes;
mod slots;
mod tasks;
mod used_shares;
mod window;

pub use buffer_view::BufferView;
pub use copies::{CopyCount, PhaseCopies, copies};
pub use error::ProgramError;
pub use experts::{
    CachedGroup, DividedExperts, ExpertBuffer, ExpertCache, ExpertCounts, ExpertMemory, ExpertRows,
    ExpertSlots, ExpertStep, GroupAt, GroupGraph, Growing, Grown, GrownTask, GrownWork, LEFT_OUT,
    LayerCounts, PackedCols, PackedRun, PackedSet, PackedSize, PackedView, Placed, RoutedShape,
    SlotLoad, SlotOf, expected_pairs, graph_bytes, rows_to_fill,
};
pub use graphs::{GraphList, ListedGraph};
pub use handover::Handover;
pub use place::Placer;
pub use placed::{
    Between, Operand, PlacedExperts, PlacedPiece, PlacedSegment, RowsOf, RowsRun, SegmentValue,
    StateOperand,
};
pub use program::Program;
pub use residency::{Area, Instance};
pub use shapes::{EdgeTypes, shapes};
pub use slots::{ELEMENT, SlotMemory, Slots};
pub use tasks::{
    BatchShape, BufferName, NamedCopy, NamedHost, NamedRun, NamedTask, NamedView, NamedWork,
    StatePart, Task,
};
pub use used_shares::UsedShares;
pub use window::chunks_of_window;
