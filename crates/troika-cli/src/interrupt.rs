//! Ctrl-C: the first one ends compiling or generation, the second one the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use troika::SessionCanceller;

/// Whether the user pressed Ctrl-C.
#[derive(Clone, Default)]
pub struct Interrupt {
    pressed: Arc<AtomicBool>,
    /// Generations that it ends.
    ends: Arc<Mutex<Vec<(u64, SessionCanceller)>>>,
}

/// While it exists, Ctrl-C ends a generation at once, even in a long prompt.
pub struct Ends {
    interrupt: Interrupt,
    number: u64,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.interrupt.all_ends().retain(|(number, _)| *number != self.number);
    }
}

impl Interrupt {
    /// Starts listening. Without a handler Ctrl-C just ends the program. Where it is ignored from
    /// the start, as in the background jobs of a script, it stays so: it is meant for others.
    pub fn listen() -> Interrupt {
        let interrupt = Interrupt::default();
        let seen = interrupt.clone();
        // Fails where the signal is ignored, or a handler exists already, which then serves.
        let _ = ctrlc::try_set_handler(move || {
            if seen.pressed.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            seen.all_ends().iter().for_each(|(_, canceller)| canceller.cancel());
        });
        interrupt
    }

    /// Makes Ctrl-C end a generation as long as the returned value exists.
    pub fn ends(&self, canceller: SessionCanceller) -> Ends {
        let mut all = self.all_ends();
        let number = all.last().map_or(0, |(last, _)| last + 1);
        if self.pressed() {
            canceller.cancel();
        }
        all.push((number, canceller));
        Ends { interrupt: self.clone(), number }
    }

    fn all_ends(&self) -> MutexGuard<'_, Vec<(u64, SessionCanceller)>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether Ctrl-C was pressed since the last [`Interrupt::clear`].
    pub fn pressed(&self) -> bool {
        self.pressed.load(Ordering::SeqCst)
    }

    /// The flag that Ctrl-C sets.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.pressed.clone()
    }

    /// Clears the flag.
    pub fn clear(&self) {
        self.pressed.store(false, Ordering::SeqCst);
    }
}
