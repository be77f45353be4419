//! Who uses which rectangles of a buffer right now.

use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::Rect;

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Others may read the bytes, too.
    Read,
    /// Nobody else touches the bytes.
    Write,
}

impl Access {
    /// Whether two uses of one byte exclude each other.
    pub fn conflicts(self, other: Access) -> bool {
        self == Access::Write || other == Access::Write
    }
}

/// Two tasks touched the same bytes of a buffer at once: an ordering bug in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a part of a buffer was accessed by two tasks at once")]
pub struct BufferBusy;

/// A rectangle in use.
#[derive(Clone, Copy)]
struct Entry {
    rect: Rect,
    access: Access,
    /// Whose it is.
    ticket: u64,
}

/// Claims open at once before their list goes to the heap, where it stays.
const INLINE: usize = 6;

/// The open claims of a buffer.
#[derive(Default)]
pub(super) struct Table(Mutex<Open>);

#[derive(Default)]
struct Open {
    entries: SmallVec<[Entry; INLINE]>,
    next: u64,
}

impl Table {
    /// No code that holds the lock panics halfway.
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters some rectangles, all or none. They are not compared with each other.
    pub fn enter(&self, wanted: &[(Rect, Access)]) -> Result<u64, BufferBusy> {
        let mut open = self.lock();
        let Open { entries, next } = &mut *open;
        for (rect, access) in wanted {
            let busy = |e: &Entry| e.access.conflicts(*access) && e.rect.overlaps(rect);
            if entries.iter().any(busy) {
                return Err(BufferBusy);
            }
        }
        let ticket = *next;
        *next += 1;
        let entry =
            |(rect, access): &(Rect, Access)| Entry { rect: *rect, access: *access, ticket };
        entries.extend(wanted.iter().map(entry));
        Ok(ticket)
    }

    /// Strikes a ticket's rectangles out.
    pub fn leave(&self, ticket: u64) {
        self.lock().entries.retain(|e| e.ticket != ticket);
    }
}
