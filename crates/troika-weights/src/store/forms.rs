//! Packed forms by id: shared while they are in memory, and given up for others under a budget.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use troika_device::Packed;

use crate::parallel::lock;

/// Which packed form: of a weight or some of its rows, in a layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FormId {
    /// The weight's name.
    pub weight: String,
    /// The layout's name.
    pub layout: String,
    /// Some of its rows; `None`: all.
    pub rows: Option<Range<usize>>,
}

impl FormId {
    /// The name of the form among those of its weight, on disk and in reports.
    pub(crate) fn form(&self) -> String {
        match &self.rows {
            None => self.layout.clone(),
            Some(rows) => format!("{}, rows {} to {}", self.layout, rows.start, rows.end),
        }
    }
}

/// A form in memory.
pub(crate) struct PackedForm {
    pub packed: Packed,
    /// Bytes that count for the budget: none if the form is mapped from a file.
    counted: u64,
    /// When it was used last: larger is later.
    used: u64,
}

/// A form; `None` until it is made, and after it was evicted.
pub(crate) type PackSlot = Arc<Mutex<Option<PackedForm>>>;

/// All forms of a store.
#[derive(Default)]
pub(crate) struct Forms {
    by_id: Mutex<HashMap<FormId, PackSlot>>,
    /// The most bytes of forms that were made here; `None`: no limit.
    pub budget: Option<u64>,
    /// Bytes of forms that were made here or are being made.
    counted: Mutex<u64>,
    uses: AtomicU64,
}

impl Forms {
    /// The place of a form. Only threads that request the same form wait for its lock.
    pub fn slot(&self, id: &FormId) -> PackSlot {
        lock(&self.by_id).entry(id.clone()).or_default().clone()
    }

    /// Notes a use of a form.
    pub fn touch(&self, form: &mut PackedForm) -> Packed {
        form.used = self.uses.fetch_add(1, Ordering::Relaxed);
        form.packed.clone()
    }

    /// Fills a slot with a form of which `counted` bytes were reserved.
    pub fn fill(&self, slot: &mut Option<PackedForm>, packed: Packed, counted: u64) -> Packed {
        self.touch(slot.insert(PackedForm { packed, counted, used: 0 }))
    }

    /// Counts the bytes of a form that is to be made, and evicts others to make room: the least
    /// recently used first. Forms that somebody holds stay, even if the budget is exceeded by that.
    pub fn reserve(&self, bytes: u64) {
        let mut counted = lock(&self.counted);
        let fits = |counted: u64| self.budget.is_none_or(|b| counted.saturating_add(bytes) <= b);
        if !fits(*counted) {
            let mut idle = Vec::new();
            for slot in lock(&self.by_id).values() {
                let used = unlocked(slot).and_then(|form| Some(form.as_ref()?.used));
                idle.extend(used.map(|used| (used, slot.clone())));
            }
            idle.sort_unstable_by_key(|(used, _)| *used);
            for (_, slot) in idle {
                if fits(*counted) {
                    break;
                }
                *counted -= unlocked(&slot).map_or(0, |mut form| drop_idle(&mut form));
            }
        }
        *counted += bytes;
    }

    /// Takes back a reservation for a form that could not be made.
    pub fn give_back(&self, bytes: u64) {
        *lock(&self.counted) -= bytes;
    }

    /// Evicts a form, if it was made here and nobody holds it.
    pub fn evict(&self, id: &FormId) -> bool {
        let mut counted = lock(&self.counted);
        let slot = lock(&self.by_id).get(id).cloned();
        let freed = slot.and_then(|slot| Some(drop_idle(&mut *unlocked(&slot)?))).unwrap_or(0);
        *counted -= freed;
        freed > 0
    }

    /// The weights of which forms were made, whether they are still here or not.
    pub fn weights(&self) -> HashSet<String> {
        lock(&self.by_id).keys().map(|id| id.weight.clone()).collect()
    }

    /// Calls `f` with each form in memory and its bytes, except those that are being made.
    pub fn each(&self, mut f: impl FnMut(&FormId, u64)) {
        for (id, slot) in lock(&self.by_id).iter() {
            if let Some(form) = unlocked(slot)
                && let Some(form) = &*form
            {
                f(id, form.packed.bytes.len() as u64);
            }
        }
    }
}

/// A slot that no thread works on.
fn unlocked(slot: &PackSlot) -> Option<MutexGuard<'_, Option<PackedForm>>> {
    match slot.try_lock() {
        Ok(form) => Some(form),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Drops a form that was made here and that nobody holds. Returns its bytes.
fn drop_idle(slot: &mut Option<PackedForm>) -> u64 {
    let idle = slot.take_if(|form| form.counted > 0 && !form.packed.bytes.is_shared());
    idle.map_or(0, |form| form.counted)
}
