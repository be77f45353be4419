//! The KV cache: pages of positions, owned by the engine and by no device.
//!
//! Layers of one sliding window form a page group and share page tables. A group keeps only the
//! pages its window can still see, so a windowed layer costs memory for window + chunk positions
//! however long the sequence grows.

use troika_device::PageTable;
use troika_graph::Window;

/// A sequence in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeqId(usize);

impl SeqId {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// Why the cache refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The sequence would grow past the context.
    #[error(
        "{tokens} tokens do not fit the context of {context}; shorten the prompt or use a larger context"
    )]
    Context {
        /// Length wanted.
        tokens: usize,
        /// Length allowed.
        context: usize,
    },
    /// More pages than can be managed.
    #[error(
        "no KV cache can hold {sequences} sequences of {context} tokens; use a smaller context"
    )]
    Pages {
        /// Sequences wanted.
        sequences: usize,
        /// Length of each.
        context: usize,
    },
    /// All pages are taken by other sequences.
    #[error("the KV cache is full: no free page for another {0} positions")]
    Full(usize),
    /// The sequence was closed.
    #[error("the sequence is not open")]
    Closed,
}

#[derive(Debug)]
struct PageGroup {
    window: Window,
    /// Pages that were given back, to be used again before others are begun.
    free: Vec<u32>,
    /// Pages that were ever given out. A list of all would be long for a context that is never
    /// filled.
    begun: usize,
    total: usize,
}

impl PageGroup {
    fn available(&self) -> usize {
        self.free.len() + self.total - self.begun
    }

    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.begun += 1;
            (self.begun - 1) as u32
        })
    }
}

#[derive(Debug, Clone, Default)]
struct Sequence {
    len: usize,
    tables: Vec<PageTable>,
}

/// Page bookkeeping; the bytes themselves are buffers of the engine.
#[derive(Debug)]
pub(crate) struct KvCache {
    page_len: usize,
    context: usize,
    page_groups: Vec<PageGroup>,
    seqs: Vec<Option<Sequence>>,
}

impl KvCache {
    /// A cache for `sequences` sequences of up to `context` positions, fed in forward batches of at
    /// most `chunk` rows.
    ///
    /// # Errors
    /// More pages than their numbers can count.
    pub fn new(
        windows: &[Window],
        page_len: usize,
        context: usize,
        chunk: usize,
        sequences: usize,
    ) -> Result<KvCache, KvError> {
        let pages = |window: &Window| {
            let keep = window.map_or(context, |w| context.min(w.saturating_add(chunk)));
            // A window rarely starts on a page boundary: one page more at each end.
            let each = (keep.div_ceil(page_len) + 2).min(context.div_ceil(page_len));
            each.checked_mul(sequences).filter(|&n| u32::try_from(n).is_ok())
        };
        let group = |window: &Window| {
            let total = pages(window).ok_or(KvError::Pages { context, sequences })?;
            Ok(PageGroup { window: *window, free: Vec::new(), begun: 0, total })
        };
        let page_groups = windows.iter().map(group).collect::<Result<_, _>>()?;
        Ok(KvCache { page_len, context, page_groups, seqs: Vec::new() })
    }

    /// Cached positions a group's buffers must hold; `None` for more than can be counted.
    pub fn positions(&self, group: usize) -> Option<usize> {
        self.page_groups[group].total.checked_mul(self.page_len)
    }

    /// Positions of a group in pages that sequences have.
    pub fn used(&self, group: usize) -> usize {
        let group = &self.page_groups[group];
        (group.begun - group.free.len()) * self.page_len
    }

    /// Opens an empty sequence.
    pub fn open(&mut self) -> SeqId {
        let empty = PageTable { page_len: self.page_len, first: 0, pages: Vec::new() };
        let seq = Sequence { len: 0, tables: vec![empty; self.page_groups.len()] };
        match self.seqs.iter().position(Option::is_none) {
            Some(i) => {
                self.seqs[i] = Some(seq);
                SeqId(i)
            }
            None => {
                self.seqs.push(Some(seq));
                SeqId(self.seqs.len() - 1)
            }
        }
    }

    /// Closes a sequence and frees its pages.
    pub fn close(&mut self, id: SeqId) {
        if let Some(seq) = self.seqs.get_mut(id.0).and_then(Option::take) {
            for (group, table) in self.page_groups.iter_mut().zip(seq.tables) {
                group.free.extend(table.pages);
            }
        }
    }

    /// Positions cached.
    pub fn len(&self, id: SeqId) -> usize {
        self.seqs.get(id.0).and_then(Option::as_ref).map_or(0, |s| s.len)
    }

    /// Whether a sequence can grow by `rows` within the context.
    pub fn fits(&self, id: SeqId, rows: usize) -> Result<(), KvError> {
        let seq = self.seqs.get(id.0).and_then(Option::as_ref).ok_or(KvError::Closed)?;
        let tokens = seq.len + rows;
        if tokens > self.context {
            return Err(KvError::Context { tokens, context: self.context });
        }
        Ok(())
    }

    /// Makes room for `rows` positions after the cached ones and drops pages no window sees any
    /// more. Returns the page tables the forward batch needs.
    pub fn extend(&mut self, id: SeqId, rows: usize) -> Result<Vec<PageTable>, KvError> {
        let seq = self.seqs.get_mut(id.0).and_then(Option::as_mut).ok_or(KvError::Closed)?;
        let end = seq.len + rows;
        if end > self.context {
            return Err(KvError::Context { tokens: end, context: self.context });
        }
        for (group, table) in self.page_groups.iter_mut().zip(&mut seq.tables) {
            drop_unseen(group, table, seq.len);
            let have = table.first + table.pages.len();
            let need = end.div_ceil(self.page_len).saturating_sub(have);
            if need > group.available() {
                return Err(KvError::Full(rows));
            }
            table.pages.extend((0..need).map(|_| group.take()));
        }
        seq.len = end;
        Ok(seq.tables.clone())
    }

