//! Checks the bookkeeping of the whole cache. Slow: for tests.

use std::collections::HashMap;

use super::KvCache;
use super::pages::NodeId;

#[derive(Default)]
struct FoundHolders {
    /// Its index in the tables of the sequences that hold it.
    index: Option<usize>,
    sequences: u32,
    node: Option<NodeId>,
}

impl KvCache {
    /// Checks that each page is either free or held by exactly those tables and nodes that name it,
    /// that sequences share only whole pages at the same index, and that the budget is kept.
    pub fn audit(&self) -> Result<(), String> {
        for group in 0..self.pages.groups.len() {
            self.audit_group(group).map_err(|wrong| format!("group {group}: {wrong}"))?;
        }
        let (used, budget) = (self.used_bytes(), self.pages.budget);
        if used > budget {
            return Err(format!("{used} bytes are used, the budget is {budget}"));
        }
        self.prefixes.audit(&self.pages)
    }

    fn audit_group(&self, group: usize) -> Result<(), String> {
        let found = self.found_holders(group)?;
        let pages = &self.pages.groups[group];
        let (holders, free) = pages.accounts();
        if holders.len() > pages.total {
            return Err(format!("{} pages of {}", holders.len(), pages.total));
        }
        let given_back = holders.iter().filter(|h| h.given_back).count();
        if given_back + pages.written() != holders.len() {
            return Err(format!("{given_back} pages were given back, not so many are counted"));
        }
        let mut is_free = vec![false; holders.len()];
        for page in free {
            if std::mem::replace(&mut is_free[page as usize], true) {
                return Err(format!("page {page} is free twice"));
            }
        }
        let mut kept = 0;
        for (page, (holders, is_free)) in holders.iter().zip(is_free).enumerate() {
            let f = found.get(&(page as u32));
            let (sequences, node) = f.map_or((0, None), |f| (f.sequences, f.node));
            let count = sequences + u32::from(node.is_some());
            if holders.count != count || holders.node != node {
                return Err(format!(
                    "page {page}: {holders:?}, but {sequences} sequences and {node:?} have it"
                ));
            }
            if is_free != (count == 0) || (holders.given_back && !is_free) {
                return Err(format!("page {page} has {count} holders, free: {is_free}"));
            }
            kept += usize::from(sequences == 0 && node.is_some());
        }
        match kept == pages.kept && found.keys().all(|page| (*page as usize) < holders.len()) {
            true => Ok(()),
            false => Err(format!("{kept} pages are kept, not {}", pages.kept)),
        }
    }

    fn found_holders(&self, group: usize) -> Result<HashMap<u32, FoundHolders>, String> {
        let mut found: HashMap<u32, FoundHolders> = HashMap::new();
        for (id, seq) in &self.seqs {
            let table = &seq.tables[group];
            if table.first + table.pages.len() != seq.len.div_ceil(table.page_len) {
                return Err(format!("sequence {id} of length {} has {table:?}", seq.len));
            }
            for (i, &page) in table.pages.iter().enumerate() {
                let index = table.first + i;
                let holders = found.entry(page).or_default();
                // This also finds a page that is in one table twice.
                if holders.index.is_some_and(|other| other != index) {
                    return Err(format!("page {page} lies at two places"));
                }
                holders.index = Some(index);
                holders.sequences += 1;
            }
            if let Some(c) = table.checkpoint {
                if c.at.is_multiple_of(table.page_len) || c.at / table.page_len < table.first {
                    return Err(format!("sequence {id} has {c:?} of a page that it lacks"));
                }
                found.entry(c.page).or_default().sequences += 1;
            }
        }
        for (node, held) in self.prefixes.held() {
            if let Some(page) = held[group]
                && found.entry(page).or_default().node.replace(node).is_some()
            {
                return Err(format!("page {page} belongs to two nodes"));
            }
        }
        for (id, seq) in self.seqs.iter().filter(|(_, s)| s.len % self.layout.page_len > 0) {
            let last = seq.page(group, seq.len / self.layout.page_len);
            let holders = last.and_then(|page| found.get(&page));
            if holders.is_none_or(|f| f.sequences != 1 || f.node.is_some()) {
                return Err(format!("the page that sequence {id} writes next is not its own"));
            }
        }
        Ok(found)
    }
}
