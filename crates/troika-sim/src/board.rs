//! What the processors of a SoC share: memory bandwidth and battery.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use troika_device::Clock;

use crate::clock::VirtualClock;
use crate::cost::RunCost;
use crate::soc::{Power, ProcessorKind, Soc};

/// A running SoC, shared by its processors, which are opened as devices.
///
/// A run wants the bandwidth at which it moves its bytes in its time on an idle machine. If all
/// together want more than there is, it is divided by water-filling: equal parts for those that
/// want more than such a part. A run that gets less takes longer in proportion.
pub struct Board {
    soc: Soc,
    clock: Arc<VirtualClock>,
    state: Mutex<State>,
}

/// Tells a queue that another one has made progress.
pub(crate) type Wake = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// Current runs, by the number of their queue.
    running: BTreeMap<u64, Running>,
    queues: u64,
    /// The last update of the current runs.
    since: u64,
    events: u64,
    /// The processor that draws frames, and how.
    co_run: Option<(usize, CoRun)>,
    frames: u64,
    /// Queues that wait for others.
    waiting: Vec<Wake>,
    /// Bytes moved.
    bytes: f64,
    /// Nanoseconds that each processor worked, in the SoC's order, and the part in which it mostly
    /// waited for memory.
    busy: Vec<[u64; 2]>,
}

struct Running {
    processor: usize,
    streams: bool,
    /// The rest of it, in nanoseconds of an idle machine.
    left: f64,
    /// The bandwidth it wants, in bytes per nanosecond.
    wants: f64,
    /// The share of that bandwidth it gets.
    share: f64,
    /// The number of its end event; events with other numbers are outdated.
    event: u64,
    end: Arc<dyn Fn() + Send + Sync>,
}

/// A task beside the model: a game that draws frames on one of the processors.
///
/// A frame is queued at a screen refresh once the last one is drawn. It runs after all work that
/// the processor had been given by then, even if it is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoRun {
    /// Nanoseconds between two refreshes.
    pub period_ns: u64,
    /// Nanoseconds to draw a frame.
    pub frame_ns: u64,
}

/// The work of a SoC so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// The time, in nanoseconds.
    pub now_ns: u64,
    /// Nanoseconds that each processor worked, in the order of the file.
    pub busy_ns: Vec<u64>,
    /// The part of them spent mostly waiting for memory or weights.
    pub stream_ns: Vec<u64>,
    /// Bytes read and written.
    pub bytes: u64,
    /// Frames drawn by the co-running task.
    pub frames: u64,
}

impl Board {
    /// A SoC that has done nothing yet.
    pub fn new(soc: &Soc, clock: Arc<VirtualClock>) -> Arc<Board> {
        let busy = vec![[0; 2]; soc.processors.len()];
        let state = Mutex::new(State { busy, ..State::default() });
        Arc::new(Board { soc: soc.clone(), clock, state })
    }

    /// Its description.
    pub fn soc(&self) -> &Soc {
        &self.soc
    }

    /// Its clock.
    pub fn clock(&self) -> &Arc<VirtualClock> {
        &self.clock
    }

    /// Its work so far.
    pub fn usage(&self) -> Usage {
        let now = self.now();
        let mut state = self.lock();
        state.advance(now);
        let [busy_ns, stream_ns] = [0, 1].map(|i| state.busy.iter().map(|b| b[i]).collect());
        let (bytes, frames) = (state.bytes.round() as u64, state.frames);
        Usage { now_ns: now, busy_ns, stream_ns, bytes, frames }
    }

    /// Joules from one time to a later one; `None` if the file has no power figures.
    pub fn energy_j(&self, from: &Usage, to: &Usage) -> Option<f64> {
        let memory = self.soc.memory_power;
        let powers: Option<Vec<Power>> = self.soc.processors.iter().map(|p| p.power).collect();
        let powers = powers.filter(|_| memory.known)?;
        let seconds = |ns: u64| ns as f64 * 1e-9;
        let time = seconds(to.now_ns - from.now_ns);
        let idle = powers.iter().fold(memory.rest_w, |sum, p| sum + p.idle_w);
        let work = powers.iter().enumerate().map(|(i, p)| {
            let busy = seconds(to.busy_ns[i] - from.busy_ns[i]);
            let stream = seconds(to.stream_ns[i] - from.stream_ns[i]);
            (busy - stream) * (p.busy_w - p.idle_w) + stream * (p.stream_w - p.idle_w)
        });
        let bytes = (to.bytes - from.bytes) as f64 * memory.pj_per_byte * 1e-12;
        Some(idle * time + work.sum::<f64>() + bytes)
    }

    /// The slowdown of each of some runs while all of them run.
    pub(crate) fn slowdowns(soc: &Soc, needs: &[RunCost]) -> Vec<f64> {
        let wants: Vec<f64> = needs.iter().map(wants).collect();
        let level = soc.bandwidth_gb_s.map_or(f64::INFINITY, |all| water_level(&wants, all));
        wants.iter().map(|w| 1.0 / share(*w, level)).collect()
    }

