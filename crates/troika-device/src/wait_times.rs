//! How a thread waits for other queues: by what it has learnt, and by whether its cores are free.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::time::Duration;

use crate::clock::Clock;
use crate::device::{Submission, Work};
use crate::executable::ExecutableId;
use crate::timeline::{Lost, Point, Timelines, Waiting};

/// How long tasks waited for other queues, by executable. The layers of a model are alike, so a
/// wait is usually about as long as the one before. Where that misses, or others want the cores,
/// the thread sleeps until woken.
#[derive(Debug)]
pub struct WaitTimes {
    learnt: HashMap<ExecutableId, Expected>,
    /// Number of further waits that sleep until woken.
    sleeps: u32,
    /// How many the next miss adds.
    after_miss: u32,
    cores: Cores,
}

/// What is known of an executable's waits.
#[derive(Clone, Copy, Debug)]
struct Expected {
    took: Duration,
    /// How far waits were from it.
    error: Duration,
}

/// Shorter waits are polled from the start, since the system does not wake threads more exactly.
const WORTH_SLEEPING: Duration = Duration::from_micros(300);
/// The system wakes a thread this much late.
const MARGIN: Duration = Duration::from_micros(120);
/// The most that a thread polls before it sleeps. Waking takes 50 us or more; a piece of a decoded
/// token's layer takes about 300 us.
const LOOKS_FOR: Duration = Duration::from_micros(1000);
/// Waits that are less certain sleep until woken.
const MOST_ERROR: Duration = Duration::from_micros(300);
/// When polling starts to yield to other threads.
const YIELDS_AFTER: Duration = Duration::from_micros(50);
/// Who yields for longer has lost its core to others. Then polling slows down all, and a sleeping
/// thread gets a core sooner than one that used up its share.
const LOST_CORE: Duration = Duration::from_micros(100);
/// Waits that sleep after a miss, after many in vain, and after the core was lost many times: that
/// takes milliseconds, and a wait that is met gains 50 us.
const SLEEPS: [u32; 3] = [4, 256, 4096];
/// Polls between two readings of the clock.
const LOOKS: u32 = 32;
/// The most readings of the clock.
const MOST_QUESTIONS: u32 = 10_000;
/// Number of executables whose times are kept.
const MOST: usize = 1024;

impl Default for WaitTimes {
    /// Allocates everything now, so that waits need no memory. The file that tells of cores is opened
    /// by the first wait.
    fn default() -> WaitTimes {
        let learnt = HashMap::with_capacity(MOST);
        WaitTimes { learnt, sleeps: 0, after_miss: SLEEPS[0], cores: Cores::default() }
    }
}

impl WaitTimes {
    /// Waits until a point is reached, before a task begins.
    pub(crate) fn wait(
        &mut self,
        timelines: &Timelines,
        point: Point,
        waiting: Waiting,
        task: &Submission,
        clock: &dyn Clock,
    ) -> Result<(), Lost> {
        if timelines.has(point)? {
            return Ok(());
        }
        let Work::Run(run) = &task.work else { return timelines.wait(point) };
        if waiting == Waiting::Block {
            return timelines.wait(point);
        }
        let (start, id) = (clock.now(), run.weights.executable().id());
        let known = self.learnt.get(&id).copied();
        let sleeps = self.sleeps > 0;
        self.sleeps = self.sleeps.saturating_sub(1);
        let busy = self.cores.are_busy(start);
        let mut over = None;
        match known.filter(|known| !sleeps && !busy && known.error <= MOST_ERROR) {
            None => timelines.wait(point)?,
            Some(known) => {
                if known.took > WORTH_SLEEPING {
                    clock.wait(known.took.saturating_sub(MARGIN + known.error));
                    // When exactly it was reached is unknown, but it was during the sleep.
                    over = timelines.has(point)?.then_some(known.took * 3 / 4);
                }
                if over.is_none() {
                    self.look(timelines, point, clock)?;
                }
            }
        }
        let took = over.unwrap_or_else(|| clock.now().saturating_sub(start));
        self.learn(id, known, took);
        Ok(())
    }

    /// Polls a point, and sleeps if that is in vain.
    fn look(&mut self, timelines: &Timelines, point: Point, clock: &dyn Clock) -> Result<(), Lost> {
        let (times, most) = match poll(timelines, point, clock)? {
            Looked::Met => {
                let less = self.after_miss.div_ceil(64);
                self.after_miss = (self.after_miss - less).max(SLEEPS[0]);
                return Ok(());
            }
            Looked::InVain => (2, SLEEPS[1]),
            Looked::LostCore => (8, SLEEPS[2]),
        };
        self.sleeps = self.after_miss;
        self.after_miss = (self.after_miss * times).min(most.max(self.after_miss));
        timelines.wait(point)
    }

    fn learn(&mut self, id: ExecutableId, known: Option<Expected>, took: Duration) {
        if self.learnt.len() >= MOST && known.is_none() {
            self.learnt.clear();
        }
        let new = match known {
            None => Expected { took, error: MARGIN },
            Some(known) => {
                // One long stall says little of the waits after it.
                let took = took.min(known.took * 2 + LOOKS_FOR);
                Expected {
                    took: (known.took * 3 + took) / 4,
                    error: (known.error * 7 + known.took.abs_diff(took)) / 8,
                }
            }
        };
        self.learnt.insert(id, new);
    }
}

/// How polling ended.
enum Looked {
    /// The point is reached.
    Met,
    /// It is not, within the time that is worth it.
    InVain,
    /// Others took the core meanwhile.
    LostCore,
}

