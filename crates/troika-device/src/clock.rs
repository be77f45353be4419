//! Time. Only the scheduler and device queues ask it.

use std::time::{Duration, Instant};

/// A source of time: real, or virtual in a simulation.
pub trait Clock: Send + Sync {
    /// Time since the clock's epoch.
    fn now(&self) -> Duration;

    /// Lets time pass. A virtual clock carries out what its devices do meanwhile.
    fn wait(&self, duration: Duration);

    /// When a virtual device will have done something next; `None` when nothing is under way, and
    /// for a clock that goes by itself.
    fn next_event(&self) -> Option<Duration> {
        None
    }
}

/// Monotonic real time since its creation.
#[derive(Debug)]
pub struct RealClock(Instant);

impl RealClock {
    /// A clock whose epoch is now.
    pub fn new() -> RealClock {
        RealClock(Instant::now())
    }
}

impl Default for RealClock {
    fn default() -> Self {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}
