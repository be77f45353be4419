//! Timelines: let queues wait for each other without the scheduler.
//!
//! A timeline is a number that only grows, like Vulkan's timeline semaphores. A queue runs its
//! tasks in order, so one number says which are done. Neither tasks nor lists need their own memory
//! or messages for it.

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex},
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    sync::{Condvar, Mutex},
};

use std::sync::PoisonError;

/// How a queue waits for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// Sleeps for most of the expected time, then polls, so that the thread continues within a
    /// microsecond (HeteroInfer, section 4.3). After polling for long, this wait and the next ones
    /// sleep until woken.
    #[default]
    Poll,
    /// Sleeps until woken, which takes the system tens of microseconds.
    Block,
}

/// A point on the timeline of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Number of the queue.
    pub queue: u32,
    /// The value that its timeline must reach.
    pub value: u64,
}

/// A task's wait for a task of another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Index of the task.
    pub task: u32,
    /// The point that it waits for.
    pub on: Point,
}

/// A task's signal to other queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Index of the task.
    pub task: u32,
    /// The value that the queue's timeline reaches when it is done.
    pub value: u64,
}

/// The awaited point will not be reached: a task before it failed or was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// The timeline of one queue.
#[derive(Debug, Default)]
pub struct Timeline {
    reached: AtomicU64,
    /// Whether no value above `reached` will follow.
    lost: AtomicBool,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Timeline {
    /// Sets the value reached, which only grows.
    pub fn signal(&self, value: u64) {
        self.reached.store(value, Ordering::Release);
        self.wake();
    }

    /// Declares that no further values follow until [`Timeline::reset`].
    pub fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.wake();
    }

    /// Allows values again. Nobody may be waiting.
    pub fn reset(&self) {
        self.lost.store(false, Ordering::Release);
    }

    /// Whether a value is reached. If so, all work before it is visible.
    ///
    /// # Errors
    /// It will not be reached.
    pub fn has(&self, value: u64) -> Result<bool, Lost> {
        if self.reached.load(Ordering::Acquire) >= value {
            return Ok(true);
        }
        if !self.lost.load(Ordering::Acquire) {
            return Ok(false);
        }
        // It may have been reached just before the rest was lost.
        if self.reached.load(Ordering::Acquire) >= value { Ok(true) } else { Err(Lost) }
    }

    /// Sleeps until a value is reached.
    ///
    /// # Errors
    /// It will not be reached.
    pub fn wait(&self, value: u64) -> Result<(), Lost> {
        if self.has(value)? {
            return Ok(());
        }
        self.sleepers.fetch_add(1, Ordering::AcqRel);
        // Either this thread sees the new value, or the other one sees that this one may sleep.
        fence(Ordering::SeqCst);
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let found = loop {
            match self.has(value) {
                Ok(false) => held = self.wake.wait(held).unwrap_or_else(PoisonError::into_inner),
                Ok(true) => break Ok(()),
                Err(lost) => break Err(lost),
            }
        };
        drop(held);
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
        found
    }

    /// Wakes sleeping threads, if there are any.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Acquire) > 0 {
            // A thread that has checked but does not sleep yet holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }
}

/// The timelines of all queues that run one graph together, and whether they were cancelled.
#[derive(Debug, Default)]
pub struct Timelines {
    of: Box<[Timeline]>,
    cancelled: AtomicBool,
}

impl Timelines {
    /// Timelines of some queues, all at 0.
    pub fn new(queues: usize) -> Timelines {
        let of = (0..queues).map(|_| Timeline::default()).collect();
        Timelines { of, cancelled: AtomicBool::new(false) }
    }

    /// The timeline of a queue.
    pub fn of(&self, queue: usize) -> Option<&Timeline> {
        self.of.get(queue)
    }

    /// Sleeps until a point is reached.
    ///
    /// # Errors
    /// It will not be reached, or there is no such queue.
    pub fn wait(&self, point: Point) -> Result<(), Lost> {
        self.of(point.queue as usize).ok_or(Lost)?.wait(point.value)
    }

    /// Whether a point is reached.
    ///
    /// # Errors
    /// Those of [`Timelines::wait`].
    pub fn has(&self, point: Point) -> Result<bool, Lost> {
        self.of(point.queue as usize).ok_or(Lost)?.has(point.value)
    }

