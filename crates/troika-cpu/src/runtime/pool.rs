//! A small fork-join pool: the caller is worker 0; the others spin briefly and then park.
//!
//! A job is published by writing it and then opening it in `state`; workers join by a
//! compare-exchange that counts them. The caller also works, closes the job when no parts are left,
//! and waits only for workers that joined: sleeping ones cost nothing.
//!
//! Why not a library: a decoded token has hundreds of regions of tens of microseconds. The overhead
//! of two threads for a region of two parts of 10 us after 8 us of serial work (Zen 5, two cores,
//! medians): this pool 0.3 us, rayon 1.12 `join` 5.2 us, paralight 0.0.12 57 us; chili 0.2.1
//! distributes work by a heartbeat and ran both parts on one thread.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use troika_device::panic_message;

use crate::runtime::prefetch;

/// How long an idle worker spins before it parks.
const SPIN: Duration = Duration::from_micros(40);
/// Bytes an idle worker prefetches at a time.
const PREFETCH_BYTES: usize = 2048;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
/// Set in `state` while workers may join.
const OPEN: u64 = 1 << 31;
/// Mask of the number of workers that joined.
const ACTIVE: u64 = OPEN - 1;
/// One job, in the job number above these bits.
const EPOCH: u64 = 1 << 32;

/// A part of a parallel region panicked; the message is the first panic's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a kernel panicked: {0}")]
pub struct Panicked(pub String);

type PartFn<'a> = &'a (dyn Fn(usize, usize) + Sync + 'a);

/// The current job, stored in the pool and written only while no worker is active.
#[derive(Default)]
struct Job {
    work: Option<PartFn<'static>>,
    parts: usize,
    caller: Option<Thread>,
}

#[derive(Default)]
struct Shared {
    state: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    asleep: Vec<AtomicBool>,
    caller_asleep: AtomicBool,
    /// Addresses for idle workers to prefetch: the next one, and the end.
    prefetch: [AtomicUsize; 2],
    stop: AtomicBool,
    panicked: AtomicBool,
    panic: std::sync::Mutex<Option<String>>,
}

// SAFETY: `job` is written by the owner of the pool while the job is closed and nobody is
// active, and read by workers between joining and leaving; `state` orders the two.
unsafe impl Sync for Shared {}
// SAFETY: as above; the work in the job is Sync.
unsafe impl Send for Shared {}

/// The pool. Regions run one at a time (`run` takes it exclusively).
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The start of the bytes prefetched last.
    prefetch: usize,
}

impl Pool {
    /// A pool of `threads` workers, including the caller. Worker `i` is pinned to `cores[i % len]`
    /// if given (the caller pins itself).
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn new(threads: usize, cores: Option<&[usize]>) -> std::io::Result<Pool> {
        prefetch::prepare();
        let others = threads.saturating_sub(1);
        let asleep = (0..others).map(|_| AtomicBool::new(false)).collect();
        let shared = Arc::new(Shared { asleep, ..Shared::default() });
        let mut pool = Pool { shared, threads: Vec::with_capacity(others), prefetch: 0 };
        for i in 0..others {
            let shared = pool.shared.clone();
            let core = cores.filter(|c| !c.is_empty()).map(|c| c[(i + 1) % c.len()]);
            let handle = std::thread::Builder::new().name(format!("troika-cpu-{}", i + 1)).spawn(
                move || {
                    if let Some(core) = core {
                        pin(core);
                    }
                    shared.serve(i);
                },
            )?;
            pool.threads.push(handle);
        }
        Ok(pool)
    }

    /// Number of workers, including the caller.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// The bytes that the next region reads first. Until it starts, idle workers prefetch them, so
    /// that memory is used while the caller works alone. Repeating the same bytes before and after
    /// each op does not restart the prefetch.
    pub fn prefetch(&mut self, bytes: &[u8]) {
        let start = bytes.as_ptr() as usize;
        if std::mem::replace(&mut self.prefetch, start) == start {
            return;
        }
        self.shared.prefetch[1].store(start + bytes.len(), Ordering::Relaxed);
        self.shared.prefetch[0].store(start, Ordering::Relaxed);
    }

    /// Calls `work(worker, part)` for every part on all workers, and returns when all are done. A
    /// worker runs one part at a time.
    ///
    /// # Errors
    /// [`Panicked`] when a part panicked; parts not begun by then are skipped.
    pub fn run(&mut self, parts: usize, work: PartFn<'_>) -> Result<(), Panicked> {
        let shared = &*self.shared;
        if parts <= 1 || self.threads.is_empty() {
            let alone = || (0..parts).for_each(|p| work(0, p));
            return catch_unwind(AssertUnwindSafe(alone)).map_err(|e| Panicked(panic_message(&*e)));
        }
        // SAFETY: only the lifetime changes. The reference is used by workers between joining
        // and leaving, and this function does not return before they have left (no unwinding
        // either: `take_parts` catches).
        let work = unsafe { std::mem::transmute::<PartFn<'_>, PartFn<'static>>(work) };
        // SAFETY: the last job is closed and has no active workers; `&mut self` keeps others out.
        unsafe {
            *shared.job.get() =
                Job { work: Some(work), parts, caller: Some(std::thread::current()) };
        }
        shared.next.store(0, Ordering::Relaxed);
        let epoch = shared.state.load(Ordering::Relaxed) & !(EPOCH - 1);
        shared.state.store(epoch.wrapping_add(EPOCH) | OPEN, Ordering::SeqCst);
        for i in 0..self.threads.len().min(parts - 1) {
            if shared.asleep[i].swap(false, Ordering::SeqCst) {
                self.threads[i].thread().unpark();
            }
        }
        shared.take_parts(0, work, parts);
        shared.state.fetch_and(!OPEN, Ordering::SeqCst);
        shared.wait_for_workers();
        if !shared.panicked.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let why = shared.panic.lock().ok().and_then(|mut p| p.take());
        Err(Panicked(why.unwrap_or_default()))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for t in &self.threads {
            t.thread().unpark();
        }
        for t in self.threads.drain(..) {
            // Workers catch panics of their work, so they cannot panic themselves.
            let _ = t.join();
        }
    }
}

