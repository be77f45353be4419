//! The size of the cache: pages of each group, and bytes.

use troika_graph::{StateKind, Window};
use troika_model::lower::Lowered;

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
    /// How many positions back they see.
    pub window: Window,
    /// Whether a page is one row, which every position changes.
    pub fixed: bool,
    /// Bytes of a row in all their states together.
    pub row_bytes: u64,
}

impl GroupLayout {
    /// Rows of a page.
    pub fn page_rows(&self, page_len: usize) -> usize {
        if self.fixed { 1 } else { page_len }
    }
}

impl KvLayout {
    /// The cache of a lowered model for one sequence, which is fed a row at a time.
    pub fn of(lowered: &Lowered, page_len: usize, context: usize) -> KvLayout {
        let bytes = |group: usize| -> u64 {
            let of_group = lowered.states.iter().filter(|s| s.page_group == group);
            of_group.map(|s| s.row_bytes() as u64).sum()
        };
        let group = |(i, kind): (usize, &StateKind)| GroupLayout {
            window: kind.window(page_len),
            fixed: *kind == StateKind::Fixed,
            row_bytes: bytes(i),
        };
        KvLayout {
            page_len,
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
    /// A number overflows, or the budget is too small for one page.
    pub fn rows(&self) -> Result<Vec<usize>, KvError> {
        let page_bytes = self.page_bytes()?;
        let totals = self.totals(&page_bytes, self.bytes(&page_bytes)?)?;
        let rows = |(total, g): (usize, &GroupLayout)| {
            total.checked_mul(g.page_rows(self.page_len)).ok_or_else(|| self.uncountable())
        };
        totals.into_iter().zip(&self.groups).map(rows).collect()
    }

    /// Bytes of a page of each group.
    ///
    /// # Errors
    /// The number overflows.
    pub fn page_bytes(&self) -> Result<Vec<u64>, KvError> {
        let bytes = |g: &GroupLayout| g.row_bytes.checked_mul(g.page_rows(self.page_len) as u64);
        self.groups.iter().map(|g| bytes(g).ok_or_else(|| self.uncountable())).collect()
    }

    /// Bytes in use at most.
    ///
    /// # Errors
    /// The number overflows, or is too small for one page of each group.
    pub fn bytes(&self, page_bytes: &[u64]) -> Result<u64, KvError> {
        let each = |(g, bytes): (&GroupLayout, &u64)| {
            let pages = self.reserved_pages(g.window).checked_mul(self.sequences)?;
            bytes.checked_mul(pages as u64)
        };
        let all = self.groups.iter().zip(page_bytes).map(each);
        let all = || all.reduce(|a, b| a?.checked_add(b?)).unwrap_or(Some(0));
        let budget = match self.budget {
            Some(budget) => budget,
            None => all().ok_or_else(|| self.uncountable())?,
        };
        let tokens = self.page_len.min(self.context);
        let needed = self.needed_bytes(tokens, page_bytes).ok_or_else(|| self.uncountable())?;
        if needed > budget {
            return Err(KvError::Budget { tokens, needed, budget });
        }
        Ok(budget)
    }

    /// Number of pages of each group. Windowed groups also have room for kept prefixes.
    ///
    /// # Errors
    /// More pages than page numbers can count.
    pub fn totals(&self, page_bytes: &[u64], budget: u64) -> Result<Vec<usize>, KvError> {
        let affordable = |bytes: u64| match budget.checked_div(bytes) {
            Some(pages) => usize::try_from(pages).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let groups = || self.groups.iter().zip(page_bytes);
        let unwindowed = groups().filter(|(g, _)| g.window.is_none());
        let full = match unwindowed.map(|(_, bytes)| *bytes).reduce(u64::saturating_add) {
            Some(bytes) => affordable(bytes).min(self.sequences.saturating_mul(self.pages())),
            None => usize::MAX,
        };
        let total = |(g, bytes): (&GroupLayout, &u64)| {
            let pages = match g.window {
                None => full,
                Some(_) => {
                    let running = self.reserved_pages(g.window).saturating_mul(self.sequences);
                    full.min(affordable(*bytes)).min(running.saturating_mul(2))
                }
            };
            u32::try_from(pages).map(|_| pages).map_err(|_| self.uncountable())
        };
        groups().map(total).collect()
    }

    /// The most pages of a group that a sequence of this length holds at once.
    pub fn most_pages(&self, window: Window, tokens: usize) -> usize {
        let all = tokens.div_ceil(self.page_len);
        // The positions that a chunk sees; they may begin anywhere within a page.
        let seen = |w: usize| w.saturating_add(self.chunk).saturating_sub(1).max(1);
        window.map_or(all, |w| all.min((seen(w) - 1).div_ceil(self.page_len) + 1))
    }

    /// Bytes that a sequence of this length needs; `None` on overflow.
    pub fn needed_bytes(&self, tokens: usize, page_bytes: &[u64]) -> Option<u64> {
        let needed = |(g, bytes): (&GroupLayout, &u64)| {
            bytes.checked_mul(self.most_pages(g.window, tokens) as u64)
        };
        let mut groups = self.groups.iter().zip(page_bytes).map(needed);
        groups.try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))
    }

    /// Number of pages of the full context.
    pub fn pages(&self) -> usize {
        self.context.div_ceil(self.page_len)
    }

    /// Pages for one sequence of full context. A window rarely starts on a page boundary, so one
    /// page is added at each end.
    pub fn reserved_pages(&self, window: Window) -> usize {
        let keep = window.map_or(self.context, |w| w.saturating_add(self.chunk));
        keep.div_ceil(self.page_len).saturating_add(2).min(self.pages())
    }

    fn uncountable(&self) -> KvError {
        KvError::Pages { sequences: self.sequences, context: self.context }
    }
}

/// The needs of sequences, for code that does not have the cache itself.
#[derive(Clone, Debug)]
pub(crate) struct KvFit {
    pub layout: KvLayout,
    /// Bytes of a page, by group.
    pub page_bytes: Vec<u64>,
    /// Number of pages, by group.
    pub totals: Vec<usize>,
    pub budget: u64,
}

impl KvFit {
    /// The longest sequence that fits when there is no other.
    pub fn most(&self) -> usize {
        let (mut fits, mut all) = (0, self.layout.context);
        // Needs grow with tokens.
        while fits < all {
            let middle = fits + (all - fits).div_ceil(2);
            match self.alone(middle) {
                Ok(()) => fits = middle,
                Err(_) => all = middle - 1,
            }
        }
        fits
    }

    /// The most sequences of `tokens` tokens that can be held at once.
    pub fn most_sequences(&self, tokens: usize) -> usize {
        let layout = &self.layout;
        let needed = layout.needed_bytes(tokens, &self.page_bytes).unwrap_or(u64::MAX).max(1);
        let pages = layout
            .groups
            .iter()
            .zip(&self.totals)
            .map(|(g, total)| total / layout.most_pages(g.window, tokens).max(1));
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
        let needed = layout.needed_bytes(tokens, &self.page_bytes).unwrap_or(u64::MAX);
        let mut groups = layout.groups.iter().zip(&self.totals);
        if needed > budget || groups.any(|(g, total)| layout.most_pages(g.window, tokens) > *total)
        {
            return Err(KvError::Budget { tokens, needed, budget });
        }
        Ok(())
    }
}
