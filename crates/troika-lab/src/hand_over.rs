//! Measures hand-overs between two real queues (HeteroInfer, section 4.3): how late the waiting
//! queue continues, and how much processor time waiting costs.

use std::sync::Arc;
use std::time::Duration;

use troika::{DeviceOptions, DeviceSpec, cpu_time, open_devices, usable_cores};
use troika_check::{Bench, CaseWeights};
use troika_device::{
    Bindings, Buffer, Clock, CommandList, Device, DeviceError, HostTask, Point, RealClock, Run,
    Signal, Submission, Timelines, View, Wait, Waiting, Weights, Work,
};
use troika_graph::{DType, Op, SubgraphBuilder};

/// How the second queue waits for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOverBy {
    /// It sleeps for most of the expected time, then polls.
    Predicting,
    /// It sleeps until woken.
    Blocking,
    /// A thread polls from the start and then hands over the work.
    Spinning,
}

/// Measured hand-overs.
#[derive(Clone, Debug)]
pub struct HandOvers {
    /// From the end of the first queue's task to the start of the second's, ascending.
    pub over_waits: Vec<Duration>,
    /// The wall time of all of them.
    pub wall: Duration,
    /// Processor time of this process meanwhile; `None` if the system does not tell.
    pub processor: Option<Duration>,
}

impl HandOvers {
    /// The median delay.
    pub fn p50(&self) -> Duration {
        self.over_waits.get(self.over_waits.len() / 2).copied().unwrap_or_default()
    }

    /// The average share of a core in use; `None` if the system does not tell.
    pub fn share(&self) -> Option<f64> {
        Some(self.processor?.as_secs_f64() / self.wall.as_secs_f64().max(f64::MIN_POSITIVE))
    }
}

/// Measures `count` hand-overs from a queue whose tasks take `each`. The tasks leave this processor
/// free, as tasks of another one would.
///
/// # Errors
/// Fewer than two cores for two devices, or a failing device.
pub fn measure_hand_overs(
    by: HandOverBy,
    count: usize,
    each: Duration,
) -> Result<HandOvers, DeviceError> {
    let cores = usable_cores();
    let [first, second, ..] = cores[..] else {
        let why = "two cores are needed to measure hand-overs, and this machine has fewer or does \
                   not say which";
        return Err(DeviceError::System { device: "cpu".into(), why: why.into() });
    };
    let specs = [("other", first), ("own", second)].map(|(name, core)| DeviceSpec {
        name: Some(name.into()),
        cores: Some(vec![core]),
        ..DeviceSpec::default()
    });
    let devices = DeviceOptions { devices: specs.to_vec(), ..DeviceOptions::default() };
    let devices = open_devices(&devices)?;
    let mut pair = QueuePair::open(&devices)?;
    let (other, own) = (sleeps(each)?, runs(&*devices[1])?);
    // The first ones teach how long to wait, and wake sleeping threads.
    pair.hand_overs(by, &other, &own, count.div_ceil(10))?;
    let before = cpu_time();
    let start = pair.clock.now();
    let mut over_waits = pair.hand_overs(by, &other, &own, count)?;
    let wall = pair.clock.now().saturating_sub(start);
    let processor = before.zip(cpu_time()).map(|(a, b)| b.saturating_sub(a));
    over_waits.sort_unstable();
    Ok(HandOvers { over_waits, wall, processor })
}

/// A task that takes time but no processor time.
fn sleeps(each: Duration) -> Result<Work, DeviceError> {
    let task = HostTask::new("other", (Vec::new(), Vec::new()), move |_, _| {
        std::thread::sleep(each);
        Ok(None)
    })?;
    Ok(Work::Host(Arc::new(task)))
}

/// A run that takes almost no time.
fn runs(device: &dyn Device) -> Result<Work, DeviceError> {
    const COLS: usize = 16;
    let mut b = SubgraphBuilder::new("own", 1);
    let x = b.input("x", COLS, DType::F32);
    let y = b.op("y", Op::Add, &[x, x], COLS);
    b.output(y);
    let failed = |why: String| DeviceError::System { device: device.name().into(), why };
    let graph = b.finish().map_err(|e| failed(e.to_string()))?;
    let weights = Weights::compiled(device, &graph, &CaseWeights::default())?;
    let value = || Buffer::zeroed(DType::F32.row_size(COLS));
    let value = || value().map_err(|e| failed(e.to_string()));
    let views = |b: &Buffer| vec![View::whole(b)];
    let bindings =
        Bindings { inputs: views(&value()?), states: Vec::new(), outputs: views(&value()?) };
    Ok(Work::Run(Run { weights, bindings: Arc::new(bindings), rows: 1, forward: Arc::default() }))
}

