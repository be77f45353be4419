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
    use std::panic::{catch_unwind, set_hook, take_hook};
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{caught, is_reported};

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    /// Its hook has to be set before the first call of `caught` in the process.
    #[test]
    #[ignore = "runs in a process of its own, which the next test starts"]
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
            caught(|| (caught(|| 1), caught(|| -> u8 { panic!("counted") }), is_reported())),
            Some((Some(1), None, false))
        );
        let inside = caught(|| std::thread::spawn(|| panic!("counted")).join().is_err());
        assert_eq!(inside, Some(true));
        assert_eq!(SEEN.load(Ordering::SeqCst), 1, "another thread's panic was swallowed");
        assert!(catch_unwind(|| panic!("counted")).is_err());
        assert_eq!(SEEN.load(Ordering::SeqCst), 2, "a panic outside was swallowed");
    }

    #[test]
    fn only_panics_inside_are_silent_whatever_other_tests_do() {
        let name = "tokenizer::guard::tests::only_panics_inside_are_silent";
        let own = std::env::current_exe().unwrap();
        let ran = Command::new(own).args(["--ignored", "--exact", name]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}