    /// Forgets all positions from `len` on. Returns the length really kept: when a window has
    /// already dropped what position `len` would need to see, the sequence starts over.
    pub fn truncate(&mut self, id: SeqId, len: usize) -> usize {
        let Some(seq) = self.seqs.get_mut(id.0).and_then(Option::as_mut) else { return 0 };
        if len >= seq.len {
            return seq.len;
        }
        let sees_all = self.page_groups.iter().zip(&seq.tables).all(|(g, t)| {
            let first_seen = g.window.map_or(0, |w| (len + 1).saturating_sub(w));
            first_seen >= t.first * self.page_len
        });
        let keep = if sees_all { len } else { 0 };
        for (group, table) in self.page_groups.iter_mut().zip(&mut seq.tables) {
            if keep == 0 {
                table.first = 0;
                group.free.append(&mut table.pages);
                continue;
            }
            let pages = keep.div_ceil(self.page_len).saturating_sub(table.first);
            group.free.extend(table.pages.drain(pages.min(table.pages.len())..));
        }
        seq.len = keep;
        keep
    }
}

/// Frees the pages that no row from position `next` on can see.
fn drop_unseen(group: &mut PageGroup, table: &mut PageTable, next: usize) {
    let Some(window) = group.window else { return };
    let first_seen = (next + 1).saturating_sub(window);
    let first_page = (first_seen / table.page_len).min(table.first + table.pages.len());
    let gone = first_page.saturating_sub(table.first);
    group.free.extend(table.pages.drain(..gone));
    table.first = table.first.max(first_page);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(tables: &[PageTable], windows: &[Window], pos: usize) {
        for (t, w) in tables.iter().zip(windows) {
            let from = w.map_or(0, |w| (pos + 1).saturating_sub(w));
            let mut rows: Vec<usize> = (from..=pos).map(|p| t.row(p).unwrap()).collect();
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len(), pos + 1 - from, "two positions share a row");
        }
    }

    #[test]
    fn windows_keep_what_they_see_and_no_more() {
        let windows = [None, Some(8), Some(3)];
        for (page_len, chunk) in [(4, 1), (4, 7), (1, 5), (16, 16)] {
            let mut kv = KvCache::new(&windows, page_len, 200, chunk, 1).unwrap();
            let id = kv.open();
            let mut len = 0;
            while len < 200 {
                let rows = chunk.min(200 - len);
                let tables = kv.extend(id, rows).unwrap();
                (len..len + rows).for_each(|p| visible(&tables, &windows, p));
                len += rows;
            }
            assert!(kv.positions(1).unwrap() <= 8 + chunk + 3 * page_len);
            assert_eq!(kv.used(0), 200usize.next_multiple_of(page_len));
            assert_eq!(
                kv.extend(id, 1).unwrap_err(),
                KvError::Context { tokens: 201, context: 200 }
            );
            kv.close(id);
            assert!(kv.page_groups.iter().all(|g| g.available() == g.total));
        }
    }

    #[test]
    fn truncation_keeps_a_prefix_or_starts_over() {
        let mut kv = KvCache::new(&[None, Some(8)], 4, 100, 16, 1).unwrap();
        let id = kv.open();
        kv.extend(id, 16).unwrap();
        assert_eq!(kv.truncate(id, 10), 10);
        kv.extend(id, 16).unwrap();
        kv.extend(id, 16).unwrap();
        assert_eq!(kv.len(id), 42);
        assert_eq!(kv.truncate(id, 40), 40);
        assert_eq!(kv.truncate(id, 5), 0, "the window has dropped what position 5 sees");
        let tables = kv.extend(id, 16).unwrap();
        (0..16).for_each(|p| visible(&tables, &[None, Some(8)], p));
    }

    #[test]
    fn what_a_window_leaves_behind_is_used_again() {
        let mut kv = KvCache::new(&[Some(3)], 4, 200, 5, 1).unwrap();
        let id = kv.open();
        let most = kv.positions(0).unwrap();
        assert!(most < 200 / 4);
        for _ in 0..40 {
            let tables = kv.extend(id, 5).unwrap();
            assert!(tables[0].pages.iter().all(|&p| (p as usize) < most / 4));
        }
        // No list of the pages of a context that no memory would hold.
        let huge = KvCache::new(&[None], 1, 1 << 31, 512, 1).unwrap();
        assert_eq!(huge.page_groups[0].free.capacity(), 0);
        assert_eq!(huge.positions(0), Some(1 << 31));
        // More than page numbers can count.
        let most = KvCache::new(&[None], 1, 1 << 31, 512, usize::MAX).unwrap_err();
        assert_eq!(most, KvError::Pages { context: 1 << 31, sequences: usize::MAX });
    }

    #[test]
    fn a_full_cache_says_so_and_sequences_do_not_share_pages() {
        let mut kv = KvCache::new(&[None], 4, 8, 8, 2).unwrap();
        let (a, b) = (kv.open(), kv.open());
        let ta = kv.extend(a, 8).unwrap();
        let tb = kv.extend(b, 8).unwrap();
        assert!(ta[0].pages.iter().all(|p| !tb[0].pages.contains(p)));
        let c = kv.open();
        assert_eq!(kv.extend(c, 1).unwrap_err(), KvError::Full(1));
        kv.close(a);
        kv.extend(c, 1).unwrap();
    }
}
