//! The KV cache: pages of positions. The engine and predictions own them; devices only use them.
//!
//! Layers with the same sliding window form a page group and share page tables. A sequence keeps
//! only pages that its windows can still see, so a windowed layer costs memory for window + chunk
//! positions, however long the sequence grows. Whole pages may be published: they stay after their
//! sequence lets go of them, and other sequences with the same first tokens adopt them, until the
//! room is needed. The budget counts the bytes of pages in use.

mod audit;
mod error;
mod layout;
mod pages;
mod prefix;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::mem::replace;
use std::ops::Range;
use std::sync::Arc;

use troika_device::{ForwardBatch, PageTable, SeqRows};

pub use error::{KvError, SeqId};
pub use layout::{GroupLayout, KvFit, KvLayout, largest};
pub use pages::PageCount;
use pages::{NodeId, PageGroup, Pages};
use prefix::PrefixIndex;
use sequence::Sequence;

/// The bookkeeping of pages; their bytes are buffers of the engine.
#[derive(Debug)]
pub struct KvCache {
    layout: KvLayout,
    pages: Pages,
    prefixes: PrefixIndex,
    seqs: HashMap<SeqId, Sequence>,
}

impl KvCache {
    /// Makes an empty cache.
    ///
    /// # Errors
    /// More pages than page numbers can count, or a budget too small for one page.
    pub fn new(layout: KvLayout) -> Result<KvCache, KvError> {
        let budget = layout.bytes()?;
        let groups = layout.groups.iter().zip(layout.totals(budget)?);
        let group = |(g, total): (&GroupLayout, usize)| {
            PageGroup::new(g.kind, layout.page_len, layout.page_bytes(g), total)
        };
        let pages = Pages { groups: groups.map(group).collect(), budget };
        let prefixes = PrefixIndex::new(&pages);
        Ok(KvCache { layout, pages, prefixes, seqs: HashMap::new() })
    }

    /// Number of rows that a group's buffers must hold; `None` on overflow.
    pub fn rows(&self, group: usize) -> Option<usize> {
        let each = self.layout.groups[group].kind.page_rows(self.layout.page_len);
        self.pages.groups[group].total.checked_mul(each)
    }

    /// Bytes in use at most.
    pub fn budget(&self) -> u64 {
        self.pages.budget
    }

    /// Bytes of all pages that are not free.
    pub fn used_bytes(&self) -> u64 {
        self.pages.used_bytes()
    }

    /// The part of them that no sequence uses, kept for sequences with the same beginning.
    pub fn kept_bytes(&self) -> u64 {
        self.pages.kept_bytes()
    }

    /// Bytes of all pages that have memory of the system: in use, or used before.
    pub fn written_bytes(&self) -> u64 {
        self.pages.groups.iter().map(|g| g.written() as u64 * g.page_bytes).sum()
    }

    /// Evicts prefixes that no sequence uses until they take at most so many bytes.
    pub fn keep_at_most(&mut self, bytes: u64) {
        while self.kept_bytes() > bytes && self.prefixes.evict(&mut self.pages, true) {}
    }

    /// Marks the free pages of each group as given back to the system. Returns them in runs: the
    /// group, and the rows of its states.
    pub fn give_back(&mut self) -> Vec<(usize, Range<usize>)> {
        let (len, groups) = (self.layout.page_len, self.pages.groups.iter_mut().enumerate());
        let rows = |(g, pages): (usize, &mut PageGroup)| {
            let each = self.layout.groups[g].kind.page_rows(len);
            let rows = |run: Range<u32>| (g, run.start as usize * each..run.end as usize * each);
            pages.give_back().into_iter().map(rows).collect::<Vec<_>>()
        };
        groups.flat_map(rows).collect()
    }

    /// Pages that sequences hold, and all pages.
    pub fn held_pages(&self) -> PageCount {
        let held = self.pages.groups.iter().map(|g| g.used() - g.kept).sum();
        PageCount { held, all: self.pages.groups.iter().map(|g| g.total).sum() }
    }

    /// Opens an empty sequence.
    pub fn open(&mut self, id: SeqId) {
        self.seqs.insert(id, Sequence::new(&self.layout));
    }

    /// Closes a sequence. Its published pages stay for others.
    pub fn close(&mut self, id: SeqId) {
        self.release(id);
        self.seqs.remove(&id);
    }

    /// Number of cached positions.
    pub fn len(&self, id: SeqId) -> usize {
        self.seqs.get(&id).map_or(0, |s| s.len)
    }

    /// Checks that a sequence can grow by `rows` within the context.
    ///
    /// # Errors
    /// It cannot, or it is closed.
    pub fn fits(&self, id: SeqId, rows: usize) -> Result<(), KvError> {
        let seq = self.seqs.get(&id).ok_or(KvError::Closed(id))?;
        let (tokens, context) = (seq.len.saturating_add(rows), self.layout.context);
        if tokens > context { Err(KvError::Context { tokens, context }) } else { Ok(()) }
    }

