//! What reports share: their version, and the time that measuring may take.

use std::time::{Duration, Instant};

use crate::interrupt::Interrupt;

/// The version of the format of reports.
pub const VERSION: u64 = 1;

/// The time that is left, which Ctrl-C ends.
#[derive(Clone)]
pub struct Budget {
    pub end: Instant,
    pub interrupt: Interrupt,
}

impl Budget {
    /// What is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether there is some.
    pub fn goes_on(&self) -> bool {
        !self.interrupt.pressed() && !self.left().is_zero()
    }

    /// The part of one of several steps: twice its share, since many need less.
    pub fn part(&self, steps: usize) -> Budget {
        let part = (self.left() * 2 / steps as u32).min(self.left());
        Budget { end: Instant::now() + part, ..self.clone() }
    }
}
