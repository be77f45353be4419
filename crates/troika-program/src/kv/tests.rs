use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika_graph::{StateKind, Window};

use super::*;

/// Groups with one byte per position.
fn layout(windows: &[Window], page_len: usize, context: usize, chunk: usize) -> KvLayout {
    let group = |window: &Window| GroupLayout { kind: StateKind::Paged(*window), row_bytes: 1 };
    let groups = windows.iter().map(group).collect();
    KvLayout { page_len, context, chunk, groups, sequences: 1, budget: None }
}

impl KvCache {
    /// Opens a new sequence.
    fn opened(&mut self) -> SeqId {
        let id = SeqId::next();
        self.open(id);
        id
    }

    /// Positions of a group in pages that are not free.
    fn used(&self, group: usize) -> usize {
        self.pages.groups[group].used() * self.layout.page_len
    }

    fn is_open(&self, id: SeqId) -> bool {
        self.seqs.contains_key(&id)
    }
}

fn extend(kv: &mut KvCache, id: SeqId, rows: usize) -> Result<Vec<PageTable>, KvError> {
    let mut tables = Vec::new();
    kv.extend(id, rows, &mut tables).map(|()| tables)
}

fn visible(tables: &[PageTable], windows: &[Window], pos: usize) {
    for (t, w) in tables.iter().zip(windows) {
        let from = w.map_or(0, |w| (pos + 1).saturating_sub(w));
        let mut rows: Vec<usize> = (from..=pos).map(|p| t.row(p).unwrap()).collect();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), pos + 1 - from, "two positions share a row");
    }
}

/// Tokens whose beginning differs for each `seed`.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| seed * 1000 + i).collect()
}

/// A sequence of some tokens whose whole pages are published.
fn filled(kv: &mut KvCache, tokens: &[u32], chunk: usize) -> SeqId {
    let id = kv.opened();
    for part in tokens.chunks(chunk) {
        extend(kv, id, part.len()).unwrap();
        kv.publish(id, tokens, kv.len(id), &|_| 0);
    }
    kv.audit().unwrap();
    id
}

/// How many of some tokens could be adopted.
fn adoptable(kv: &mut KvCache, tokens: &[u32], numerics: u64) -> usize {
    let id = kv.opened();
    let len = kv.adopt(id, tokens, numerics);
    assert_eq!(kv.len(id), len);
    kv.audit().unwrap();
    kv.close(id);
    len
}

#[test]
fn windows_keep_what_they_see_and_no_more() {
    let windows = [None, Some(8), Some(3)];
    for (page_len, chunk) in [(4, 1), (4, 7), (1, 5), (16, 16)] {
        let mut kv = KvCache::new(layout(&windows, page_len, 200, chunk)).unwrap();
        let id = kv.opened();
        let mut len = 0;
        while len < 200 {
            let rows = chunk.min(200 - len);
            let tables = extend(&mut kv, id, rows).unwrap();
            (len..len + rows).for_each(|p| visible(&tables, &windows, p));
            len += rows;
            assert!(kv.used(1) <= 8 + chunk + 2 * page_len);
            kv.audit().unwrap();
        }
        // As much again for prefixes.
        assert!(kv.rows(1).unwrap() <= 2 * (8 + chunk + 3 * page_len));
        assert_eq!(kv.used(0), 200usize.next_multiple_of(page_len));
        let past = KvError::Context { tokens: 201, context: 200 };
        assert_eq!(extend(&mut kv, id, 1).unwrap_err(), past);
        kv.close(id);
        assert_eq!((kv.used_bytes(), kv.kept_bytes()), (0, 0));
    }
}

#[test]
fn truncation_keeps_a_prefix_or_starts_over() {
    let mut kv = KvCache::new(layout(&[None, Some(8)], 4, 100, 16)).unwrap();
    let id = kv.opened();
    extend(&mut kv, id, 16).unwrap();
    assert_eq!(kv.truncate(id, 10), 10);
    extend(&mut kv, id, 16).unwrap();
    extend(&mut kv, id, 16).unwrap();
    assert_eq!(kv.len(id), 42);
    assert_eq!(kv.truncate(id, 40), 40);
    assert_eq!(kv.truncate(id, 5), 0, "the window has dropped what position 5 sees");
    let tables = extend(&mut kv, id, 16).unwrap();
    (0..16).for_each(|p| visible(&tables, &[None, Some(8)], p));
}

