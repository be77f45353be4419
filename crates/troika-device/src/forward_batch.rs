//! The rows that the engine computes at once, of one or several sequences.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::StateKind;

/// The pages of a sequence's cached positions in one page group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageTable {
    /// Positions per page (a power of two).
    pub page_len: usize,
    /// Logical index of the first page that is kept; a window drops older ones.
    pub first: usize,
    /// The physical page of logical page `first + i`.
    pub pages: Vec<u32>,
    /// Whether a page is one row of the buffer, the state behind its last position so far
    /// ([`StateKind::Fixed`]), and not one for each position.
    pub fixed: bool,
    /// The row of a fixed state that is kept although its page goes on.
    pub checkpoint: Option<Checkpoint>,
}

/// A fixed state as it was within a page. Later positions of the page have another row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// How many positions are in it.
    pub at: usize,
    /// The physical page that is its row.
    pub page: u32,
}

impl PageTable {
    /// The table of a sequence's first pages in a group of states of one kind.
    #[must_use]
    pub fn new(kind: StateKind, page_len: usize, pages: Vec<u32>) -> PageTable {
        let fixed = kind == StateKind::Fixed;
        PageTable { page_len, first: 0, pages, fixed, checkpoint: None }
    }

    /// Row of the cache buffer that holds `pos`; `None` if the position is not kept. Rows of a page
    /// are adjacent, or the same but for a checkpoint.
    pub fn row(&self, pos: usize) -> Option<usize> {
        let len = self.page_len;
        let logical = pos.checked_div(len)?.checked_sub(self.first)?;
        let page = *self.pages.get(logical)? as usize;
        if self.fixed {
            let kept = self.checkpoint.filter(|c| pos < c.at && c.at - pos <= len - pos % len);
            return Some(kept.map_or(page, |c| c.page as usize));
        }
        page.checked_mul(len)?.checked_add(pos % len)
    }
}

/// The rows of one sequence in a forward batch.
#[derive(Clone, Debug, Default)]
pub struct SeqRows {
    /// The sequence's number, equal in all forward batches in flight.
    pub seq: u64,
    /// Its rows in the forward batch.
    pub rows: Range<usize>,
    /// Position of the first row in its sequence.
    pub pos: usize,
    /// The known length of the sequence, which selects longrope's factors. In prefill it is the
    /// whole prompt, whatever the chunks.
    pub known_len: usize,
    /// One page table per page group.
    pub tables: Vec<PageTable>,
}

/// A sequence's cached positions in a state, as a forward batch uses them: it reads the earlier
/// positions and writes the positions of its own rows. Claims and dependencies of caches follow
/// from it.
#[derive(Clone, Copy, Debug)]
pub struct PagesView<'a> {
    /// The sequence and its rows.
    pub rows: &'a SeqRows,
    /// The page table of its positions.
    pub table: &'a PageTable,
}

impl<'a> PagesView<'a> {
    /// A sequence's positions in a page group; `None` if it has no table for the group.
    pub fn new(rows: &'a SeqRows, group: usize) -> Option<PagesView<'a>> {
        Some(PagesView { rows, table: rows.tables.get(group)? })
    }

    /// Calls `run` for each range of adjacent rows of the cache buffer, with whether they are
    /// written. Skips positions without a row.
    pub fn runs(&self, mut run: impl FnMut(Range<usize>, bool)) {
        let (pos, table) = (self.rows.pos, self.table);
        // The row that a fixed state goes on in is written.
        let goes_on = table.fixed && pos > 0 && table.row(pos - 1) == table.row(pos);
        let within = if goes_on { pos.checked_rem(table.page_len) } else { None };
        self.rows_of(0..pos - within.unwrap_or(0), |rows| run(rows, false));
        self.rows_of(pos..pos.saturating_add(self.rows.rows.len()), |rows| run(rows, true));
    }

    /// Calls `run` for each range of adjacent rows of the cache buffer that hold some positions.
    /// Skips positions that are not kept or have no row.
    pub fn rows_of(&self, positions: Range<usize>, mut run: impl FnMut(Range<usize>)) {
        let len = self.table.page_len;
        let mut at = positions.start.max(self.table.first.saturating_mul(len));
        let mut open: Option<Range<usize>> = None;
        while at < positions.end {
            let Some(row) = self.table.row(at) else { break };
            // Rows of a page are adjacent; those of a fixed state are the same up to a checkpoint.
            let page_ends = (len - at % len).min(positions.end - at);
            let kept = self.table.checkpoint.and_then(|c| c.at.checked_sub(at));
            let n = kept.filter(|n| *n > 0).map_or(page_ends, |n| n.min(page_ends));
            let count = if self.table.fixed { 1 } else { n };
            match &mut open {
                Some(o) if o.end == row => o.end = row.saturating_add(count),
                _ => open.replace(row..row.saturating_add(count)).into_iter().for_each(&mut run),
            }
            at += n;
        }
        open.into_iter().for_each(run);
    }
}

/// The rows of a forward batch. A single sequence is a list of length one.
#[derive(Clone, Debug, Default)]
pub struct ForwardBatch {
    /// Sequences in row order, without gaps.
    pub seqs: Vec<SeqRows>,
}

impl ForwardBatch {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.seqs.last().map_or(0, |s| s.rows.end)
    }

