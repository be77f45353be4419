//! The pages of the cache: which are free, and who holds the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::ops::Range;

use troika_graph::{StateKind, Window};

/// The number of a node of the prefix index; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(NonZeroU64);

impl NodeId {
    pub const FIRST: NodeId = NodeId(NonZeroU64::MIN);

    pub fn next(self) -> NodeId {
        NodeId(self.0.saturating_add(1))
    }
}

/// Who holds a page: their number, and the node of the prefix index if one is among them. The
/// others are sequences.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHolders {
    pub count: u32,
    pub node: Option<NodeId>,
    /// Whether the page's memory was given back to the system since it was last used.
    pub given_back: bool,
}

impl PageHolders {
    fn is_kept(&self) -> bool {
        self.count == 1 && self.node.is_some()
    }
}

/// The pages of all states of one kind.
#[derive(Debug)]
pub(super) struct PageGroup {
    pub kind: StateKind,
    pub page_len: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    pub total: usize,
    /// Returned pages, which are reused before new ones: the first of them first, so that the
    /// pages of a sequence are runs, whatever was there before.
    free: BinaryHeap<Reverse<u32>>,
    /// Holders of each page that was ever used. A list of all pages would be long for a context
    /// that is never filled.
    holders: Vec<PageHolders>,
    /// Number of pages that only nodes hold.
    pub kept: usize,
    /// Number of free pages whose memory was given back.
    given_back: usize,
}

impl PageGroup {
    pub fn new(kind: StateKind, page_len: usize, page_bytes: u64, total: usize) -> PageGroup {
        let (free, holders) = (BinaryHeap::new(), Vec::new());
        let (kept, given_back) = (0, 0);
        PageGroup { kind, page_len, page_bytes, total, free, holders, kept, given_back }
    }

    /// Positions back that a sequence needs.
    pub fn window(&self) -> Window {
        self.kind.window(self.page_len)
    }

    /// Number of free pages.
    pub fn available(&self) -> usize {
        self.total - self.used()
    }

    /// Number of pages that are held.
    pub fn used(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    /// Logical index of the first page that position `next` or a later one sees.
    pub fn first_seen(&self, next: usize) -> usize {
        self.window().map_or(0, |w| (next + 1).saturating_sub(w)) / self.page_len
    }

    /// Takes a free page for a sequence.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(Reverse(page)) => page,
            None if self.holders.len() == self.total => return None,
            None => {
                self.holders.push(PageHolders::default());
                (self.holders.len() - 1) as u32
            }
        };
        let given_back = std::mem::take(&mut self.holders[page as usize].given_back);
        self.given_back -= usize::from(given_back);
        self.change(page, |p| p.count = 1);
        Some(page)
    }

    /// Number of pages that have memory of the system: they were used, and not given back since.
    pub fn written(&self) -> usize {
        self.holders.len() - self.given_back
    }

    /// Marks the free pages as given back. Returns them, in runs, if there are new ones.
    pub fn give_back(&mut self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        if self.given_back == self.free.len() {
            return runs;
        }
        self.given_back = self.free.len();
        let mut free: Vec<u32> = self.free.iter().map(|page| page.0).collect();
        free.sort_unstable();
        for page in free {
            self.holders[page as usize].given_back = true;
            match runs.last_mut().filter(|run| run.end == page) {
                Some(run) => run.end = page + 1,
                None => runs.push(page..page + 1),
            }
        }
        runs
    }

    /// Adds a sequence to a page's holders.
    pub fn share(&mut self, page: u32) {
        self.change(page, |p| p.count += 1);
    }

    /// Removes a sequence from a page's holders. Returns the node that also holds it.
    pub fn let_go(&mut self, page: u32) -> Option<NodeId> {
        self.change(page, |p| p.count -= 1);
        self.node(page)
    }

    /// Adds a node to the holders of a sequence's page.
    pub fn publish(&mut self, page: u32, node: NodeId) {
        self.change(page, |p| {
            p.count += 1;
            p.node = Some(node);
        });
    }

    /// Removes the node from a page's holders.
    pub fn unpublish(&mut self, page: u32) {
        self.change(page, |p| {
            p.count -= 1;
            p.node = None;
        });
    }

    pub fn node(&self, page: u32) -> Option<NodeId> {
        self.holders[page as usize].node
    }

    /// Whether only a node holds a page.
    pub fn is_kept(&self, page: u32) -> bool {
        self.holders[page as usize].is_kept()
    }

    /// How many sequences hold a page.
    pub fn sequences(&self, page: u32) -> u32 {
        let holders = self.holders[page as usize];
        holders.count - u32::from(holders.node.is_some())
    }

    fn change(&mut self, page: u32, change: impl FnOnce(&mut PageHolders)) {
        let holders = &mut self.holders[page as usize];
        self.kept -= usize::from(holders.is_kept());
        change(holders);
        self.kept += usize::from(holders.is_kept());
        if holders.count == 0 {
            self.free.push(Reverse(page));
        }
    }

    /// For the audit: the holders of all pages ever used, and the free pages.
    pub fn accounts(&self) -> (&[PageHolders], impl Iterator<Item = u32>) {
        (&self.holders, self.free.iter().map(|page| page.0))
    }
}

/// Pages of a cache, summed over all its groups of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCount {
    /// Those that open sequences hold.
    pub held: usize,
    /// All of them.
    pub all: usize,
}

/// The pages of all groups, and the byte budget.
#[derive(Debug)]
pub(super) struct Pages {
    pub groups: Vec<PageGroup>,
    pub budget: u64,
}

impl Pages {
    /// Bytes of the pages that are held.
    pub fn used_bytes(&self) -> u64 {
        self.groups.iter().map(|g| g.used() as u64 * g.page_bytes).sum()
    }

    /// Bytes of the pages that only nodes hold.
    pub fn kept_bytes(&self) -> u64 {
        self.groups.iter().map(|g| g.kept as u64 * g.page_bytes).sum()
    }
}