#[test]
fn what_a_window_leaves_behind_is_used_again() {
    let mut kv = KvCache::new(layout(&[Some(3)], 4, 200, 5)).unwrap();
    let id = kv.opened();
    let most = kv.rows(0).unwrap();
    assert!(most < 200 / 4);
    for _ in 0..40 {
        let tables = extend(&mut kv, id, 5).unwrap();
        assert!(tables[0].pages.iter().all(|&p| (p as usize) < most / 4));
    }
    // A context so long that even a list of its pages would not fit in memory.
    let huge = KvCache::new(layout(&[None], 1, 1 << 31, 512)).unwrap();
    assert_eq!(huge.pages.groups[0].accounts().0.len(), 0);
    assert_eq!(huge.rows(0), Some(1 << 31));
    // More pages than page numbers can count.
    let most = KvLayout { sequences: usize::MAX, ..layout(&[None], 1, 1 << 31, 512) };
    let pages = KvError::Pages { context: 1 << 31, sequences: usize::MAX };
    assert_eq!(KvCache::new(most.clone()).unwrap_err(), pages);
    // A budget bounds them.
    let bounded = KvCache::new(KvLayout { budget: Some(1 << 20), ..most }).unwrap();
    assert_eq!(bounded.rows(0), Some(1 << 20));
}

#[test]
fn a_full_cache_says_so_and_sequences_do_not_share_pages() {
    let mut kv = KvCache::new(KvLayout { sequences: 2, ..layout(&[None], 4, 8, 8) }).unwrap();
    let (a, b) = (kv.opened(), kv.opened());
    let ta = extend(&mut kv, a, 8).unwrap();
    let tb = extend(&mut kv, b, 8).unwrap();
    assert!(ta[0].pages.iter().all(|p| !tb[0].pages.contains(p)));
    let c = kv.opened();
    assert_eq!(extend(&mut kv, c, 1).unwrap_err(), KvError::Full(1));
    kv.close(a);
    extend(&mut kv, c, 1).unwrap();
    // A preempted sequence stays open.
    kv.release(b);
    assert!(kv.is_open(b) && kv.len(b) == 0);
    assert_eq!(kv.used(0), 4);
    // A closed sequence is not mistaken for a later one.
    let d = kv.opened();
    assert!(!kv.is_open(a) && d != a);
    assert_eq!(extend(&mut kv, a, 1).unwrap_err(), KvError::Closed(a));
    assert_eq!((kv.truncate(a, 1), kv.adopt(a, &[1; 9], 0), kv.len(a)), (0, 0, 0));
}

#[test]
fn a_budget_counts_bytes_of_all_groups() {
    let (sequences, budget) = (4, Some(10 * 4 * 3));
    let mut layout = KvLayout { sequences, budget, ..layout(&[None, None], 4, 100, 8) };
    layout.groups[1].row_bytes = 2;
    let mut kv = KvCache::new(layout.clone()).unwrap();
    assert_eq!((kv.rows(0), kv.rows(1)), (Some(40), Some(40)));
    assert_eq!(kv.fit().alone(40), Ok(()));
    let (tokens, needed, budget) = (41, 11 * 4 * 3, 120);
    assert_eq!(kv.fit().alone(41), Err(KvError::Budget { tokens, needed, budget }));
    assert_eq!(kv.fit().alone(101), Err(KvError::Context { tokens: 101, context: 100 }));
    let (a, b) = (kv.opened(), kv.opened());
    extend(&mut kv, a, 24).unwrap();
    assert_eq!(kv.used_bytes(), 6 * 4 * 3);
    let before = format!("{kv:?}");
    assert_eq!(extend(&mut kv, b, 17).unwrap_err(), KvError::Full(17));
    assert_eq!(format!("{kv:?}"), before);
    extend(&mut kv, b, 16).unwrap();
    assert_eq!((kv.used_bytes(), kv.pages.budget), (120, 120));
    // Less than one page.
    layout.budget = Some(11);
    let least = KvError::Budget { tokens: 4, needed: 12, budget: 11 };
    assert_eq!(KvCache::new(layout).unwrap_err(), least);
}

