//! How much the cache holds: pages of each group, and bytes.

use troika_graph::Window;

use super::KvError;

/// What a cache is made for.
#[derive(Clone, Debug)]
pub(crate) struct KvLayout {
    /// Positions per page.
    pub page_len: usize,
    /// Most positions of a sequence.
    pub context: usize,
    /// Most rows by which a sequence grows at once.
    pub chunk: usize,
    /// The groups of layers that share page tables.
    pub groups: Vec<GroupLayout>,
    /// The most sequences that run at once.
    pub sequences: usize,
    /// Bytes that may be used at once; `None`: as many as all sequences at the whole context need.
    pub budget: Option<u64>,
}

/// Layers of one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupLayout {
    /// How far back they see.
    pub window: Window,
    /// Bytes of a position in all their states.
    pub position_bytes: u64,
}

impl KvLayout {
    /// Bytes of a page of each group.
    ///
    /// # Errors
    /// More than can be counted.
    pub fn page_bytes(&self) -> Result<Vec<u64>, KvError> {
        let bytes = |g: &GroupLayout| g.position_bytes.checked_mul(self.page_len as u64);
        self.groups.iter().map(|g| bytes(g).ok_or_else(|| self.uncountable())).collect()
    }

    /// Bytes that may be used at once.
    ///
    /// # Errors
    /// More than can be counted, or too few for a page of each group.
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

    /// Pages of each group. Windowed groups have room for kept prefixes beside the sequences.
    ///
    /// # Errors
    /// More than page numbers can count.
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

    /// The most pages that a sequence of so many tokens has of a group at once.
    pub fn most_pages(&self, window: Window, tokens: usize) -> usize {
        let all = tokens.div_ceil(self.page_len);
        // So many positions are seen by a chunk; they may begin anywhere within a page.
        let seen = |w: usize| w.saturating_add(self.chunk).saturating_sub(1).max(1);
        window.map_or(all, |w| all.min((seen(w) - 1).div_ceil(self.page_len) + 1))
    }

    /// Bytes that a sequence of so many tokens needs; `None` for more than can be counted.
    pub fn needed_bytes(&self, tokens: usize, page_bytes: &[u64]) -> Option<u64> {
        let needed = |(g, bytes): (&GroupLayout, &u64)| {
            bytes.checked_mul(self.most_pages(g.window, tokens) as u64)
        };
        let mut groups = self.groups.iter().zip(page_bytes).map(needed);
        groups.try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))
    }

    /// Pages of the whole context.
    pub fn pages(&self) -> usize {
        self.context.div_ceil(self.page_len)
    }

    /// Pages for one sequence of the whole context. A window rarely starts on a page boundary: one
    /// page more at each end.
    pub fn reserved_pages(&self, window: Window) -> usize {
        let keep = window.map_or(self.context, |w| w.saturating_add(self.chunk));
        keep.div_ceil(self.page_len).saturating_add(2).min(self.pages())
    }

    fn uncountable(&self) -> KvError {
        KvError::Pages { sequences: self.sequences, context: self.context }
    }
}

/// What sequences may need at most, for who has to know it without the cache.
#[derive(Clone, Debug)]
pub(crate) struct KvFit {
    pub layout: KvLayout,
    /// By group.
    pub page_bytes: Vec<u64>,
    /// Pages that there are, by group.
    pub totals: Vec<usize>,
    pub budget: u64,
}

impl KvFit {
    /// The most tokens of a sequence that can be held when there is no other.
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

    /// Whether a sequence of so many tokens, fed in chunks, can be held when there is no other.
    ///
    /// # Errors
    /// It never can.
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
