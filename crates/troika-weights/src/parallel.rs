//! Runs independent parts of loading on threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, available_parallelism, scope};

/// Computes `f(0), ..., f(n - 1)` on all cores and returns them in order. Uses fewer threads if
/// some cannot be started.
pub(crate) fn map<T: Send>(n: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return made;
            }
            made.push((i, f(i)));
        }
    };
    let threads = available_parallelism().map_or(1, |t| t.get()).min(n);
    let mut all = scope(|s| {
        let start = |_| Builder::new().spawn_scoped(s, work).ok();
        let helpers: Vec<_> = (1..threads).filter_map(start).collect();
        let mut all = work();
        for helper in helpers {
            all.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_unstable_by_key(|made| made.0);
    all.into_iter().map(|made| made.1).collect()
}