impl Shared {
    /// Runs parts until none are left; a panic ends the job early.
    fn take_parts(&self, worker: usize, work: PartFn<'_>, parts: usize) {
        let take = || {
            loop {
                let part = self.next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return;
                }
                work(worker, part);
            }
        };
        if let Err(e) = catch_unwind(AssertUnwindSafe(take)) {
            self.next.store(parts, Ordering::Relaxed);
            if let Ok(mut p) = self.panic.lock() {
                p.get_or_insert_with(|| panic_message(&*e));
            }
            self.panicked.store(true, Ordering::SeqCst);
        }
    }

    fn wait_for_workers(&self) {
        let idle = || self.state.load(Ordering::SeqCst) & ACTIVE == 0;
        if spin_until(idle) {
            return;
        }
        loop {
            announce(&self.caller_asleep);
            if idle() {
                self.caller_asleep.store(false, Ordering::SeqCst);
                return;
            }
            std::thread::park();
        }
    }

    /// The loop of worker `index + 1`.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            let fresh = || {
                let s = self.state.load(Ordering::SeqCst);
                s & OPEN != 0 && s & !(EPOCH - 1) != seen
            };
            let stopped = || self.stop.load(Ordering::SeqCst);
            let done = || {
                let done = fresh() || stopped();
                if !done {
                    self.prefetch_next();
                }
                done
            };
            if !spin_until(done) {
                announce(&self.asleep[index]);
                if !fresh() && !stopped() {
                    std::thread::park();
                }
                self.asleep[index].store(false, Ordering::SeqCst);
            }
            if stopped() {
                return;
            }
            if let Some(epoch) = self.join(seen) {
                seen = epoch;
                // SAFETY: just joined.
                unsafe { self.work_on(index + 1) };
            }
        }
    }

    /// Prefetches some bytes for the next region. The two ends are not read atomically, but a wrong
    /// range is harmless, since a prefetch never faults.
    fn prefetch_next(&self) {
        let end = self.prefetch[1].load(Ordering::Relaxed);
        if self.prefetch[0].load(Ordering::Relaxed) >= end {
            return;
        }
        let start = self.prefetch[0].fetch_add(PREFETCH_BYTES, Ordering::Relaxed);
        for at in (start..end.min(start.saturating_add(PREFETCH_BYTES))).step_by(CACHE_LINE) {
            prefetch::shared(std::ptr::without_provenance(at));
        }
    }

    /// Joins an open job that is new to this worker; returns its number.
    fn join(&self, seen: u64) -> Option<u64> {
        let s = self.state.load(Ordering::SeqCst);
        let epoch = s & !(EPOCH - 1);
        let can = s & OPEN != 0 && epoch != seen;
        let joined = can
            && self.state.compare_exchange(s, s + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        joined.then_some(epoch)
    }

    /// Takes parts of the job at hand and leaves it.
    ///
    /// # Safety
    /// The worker has joined the job.
    unsafe fn work_on(&self, worker: usize) {
        // SAFETY: the job stays as it is until this worker, which has joined, leaves below.
        let job = unsafe { &*self.job.get() };
        let caller = job.caller.clone();
        if let Some(work) = job.work {
            self.take_parts(worker, work, job.parts);
        }
        let before = self.state.fetch_sub(1, Ordering::SeqCst);
        if before & ACTIVE == 1
            && self.caller_asleep.swap(false, Ordering::SeqCst)
            && let Some(caller) = caller
        {
            caller.unpark();
        }
    }
}

/// Announces that a thread is about to park; its next load must not be reordered before this.
///
/// It swaps instead of storing: QEMU's user-mode emulation of ARM on x86 moves loads before a
/// sequentially consistent store, which ARM forbids, and a wake-up would be lost.
fn announce(asleep: &AtomicBool) {
    asleep.swap(true, Ordering::SeqCst);
}

/// Spins until the condition holds; `false` when it does not within [`SPIN`].
fn spin_until(done: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..64 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        let start = *start.get_or_insert_with(Instant::now);
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

/// Pins the calling thread to a core; does nothing where the system cannot or refuses.
pub(crate) fn pin(core: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: `set` is a valid cpu_set_t of the size given; CPU_SET ignores cores beyond it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if core < libc::CPU_SETSIZE as usize {
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_prefetched_once_until_others_are() {
        let mut pool = Pool::new(1, None).unwrap();
        let bytes = vec![0; 3 * PREFETCH_BYTES];
        let next = |pool: &Pool| pool.shared.prefetch[0].load(Ordering::Relaxed);
        pool.prefetch(&bytes);
        let start = next(&pool);
        assert_eq!(start, bytes.as_ptr() as usize);
        pool.shared.prefetch_next();
        pool.prefetch(&bytes);
        assert_eq!(next(&pool), start + PREFETCH_BYTES);
        pool.prefetch(&bytes[PREFETCH_BYTES..]);
        pool.prefetch(&bytes);
        assert_eq!(next(&pool), start);
        for _ in 0..4 {
            pool.shared.prefetch_next();
        }
        // Prefetching stops at the end.
        assert_eq!(next(&pool), start + bytes.len());
    }
}