fn poll(timelines: &Timelines, point: Point, clock: &dyn Clock) -> Result<Looked, Lost> {
    let start = clock.now();
    // Also limited by count, since a clock may stand still.
    for _ in 0..MOST_QUESTIONS {
        for _ in 0..LOOKS {
            if timelines.has(point)? {
                return Ok(Looked::Met);
            }
            std::hint::spin_loop();
        }
        let now = clock.now();
        match now.saturating_sub(start) {
            looked if looked > LOOKS_FOR => break,
            looked if looked > YIELDS_AFTER => {
                std::thread::yield_now();
                if clock.now().saturating_sub(now) > LOST_CORE {
                    return Ok(Looked::LostCore);
                }
            }
            _ => {}
        }
    }
    Ok(Looked::InVain)
}

/// Whether others want the cores of a thread: for how long it was ready to run and had none, as
/// Linux tells. Elsewhere only polling notices.
#[derive(Debug, Default)]
struct Cores {
    /// `None` before the first look; nothing in it if the system tells nothing.
    told: Option<Option<File>>,
    looked_at: Duration,
    without_ns: u64,
    busy: bool,
}

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The share of that time without a core that makes the cores busy; below half of it they are free
/// again. The scheduler's thread alone, which wakes them, makes a few hundredths.
const BUSY_SHARE: f64 = 0.1;

impl Cores {
    fn are_busy(&mut self, now: Duration) -> bool {
        let past = now.saturating_sub(self.looked_at);
        if past >= LOOK_EVERY {
            if let Some(without_ns) = self.without_ns() {
                let without = without_ns.saturating_sub(self.without_ns) as f64;
                let share = without / past.as_nanos() as f64;
                self.busy = share > if self.busy { BUSY_SHARE / 2.0 } else { BUSY_SHARE };
                self.without_ns = without_ns;
            }
            self.looked_at = now;
        }
        self.busy
    }

    /// Nanoseconds that this thread was ready to run and had no core, since its start.
    fn without_ns(&mut self) -> Option<u64> {
        // Made by another thread than the one that waits, so it is opened here.
        let open = || File::open("/proc/thread-self/schedstat").ok();
        let file = self.told.get_or_insert_with(open).as_mut()?;
        let mut text = [0; 64];
        file.rewind().ok()?;
        let length = file.read(&mut text).ok()?;
        let text = std::str::from_utf8(text.get(..length)?).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::{Expected, LOOKS_FOR, LOST_CORE, MOST_ERROR, SLEEPS, WaitTimes};
    use crate::clock::{Clock, RealClock};
    use crate::executable::Executable;
    use crate::timeline::{Lost, Point, Timelines};

    const POINT: Point = Point { queue: 0, value: 1 };

    /// Goes on by so much each time it is asked.
    struct Jumping(AtomicU32, Duration);

    impl Clock for Jumping {
        fn now(&self) -> Duration {
            self.1 * self.0.fetch_add(1, Ordering::Relaxed)
        }

        fn wait(&self, _: Duration) {}
    }

    /// How many waits sleep after each of some misses, where looking for so long is noticed.
    fn sleeps_after(waits: &mut WaitTimes, misses: usize, step: Duration) -> Vec<u32> {
        let mut sleeps = Vec::new();
        for _ in 0..misses {
            let lines = Timelines::new(1);
            let clock = Jumping(AtomicU32::new(0), step);
            std::thread::scope(|s| {
                s.spawn(|| {
                    while clock.0.load(Ordering::Relaxed) < 2 {
                        std::thread::yield_now();
                    }
                    lines.of(0).into_iter().for_each(|line| line.signal(1));
                });
                assert_eq!(waits.look(&lines, POINT, &clock), Ok(()));
            });
            sleeps.push(waits.sleeps);
        }
        sleeps
    }

    /// Looking in vain makes the next waits sleep, each time more of them, and losing the core many
    /// more; finding makes it fewer, slowly.
    #[test]
    fn misses_make_waits_sleep() {
        let mut waits = WaitTimes::default();
        let in_vain = sleeps_after(&mut waits, 8, LOOKS_FOR * 2);
        assert_eq!(in_vain, [4, 8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(sleeps_after(&mut waits, 3, LOST_CORE * 2), [256, 2048, 4096]);
        assert_eq!(sleeps_after(&mut waits, 1, LOOKS_FOR * 2), [4096]);
        let lines = Timelines::new(1);
        lines.of(0).unwrap().signal(1);
        for met in 0..500 {
            assert!(met > 100 || waits.after_miss > SLEEPS[1], "{met}");
            assert_eq!(waits.look(&lines, POINT, &RealClock::new()), Ok(()));
        }
        assert_eq!(waits.after_miss, SLEEPS[0]);
        lines.of(0).unwrap().lose();
        let lost = Point { value: 2, ..POINT };
        assert_eq!(waits.look(&lines, lost, &RealClock::new()), Err(Lost));
    }

    /// Steady waits become certain; waits that differ by much do not; one stall does not count long.
    #[test]
    fn the_error_of_waits_is_watched() {
        let (mut waits, id) = (WaitTimes::default(), Executable::new((), 0).id());
        let mut learn = |us: u64| {
            let known = waits.learnt.get(&id).copied();
            waits.learn(id, known, Duration::from_micros(us));
            waits.learnt[&id]
        };
        for _ in 0..30 {
            learn(500);
        }
        let Expected { took, error } = learn(500);
        assert!(took.abs_diff(Duration::from_micros(500)) < Duration::from_micros(5), "{took:?}");
        assert!(error < Duration::from_micros(10), "{error:?}");
        learn(50_000);
        let after: Vec<Expected> = (0..4).map(|_| learn(500)).collect();
        assert!(after[3].error <= MOST_ERROR, "{after:?}");
        for at in 0..30 {
            learn(if at % 2 == 0 { 500 } else { 4000 });
        }
        assert!(learn(500).error > MOST_ERROR);
    }
}
