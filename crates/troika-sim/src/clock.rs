//! Virtual time: it passes only while somebody waits, and devices work meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use troika_device::{Clock, lock};

/// What happens at a point in time.
type Event = Box<dyn FnOnce() + Send>;

/// The joules of a machine, if they are known, and for how long its CPUs worked.
type MachineUse = (Option<f64>, Duration);
/// The use of a machine, while there is one.
type Meter = Arc<dyn Fn() -> Option<MachineUse> + Send + Sync>;

#[derive(Default)]
struct Schedule {
    now: u64,
    made: u64,
    /// By time, and then in the order in which they were made.
    events: BTreeMap<(u64, u64), Event>,
    meters: Vec<Meter>,
}

/// A clock in whole nanoseconds that advances only while somebody waits. Events run on the waiting
/// thread in the order of their times, so equal work gives bit-identical runs.
#[derive(Default)]
pub struct VirtualClock(Mutex<Schedule>);

impl VirtualClock {
    /// A clock at 0.
    pub fn new() -> VirtualClock {
        VirtualClock::default()
    }

    /// Schedules an event in `after` nanoseconds.
    pub(crate) fn after(&self, after: u64, run: impl FnOnce() + Send + 'static) {
        let mut s = lock(&self.0);
        let key = (s.now.saturating_add(after), s.made);
        s.made += 1;
        s.events.insert(key, Box::new(run));
    }

    /// Counts what a machine uses that goes by this clock.
    pub(crate) fn meter(&self, used: impl Fn() -> Option<MachineUse> + Send + Sync + 'static) {
        lock(&self.0).meters.push(Arc::new(used));
    }

    /// Joules that all machines which go by this clock have used since they began; `None` if a file
    /// does not know them.
    pub fn joules(&self) -> Option<f64> {
        self.used().map(|used| used?.0).sum()
    }

    /// For how long the CPUs of these machines have worked since they began.
    pub fn cpu_time(&self) -> Duration {
        self.used().flatten().map(|(_, cpu)| cpu).sum()
    }

    fn used(&self) -> impl Iterator<Item = Option<MachineUse>> {
        // The lock is free meanwhile, since machines look at the clock.
        let meters = lock(&self.0).meters.clone();
        meters.into_iter().map(|used| used())
    }

    /// Takes the first event up to a time, and sets the clock to the event's time.
    fn next(&self, until: u64) -> Option<Event> {
        let mut s = lock(&self.0);
        let first = s.events.first_entry().filter(|e| e.key().0 <= until);
        let (at, event) = first
            .map(|e| e.remove_entry())
            .map_or((until, None), |(key, event)| (key.0, Some(event)));
        s.now = s.now.max(at);
        event
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(lock(&self.0).now)
    }

    fn wait(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let until = lock(&self.0).now.saturating_add(nanos);
        // The lock is free meanwhile, since events may schedule others.
        while let Some(event) = self.next(until) {
            event();
        }
    }

    fn next_event(&self) -> Option<Duration> {
        lock(&self.0).events.keys().next().map(|(at, _)| Duration::from_nanos(*at))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use troika_device::Clock;

    use super::VirtualClock;

    #[test]
    fn events_happen_in_the_order_of_their_times() {
        let clock = Arc::new(VirtualClock::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str| {
            let (seen, clock) = (seen.clone(), clock.clone());
            move || seen.lock().unwrap().push((name, clock.now().as_nanos()))
        };
        clock.after(20, note("c"));
        clock.after(10, note("a"));
        clock.after(10, note("b"));
        // An event schedules another one before an existing one.
        let (inner, last) = (clock.clone(), note("d"));
        clock.after(15, move || inner.after(2, last));
        assert_eq!(clock.next_event(), Some(Duration::from_nanos(10)));
        clock.wait(Duration::from_nanos(9));
        assert!(seen.lock().unwrap().is_empty());
        assert_eq!(clock.now().as_nanos(), 9);
        clock.wait(Duration::from_nanos(11));
        assert_eq!(*seen.lock().unwrap(), [("a", 10), ("b", 10), ("d", 17), ("c", 20)]);
        assert_eq!((clock.next_event(), clock.now().as_nanos()), (None, 20));
        clock.wait(Duration::MAX);
        assert_eq!(clock.now().as_nanos(), u64::MAX.into());
    }
}
