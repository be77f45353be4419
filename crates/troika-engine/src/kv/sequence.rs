//! A sequence: its length, its pages, and the prefixes it consists of.

use troika_device::PageTable;

use super::layout::{GroupLayout, KvLayout};
use super::pages::{NodeId, PageGroup, Pages};

/// The most pages for which a sequence's table has memory from the start.
const RESERVED_PAGES: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Sequence {
    pub len: usize,
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
        Sequence { len: 0, tables, path: Vec::new() }
    }

    /// Whether all positions that `next` and later ones see are still there.
    pub fn sees(&self, pages: &Pages, next: usize) -> bool {
        pages.groups.iter().zip(&self.tables).all(|(g, t)| g.first_seen(next) >= t.first)
    }

    /// The page of a group that holds logical page `index`.
    pub fn page(&self, group: usize, index: usize) -> Option<u32> {
        let table = &self.tables[group];
        table.pages.get(index.checked_sub(table.first)?).copied()
    }

    /// Whether it could grow to `end` positions if all unused prefixes were evicted.
    pub fn can_grow(&self, pages: &Pages, end: usize) -> bool {
        let mut bytes = pages.used_bytes() - pages.kept_bytes();
        for (group, table) in pages.groups.iter().zip(&self.tables) {
            let passed = &table.pages[..self.passed(group, table)];
            let freed = passed.iter().filter(|&&p| group.sequences(p) == 1).count();
            let held = group.used() - group.kept() - freed;
            let missing = missing(table, end);
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
            to.pages.clone_from(&from.pages);
        }
    }
}

/// Number of pages that a table lacks for `end` positions.
pub(super) fn missing(table: &PageTable, end: usize) -> usize {
    end.div_ceil(table.page_len).saturating_sub(table.first + table.pages.len())
}
