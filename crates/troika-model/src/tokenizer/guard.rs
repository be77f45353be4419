//! The last line of defence around the `tokenizers` crate: turns panics into errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside [`caught`], where panics are not printed.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`; `None` if it panicked. Such panics are not printed; all others go to the previous
/// hook.
pub(super) fn caught<T>(f: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    // A hook cannot be set while a panic unwinds this thread.
    if !std::thread::panicking() {
        HOOK.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |info| {
                // A thread that is ending may have lost its flag; it is not inside `caught`.
                if !QUIET.try_with(Cell::get).unwrap_or(false) {
                    before(info);
                }
            }));
        });
    }
    let was = QUIET.replace(true);
    // These calls do not change a tokenizer, except for caches that remain valid when a thread
    // unwinds.
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(was);
    result.ok()
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, set_hook, take_hook};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::caught;

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn only_panics_inside_are_silent() {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() == Some(&"counted") {
                SEEN.fetch_add(1, Ordering::SeqCst);
            } else {
                before(info);
            }
        }));
        assert_eq!(caught(|| 3), Some(3));
        assert_eq!(caught(|| -> u8 { panic!("counted") }), None);
        assert_eq!(SEEN.load(Ordering::SeqCst), 0, "a panic inside was reported");
        // After a nested call, the outer one is still silent.
        assert_eq!(
            caught(|| (caught(|| 1), caught(|| -> u8 { panic!("counted") }))),
            Some((Some(1), None))
        );
        let inside = caught(|| std::thread::spawn(|| panic!("counted")).join().is_err());
        assert_eq!(inside, Some(true));
        assert_eq!(SEEN.load(Ordering::SeqCst), 1, "another thread's panic was swallowed");
        assert!(catch_unwind(|| panic!("counted")).is_err());
        assert_eq!(SEEN.load(Ordering::SeqCst), 2, "a panic outside was swallowed");
    }
}
