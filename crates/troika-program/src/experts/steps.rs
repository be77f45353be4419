//! Graphs of experts, and the sizes of packed rows.

use std::sync::Arc;

use troika_device::SpaceId;

use super::memory::{ExpertBuffer, PackedCols};

/// The graph of a group, of a part of one, or of all experts.
#[derive(Clone, Debug)]
pub struct GroupGraph {
    /// Index in the program's list of graphs.
    pub graph: usize,
    /// Index of the device.
    pub device: usize,
    /// The memory that the device uses.
    pub space: SpaceId,
    /// The name of its runs.
    pub name: Arc<str>,
    /// What it reads: whole rows. Of several buffers the first one has the rows themselves.
    pub reads: Vec<ExpertBuffer>,
    /// What it writes.
    pub writes: PackedCols,
    /// The number of its part, if it writes these columns to rows of their own, from where they are
    /// copied.
    pub apart: Option<usize>,
}

impl GroupGraph {
    /// The buffers that its runs and their copies use.
    pub(crate) fn buffers(&self) -> Vec<(SpaceId, ExpertBuffer)> {
        let own = self.apart.map_or(self.writes.buffer, ExpertBuffer::Part);
        let on_host = self.reads.iter().copied().chain([self.writes.buffer]);
        let there = self.reads.iter().copied().chain([own]).map(|buffer| (self.space, buffer));
        on_host.map(|buffer| (SpaceId::HOST, buffer)).chain(there).collect()
    }
}

/// The size of the packed buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedSize {
    /// Rows, where each chunk has buffers of its own.
    pub of_chunk: usize,
    /// Rows, where the chunks of a window share them.
    pub of_window: usize,
    /// Columns.
    pub cols: usize,
    /// Columns between up and down, where experts' products are divided.
    pub inner: usize,
}

impl PackedSize {
    /// Bytes of a row of a buffer.
    pub fn row_bytes(&self, buffer: ExpertBuffer) -> usize {
        /// Bytes of the buffers that hold nothing.
        const MARK: usize = 64;
        match buffer {
            ExpertBuffer::Input | ExpertBuffer::Output => self.cols * 4,
            ExpertBuffer::Inner => self.inner * 4,
            ExpertBuffer::Part(_) => self.cols.max(self.inner) * 4,
            ExpertBuffer::Ids | ExpertBuffer::Ones => 4,
            ExpertBuffer::Order | ExpertBuffer::Routed | ExpertBuffer::Cache(_) => MARK,
        }
    }
}
