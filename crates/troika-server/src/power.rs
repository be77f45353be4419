//! What feeds the machine, which chooses between a model's plans.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use troika::on_battery;

/// Whether a battery feeds the machine, as it was lately: some systems take a while to tell.
pub struct PowerSource {
    sys: Option<PathBuf>,
    /// How long an answer counts.
    pub every: Duration,
    known: Mutex<Option<(Instant, bool)>>,
}

impl PowerSource {
    /// What a folder such as `/sys` tells; without one, that there is no battery.
    pub fn new(sys: Option<PathBuf>) -> PowerSource {
        PowerSource { sys, every: Duration::from_secs(2), known: Mutex::default() }
    }

    /// Whether a battery feeds the machine.
    pub fn on_battery(&self) -> bool {
        let Some(sys) = &self.sys else { return false };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none_or(|(at, _)| at.elapsed() >= self.every) {
            *known = Some((Instant::now(), on_battery(sys)));
        }
        known.is_some_and(|(_, is)| is)
    }
}
