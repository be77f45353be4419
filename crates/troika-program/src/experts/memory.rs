//! The names of packed buffers, and of the steps on them.

use std::ops::Range;

use troika_device::SpaceId;

/// The steps that a chunk takes through divided experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertStep {
    /// Gives each pair of a row and an expert a row of the packed buffers, and copies it there.
    Route,
    /// Runs what is full, or all with the last chunk: these tasks become known by it.
    Dispatch,
    /// Adds the results of each row's experts, in the order in which it chose them.
    Combine,
}

/// Who fills a set of packed buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PackedSet {
    /// The chunks with this set of values, each for itself.
    Chunk(usize),
    /// The chunks of the window with this number, together.
    Window(usize),
}

/// A buffer of the packed rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExpertMemory {
    /// The set of buffers it belongs to.
    pub set: PackedSet,
    /// Its memory space.
    pub space: SpaceId,
    /// What it holds.
    pub buffer: ExpertBuffer,
}

/// What a buffer of packed rows holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertBuffer {
    /// Rows that go into experts.
    Input,
    /// The expert of each row outside groups.
    Ids,
    /// A weight of 1 for each row.
    Ones,
    /// Rows within experts whose products are divided, from up to down.
    Inner,
    /// Rows that come out of experts.
    Output,
    /// Columns of rows that a part of a divided expert wrote, by its number, and that are copied where
    /// they belong.
    Part(usize),
    /// Nothing: chunks are routed in their order by it.
    Order,
    /// Nothing: what was routed is dispatched by it.
    Routed,
    /// Nothing: who shares a cache of experts, by its index, is dispatched in order by it.
    Cache(usize),
}

/// Columns of packed rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackedCols {
    /// The buffer.
    pub buffer: ExpertBuffer,
    /// The columns.
    pub cols: Range<usize>,
}

/// A group in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CachedGroup {
    /// Index of the cache.
    pub cache: usize,
    /// Its number there.
    pub group: u32,
}
