//! Numbers of sequences, and why the cache refuses what is asked of it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a sequence; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(u64);

impl SeqId {
    /// A new number.
    pub fn next() -> SeqId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SeqId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// It as forward batches have it.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why the cache refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The sequence would grow past the context.
    #[error(
        "{tokens} tokens do not fit the context of {context}; shorten the prompt or use a larger context"
    )]
    Context {
        /// Length wanted.
        tokens: usize,
        /// Length allowed.
        context: usize,
    },
    /// More pages than can be managed.
    #[error(
        "no KV cache can hold {sequences} sequences of {context} tokens; use a smaller context"
    )]
    Pages {
        /// Sequences wanted.
        sequences: usize,
        /// Length of each.
        context: usize,
    },
    /// A sequence needs more than the whole cache may use.
    #[error(
        "a sequence of {tokens} tokens needs {needed} bytes of KV cache, but its budget is {budget} bytes; use a larger budget or fewer tokens"
    )]
    Budget {
        /// Length of the sequence.
        tokens: usize,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that the cache may use.
        budget: u64,
    },
    /// All pages are taken by other sequences.
    #[error("the KV cache is full: no free page for another {0} positions")]
    Full(usize),
    /// The sequence was closed.
    #[error("sequence {0} is not open")]
    Closed(SeqId),
}