/// Two queues. The second waits for the first.
struct QueuePair {
    clock: Arc<dyn Clock>,
    queues: Vec<Bench>,
    timelines: Arc<Timelines>,
    /// The value that the first queue's timeline has reached.
    reached: u64,
}

impl QueuePair {
    fn open(devices: &[Arc<dyn Device>]) -> Result<QueuePair, DeviceError> {
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let open = |(i, d): (usize, &Arc<dyn Device>)| Bench::open(&**d, i, clock.clone());
        let queues = devices.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        let timelines = Arc::new(Timelines::new(devices.len()));
        Ok(QueuePair { clock, queues, timelines, reached: 0 })
    }

    /// Measures delays, in the order of the hand-overs.
    fn hand_overs(
        &mut self,
        by: HandOverBy,
        other: &Work,
        own: &Work,
        count: usize,
    ) -> Result<Vec<Duration>, DeviceError> {
        let waiting = match by {
            HandOverBy::Predicting => Waiting::Poll,
            HandOverBy::Blocking => Waiting::Block,
            HandOverBy::Spinning => return self.spun(other, own, count),
        };
        let first = self.reached + 1;
        let on = |i: usize| Point { queue: 0, value: first + i as u64 };
        let waits = (0..count).map(|i| Wait { task: i as u32, on: on(i) }).collect();
        self.submit(0, other, count, CommandList::default())?;
        self.submit(1, own, count, CommandList { waits, waiting, ..CommandList::default() })?;
        self.finish()
    }

    /// Hand-overs where this thread polls for the first queue.
    fn spun(
        &mut self,
        other: &Work,
        own: &Work,
        count: usize,
    ) -> Result<Vec<Duration>, DeviceError> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let value = self.reached + 1;
            self.submit(0, other, 1, CommandList::default())?;
            let on = Point { queue: 0, value };
            while !self.timelines.has(on).map_err(|_| DeviceError::Skipped)? {
                std::hint::spin_loop();
            }
            self.submit(1, own, 1, CommandList::default())?;
            all.extend(self.finish()?);
        }
        Ok(all)
    }

    /// Submits tasks to a queue as one list. The first queue signals when they are done.
    fn submit(
        &mut self,
        queue: usize,
        work: &Work,
        count: usize,
        mut list: CommandList,
    ) -> Result<(), DeviceError> {
        let tag = |i: usize| Submission { tag: i as u32, work: work.clone() };
        list.tasks = (0..count).map(tag).collect();
        list.timed = true;
        list.timelines = Some(self.timelines.clone());
        if queue == 0 {
            let signal = |i: usize| Signal { task: i as u32, value: self.reached + 1 + i as u64 };
            list.signals = (0..count).map(signal).collect();
            self.reached += count as u64;
        }
        self.queues[queue].submit(list)
    }

    /// Waits for a list of each queue. Returns the delays between their tasks.
    fn finish(&mut self) -> Result<Vec<Duration>, DeviceError> {
        let (other, own) = (self.queues[0].finish()?, self.queues[1].finish()?);
        Ok(other.iter().zip(&own).map(|(a, b)| b.start.saturating_sub(a.end)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{HandOverBy, measure_hand_overs};

    /// Only checks that measuring works: the figures depend on the machine.
    #[test]
    fn each_way_hands_over_as_often_as_it_is_asked() {
        if super::usable_cores().len() < 2 {
            return;
        }
        for by in [HandOverBy::Predicting, HandOverBy::Blocking, HandOverBy::Spinning] {
            let each = Duration::from_micros(500);
            let found = measure_hand_overs(by, 20, each).unwrap();
            assert_eq!(found.over_waits.len(), 20, "{by:?}");
            assert!(found.over_waits.is_sorted() && found.wall >= 20 * each, "{by:?}");
            assert!(found.share().is_none_or(|s| s > 0.0), "{by:?}");
        }
    }
}