#[test]
fn a_prefix_is_adopted_in_whole_pages_of_the_same_tokens_and_numerics() {
    let mut kv = KvCache::new(KvLayout { sequences: 4, ..layout(&[None], 4, 100, 16) }).unwrap();
    let text = tokens(1, 18);
    let a = filled(&mut kv, &text, 16);
    assert_eq!(adoptable(&mut kv, &text, 0), 16);
    assert_eq!(adoptable(&mut kv, &text[..16], 0), 12, "one token is left to compute");
    assert_eq!(adoptable(&mut kv, &text[..1], 0), 0);
    assert_eq!(adoptable(&mut kv, &[], 0), 0);
    assert_eq!(adoptable(&mut kv, &text, 7), 0, "other numerics");
    let mut other = text.clone();
    other[9] += 1;
    assert_eq!(adoptable(&mut kv, &other, 0), 8, "up to the page of the first other token");
    assert_eq!(adoptable(&mut kv, &text[4..], 0), 0, "pages found by what precedes them");
    // Shared while the first sequence is open, and kept when it is closed.
    let b = kv.opened();
    kv.adopt(b, &other, 0);
    let tables = extend(&mut kv, b, 1).unwrap();
    let first = extend(&mut kv, a, 1).unwrap();
    assert_eq!(tables[0].pages[..2], first[0].pages[..2]);
    assert_ne!(tables[0].pages[2], first[0].pages[2]);
    assert_eq!(kv.used(0), (5 + 1) * 4);
    kv.close(a);
    assert_eq!(kv.kept_bytes(), 2 * 4);
    let all = kv.held_pages().all;
    assert_eq!(kv.held_pages(), PageCount { held: 3, all });
    kv.close(b);
    assert_eq!((kv.used_bytes(), kv.kept_bytes()), (16, 16));
    assert_eq!(kv.held_pages(), PageCount { held: 0, all });
    assert_eq!(adoptable(&mut kv, &text, 0), 16);
}

#[test]
fn the_same_prefix_is_kept_once() {
    let mut kv = KvCache::new(KvLayout { sequences: 4, ..layout(&[None], 4, 100, 16) }).unwrap();
    let text = tokens(1, 16);
    let (a, b) = (filled(&mut kv, &text, 16), filled(&mut kv, &text, 16));
    assert_eq!(kv.used(0), 32, "computed twice");
    kv.publish(a, &text, 16, &|_| panic!("nothing is new"));
    kv.close(b);
    assert_eq!(kv.used(0), 16);
    kv.close(a);
    assert_eq!((kv.used_bytes(), kv.kept_bytes()), (16, 16));
    // Adoption stops below the requested position.
    let text = tokens(2, 16);
    let c = kv.opened();
    extend(&mut kv, c, 16).unwrap();
    kv.publish(c, &text, 11, &|_| 0);
    assert_eq!(adoptable(&mut kv, &text, 0), 8);
    kv.publish(c, &text, 100, &|page| page as u64 / 3);
    assert_eq!(adoptable(&mut kv, &tokens(2, 17), 0), 12, "the last page has other numerics");
}

#[test]
fn a_shared_page_is_never_cut_within() {
    let mut kv = KvCache::new(KvLayout { sequences: 4, ..layout(&[None], 4, 100, 16) }).unwrap();
    let text = tokens(1, 17);
    let a = filled(&mut kv, &text[..16], 16);
    // Only the index shares the page: it removes this node and those behind it.
    assert_eq!(kv.truncate(a, 10), 10);
    kv.audit().unwrap();
    assert_eq!(adoptable(&mut kv, &text, 0), 8);
    extend(&mut kv, a, 6).unwrap();
    kv.publish(a, &text, 16, &|_| 0);
    assert_eq!(adoptable(&mut kv, &text, 0), 16);
    // Another sequence shares the page: this sequence loses it, the other keeps it.
    let b = kv.opened();
    assert_eq!(kv.adopt(b, &text, 0), 16);
    assert_eq!(kv.truncate(b, 10), 8);
    assert_eq!(kv.truncate(a, 8), 8);
    kv.audit().unwrap();
    assert_eq!(adoptable(&mut kv, &text, 0), 16, "the index still has all");
}

