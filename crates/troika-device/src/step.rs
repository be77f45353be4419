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
    /// Row of the cache buffer that holds `pos`; `None` when the position is not kept. The rows of
    /// a page are neighbours, whatever the table holds.
    pub fn row(&self, pos: usize) -> Option<usize> {
        let logical = pos.checked_div(self.page_len)?.checked_sub(self.first)?;
        let page = *self.pages.get(logical)? as usize;
        page.checked_mul(self.page_len)?.checked_add(pos % self.page_len)
    }
}

#[cfg(test)]
mod tests {
    use super::{PageTable, SeqRows, Step};

    #[test]
    fn whole_steps_have_no_gaps_and_positions_of_32_bits() {
        let seq = |rows, pos| SeqRows { rows, pos, known_len: 0, tables: vec![] };
        let whole = |seqs| Step { seqs }.is_whole();
        assert!(whole(vec![]) && whole(vec![seq(0..2, 5), seq(2..2, 0), seq(2..3, 0)]));
        assert!(!whole(vec![seq(1..2, 0)]) && !whole(vec![seq(0..2, 0), seq(1..3, 0)]));
        let backwards = seq(0..2, 0).rows.end..0;
        assert!(!whole(vec![seq(0..2, 0), seq(backwards, 0)]));
        let last = i32::MAX as usize;
        assert!(whole(vec![seq(0..1, last - 1)]) && !whole(vec![seq(0..1, last)]));
        assert!(!whole(vec![seq(0..1, usize::MAX)]));
    }

    #[test]
    fn rows_that_no_cache_has_are_none() {
        let pages = vec![7, 2];
        let table = PageTable { page_len: 4, first: 1, pages: pages.clone() };
        let rows = [3, 4, 7, 8, 11, 12, usize::MAX].map(|pos| table.row(pos));
        assert_eq!(rows, [None, Some(28), Some(31), Some(8), Some(11), None, None]);
        // Products and sums that overflow, and pages of no positions.
        let wide = PageTable { page_len: usize::MAX / 7 + 1, first: 0, pages: pages.clone() };
        assert_eq!((wide.row(0), wide.row(5)), (None, None));
        let wide = PageTable { page_len: usize::MAX / 7, ..wide };
        assert_eq!(wide.row(usize::MAX / 7 - 1), None);
        assert_eq!(PageTable { page_len: 0, first: 0, pages }.row(3), None);
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

    /// Whether the rows of the sequences follow each other from row 0 on, and all positions fit
    /// the 32 bits in which ops are given them.
    pub fn is_whole(&self) -> bool {
        let mut next = 0;
        self.seqs.iter().all(|s| {
            let follows = s.rows.start == next && s.rows.end >= next;
            next = s.rows.end;
            let end = s.pos.checked_add(s.rows.len());
            follows && end.is_some_and(|end| end <= i32::MAX as usize)
        })
    }
}
