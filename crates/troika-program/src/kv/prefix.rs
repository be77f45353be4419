//! The prefix index: whole pages of sequences, found by their tokens, that other sequences may
//! start from.
//!
//! A trie with one page of tokens per node. A node is found by its parent, its tokens and the
//! numerics that computed it, all compared in full. It holds a page of every group, but may give up
//! a windowed group's page: sequences that continue far behind the node do not see it.
//!
//! When room is short, pages held only by nodes are freed in this order, the least recently used
//! first: windowed pages too far before every end to be seen there (the trie stops or forks at an
//! end); nodes at the ends; nodes before others that sequences use, with everything behind them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::pages::{NodeId, Pages};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PrefixKey {
    /// `None` for the first page of a sequence.
    parent: Option<NodeId>,
    numerics: u64,
    tokens: Arc<[u32]>,
}

#[derive(Debug)]
struct PrefixNode {
    key: PrefixKey,
    /// Number of nodes before it.
    depth: usize,
    /// Its pages by group.
    pages: Vec<Option<u32>>,
    children: BTreeSet<NodeId>,
    /// Number of ends so near that a sequence continuing there sees this node's pages in the
    /// largest window.
    ends: u32,
    /// The logical time of the last use.
    last_use: u64,
    /// Its rank among the evictable nodes.
    rank: Option<EvictionRank>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionKind {
    /// Has windowed pages that no end needs.
    Passed,
    Leaf,
    Branch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionRank {
    kind: EvictionKind,
    last_use: u64,
    /// Among pages used together, windowed pages go from the first position on, whole nodes from
    /// the last one.
    order: usize,
    node: NodeId,
}

/// The prefixes that sequences may adopt.
#[derive(Debug)]
pub(super) struct PrefixIndex {
    nodes: HashMap<NodeId, PrefixNode>,
    by_key: HashMap<PrefixKey, NodeId>,
    evictable: BTreeSet<EvictionRank>,
    /// How many pages before its first position a sequence sees in the largest window.
    reach: usize,
    next: NodeId,
    time: u64,
}

impl PrefixIndex {
    pub fn new(pages: &Pages) -> PrefixIndex {
        let reach = |w: usize, page_len: usize| w.saturating_sub(1).div_ceil(page_len);
        let reaches = pages.groups.iter().filter_map(|g| Some(reach(g.window()?, g.page_len)));
        PrefixIndex {
            nodes: HashMap::new(),
            by_key: HashMap::new(),
            evictable: BTreeSet::new(),
            reach: reaches.max().unwrap_or(0),
            next: NodeId::FIRST,
            time: 0,
        }
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// The nodes that match some tokens, up to the last one that a sequence can continue from.
    pub fn find(
        &self,
        tokens: &[u32],
        page_len: usize,
        numerics: u64,
        pages: &Pages,
    ) -> Vec<NodeId> {
        let mut path = Vec::new();
        // For each group, how many nodes in a row have their page.
        let mut runs = vec![0; pages.groups.len()];
        let (mut parent, mut usable) = (None, 0);
        for tokens in tokens.chunks_exact(page_len) {
            let key = PrefixKey { parent, numerics, tokens: tokens.into() };
            let found = self.by_key.get(&key);
            let Some((&id, node)) = found.and_then(|id| Some((id, self.nodes.get(id)?))) else {
                break;
            };
            path.push(id);
            parent = Some(id);
            let mut visible = true;
            for ((run, page), group) in runs.iter_mut().zip(&node.pages).zip(&pages.groups) {
                *run = if page.is_some() { *run + 1 } else { 0 };
                visible &= *run >= path.len() - group.first_seen(path.len() * page_len);
            }
            if visible {
                usable = path.len();
            }
        }
        path.truncate(usable);
        path
    }

    /// The page of a group that a node holds.
    pub fn page(&self, node: NodeId, group: usize) -> Option<u32> {
        self.nodes.get(&node)?.pages[group]
    }

    /// Marks the nodes as used now.
    pub fn touch(&mut self, nodes: &[NodeId], pages: &Pages) {
        self.time += 1;
        for id in nodes {
            if let Some(node) = self.nodes.get_mut(id) {
                node.last_use = self.time;
                self.refresh(*id, pages);
            }
        }
    }

    /// A sequence lets go of a page, which a node may also hold.
    pub fn let_go(&mut self, group: usize, page: u32, pages: &mut Pages) {
        if let Some(node) = pages.groups[group].let_go(page) {
            self.refresh(node, pages);
        }
    }

    /// Finds or makes the node of some tokens behind `parent`. A new node holds the pages that
    /// `held` names by group, which no node may hold yet. A node that gave up a windowed page gets
    /// it from there. `None` when a page is missing.
    pub fn publish(
        &mut self,
        parent: Option<NodeId>,
        tokens: &[u32],
        numerics: u64,
        held: &dyn Fn(usize) -> Option<u32>,
        pages: &mut Pages,
    ) -> Option<NodeId> {
        let key = PrefixKey { parent, numerics, tokens: tokens.into() };
        if let Some(&id) = self.by_key.get(&key) {
            let node = self.nodes.get_mut(&id)?;
            for (group, page) in node.pages.iter_mut().enumerate().filter(|(_, p)| p.is_none()) {
                *page = held(group);
                page.iter().for_each(|&page| pages.groups[group].publish(page, id));
            }
            self.refresh(id, pages);
            return Some(id);
        }
        let held: Vec<Option<u32>> = (0..pages.groups.len()).map(held).collect();
        if pages.groups.iter().zip(&held).any(|(g, page)| !g.kind.forgets() && page.is_none()) {
            return None;
        }
        let id = self.next;
        self.next = id.next();
        for (group, page) in pages.groups.iter_mut().zip(&held) {
            page.iter().for_each(|&page| group.publish(page, id));
        }
        self.insert(id, key, held, pages);
        Some(id)
    }

    fn insert(&mut self, id: NodeId, key: PrefixKey, held: Vec<Option<u32>>, pages: &Pages) {
        let parent = key.parent;
        let before = parent.and_then(|p| self.nodes.get_mut(&p));
        let (depth, siblings) = before.map_or((0, None), |p| {
            p.children.insert(id);
            (p.depth + 1, Some(p.children.len() - 1))
        });
        self.time += 1;
        self.by_key.insert(key.clone(), id);
        let node = PrefixNode {
            key,
            depth,
            pages: held,
            children: BTreeSet::new(),
            ends: 0,
            last_use: self.time,
            rank: None,
        };
        self.nodes.insert(id, node);
        self.count_end(Some(id), self.reach, 1, pages);
        match siblings {
            Some(0) => self.count_end(parent, self.reach, -1, pages),
            Some(1) => self.count_end(parent, self.reach, 1, pages),
            _ => {}
        }
        self.refresh(id, pages);
        parent.into_iter().for_each(|p| self.refresh(p, pages));
    }

    /// Adds `by` to the count of ends of a node and of the nodes before it.
    fn count_end(&mut self, from: Option<NodeId>, nodes: usize, by: i32, pages: &Pages) {
        let mut at = from;
        for _ in 0..nodes {
            let Some((id, node)) = at.and_then(|id| Some((id, self.nodes.get_mut(&id)?))) else {
                return;
            };
            node.ends = node.ends.saturating_add_signed(by);
            at = node.key.parent;
            self.refresh(id, pages);
        }
    }

    /// Updates a node's rank among the evictable ones.
    pub fn refresh(&mut self, id: NodeId, pages: &Pages) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let rank = node.rank(id, pages);
        if rank != node.rank {
            node.rank.iter().for_each(|old| _ = self.evictable.remove(old));
            self.evictable.extend(rank);
            node.rank = rank;
        }
    }

    /// Frees a page that no sequence uses. Spares windowed pages if only pages of groups without a
    /// window are short. Returns whether it freed one.
    pub fn evict(&mut self, pages: &mut Pages, windowed: bool) -> bool {
        let (last_use, order, node) = (0, 0, NodeId::FIRST);
        let from = EvictionRank { kind: EvictionKind::Leaf, last_use, order, node };
        let whole = self.evictable.range(from..).next().filter(|_| !windowed);
        let Some(&rank) = whole.or(self.evictable.first()) else { return false };
        let unwindowed = |node: &PrefixNode| {
            let held = pages.groups.iter().zip(&node.pages).filter(|(g, _)| !g.kind.forgets());
            held.filter_map(|(g, page)| Some(g.is_kept((*page)?))).any(|kept| kept)
        };
        match rank.kind {
            EvictionKind::Leaf => self.forget(rank.node, pages),
            EvictionKind::Branch if self.nodes.get(&rank.node).is_some_and(unwindowed) => {
                self.forget(rank.node, pages);
            }
            EvictionKind::Passed | EvictionKind::Branch => self.give_up(rank.node, pages),
        }
        true
    }

    /// Frees the windowed pages that only this node holds.
    fn give_up(&mut self, id: NodeId, pages: &mut Pages) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let held = pages.groups.iter_mut().zip(&mut node.pages);
        for (group, held) in held.filter(|(g, _)| g.kind.forgets()) {
            if let Some(page) = held.take_if(|page| group.is_kept(*page)) {
                group.unpublish(page);
            }
        }
        self.refresh(id, pages);
        self.prune(Some(id), pages);
    }

    /// Removes a node and everything behind it.
    pub fn forget(&mut self, id: NodeId, pages: &mut Pages) {
        let parent = self.nodes.get(&id).and_then(|n| n.key.parent);
        let mut subtree = vec![id];
        let mut next = 0;
        while let Some(id) = subtree.get(next) {
            subtree.extend(self.nodes.get(id).into_iter().flat_map(|n| n.children.iter().copied()));
            next += 1;
        }
        // Children are removed before their parent.
        for id in subtree.into_iter().rev() {
            self.remove_leaf(id, pages);
        }
        self.prune(parent, pages);
    }

    /// Removes nodes without pages and without children.
    pub fn prune(&mut self, from: Option<NodeId>, pages: &mut Pages) {
        let mut at = from;
        while let Some((id, node)) = at.and_then(|id| Some((id, self.nodes.get(&id)?))) {
            if !node.children.is_empty() || node.pages.iter().any(Option::is_some) {
                return;
            }
            at = node.key.parent;
            self.remove_leaf(id, pages);
        }
    }

    fn remove_leaf(&mut self, id: NodeId, pages: &mut Pages) {
        let Some(node) = self.nodes.remove(&id) else { return };
        self.by_key.remove(&node.key);
        node.rank.iter().for_each(|rank| _ = self.evictable.remove(rank));
        for (group, page) in pages.groups.iter_mut().zip(&node.pages) {
            page.iter().for_each(|&page| group.unpublish(page));
        }
        let parent = node.key.parent;
        self.count_end(parent, self.reach.saturating_sub(1), -1, pages);
        let Some(before) = parent.and_then(|p| self.nodes.get_mut(&p)) else { return };
        before.children.remove(&id);
        match before.children.len() {
            0 => self.count_end(parent, self.reach, 1, pages),
            1 => self.count_end(parent, self.reach, -1, pages),
            _ => {}
        }
        parent.into_iter().for_each(|p| self.refresh(p, pages));
    }

    /// For the audit: the pages of each node.
    pub fn held(&self) -> impl Iterator<Item = (NodeId, &[Option<u32>])> {
        self.nodes.iter().map(|(id, node)| (*id, node.pages.as_slice()))
    }

    /// Checks the index by itself.
    pub fn audit(&self, pages: &Pages) -> Result<(), String> {
        let mut ends: HashMap<NodeId, u32> = HashMap::new();
        for (&id, node) in &self.nodes {
            let mut at = Some(id).filter(|_| node.children.len() != 1);
            for _ in 0..self.reach {
                let Some(end) = at else { break };
                *ends.entry(end).or_default() += 1;
                at = self.nodes.get(&end).and_then(|n| n.key.parent);
            }
        }
        let mut ranks = 0;
        for (&id, node) in &self.nodes {
            let parent = node.key.parent.map(|p| self.nodes.get(&p));
            let depth = match parent {
                Some(Some(p)) if p.children.contains(&id) => p.depth + 1,
                Some(_) => return Err(format!("{id:?} is not a child of its parent")),
                None => 0,
            };
            let useful = !node.children.is_empty() || node.pages.iter().any(Option::is_some);
            let rank = node.rank(id, pages);
            ranks += usize::from(rank.is_some());
            let right = [
                (depth == node.depth, "its depth"),
                (self.by_key.get(&node.key) == Some(&id), "what it is found by"),
                (ends.get(&id).copied().unwrap_or(0) == node.ends, "its ends"),
                (rank == node.rank, "its rank"),
                (rank.is_none_or(|r| self.evictable.contains(&r)), "its place in the queue"),
                (node.children.iter().all(|c| self.nodes.contains_key(c)), "its children"),
                (useful, "its pages: it has none and leads nowhere"),
            ];
            if let Some((_, what)) = right.iter().find(|(right, _)| !right) {
                return Err(format!("wrong of {id:?}: {what}"));
            }
        }
        match ranks == self.evictable.len() && self.by_key.len() == self.nodes.len() {
            true => Ok(()),
            false => Err("entries of nodes that are gone".to_string()),
        }
    }
}

impl PrefixNode {
    /// Its rank for eviction; `None` if sequences use all its pages.
    fn rank(&self, node: NodeId, pages: &Pages) -> Option<EvictionRank> {
        let (mut kept, mut windowed) = (false, false);
        for (group, page) in pages.groups.iter().zip(&self.pages) {
            let only_here = page.is_some_and(|page| group.is_kept(page));
            kept |= only_here;
            windowed |= only_here && group.kind.forgets();
        }
        let (kind, order) = match self.children.is_empty() {
            _ if !kept => return None,
            _ if windowed && self.ends == 0 => (EvictionKind::Passed, self.depth),
            true => (EvictionKind::Leaf, usize::MAX - self.depth),
            false => (EvictionKind::Branch, usize::MAX - self.depth),
        };
        Some(EvictionRank { kind, last_use: self.last_use, order, node })
    }
}