    /// The needs of sequences, as a value of its own.
    pub fn fit(&self) -> KvFit {
        KvFit {
            layout: self.layout.clone(),
            totals: self.pages.groups.iter().map(|g| g.total).collect(),
            budget: self.pages.budget,
        }
    }

    /// Whether an empty sequence of this length has room now, counting prefixes that no sequence
    /// uses as free.
    pub fn has_room(&self, tokens: usize) -> bool {
        let needed = |g: &PageGroup| {
            let pages = self.layout.most_pages(g.kind, tokens);
            (pages <= g.total - g.used() + g.kept).then(|| pages as u64 * g.page_bytes)
        };
        let needed: Option<u64> = self.pages.groups.iter().map(needed).sum();
        let used = self.pages.used_bytes() - self.pages.kept_bytes();
        needed.is_some_and(|needed| used.saturating_add(needed) <= self.pages.budget)
    }

    /// Makes room for `rows` positions behind the cached ones, frees pages that no window sees any
    /// more, and copies the page tables for the forward batch into `tables`. Evicts prefixes that
    /// no sequence uses if necessary.
    ///
    /// # Errors
    /// The sequence would outgrow the context, is closed, or other sequences leave too little room;
    /// nothing changes then.
    pub fn extend(
        &mut self,
        id: SeqId,
        rows: usize,
        tables: &mut Vec<PageTable>,
    ) -> Result<(), KvError> {
        self.fits(id, rows)?;
        let seq = self.seqs.get_mut(&id).ok_or(KvError::Closed(id))?;
        if !seq.can_grow(&self.pages, rows) {
            return Err(KvError::Full(rows));
        }
        for group in 0..seq.tables.len() {
            let (of, table) = (&self.pages.groups[group], &seq.tables[group]);
            let (passed, outdated) = (seq.passed(of, table), seq.outdated(of, table, rows));
            let table = &mut seq.tables[group];
            table.first += passed;
            table.checkpoint = table.checkpoint.filter(|_| outdated.is_none());
            for page in table.pages.drain(..passed).chain(outdated.map(|c| c.page)) {
                self.prefixes.let_go(group, page, &mut self.pages);
            }
        }
        while let Some(windowed) = shortage(&self.pages, seq, rows) {
            if !self.prefixes.evict(&mut self.pages, windowed) {
                return Err(KvError::Full(rows));
            }
        }
        seq.grow(&mut self.pages, rows);
        seq.copy_tables(tables);
        Ok(())
    }

    /// The forward batch of the next rows of a sequence that runs alone.
    ///
    /// # Errors
    /// Those of [`KvCache::extend`].
    pub fn next_batch(&mut self, id: SeqId, rows: usize) -> Result<Arc<ForwardBatch>, KvError> {
        let (pos, mut tables) = (self.len(id), Vec::new());
        self.extend(id, rows, &mut tables)?;
        let (seq, known_len) = (id.number(), pos + rows);
        let rows = SeqRows { seq, rows: 0..rows, pos, known_len, tables };
        Ok(Arc::new(ForwardBatch { seqs: vec![rows] }))
    }

    /// Removes all positions from `len` on. Returns the length really kept. If a window has dropped
    /// what position `len` must see, the sequence starts over. If another sequence shares the page
    /// of position `len`, that page goes too, since continuing would write to it. Prefixes that
    /// contain the rest of that page are removed. A fixed state goes back to its checkpoint or to
    /// the end of a page.
    pub fn truncate(&mut self, id: SeqId, len: usize) -> usize {
        let Some(seq) = self.seqs.get_mut(&id) else { return 0 };
        if len >= seq.len {
            return seq.len;
        }
        let page_len = self.layout.page_len;
        let len = seq.reachable(&self.pages, len);
        let (page, within) = (len / page_len, len % page_len);
        let mut keep = len;
        if within > 0 && seq.sees(&self.pages, len) {
            let last: Vec<Option<u32>> = (0..seq.tables.len()).map(|g| seq.page(g, page)).collect();
            let mut held = self.pages.groups.iter().zip(&last);
            if held.any(|(g, page)| page.is_some_and(|page| g.sequences(page) > 1)) {
                keep -= within;
            } else {
                for (group, page) in last.iter().enumerate() {
                    if let Some(node) = page.and_then(|p| self.pages.groups[group].node(p)) {
                        self.prefixes.forget(node, &mut self.pages);
                    }
                }
            }
        }
        if !seq.sees(&self.pages, keep) {
            keep = 0;
        }
        cut(seq, keep, page_len, &mut self.pages, &mut self.prefixes);
        keep
    }

