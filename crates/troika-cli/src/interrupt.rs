//! Ctrl-C: the first one ends compiling or generation, the second one the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use troika::SessionCanceller;
use troika::device::lock;

/// Whether the user pressed Ctrl-C.
#[derive(Clone, Default)]
pub struct Interrupt {
    pressed: Arc<AtomicBool>,
    /// Generations that it ends, as long as somebody holds them.
    ends: Arc<Mutex<Vec<Weak<SessionCanceller>>>>,
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
            lock(&seen.ends).iter().filter_map(Weak::upgrade).for_each(|end| end.cancel());
        });
        interrupt
    }

    /// Makes Ctrl-C end a generation at once, even in a long prompt, as long as the returned value
    /// exists.
    pub fn ends(&self, canceller: SessionCanceller) -> Arc<SessionCanceller> {
        let canceller = Arc::new(canceller);
        let mut all = lock(&self.ends);
        if self.pressed() {
            canceller.cancel();
        }
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&canceller));
        canceller
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
