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
                if is_reported() {
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

/// Whether a panic of this thread is printed.
fn is_reported() -> bool {
    // A thread that is ending may have lost its flag; it is not inside `caught`.
    !QUIET.try_with(Cell::get).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::{caught, is_reported};

    #[test]
    fn only_panics_inside_are_silent() {
        assert!(is_reported());
        assert_eq!(caught(is_reported), Some(false));
        assert_eq!(caught(|| -> u8 { panic!("not printed") }), None);
        // After nested calls, the outer one is still silent.
        let nested = || (caught(|| 1), caught(|| -> u8 { panic!("not printed") }), is_reported());
        assert_eq!(caught(nested), Some((Some(1), None, false)));
        let other = || std::thread::spawn(is_reported).join().unwrap();
        assert_eq!(caught(other), Some(true), "another thread's panics are swallowed");
        assert!(is_reported(), "panics outside are swallowed");
    }
}