    /// Clears losses. Nobody may be waiting.
    pub fn reset(&self) {
        self.of.iter().for_each(Timeline::reset);
    }

    /// Makes queues skip tasks that they have not begun.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Whether queues should skip tasks.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Withdraws a cancellation. Returns whether there was one.
    pub fn take_cancelled(&self) -> bool {
        self.cancelled.swap(false, Ordering::AcqRel)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Lost, Point, Timeline, Timelines};

    #[test]
    fn what_is_reached_stays_so_and_what_is_lost_does_not_come() {
        let t = Timeline::default();
        assert_eq!((t.has(0), t.has(1)), (Ok(true), Ok(false)));
        t.signal(3);
        t.lose();
        assert_eq!((t.wait(2), t.wait(3), t.wait(4)), (Ok(()), Ok(()), Err(Lost)));
        t.reset();
        assert_eq!((t.has(3), t.has(4)), (Ok(true), Ok(false)));
        let both = Timelines::new(2);
        let nobody = Point { queue: 2, value: 0 };
        assert_eq!((both.has(nobody), both.wait(nobody)), (Err(Lost), Err(Lost)));
    }

    /// Sleeping threads are woken by values and by losses.
    #[test]
    fn sleepers_are_woken() {
        for lost in [false, true] {
            let t = Timeline::default();
            std::thread::scope(|s| {
                let waiters = [0; 3].map(|_| s.spawn(|| t.wait(1)));
                let start = Instant::now();
                while t.sleepers.load(super::Ordering::Acquire) < 3 {
                    assert!(start.elapsed() < Duration::from_secs(60), "nobody sleeps");
                    std::thread::yield_now();
                }
                if lost {
                    t.lose()
                } else {
                    t.signal(1)
                }
                for w in waiters {
                    assert_eq!(w.join().unwrap(), if lost { Err(Lost) } else { Ok(()) });
                }
            });
            assert_eq!(t.sleepers.load(super::Ordering::Acquire), 0);
        }
    }
}

/// All interleavings with up to three preemptions: `cargo xtask loom`.
#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};

    use super::{Lost, Timeline};

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    /// Loom reports a deadlock if a waiting thread is not woken, and a write before a point that is
    /// not seen after it.
    #[test]
    fn waiters_are_woken_and_see_what_was_done() {
        model(|| {
            let shared = Arc::new((Timeline::default(), AtomicU32::new(0)));
            let theirs = shared.clone();
            let signaller = loom::thread::spawn(move || {
                theirs.1.store(7, Ordering::Relaxed);
                theirs.0.signal(1);
                theirs.0.lose();
            });
            // Polling may find it or not yet; sleeping finds it.
            assert!(shared.0.has(1).is_ok());
            assert_eq!(shared.0.wait(1), Ok(()));
            assert_eq!(shared.1.load(Ordering::Relaxed), 7);
            assert_eq!(shared.0.wait(2), Err(Lost));
            signaller.join().unwrap();
        });
    }

    #[test]
    fn two_sleepers_are_both_woken() {
        model(|| {
            let t = Arc::new(Timeline::default());
            let theirs = t.clone();
            let other = loom::thread::spawn(move || theirs.wait(1));
            let theirs = t.clone();
            let signaller = loom::thread::spawn(move || theirs.signal(1));
            assert_eq!(t.wait(1), Ok(()));
            assert_eq!(other.join().unwrap(), Ok(()));
            signaller.join().unwrap();
        });
    }

    /// Two queues wait for each other's tasks in turns, as with the pieces of a layer. The first
    /// one fails at any task: both come to an end.
    #[test]
    fn queues_in_turns_end_whoever_fails() {
        for failing in 1..=3 {
            model(move || {
                let both = Arc::new([Timeline::default(), Timeline::default()]);
                let theirs = both.clone();
                let other = loom::thread::spawn(move || {
                    let [a, b] = &*theirs;
                    for i in 1..=2 {
                        if a.wait(i).is_err() {
                            b.lose();
                            return i;
                        }
                        b.signal(i);
                    }
                    3
                });
                let [a, b] = &*both;
                for i in 1..=2 {
                    if i == failing {
                        a.lose();
                        break;
                    }
                    a.signal(i);
                    assert_eq!(b.wait(i), Ok(()));
                }
                assert_eq!(other.join().unwrap(), failing);
            });
        }
    }
}
