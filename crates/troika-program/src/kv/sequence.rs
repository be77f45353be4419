//! A sequence: its length, its pages, and the prefixes it consists of.

use troika_device::{Checkpoint, PageTable};
use troika_graph::StateKind;

use super::layout::{GroupLayout, KvLayout};
use super::pages::{NodeId, PageGroup, Pages};

/// The most pages for which a sequence's table has memory from the start.
const RESERVED_PAGES: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Sequence {
    pub len: usize,
    /// Where the last rows that came together end: a chunk, or the prompt.
    pub border: usize,
    /// Page tables by group.
    pub tables: Vec<PageTable>,
    /// The nodes of its first whole pages, published or adopted. Those that the index has removed
    /// since are at the end.
    pub path: Vec<NodeId>,
}

impl Sequence {
    /// Makes an empty sequence whose tables grow without allocating.
    pub fn new(layout: &KvLayout) -> Sequence {
        let table = |g: &GroupLayout| {
            let pages = layout.reserved_pages(g.kind).min(RESERVED_PAGES);
            PageTable::new(g.kind, layout.page_len, Vec::with_capacity(pages))
        };
        let tables = layout.groups.iter().map(table).collect();
        Sequence { len: 0, border: 0, tables, path: Vec::new() }
    }

    /// Whether all that position `next` and later ones need is still there.
    pub fn sees(&self, pages: &Pages, next: usize) -> bool {
        let kept = |t: &PageTable| t.checkpoint.is_some_and(|c| c.at == next);
        pages.groups.iter().zip(&self.tables).all(|(g, t)| kept(t) || g.first_seen(next) >= t.first)
    }

    /// The last position up to `len` at which all states can be had. Fixed ones have the ends of
    /// pages and a checkpoint.
    pub fn reachable(&self, pages: &Pages, len: usize) -> usize {
        let fixed = pages.groups.iter().zip(&self.tables).find(|(g, _)| g.kind == StateKind::Fixed);
        fixed.map_or(len, |(group, table)| {
            let kept = table.checkpoint.filter(|c| c.at <= len).map_or(0, |c| c.at);
            kept.max(len / group.page_len * group.page_len)
        })
    }

    /// Whether a fixed state is kept as it is when `rows` follow within its page: behind a chunk or
    /// a prompt, and before rows that may be taken back.
    pub fn keeps_state(&self, group: &PageGroup, rows: usize) -> bool {
        let within = group.kind == StateKind::Fixed && !self.len.is_multiple_of(group.page_len);
        within && (rows > 1 || (rows == 1 && self.border == self.len))
    }

    /// The checkpoint that a table loses when `rows` follow.
    pub fn outdated(
        &self,
        group: &PageGroup,
        table: &PageTable,
        rows: usize,
    ) -> Option<Checkpoint> {
        let first = table.first + self.passed(group, table);
        let gone = |c: &Checkpoint| self.keeps_state(group, rows) || c.at / group.page_len < first;
        table.checkpoint.filter(gone)
    }

    /// The page of a group that holds logical page `index`.
    pub fn page(&self, group: usize, index: usize) -> Option<u32> {
        let table = &self.tables[group];
        table.pages.get(index.checked_sub(table.first)?).copied()
    }

    /// Whether it could grow by `rows` positions if all unused prefixes were evicted.
    pub fn can_grow(&self, pages: &Pages, rows: usize) -> bool {
        let mut bytes = pages.used_bytes() - pages.kept_bytes();
        for (group, table) in pages.groups.iter().zip(&self.tables) {
            let passed = &table.pages[..self.passed(group, table)];
            let passed = passed.iter().filter(|&&p| group.sequences(p) == 1).count();
            let freed = passed + usize::from(self.outdated(group, table, rows).is_some());
            let held = group.used() - group.kept - freed;
            let missing = self.missing(group, table, rows);
            if missing > group.total - held {
                return false;
            }
            bytes -= freed as u64 * group.page_bytes;
            bytes = bytes.saturating_add((missing as u64).saturating_mul(group.page_bytes));
        }
        bytes <= pages.budget
    }

    /// How many of a table's first pages no further position sees.
    pub fn passed(&self, group: &PageGroup, table: &PageTable) -> usize {
        group.first_seen(self.len).saturating_sub(table.first).min(table.pages.len())
    }

    /// Copies the page tables into a forward batch's memory.
    pub fn copy_tables(&self, to: &mut Vec<PageTable>) {
        to.resize_with(self.tables.len(), PageTable::default);
        for (to, from) in to.iter_mut().zip(&self.tables) {
            (to.page_len, to.first, to.fixed) = (from.page_len, from.first, from.fixed);
            to.checkpoint = from.checkpoint;
            to.pages.clone_from(&from.pages);
        }
    }

    /// Number of pages that a table lacks for `rows` more positions.
    pub fn missing(&self, group: &PageGroup, table: &PageTable, rows: usize) -> usize {
        let pages = (self.len + rows).div_ceil(table.page_len);
        let kept = usize::from(self.keeps_state(group, rows));
        pages.saturating_sub(table.first + table.pages.len()) + kept
    }

    /// Takes the pages that it lacks for `rows` more positions.
    pub fn grow(&mut self, pages: &mut Pages, rows: usize) {
        for (index, group) in pages.groups.iter_mut().enumerate() {
            let (at, keeps) = (self.len, self.keeps_state(group, rows));
            let missing = self.missing(group, &self.tables[index], rows);
            let table = &mut self.tables[index];
            table.pages.extend((0..missing).map_while(|_| group.take()));
            if keeps {
                // The rows that follow have the first new page.
                let last = at / group.page_len - table.first;
                let page = table.pages.remove(last);
                table.checkpoint = Some(Checkpoint { at, page });
            }
        }
        self.len += rows;
        if rows > 1 {
            self.border = self.len;
        }
    }
}