    /// A part of the rows, renumbered from 0. Rows before them count as cached.
    pub fn slice(self: &Arc<ForwardBatch>, rows: &Range<usize>) -> Arc<ForwardBatch> {
        if *rows == (0..self.rows()) {
            return self.clone();
        }
        let part = |s: &SeqRows| {
            let (start, end) = (s.rows.start.max(rows.start), s.rows.end.min(rows.end));
            let pos = s.pos + start.checked_sub(s.rows.start)?;
            let rows = start.checked_sub(rows.start)?..end.checked_sub(rows.start)?;
            (!rows.is_empty()).then(|| SeqRows { rows, pos, ..s.clone() })
        };
        Arc::new(ForwardBatch { seqs: self.seqs.iter().filter_map(part).collect() })
    }

    /// Whether the sequences' rows are contiguous from row 0, and all positions fit the ops' 32
    /// bits.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use troika_graph::StateKind;

    use super::{Checkpoint, ForwardBatch, PageTable, PagesView, SeqRows};

    /// A checkpoint in row 9, or none at 0.
    fn checkpoint_at(at: usize) -> Option<Checkpoint> {
        (at > 0).then_some(Checkpoint { at, page: 9 })
    }

    #[test]
    fn whole_steps_have_no_gaps_and_positions_of_32_bits() {
        let seq = |rows, pos| SeqRows { seq: 0, rows, pos, known_len: 0, tables: vec![] };
        let whole = |seqs| ForwardBatch { seqs }.is_whole();
        assert!(whole(vec![]) && whole(vec![seq(0..2, 5), seq(2..2, 0), seq(2..3, 0)]));
        assert!(!whole(vec![seq(1..2, 0)]) && !whole(vec![seq(0..2, 0), seq(1..3, 0)]));
        let backwards = seq(0..2, 0).rows.end..0;
        assert!(!whole(vec![seq(0..2, 0), seq(backwards, 0)]));
        let last = i32::MAX as usize;
        assert!(whole(vec![seq(0..1, last - 1)]) && !whole(vec![seq(0..1, last)]));
        assert!(!whole(vec![seq(0..1, usize::MAX)]));
    }

    #[test]
    fn slices_go_on_where_the_rows_before_them_end() {
        let seq = |seq, rows, pos| SeqRows { seq, rows, pos, known_len: 90, tables: vec![] };
        let seqs = vec![seq(4, 0..5, 10), seq(2, 5..6, 0), seq(9, 6..9, 7)];
        let all = Arc::new(ForwardBatch { seqs });
        let of = |rows| {
            let part = all.slice(&rows);
            assert!(part.is_whole() && part.rows() == rows.len());
            part.seqs.iter().map(|s| (s.seq, s.rows.clone(), s.pos)).collect::<Vec<_>>()
        };
        assert_eq!(of(0..9), [(4, 0..5, 10), (2, 5..6, 0), (9, 6..9, 7)]);
        assert_eq!(of(0..3), [(4, 0..3, 10)]);
        assert_eq!(of(3..6), [(4, 0..2, 13), (2, 2..3, 0)]);
        assert_eq!(of(7..9), [(9, 0..2, 8)]);
    }