#[test]
fn the_least_recently_used_prefix_makes_way_first() {
    let mut kv = KvCache::new(KvLayout { budget: Some(12 * 4), ..layout(&[None], 4, 48, 16) });
    let kv = kv.as_mut().unwrap();
    for seed in 1..=3 {
        let id = filled(kv, &tokens(seed, 16), 16);
        kv.close(id);
    }
    assert_eq!(kv.kept_bytes(), 48);
    assert_eq!(adoptable(kv, &tokens(1, 17), 0), 16, "used again");
    let id = kv.opened();
    extend(kv, id, 16).unwrap();
    kv.audit().unwrap();
    let left: Vec<usize> = (1..=3).map(|s| adoptable(kv, &tokens(s, 17), 0)).collect();
    assert_eq!(left, [16, 0, 16]);
    // The end of a prefix goes before its beginning.
    extend(kv, id, 4).unwrap();
    assert_eq!(adoptable(kv, &tokens(1, 17), 0), 12);
    // All prefixes are evicted for a sequence that fits alone.
    extend(kv, id, 16).unwrap();
    extend(kv, id, 12).unwrap();
    assert_eq!((kv.len(id), kv.kept_bytes()), (48, 0));
    kv.audit().unwrap();
}

#[test]
fn a_window_keeps_what_its_ends_need() {
    let windows = [None, Some(8)];
    let (sequences, budget) = (4, Some(128));
    let mut kv =
        KvCache::new(KvLayout { sequences, budget, ..layout(&windows, 4, 64, 16) }).unwrap();
    let text = tokens(1, 49);
    let a = filled(&mut kv, &text[..48], 16);
    kv.close(a);
    // All pages of both groups are kept as long as there is room.
    assert_eq!(kv.kept_bytes(), 96);
    assert_eq!(adoptable(&mut kv, &text[..25], 0), 24);
    // Windowed pages that the end does not need are evicted first.
    let b = kv.opened();
    for _ in 0..3 {
        extend(&mut kv, b, 16).unwrap();
        kv.audit().unwrap();
    }
    assert_eq!(kv.used(0), 48 + 48);
    assert_eq!(adoptable(&mut kv, &text[..25], 0), 0, "its windowed pages are gone");
    kv.close(b);
    let c = kv.opened();
    assert_eq!(kv.adopt(c, &text, 0), 48);
    let tables = extend(&mut kv, c, 1).unwrap();
    visible(&tables, &windows, 48);
    // A sequence that computes the prefix again restores the windowed pages.
    let d = filled(&mut kv, &text[..20], 4);
    kv.close(d);
    assert_eq!(adoptable(&mut kv, &text[..21], 0), 20);
}

#[test]
fn a_fork_keeps_its_windowed_pages() {
    let (sequences, budget) = (4, Some(160));
    let layout = KvLayout { sequences, budget, ..layout(&[None, Some(8)], 4, 64, 16) };
    let mut kv = KvCache::new(layout).unwrap();
    let mut texts = [tokens(1, 40), tokens(1, 40)];
    texts[1][20..].fill(7);
    for text in &texts {
        let id = kv.opened();
        let adopted = kv.adopt(id, text, 0);
        for rows in [20 - adopted, 10, 10] {
            extend(&mut kv, id, rows).unwrap();
            kv.publish(id, text, 40, &|_| 0);
        }
        kv.close(id);
        kv.audit().unwrap();
    }
    let id = kv.opened();
    extend(&mut kv, id, 16).unwrap();
    extend(&mut kv, id, 16).unwrap();
    extend(&mut kv, id, 16).unwrap();
    kv.audit().unwrap();
    let mut third = texts[0].clone();
    third[20..].fill(8);
    assert_eq!(adoptable(&mut kv, &third, 0), 20, "where the two forked");
}

#[test]
fn prefixes_beneath_sequences_make_way_for_them() {
    // The sequence computed the first pages itself although they were cached. The index holds pages
    // of another sequence, and pages of this one behind them.
    let mut kv = KvCache::new(KvLayout { budget: Some(32), ..layout(&[None], 4, 32, 16) }).unwrap();
    let text = tokens(1, 32);
    let a = filled(&mut kv, &text[..8], 8);
    let b = filled(&mut kv, &text[..16], 16);
    kv.close(a);
    assert_eq!((kv.used_bytes(), kv.kept_bytes()), (24, 8));
    extend(&mut kv, b, 16).unwrap();
    kv.audit().unwrap();
    assert_eq!(kv.used_bytes(), 32);
    // Forgotten pages can be published again.
    kv.publish(b, &text, 32, &|_| 0);
    kv.close(b);
    assert_eq!(adoptable(&mut kv, &text, 0), 28);
}

