//! Ctrl-C: the first one ends the compiling or the generation, the second one the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user pressed Ctrl-C.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts listening. Without a handler Ctrl-C just ends the program.
    pub fn listen() -> Interrupt {
        let flag = Interrupt::default();
        let seen = flag.0.clone();
        // Fails only if a handler exists already, which then does the work.
        let _ = ctrlc::set_handler(move || {
            if seen.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
        flag
    }

    /// Whether it was pressed since the last [`Interrupt::clear`].
    pub fn pressed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// What is set when it is pressed.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Forgets it.
    pub fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
