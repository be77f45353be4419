//! The pages of the cache: which are free, and who holds each of the others.

use std::num::NonZeroU64;

use troika_graph::Window;

/// A node of the prefix index; never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(NonZeroU64);

impl NodeId {
    pub const FIRST: NodeId = NodeId(NonZeroU64::MIN);

    pub fn next(self) -> NodeId {
        NodeId(self.0.saturating_add(1))
    }
}

/// Who holds a page: so many in all, of which a node of the prefix index may be one and the others
/// are sequences.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHolders {
    pub count: u32,
    pub node: Option<NodeId>,
}

impl PageHolders {
    fn is_kept(&self) -> bool {
        self.count == 1 && self.node.is_some()
    }
}

/// The pages of the layers that have one window.
#[derive(Debug)]
pub(super) struct PageGroup {
    pub window: Window,
    pub page_len: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    pub total: usize,
    /// Pages that were given back, to be used again before others are begun.
    free: Vec<u32>,
    /// Holders of the pages that were ever given out. A list of all would be long for a context
    /// that is never filled.
    holders: Vec<PageHolders>,
    /// Pages that only nodes hold.
    kept: usize,
}

impl PageGroup {
    pub fn new(window: Window, page_len: usize, page_bytes: u64, total: usize) -> PageGroup {
        let (free, holders) = (Vec::new(), Vec::new());
        PageGroup { window, page_len, page_bytes, total, free, holders, kept: 0 }
    }

    /// Pages that can be taken as things are.
    pub fn available(&self) -> usize {
        self.total - self.used()
    }

    /// Pages that somebody holds.
    pub fn used(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    /// Pages that only nodes hold.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Logical index of the first page that position `next` and those after it see.
    pub fn first_seen(&self, next: usize) -> usize {
        self.window.map_or(0, |w| (next + 1).saturating_sub(w)) / self.page_len
    }

    /// A free page, for a sequence.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None if self.holders.len() == self.total => return None,
            None => {
                self.holders.push(PageHolders::default());
                (self.holders.len() - 1) as u32
            }
        };
        self.change(page, |p| p.count = 1);
        Some(page)
    }

    /// One sequence more holds a page.
    pub fn share(&mut self, page: u32) {
        self.change(page, |p| p.count += 1);
    }

    /// A sequence lets go of a page. Returns the node that holds it, too.
    pub fn let_go(&mut self, page: u32) -> Option<NodeId> {
        self.change(page, |p| p.count -= 1);
        self.node(page)
    }

    /// A node holds a page of a sequence, too.
    pub fn publish(&mut self, page: u32, node: NodeId) {
        self.change(page, |p| {
            p.count += 1;
            p.node = Some(node);
        });
    }

    /// The node that holds a page lets go of it.
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
            self.free.push(page);
        }
    }

    /// For the audit: the holders of all pages that were ever given out, and which are free.
    pub fn accounts(&self) -> (&[PageHolders], &[u32]) {
        (&self.holders, &self.free)
    }
}

/// The pages of all groups, and the bytes that may be used at once.
#[derive(Debug)]
pub(super) struct Pages {
    pub groups: Vec<PageGroup>,
    pub budget: u64,
}

impl Pages {
    /// Bytes of the pages that somebody holds.
    pub fn used_bytes(&self) -> u64 {
        self.groups.iter().map(|g| g.used() as u64 * g.page_bytes).sum()
    }

    /// Bytes of the pages that only nodes hold.
    pub fn kept_bytes(&self) -> u64 {
        self.groups.iter().map(|g| g.kept() as u64 * g.page_bytes).sum()
    }
}