#[test]
fn what_fits_alone_is_what_a_sequence_needs_at_most() {
    for (window, page_len, chunk) in [(1, 4, 1), (8, 4, 16), (7, 4, 6), (9, 8, 8), (3, 1, 5)] {
        let mut layout = layout(&[None, Some(window)], page_len, 96, chunk);
        let needed = layout.needed_bytes(96);
        let mut most = 0;
        // Chunks that begin anywhere within a page.
        for first in 0..page_len {
            layout.budget = Some(needed);
            let mut kv = KvCache::new(layout.clone()).unwrap();
            assert_eq!(kv.fit().alone(96), Ok(()));
            let id = kv.opened();
            extend(&mut kv, id, first.min(chunk)).unwrap();
            while kv.len(id) < 96 {
                let rows = chunk.min(96 - kv.len(id));
                extend(&mut kv, id, rows).unwrap();
                most = most.max(kv.pages.groups[1].used());
            }
        }
        assert_eq!(
            most,
            layout.most_pages(StateKind::Paged(Some(window)), 96),
            "{window} {page_len} {chunk}"
        );
        layout.budget = Some(needed - 1);
        let kv = KvCache::new(layout).unwrap();
        let (tokens, budget) = (96, needed - 1);
        assert_eq!(kv.fit().alone(96), Err(KvError::Budget { tokens, needed, budget }));
    }
}

/// The expected contents of a sequence.
struct ModelSequence {
    id: SeqId,
    numerics: u64,
    tokens: Vec<u32>,
}

