//! What an application hears while a model is opened and used.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Hears what happens to a model, on any thread, and may end its opening.
pub trait OpenObserver: fmt::Debug + Send + Sync {
    /// How many weights are quantized, of how many.
    fn quantized(&self, _done: u64, _all: u64) {}

    /// The kernel that is being compared with the CPU's; `None` at the end.
    fn checked(&self, _kernel: Option<&str>) {}

    /// How many steps of compiling are done, of how many.
    fn compiled(&self, _done: usize, _all: usize) {}

    /// A sentence that the user of an open model should know.
    fn notice(&self, _sentence: &str) {}

    /// A sentence that says which devices were chosen.
    fn placed(&self, _sentence: &str) {}

    /// A flag that ends compiling when it is set.
    fn cancel(&self) -> Option<Arc<AtomicBool>> {
        None
    }

    /// The longest that compiling may take.
    fn limit(&self) -> Option<Duration> {
        None
    }
}
