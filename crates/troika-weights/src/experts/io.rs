//! Reads in flight.

use std::io::Result;

/// Memory that a read fills.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub start: *mut u8,
    pub bytes: usize,
}

// SAFETY: it is memory that the read alone uses until it is done (`read::Reader::read`).
unsafe impl Send for Target {}

/// A read that is done: its number, and the bytes that were read.
pub(super) struct Done {
    pub number: u64,
    pub result: Result<usize>,
}
