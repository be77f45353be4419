//! The size of the cache: pages of each group, and bytes.

use troika_graph::StateKind;
use troika_model::lower::Lowered;
use troika_plan::Plan;

use super::KvError;

/// The dimensions of a cache.
#[derive(Clone, Debug)]
pub struct KvLayout {
    /// Positions per page.
    pub page_len: usize,
    /// The most positions of a sequence.
    pub context: usize,
    /// The most rows added to a sequence at once.
    pub chunk: usize,
    /// Groups of layers that share page tables.
    pub groups: Vec<GroupLayout>,
    /// The most sequences that run at once.
    pub sequences: usize,
    /// Bytes in use at most; `None`: enough for all sequences at full context.
    pub budget: Option<u64>,
}

/// A group of layers whose states are of one kind.
#[derive(Clone, Copy, Debug)]
pub struct GroupLayout {
    /// What a sequence keeps in them.
    pub kind: StateKind,
    /// Bytes of a row in all their states together.
    pub row_bytes: u64,
}

impl KvLayout {
    /// The size of a model's cache by a plan.
    pub fn new(lowered: &Lowered, plan: &Plan, sequences: usize, budget: Option<u64>) -> KvLayout {
        KvLayout {
            chunk: plan.prefill.chunk,
            sequences: sequences.max(1),
            budget,
            ..KvLayout::of(lowered, plan.page_len, plan.context)
        }
    }

    /// The cache of a lowered model for one sequence, which is fed a row at a time.
    pub fn of(lowered: &Lowered, page_len: usize, context: usize) -> KvLayout {
        let bytes = |group: usize| -> u64 {
            let of_group = lowered.states.iter().filter(|s| s.page_group == group);
            of_group.map(|s| s.row_bytes() as u64).sum()
        };
        let group =
            |(i, kind): (usize, &StateKind)| GroupLayout { kind: *kind, row_bytes: bytes(i) };
        KvLayout {
            page_len: page_len.max(1),
            context,
            chunk: 1,
            groups: lowered.page_groups.iter().enumerate().map(group).collect(),
            sequences: 1,
            budget: None,
        }
    }

    /// Rows that the buffers of each group's states have.
    ///
    /// # Errors
    /// More pages than can be counted, or the budget is too small for one of each group.
    pub fn rows(&self) -> Result<Vec<usize>, KvError> {
        let totals = self.totals(self.bytes()?)?.into_iter();
        let rows = |(total, g): (usize, &GroupLayout)| {
            total.saturating_mul(g.kind.page_rows(self.page_len))
        };
        Ok(totals.zip(&self.groups).map(rows).collect())
    }

    /// Bytes of a page of a group.
    pub fn page_bytes(&self, group: &GroupLayout) -> u64 {
        group.row_bytes.saturating_mul(group.kind.page_rows(self.page_len) as u64)
    }

    /// Bytes in use at most.
    ///
    /// # Errors
    /// The number is too small for one page of each group.
    pub fn bytes(&self) -> Result<u64, KvError> {
        let budget = self.budget.unwrap_or_else(|| self.all_bytes());
        let tokens = self.page_len.min(self.context);
        let needed = self.needed_bytes(tokens);
        if needed > budget { Err(KvError::Budget { tokens, needed, budget }) } else { Ok(budget) }
    }

    /// Bytes of all sequences at full context: a larger cache is never filled by them.
    pub fn all_bytes(&self) -> u64 {
        let each = |g: &GroupLayout| {
            let pages = self.reserved_pages(g.kind).saturating_mul(self.sequences);
            self.page_bytes(g).saturating_mul(pages as u64)
        };
        self.groups.iter().map(each).fold(0, u64::saturating_add)
    }

    /// The longest sequence, in whole pages, that so many bytes hold; at most the context.
    pub fn longest(&self, bytes: u64) -> usize {
        let fits = |pages: usize| self.needed_bytes(pages * self.page_len) <= bytes;
        (largest(self.pages(), fits) * self.page_len).min(self.context)
    }

