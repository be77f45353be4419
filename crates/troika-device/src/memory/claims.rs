//! The rectangles of a buffer that are in use.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::Rect;

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Others may read the bytes too.
    Read,
    /// No other access to the bytes.
    Write,
}

/// Why bytes of a buffer cannot be accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Two tasks access the same bytes at once: a fault of the scheduler.
    #[error("a part of a buffer was accessed by two tasks at once")]
    Busy,
    /// A copy between views of different shapes.
    #[error("cannot copy {from:?} rows and bytes of a row to {to:?}")]
    Shapes {
        /// Rows, and bytes per row, of the source.
        from: (usize, usize),
        /// The same of the destination.
        to: (usize, usize),
    },
    /// The buffer is in a memory space that the host cannot read or write.
    #[error("a buffer in a device's own memory was accessed without a copy to the host")]
    Foreign,
}

/// A rectangle in use.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    rect: Rect,
    access: Access,
    ticket: u64,
}

/// Number of open claims before their list moves to the heap.
const INLINE: usize = 6;

/// The open claims of a buffer, behind a simple spin lock that is released by a single store, since
/// each binding of each submission takes it twice. It is held for tens of nanoseconds, and code
/// that holds it never waits.
pub(super) struct Table {
    locked: AtomicBool,
    open: UnsafeCell<Open>,
}

// SAFETY: `open` is only touched by whoever holds the lock.
unsafe impl Sync for Table {}

#[derive(Default)]
struct Open {
    entries: SmallVec<[Entry; INLINE]>,
    next: u64,
}

impl Open {
    /// Whether other tickets' rectangles are in the way of some.
    fn excludes(&self, ticket: u64, wanted: &[(Rect, Access)]) -> bool {
        self.entries.iter().any(|e| {
            let meets = |(rect, access): &(Rect, Access)| {
                [e.access, *access].contains(&Access::Write) && e.rect.overlaps(rect)
            };
            e.ticket != ticket && wanted.iter().any(meets)
        })
    }
}

/// Spins before a thread that waits for the lock yields.
const SPINS: u32 = 64;

struct Locked<'a>(&'a Table);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

impl Deref for Locked<'_> {
    type Target = Open;
    fn deref(&self) -> &Open {
        // SAFETY: this is the only `Locked` of the table, and the result borrows it.
        unsafe { &*self.0.open.get() }
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Open {
        // SAFETY: as above; the result borrows it exclusively.
        unsafe { &mut *self.0.open.get() }
    }
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table { locked: AtomicBool::new(false), open: UnsafeCell::default() }
    }

    fn lock(&self) -> Locked<'_> {
        let mut turns = 0;
        while self.locked.swap(true, Ordering::Acquire) {
            // The thread that holds the lock may have lost its core.
            turns += 1;
            if turns < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        Locked(self)
    }

    /// Adds rectangles under a new ticket, all or none. They are not compared with each other.
    pub fn enter(&self, wanted: &[(Rect, Access)]) -> Result<u64, AccessError> {
        let mut open = self.lock();
        let ticket = open.next;
        if open.excludes(ticket, wanted) {
            return Err(AccessError::Busy);
        }
        open.next += 1;
        for &(rect, access) in wanted {
            open.entries.push(Entry { rect, access, ticket });
        }
        Ok(ticket)
    }

    /// Adds rectangles to a ticket, all or none. They are not compared with each other. Rectangles
    /// that the ticket has are not added again.
    pub fn extend(&self, ticket: u64, wanted: &[(Rect, Access)]) -> Result<(), AccessError> {
        let mut open = self.lock();
        if open.excludes(ticket, wanted) {
            return Err(AccessError::Busy);
        }
        for &(rect, access) in wanted {
            let entry = Entry { rect, access, ticket };
            if !open.entries.contains(&entry) {
                open.entries.push(entry);
            }
        }
        Ok(())
    }

    /// Removes a ticket's rectangles.
    pub fn leave(&self, ticket: u64) {
        let mut open = self.lock();
        let entries = &mut open.entries;
        // Usually there are no others.
        if entries.iter().all(|e| e.ticket == ticket) {
            entries.clear();
        } else {
            entries.retain(|e| e.ticket != ticket);
        }
    }
}
