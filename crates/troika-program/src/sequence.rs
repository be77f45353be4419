//! The only sequence of a cache, for those who look at a plan without running it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::{StateKind, Window};

use crate::program::Program;

/// A sequence that grows alone, with the pages that the engine's cache would give it.
#[derive(Debug)]
pub struct OneSequence {
    len: usize,
    groups: Vec<WindowPages>,
}

/// The pages of layers with one window.
#[derive(Debug)]
struct WindowPages {
    window: Window,
    table: PageTable,
    /// Returned pages; the one with the lowest number is used next.
    free: BinaryHeap<Reverse<u32>>,
    /// Number of pages that were ever used.
    used: u32,
}

impl OneSequence {
    /// A sequence without positions.
    pub fn new(program: &Program, page_len: usize) -> OneSequence {
        let page_len = page_len.max(1);
        let group = |kind: &StateKind| {
            let table = PageTable::new(*kind, page_len, Vec::new());
            WindowPages { window: kind.window(page_len), table, free: BinaryHeap::new(), used: 0 }
        };
        OneSequence { len: 0, groups: program.lowered.page_groups.iter().map(group).collect() }
    }

    /// Number of positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A forward batch of the next rows.
    pub fn extend(&mut self, rows: usize) -> Arc<ForwardBatch> {
        let (pos, end) = (self.len, self.len + rows);
        let tables = self.groups.iter_mut().map(|group| group.extend(pos, end)).collect();
        self.len = end;
        let seq = SeqRows { seq: 0, rows: 0..rows, pos, known_len: end, tables };
        Arc::new(ForwardBatch { seqs: vec![seq] })
    }
}

impl WindowPages {
    fn extend(&mut self, pos: usize, end: usize) -> PageTable {
        let WindowPages { window, table, free, used } = self;
        // Pages that no row sees any more are given back.
        let seen = window.map_or(0, |w| (pos + 1).saturating_sub(w)) / table.page_len;
        let passed = seen.saturating_sub(table.first).min(table.pages.len());
        table.first += passed;
        free.extend(table.pages.drain(..passed).map(Reverse));
        while (table.first + table.pages.len()) * table.page_len < end {
            table.pages.push(free.pop().map_or_else(
                || {
                    *used += 1;
                    *used - 1
                },
                |page| page.0,
            ));
        }
        table.clone()
    }
}