/// The contents of a cached position: they depend on all tokens up to it and on the numerics.
fn contents(numerics: u64, tokens: &[u32]) -> Vec<u64> {
    let next = |hash: &mut u64, token: &u32| {
        *hash = (*hash ^ u64::from(*token)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
        Some(*hash)
    };
    tokens.iter().scan(numerics + 1, next).collect()
}

/// A cache, its memory, and what it should contain.
struct Simulation {
    kv: KvCache,
    memory: Vec<Vec<u64>>,
    seqs: Vec<ModelSequence>,
    rng: ChaCha8Rng,
    adopted: usize,
    went_back: usize,
    refused: usize,
    evicted: usize,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |n: u32| (rng.next_u32() % n) as usize;
        let groups = 1 + below(3);
        let page_len = 1 << below(4);
        let group = |_| {
            let window = (below(2) > 0).then(|| below(24)).filter(|n| *n > 0);
            let row_bytes = 1 + below(3) as u64;
            let kind = if below(4) == 0 { StateKind::Fixed } else { StateKind::Paged(window) };
            GroupLayout { kind, row_bytes }
        };
        let groups: Vec<GroupLayout> = (0..groups).map(group).collect();
        let context = page_len + below(80);
        let (chunk, sequences) = (1 + below(20), 1 + below(3));
        let mut layout = KvLayout { page_len, context, chunk, groups, sequences, budget: None };
        if below(3) > 0 {
            let all = KvCache::new(layout.clone()).unwrap().pages.budget;
            let page: u64 = layout.groups.iter().map(|g| g.row_bytes).sum();
            layout.budget = Some((all * below(100) as u64 / 60).max(page * page_len as u64));
        }
        let kv = KvCache::new(layout).unwrap();
        let positions = (0..kv.pages.groups.len()).map(|g| kv.rows(g).unwrap());
        let memory = positions.map(|n| vec![0; n]).collect();
        let (seqs, adopted, went_back, refused, evicted) = (Vec::new(), 0, 0, 0, 0);
        Simulation { kv, memory, seqs, rng, adopted, went_back, refused, evicted }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.next_u32() as usize % n
    }

    /// One of a few texts with a common beginning.
    fn text(&mut self) -> Vec<u32> {
        let (forks, len) = (self.below(4), self.kv.layout.context + 1);
        let end = 1 + self.below(len);
        let token = |i: usize| if i >= 11 * (3 - forks) { (forks + 1) * 1000 + i } else { i };
        (0..end).map(|i| token(i) as u32).collect()
    }

    fn act(&mut self) {
        if self.seqs.is_empty() || (self.seqs.len() < 5 && self.below(12) == 0) {
            let (id, tokens) = (self.kv.opened(), Vec::new());
            self.seqs.push(ModelSequence { id, numerics: 0, tokens });
        }
        let i = self.below(self.seqs.len());
        match self.below(20) {
            0 => {
                let closed = self.seqs.remove(i);
                self.kv.close(closed.id);
                assert!(!self.kv.is_open(closed.id));
            }
            1 => {
                self.kv.release(self.seqs[i].id);
                self.seqs[i].tokens.clear();
            }
            2 | 3 => self.truncate(i),
            4..8 => self.publish(i),
            8..11 => self.adopt(i),
            _ => self.extend(i),
        }
        self.kv.audit().unwrap();
        self.check();
    }

    fn truncate(&mut self, i: usize) {
        let len = self.seqs[i].tokens.len();
        let back = if self.below(2) == 0 { self.below(4) } else { self.below(len + 1) };
        let to = len.saturating_sub(back);
        let tables = &self.kv.seqs[&self.seqs[i].id].tables;
        let checkpoint = tables.iter().find_map(|t| Some(t.checkpoint?.at));
        let kept = self.kv.truncate(self.seqs[i].id, to);
        let start = to - to % self.kv.layout.page_len;
        let fixed = self.kv.layout.groups.iter().any(|g| g.kind == StateKind::Fixed);
        let within = checkpoint.filter(|at| fixed && (start + 1..=to).contains(at));
        self.went_back += usize::from(within.is_some_and(|at| kept == at));
        let whole = if fixed && to < len { within.unwrap_or(start) } else { to };
        assert!([whole, start, 0].contains(&kept), "{kept} of {len}, cut back to {to}");
        self.seqs[i].tokens.truncate(kept);
    }

    fn publish(&mut self, i: usize) {
        let upto = self.below(self.seqs[i].tokens.len() + 1);
        let seq = &self.seqs[i];
        self.kv.publish(seq.id, &seq.tokens, upto, &|_| seq.numerics);
    }

    fn adopt(&mut self, i: usize) {
        let (mut text, mut numerics) = (self.text(), self.below(3) as u64 / 2);
        let own = &self.seqs[i];
        let before = own.tokens.len();
        if before > 0 {
            // Its beginning was computed by itself.
            numerics = own.numerics;
            if !text.starts_with(&own.tokens) {
                text = [&own.tokens[..], &text].concat();
            }
        }
        let known = self.kv.prefix_len(&text, numerics);
        let len = self.kv.adopt(self.seqs[i].id, &text, numerics);
        assert_eq!(len, before.max(known));
        if len == before {
            return;
        }
        assert!(len < text.len() && len.is_multiple_of(self.kv.layout.page_len));
        self.adopted += 1;
        self.seqs[i].tokens = text[..len].to_vec();
        self.seqs[i].numerics = numerics;
    }

    fn extend(&mut self, i: usize) {
        let rows = self.below(self.kv.layout.chunk + 1);
        let id = self.seqs[i].id;
        let pos = self.seqs[i].tokens.len();
        let end = pos + rows;
        let before = format!("{:?}", self.kv);
        let kept = self.kv.kept_bytes();
        let room = self.has_room(i, end);
        let mut tables = vec![PageTable::default(); self.below(3)];
        match self.kv.extend(id, rows, &mut tables) {
            Ok(()) => assert!(room),
            Err(error) => {
                assert_eq!(format!("{:?}", self.kv), before, "not as before");
                if end > self.kv.layout.context {
                    assert_eq!(
                        error,
                        KvError::Context { tokens: end, context: self.kv.layout.context }
                    );
                    return;
                }
                assert_eq!(error, KvError::Full(rows));
                assert!(!room, "there was room");
                self.refused += 1;
                let alone = self.seqs.iter().all(|s| s.id == id || s.tokens.is_empty());
                assert!(
                    !alone || self.kv.fit().alone(end).is_err(),
                    "refused, though it fits alone"
                );
                return;
            }
        }
        self.evicted += usize::from(self.kv.kept_bytes() < kept);
        // Continues with its current text, if any, or with tokens of its own.
        let text = self.text();
        let seq = &mut self.seqs[i];
        let goes_on = text.starts_with(&seq.tokens);
        let token = |p: usize| text.get(p).filter(|_| goes_on).copied().unwrap_or(99_000);
        seq.tokens.extend((pos..end).map(token));
        for (memory, table) in self.memory.iter_mut().zip(&tables) {
            for (p, content) in contents(seq.numerics, &seq.tokens).iter().enumerate().skip(pos) {
                memory[table.row(p).unwrap()] = *content;
            }
        }
    }

    /// Whether the pages held by sequences leave room, not counting prefixes.
    fn has_room(&self, i: usize, end: usize) -> bool {
        if end > self.kv.layout.context {
            return false;
        }
        let (page_len, pos) = (self.kv.layout.page_len, self.seqs[i].tokens.len());
        let mut bytes = 0;
        for (g, group) in self.kv.pages.groups.iter().enumerate() {
            let first = group.window().map_or(0, |w| (pos + 1).saturating_sub(w)) / page_len;
            let mut pages: Vec<u32> = Vec::new();
            let border = self.kv.seqs[&self.seqs[i].id].border == pos && end > pos;
            let within = group.kind == StateKind::Fixed && !pos.is_multiple_of(page_len);
            let keeps = within && (end > pos + 1 || border);
            for s in &self.seqs {
                let table = &self.kv.seqs[&s.id].tables[g];
                let own = s.id == self.seqs[i].id;
                let passed = if own { first.saturating_sub(table.first) } else { 0 };
                pages.extend(table.pages.iter().skip(passed));
                let stays = |at: usize| !own || !(keeps || at / page_len < first);
                pages.extend(table.checkpoint.filter(|c| stays(c.at)).map(|c| c.page));
            }
            pages.sort_unstable();
            pages.dedup();
            let new = end.div_ceil(page_len).saturating_sub(pos.div_ceil(page_len));
            let new = new + usize::from(keeps);
            if pages.len() + new > group.total {
                return false;
            }
            bytes += (pages.len() + new) as u64 * group.page_bytes;
        }
        bytes <= self.kv.pages.budget
    }

    /// Every position that a sequence sees holds what its own tokens produce.
    fn check(&self) {
        for seq in &self.seqs {
            let len = seq.tokens.len();
            assert_eq!(self.kv.len(seq.id), len);
            let expected = contents(seq.numerics, &seq.tokens);
            for (g, memory) in self.memory.iter().enumerate() {
                let window = self.kv.pages.groups[g].window();
                let table = &self.kv.seqs[&seq.id].tables[g];
                let from = window.map_or(0, |w| (len + 1).saturating_sub(w));
                for (p, content) in expected.iter().enumerate().skip(from) {
                    // A fixed state is kept behind the last position of a page.
                    let page_ends = (p + 1).is_multiple_of(table.page_len) || p + 1 == len;
                    let kept = table.checkpoint.is_some_and(|c| c.at == p + 1);
                    // A sequence that went back to its checkpoint may lack the page before.
                    let lacks = p / table.page_len < table.first && p + 1 < len;
                    if table.fixed && (lacks || !(page_ends || kept)) {
                        continue;
                    }
                    let row = table.row(p).unwrap();
                    assert_eq!(memory[row], *content, "position {p} of {len} in group {g}");
                }
            }
        }
    }
}