    #[test]
    fn rows_that_no_cache_has_are_none() {
        let pages = vec![7, 2];
        let paged = |page_len| PageTable::new(StateKind::Paged(None), page_len, pages.clone());
        let table = PageTable { first: 1, ..paged(4) };
        let rows = [3, 4, 7, 8, 11, 12, usize::MAX].map(|pos| table.row(pos));
        assert_eq!(rows, [None, Some(28), Some(31), Some(8), Some(11), None, None]);
        // Products and sums that overflow, and pages without positions.
        let wide = paged(usize::MAX / 7 + 1);
        assert_eq!((wide.row(0), wide.row(5)), (None, None));
        assert_eq!(paged(usize::MAX / 7).row(usize::MAX / 7 - 1), None);
        assert_eq!(paged(0).row(3), None);
    }

    #[test]
    fn a_fixed_state_has_one_row_in_a_page_and_one_behind_its_checkpoint() {
        let fixed = |pages: &[u32]| PageTable::new(StateKind::Fixed, 4, pages.to_vec());
        let runs = |first, pages: &[u32], checkpoint, pos, n: usize| {
            let checkpoint = checkpoint_at(checkpoint);
            let table = PageTable { first, checkpoint, ..fixed(pages) };
            let rows = SeqRows { seq: 0, rows: 3..3 + n, pos, known_len: 0, tables: vec![table] };
            let mut runs = Vec::new();
            PagesView::new(&rows, 0).unwrap().runs(|r, written| runs.push((r, written)));
            runs
        };
        // It goes on within a page, whose row is written, or behind one, which is read.
        assert_eq!(runs(0, &[5, 6, 2], 0, 6, 3), [(5..6, false), (6..7, true), (2..3, true)]);
        assert_eq!(runs(1, &[6, 2], 0, 8, 1), [(6..7, false), (2..3, true)]);
        assert_eq!(runs(0, &[5, 6], 0, 0, 8), [(5..7, true)]);
        // Behind a checkpoint, whose row is read. Later, its page goes on in the other row.
        let begins = [(5..6, false), (9..10, false), (6..7, true), (2..3, true)];
        assert_eq!(runs(0, &[5, 6, 2], 6, 6, 3), begins);
        assert_eq!(runs(0, &[5, 6], 6, 7, 1), [(5..6, false), (6..7, true)]);
        assert_eq!(
            runs(0, &[5, 6, 2], 6, 8, 1),
            [(5..6, false), (9..10, false), (6..7, false), (2..3, true)]
        );
        let table = PageTable { first: 1, ..fixed(&[7, 2]) };
        assert_eq!([3, 4, 7, 8, 12].map(|p| table.row(p)), [None, Some(7), Some(7), Some(2), None]);
        let table = PageTable { checkpoint: checkpoint_at(10), ..table };
        assert_eq!([4, 7, 8, 9, 10].map(|p| table.row(p).unwrap()), [7, 7, 9, 9, 2]);
    }

    #[test]
    fn a_step_reads_what_is_kept_and_writes_its_own_rows() {
        let runs = |first, pages: &[u32], pos, n: usize| {
            let paged = PageTable::new(StateKind::Paged(None), 4, pages.to_vec());
            let table = PageTable { first, ..paged };
            let rows = SeqRows { seq: 0, rows: 3..3 + n, pos, known_len: 0, tables: vec![table] };
            let mut runs = Vec::new();
            PagesView::new(&rows, 0).unwrap().runs(|r, written| runs.push((r, written)));
            assert!(PagesView::new(&rows, 1).is_none());
            runs
        };
        assert_eq!(runs(0, &[5, 6, 2], 6, 3), [(20..26, false), (26..28, true), (8..9, true)]);
        assert_eq!(runs(0, &[5, 7], 0, 5), [(20..24, true), (28..29, true)]);
        assert_eq!(runs(2, &[1, 0], 12, 2), [(4..8, false), (0..2, true)]);
        assert_eq!(runs(0, &[1], 3, 4), [(4..7, false), (7..8, true)], "positions without pages");
        assert_eq!(runs(3, &[1], 3, 4), []);
        assert_eq!(runs(0, &[1], usize::MAX, 4), [(4..8, false)]);
        let no_pages = PageTable::default();
        let rows = SeqRows { seq: 0, rows: 0..2, pos: 3, known_len: 0, tables: vec![no_pages] };
        PagesView::new(&rows, 0).unwrap().runs(|r, _| panic!("{r:?}"));
    }
}
