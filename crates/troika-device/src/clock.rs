//! Time. Only the scheduler and device queues use it.

use std::any::Any;
use std::time::{Duration, Instant};

/// A source of time: real, or virtual in a simulation.
pub trait Clock: Any + Send + Sync {
    /// Time since the clock's epoch.
    fn now(&self) -> Duration;

    /// Lets time pass. A virtual clock runs its devices' events meanwhile.
    fn wait(&self, duration: Duration);

    /// The time of a virtual device's next event; `None` if there is none, and for real time.
    fn next_event(&self) -> Option<Duration> {
        None
    }
}

/// Monotonic real time since its creation.
#[derive(Clone, Copy, Debug)]
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