#[test]
fn a_fixed_state_goes_back_to_a_checkpoint() {
    let mut layout = layout(&[None, Some(9)], 8, 64, 16);
    layout.groups[1] = GroupLayout { kind: StateKind::Fixed, row_bytes: 100 };
    let mut kv = KvCache::new(layout).unwrap();
    assert_eq!((kv.rows(0), kv.rows(1)), (Some(64), Some(7)));
    let tokens: Vec<u32> = (0..40).collect();
    let (id, mut tables) = (kv.opened(), Vec::new());
    for rows in [16, 5] {
        kv.extend(id, rows, &mut tables).unwrap();
    }
    assert_eq!(
        tables.iter().map(|t| (t.first, t.fixed)).collect::<Vec<_>>(),
        [(0, false), (1, true)]
    );
    // Five rows more, of which two are to be kept: the state is that before them.
    kv.extend(id, 5, &mut tables).unwrap();
    assert_eq!((kv.truncate(id, 23), kv.len(id)), (21, 21));
    kv.extend(id, 10, &mut tables).unwrap();
    assert_eq!(kv.truncate(id, 25), 24, "behind a page that the rows passed");
    // What is older is gone.
    assert_eq!(kv.truncate(id, 9), 0);
    // Rows that are decoded one by one leave the state behind the prompt.
    for rows in [16, 5, 1, 1, 1, 1, 1, 1] {
        kv.extend(id, rows, &mut tables).unwrap();
    }
    assert_eq!([26, 23, 20].map(|len| kv.truncate(id, len)), [24, 21, 0]);
    for rows in [16, 8] {
        kv.extend(id, rows, &mut tables).unwrap();
    }
    kv.publish(id, &tokens, 24, &|_| 0);
    // A prefix is shared up to its last whole page.
    let other = kv.opened();
    assert_eq!(kv.adopt(other, &tokens[..23], 0), 16);
    kv.audit().unwrap();
}