    /// Makes a processor, given by its index in the SoC, draw frames once its queue is opened.
    pub fn co_run(&self, processor: usize, task: CoRun) {
        self.lock().co_run = Some((processor, task));
    }

    /// The frames that a processor draws, if any.
    pub(crate) fn draws(&self, processor: usize) -> Option<CoRun> {
        self.lock().co_run.filter(|(p, _)| *p == processor).map(|(_, task)| task)
    }

    /// Counts a drawn frame.
    pub(crate) fn drawn(&self) {
        self.lock().frames += 1;
    }

    /// A number for a new queue.
    pub(crate) fn queue(&self) -> u64 {
        let mut state = self.lock();
        state.queues += 1;
        state.queues
    }

    /// Code was made for a processor, told by its place in the SoC: the CPU was busy with it, or on
    /// a SoC without one the processor itself.
    pub(crate) fn compiled(&self, processor: usize, ns: u64) {
        let cpu = self.soc.processors.iter().position(|p| p.kind == ProcessorKind::Cpu);
        self.lock().busy[cpu.unwrap_or(processor)][0] += ns;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a run on an idle queue, delayed by `after`; calls `end` at its end.
    pub(crate) fn begin(
        self: &Arc<Board>,
        (queue, processor): (u64, usize),
        need: RunCost,
        end: Arc<dyn Fn() + Send + Sync>,
    ) {
        let now = self.now();
        let mut state = self.lock();
        state.advance(now);
        let (left, wants) = (need.ns as f64, wants(&need));
        let streams = need.streams;
        let run = Running { processor, streams, left, wants, share: 0.0, event: 0, end };
        state.running.insert(queue, run);
        self.share_out(&mut state);
    }

    /// Removes a queue that is gone, with its run.
    pub(crate) fn forget(self: &Arc<Board>, queue: u64) {
        let now = self.now();
        let mut state = self.lock();
        state.advance(now);
        let gone = state.running.remove(&queue);
        self.share_out(&mut state);
        drop(state);
        drop(gone);
    }

    /// Registers a queue to be told when another one has made progress.
    pub(crate) fn wait(&self, wake: Wake) {
        self.lock().waiting.push(wake);
    }

    /// Tells all waiting queues that some queue has made progress.
    pub(crate) fn wake(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.into_iter().for_each(|wake| self.clock.after(0, wake));
    }

    /// Divides the bandwidth anew, and reschedules the ends of runs.
    fn share_out(self: &Arc<Board>, state: &mut State) {
        let wants: Vec<f64> = state.running.values().map(|r| r.wants).collect();
        let level = self.soc.bandwidth_gb_s.map_or(f64::INFINITY, |all| water_level(&wants, all));
        let State { running, events, .. } = state;
        for (queue, run) in running {
            let share = share(run.wants, level);
            if share == run.share {
                continue;
            }
            *events += 1;
            (run.share, run.event) = (share, *events);
            let (board, queue, event) = (Arc::downgrade(self), *queue, *events);
            let after = (run.left / share).ceil() as u64;
            let end = move || _ = board.upgrade().map(|board| board.end(queue, event));
            self.clock.after(after, end);
        }
    }

    fn end(self: &Arc<Board>, queue: u64, event: u64) {
        let now = self.now();
        let mut state = self.lock();
        if state.running.get(&queue).is_none_or(|run| run.event != event) {
            return;
        }
        state.advance(now);
        let run = state.running.remove(&queue);
        self.share_out(&mut state);
        drop(state);
        if let Some(run) = run {
            (run.end)();
        }
    }
}

impl State {
    /// Accounts for the work done until now.
    fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.since);
        self.since = now.max(self.since);
        for run in self.running.values_mut() {
            let done = (passed as f64 * run.share).min(run.left);
            run.left -= done;
            self.bytes += done * run.wants;
            self.busy[run.processor][0] += passed;
            self.busy[run.processor][1] += if run.streams { passed } else { 0 };
        }
    }
}

/// Bytes per nanosecond.
fn wants(need: &RunCost) -> f64 {
    if need.ns == 0 { 0.0 } else { need.bytes as f64 / need.ns as f64 }
}

/// The highest bandwidth per run such that all together stay within `all`.
fn water_level(wants: &[f64], all: f64) -> f64 {
    let mut sorted = wants.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut left = all;
    for (i, want) in sorted.iter().enumerate() {
        let level = left / (sorted.len() - i) as f64;
        if *want > level {
            return level;
        }
        left -= want;
    }
    f64::INFINITY
}

fn share(wants: f64, level: f64) -> f64 {
    if wants > level { level / wants } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::water_level;

    #[test]
    fn bandwidth_is_shared_by_water_filling() {
        // A run that wants less than an equal part gets it; the others share the rest.
        assert_eq!(water_level(&[10.0, 20.0], 30.0), f64::INFINITY);
        assert_eq!(water_level(&[40.0, 40.0], 60.0), 30.0);
        assert_eq!(water_level(&[40.0, 10.0], 40.0), 30.0);
        assert_eq!(water_level(&[5.0, 40.0, 50.0], 45.0), 20.0);
        assert_eq!(water_level(&[], 45.0), f64::INFINITY);
    }
}