    /// Takes all pages of a sequence, which stays open but empty.
    pub fn release(&mut self, id: SeqId) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            cut(seq, 0, self.layout.page_len, &mut self.pages, &mut self.prefixes);
        }
    }

    /// The length of the longest kept prefix of `tokens` with the same numerics, in whole pages. It
    /// excludes the last token, whose logits are wanted.
    pub fn prefix_len(&self, tokens: &[u32], numerics: u64) -> usize {
        self.find(tokens, numerics).len() * self.layout.page_len
    }

    fn find(&self, tokens: &[u32], numerics: u64) -> Vec<NodeId> {
        let most = tokens.len().saturating_sub(1).min(self.layout.context);
        self.prefixes.find(&tokens[..most], self.layout.page_len, numerics, &self.pages)
    }

    /// Lets a sequence, which begins with `tokens`, start from the longest kept prefix of them
    /// ([`KvCache::prefix_len`]) if that is longer than what it has. Returns its length.
    pub fn adopt(&mut self, id: SeqId, tokens: &[u32], numerics: u64) -> usize {
        let page_len = self.layout.page_len;
        let had = self.len(id);
        // A quick exit, since every decoded token comes here.
        if tokens.len().saturating_sub(1) / page_len * page_len <= had {
            return had;
        }
        let path = self.find(tokens, numerics);
        let Some(seq) = self.seqs.get_mut(&id) else { return 0 };
        if path.len() * page_len <= had {
            return had;
        }
        cut(seq, 0, page_len, &mut self.pages, &mut self.prefixes);
        seq.path = path;
        seq.len = seq.path.len() * page_len;
        for (g, table) in seq.tables.iter_mut().enumerate() {
            let group = &mut self.pages.groups[g];
            table.first = group.first_seen(seq.len);
            for node in seq.path.iter().skip(table.first) {
                let page = self.prefixes.page(*node, g);
                page.iter().for_each(|&page| group.share(page));
                table.pages.extend(page);
            }
        }
        self.prefixes.touch(&seq.path, &self.pages);
        seq.len
    }

    /// Publishes a sequence's whole pages below position `upto`, which hold `tokens`; `numerics`
    /// says how a page was computed. An existing prefix of the same tokens stays, and the sequence
    /// keeps its own pages. Only windowed pages that the prefix lacks are added.
    pub fn publish(
        &mut self,
        id: SeqId,
        tokens: &[u32],
        upto: usize,
        numerics: &dyn Fn(usize) -> u64,
    ) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        let page_len = self.layout.page_len;
        let whole = upto.min(seq.len).min(tokens.len()) / page_len;
        while seq.path.last().is_some_and(|node| !self.prefixes.contains(*node)) {
            seq.path.pop();
        }
        if seq.path.len() >= whole {
            return;
        }
        for index in seq.path.len()..whole {
            let tokens = &tokens[index * page_len..][..page_len];
            let held = |group: usize| seq.page(group, index);
            let (parent, numerics) = (seq.path.last().copied(), numerics(index));
            let node = self.prefixes.publish(parent, tokens, numerics, &held, &mut self.pages);
            let Some(node) = node else { break };
            seq.path.push(node);
        }
        self.prefixes.prune(seq.path.last().copied(), &mut self.pages);
    }
}

/// Shortens a sequence to `keep` positions.
fn cut(
    seq: &mut Sequence,
    keep: usize,
    page_len: usize,
    pages: &mut Pages,
    prefixes: &mut PrefixIndex,
) {
    for (group, table) in seq.tables.iter_mut().enumerate() {
        let kept = keep.div_ceil(page_len).saturating_sub(table.first).min(table.pages.len());
        let kept = if keep == 0 { 0 } else { kept };
        let dropped = table.checkpoint.take_if(|c| c.at >= keep);
        let mut unused = dropped.map(|c| c.page);
        if let Some(checkpoint) = dropped.filter(|c| c.at == keep) {
            // Its row is that of the page again.
            unused =
                kept.checked_sub(1).map(|last| replace(&mut table.pages[last], checkpoint.page));
        }
        for page in table.pages.drain(kept..).chain(unused) {
            prefixes.let_go(group, page, pages);
        }
        table.first = if keep == 0 { 0 } else { table.first };
    }
    let whole = (keep / page_len).min(seq.path.len());
    prefixes.touch(&seq.path[whole..], pages);
    seq.path.truncate(whole);
    (seq.len, seq.border) = (keep, seq.border.min(keep));
}

/// Whether a sequence lacks room for `rows` more positions. If so, whether freeing windowed pages
/// could help.
fn shortage(pages: &Pages, seq: &Sequence, rows: usize) -> Option<bool> {
    let mut bytes = pages.used_bytes();
    let (mut full, mut windowed) = (false, false);
    for (group, table) in pages.groups.iter().zip(&seq.tables) {
        let missing = seq.missing(group, table, rows);
        bytes = bytes.saturating_add(missing as u64 * group.page_bytes);
        let short = missing > group.available();
        full |= short && !group.kind.forgets();
        windowed |= short && group.kind.forgets();
    }
    windowed |= bytes > pages.budget;
    (full || windowed).then_some(windowed)
}