#[test]
fn sequences_read_what_their_own_tokens_made() {
    let (mut adopted, mut went_back, mut refused, mut evicted) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut simulation = Simulation::new(seed);
        for _ in 0..400 {
            simulation.act();
        }
        adopted += simulation.adopted;
        went_back += simulation.went_back;
        refused += simulation.refused;
        evicted += simulation.evicted;
        // Nothing is left after all prefixes are evicted.
        let Simulation { mut kv, seqs, .. } = simulation;
        seqs.iter().for_each(|s| kv.close(s.id));
        assert_eq!(kv.used_bytes(), kv.kept_bytes());
        while kv.prefixes.evict(&mut kv.pages, true) {
            kv.audit().unwrap();
        }
        assert_eq!(kv.used_bytes(), 0);
    }
    // The random mix must reach all cases.
    assert!(adopted > 300 && refused > 300 && evicted > 300, "{adopted} {refused} {evicted}");
    assert!(went_back > 40, "{went_back} times to a checkpoint");
}

#[test]
fn what_is_given_back_is_counted_until_it_is_written_again() {
    let mut kv = KvCache::new(KvLayout { sequences: 4, ..layout(&[None, Some(8)], 4, 64, 16) });
    let kv = kv.as_mut().unwrap();
    let (a, b) = (filled(kv, &tokens(1, 16), 4), filled(kv, &tokens(2, 16), 4));
    assert!(kv.give_back().is_empty() || kv.written_bytes() == kv.used_bytes());
    kv.close(a);
    let (written, kept) = (kv.written_bytes(), kv.kept_bytes());
    assert_eq!(written, kv.used_bytes(), "a kept prefix has its memory");
    kv.keep_at_most(kept);
    assert_eq!(kv.kept_bytes(), kept);
    kv.keep_at_most(0);
    assert_eq!((kv.kept_bytes(), kv.written_bytes()), (0, written));
    let runs = kv.give_back();
    // The first four pages without a window lie side by side.
    assert!(runs.contains(&(0, 0..16)), "{runs:?}");
    assert_eq!(kv.written_bytes(), kv.used_bytes());
    assert_eq!(kv.give_back(), []);
    kv.audit().unwrap();
    // The page taken next is one that was given back.
    extend(kv, b, 1).unwrap();
    kv.audit().unwrap();
    assert_eq!(kv.written_bytes(), kv.used_bytes());
}

#[test]
fn the_longest_sequence_of_some_bytes_needs_no_more_of_them() {
    for windows in [&[None][..], &[None, Some(8)], &[Some(8)]] {
        let layout = KvLayout { sequences: 3, ..layout(windows, 4, 62, 16) };
        let all = KvCache::new(layout.clone()).unwrap().budget();
        assert_eq!(layout.all_bytes(), all);
        for bytes in 0..2 * all {
            let longest = layout.longest(bytes);
            assert!(longest == 0 || layout.needed_bytes(longest) <= bytes, "{windows:?} {bytes}");
            assert!(
                longest == 62 || layout.needed_bytes(longest + 4) > bytes,
                "{windows:?} {bytes}"
            );
            if longest > 0 {
                let kv = KvCache::new(KvLayout { budget: Some(bytes), ..layout.clone() }).unwrap();
                assert_eq!(kv.fit().alone(longest), Ok(()), "{windows:?} {bytes}");
            }
        }
    }
}
