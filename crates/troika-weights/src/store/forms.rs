//! Packed forms by id: shared while they are in memory.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, TryLockError};

use troika_device::{Packed, lock};

/// Which packed form: of a weight or some of its rows, in a layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FormId {
    /// The weight's name.
    pub weight: String,
    /// The layout's name.
    pub layout: String,
    /// Some of its rows; `None`: all.
    pub rows: Option<Range<usize>>,
}

impl FormId {
    /// The name of the form on disk and in reports. It is unique among the forms of its weight.
    pub fn form(&self) -> String {
        match &self.rows {
            None => self.layout.clone(),
            Some(rows) => format!("{}, rows {} to {}", self.layout, rows.start, rows.end),
        }
    }
}

/// A form; `None` until it is made, and if it is not kept.
pub(crate) type PackSlot = Arc<Mutex<Option<Packed>>>;

#[derive(Default)]
pub(crate) struct Forms(Mutex<HashMap<FormId, PackSlot>>);

impl Forms {
    /// The place of a form. Only threads that request the same form wait for its lock.
    pub fn slot(&self, id: &FormId) -> PackSlot {
        lock(&self.0).entry(id.clone()).or_default().clone()
    }

    /// The weights that forms were made of, whether the forms are kept or not.
    pub fn weights(&self) -> HashSet<String> {
        lock(&self.0).keys().map(|id| id.weight.clone()).collect()
    }

    /// Calls `f` with each form in memory and its bytes, except those that are being made.
    pub fn each(&self, mut f: impl FnMut(&FormId, u64)) {
        for (id, slot) in lock(&self.0).iter() {
            let form = match slot.try_lock() {
                Ok(form) => form,
                Err(TryLockError::Poisoned(e)) => e.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if let Some(form) = &*form {
                f(id, form.bytes.len() as u64);
            }
        }
    }
}
