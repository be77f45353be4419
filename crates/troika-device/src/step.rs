//! What the engine runs at once: rows that may belong to several sequences.

use std::ops::Range;

/// Where a sequence's cached positions lie, for one group of layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTable {
    /// Positions per page (a power of two).
    pub page_len: usize,
    /// Logical index of the first page still kept (a window drops older ones).
    pub first: usize,
    /// Physical page of logical page `first + i`.
    pub pages: Vec<u32>,
}

impl PageTable {
    /// Row of the cache buffer that holds `pos`; `None` when the position is not kept.
    pub fn row(&self, pos: usize) -> Option<usize> {
        let logical = (pos / self.page_len).checked_sub(self.first)?;
        let page = *self.pages.get(logical)? as usize;
        Some(page * self.page_len + pos % self.page_len)
    }
}

/// The rows of one sequence in a step.
#[derive(Clone, Debug)]
pub struct SeqRows {
    /// Rows of the step.
    pub rows: Range<usize>,
    /// Position of the first row in its sequence.
    pub pos: usize,
    /// Known length of the sequence (chooses longrope's factors): the whole prompt during
    /// prefill, however it is cut into chunks.
    pub known_len: usize,
    /// A page table per group of layers.
    pub tables: Vec<PageTable>,
}

/// The rows of a step. One sequence is the list of length one.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Sequences, in row order, without gaps.
    pub seqs: Vec<SeqRows>,
}

impl Step {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.seqs.last().map_or(0, |s| s.rows.end)
    }
}