    /// Number of pages of each group. Windowed groups also have room for kept prefixes.
    ///
    /// # Errors
    /// More pages than page numbers can count.
    pub fn totals(&self, budget: u64) -> Result<Vec<usize>, KvError> {
        let affordable = |bytes: u64| match budget.checked_div(bytes) {
            Some(pages) => usize::try_from(pages).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let unwindowed = self.groups.iter().filter(|g| !g.kind.forgets());
        let bytes = unwindowed.map(|g| self.page_bytes(g)).reduce(u64::saturating_add);
        let most = |bytes| affordable(bytes).min(self.sequences.saturating_mul(self.pages()));
        let full = bytes.map_or(usize::MAX, most);
        let total = |g: &GroupLayout| {
            let running = self.reserved_pages(g.kind).saturating_mul(self.sequences);
            let pages = match g.kind.forgets() {
                false => full,
                true => full
                    .saturating_add(self.checkpoints(g.kind).saturating_mul(self.sequences))
                    .min(affordable(self.page_bytes(g)))
                    .min(running.saturating_mul(2)),
            };
            let (sequences, context) = (self.sequences, self.context);
            let uncountable = |_| KvError::Pages { sequences, context };
            u32::try_from(pages).map(|_| pages).map_err(uncountable)
        };
        self.groups.iter().map(total).collect()
    }

    /// The most pages of a group that a sequence of this length holds at once.
    pub fn most_pages(&self, kind: StateKind, tokens: usize) -> usize {
        let all = tokens.div_ceil(self.page_len);
        // The positions that a chunk sees; they may begin anywhere within a page.
        let seen = |w: usize| w.saturating_add(self.chunk).saturating_sub(1).max(1);
        let most = |w: usize| all.min((seen(w) - 1).div_ceil(self.page_len) + 1);
        kind.window(self.page_len).map_or(all, most) + self.checkpoints(kind)
    }

    /// Pages of a sequence in a group beside those of its positions.
    fn checkpoints(&self, kind: StateKind) -> usize {
        usize::from(kind == StateKind::Fixed && self.page_len > 1)
    }

    /// Bytes that a sequence of this length needs.
    pub fn needed_bytes(&self, tokens: usize) -> u64 {
        let pages = |g: &GroupLayout| self.most_pages(g.kind, tokens) as u64;
        let needed = self.groups.iter().map(|g| self.page_bytes(g).saturating_mul(pages(g)));
        needed.fold(0, u64::saturating_add)
    }

    /// Number of pages of the full context.
    pub fn pages(&self) -> usize {
        self.context.div_ceil(self.page_len)
    }

    /// Pages for one sequence of full context. A window rarely starts on a page boundary, so one
    /// page is added at each end.
    pub fn reserved_pages(&self, kind: StateKind) -> usize {
        let window = kind.window(self.page_len);
        let keep = window.map_or(self.context, |w| w.saturating_add(self.chunk));
        let pages = keep.div_ceil(self.page_len).saturating_add(2).min(self.pages());
        pages + self.checkpoints(kind)
    }
}

/// The needs of sequences, for code that does not have the cache itself.
#[derive(Clone, Debug)]
pub struct KvFit {
    /// The dimensions.
    pub layout: KvLayout,
    /// Number of pages, by group.
    pub totals: Vec<usize>,
    /// Bytes in use at most.
    pub budget: u64,
}

impl KvFit {
    /// The longest sequence that fits when there is no other.
    pub fn most(&self) -> usize {
        largest(self.layout.context, |tokens| self.alone(tokens).is_ok())
    }

    /// The most sequences of `tokens` tokens that can be held at once.
    pub fn most_sequences(&self, tokens: usize) -> usize {
        let layout = &self.layout;
        let needed = layout.needed_bytes(tokens).max(1);
        let most = |g: &GroupLayout| layout.most_pages(g.kind, tokens).max(1);
        let pages = layout.groups.iter().zip(&self.totals).map(|(g, total)| total / most(g));
        let fit = usize::try_from(self.budget / needed).unwrap_or(usize::MAX);
        pages.fold(fit.min(layout.sequences), usize::min)
    }

    /// Checks that a sequence of this length, fed in chunks, fits when there is no other.
    ///
    /// # Errors
    /// It does not fit.
    pub fn alone(&self, tokens: usize) -> Result<(), KvError> {
        let (layout, budget) = (&self.layout, self.budget);
        let context = layout.context;
        if tokens > context {
            return Err(KvError::Context { tokens, context });
        }
        let needed = layout.needed_bytes(tokens);
        let mut groups = layout.groups.iter().zip(&self.totals);
        if needed > budget || groups.any(|(g, total)| layout.most_pages(g.kind, tokens) > *total) {
            return Err(KvError::Budget { tokens, needed, budget });
        }
        Ok(())
    }
}

/// The largest number up to `most` for which something holds that holds for all below it; 0 if there
/// is none.
pub fn largest(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
