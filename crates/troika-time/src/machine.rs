//! Queues that run lists of tasks in modelled time.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::share::{Sharing, TaskCost};

/// What a lane's tasks are and do.
pub trait LaneWork {
    /// Tasks that are submitted together.
    type List;
    /// A task that runs.
    type Task;
    /// Tells other lanes of a task's end.
    type Signal;
    /// Why a list fails.
    type Error;

    /// Number of tasks of a list.
    fn tasks(&self, list: &Self::List) -> usize;

    /// The first task behind `at` that waits for another lane, or the number of tasks.
    fn next_wait(&self, list: &Self::List, at: usize) -> usize;

    /// Whether all that a task waits for has happened.
    ///
    /// # Errors
    /// It will not happen.
    fn settled(&self, list: &Self::List, task: usize) -> Result<bool, Self::Error>;

    /// Whether a task that waits is submitted before its wait is over.
    fn submitted_early(&self, list: &Self::List, task: usize) -> bool;

    /// A task starts.
    ///
    /// # Errors
    /// It cannot: the list fails.
    fn begin(
        &mut self,
        list: &Self::List,
        task: usize,
    ) -> Result<(TaskCost, Self::Task), Self::Error>;

    /// A task ends that ran in a `span` of nanoseconds.
    ///
    /// # Errors
    /// It failed: the list fails.
    fn end(
        &mut self,
        list: &mut Self::List,
        task: usize,
        running: Self::Task,
        span: Range<u64>,
    ) -> Result<Told<Self::Signal>, Self::Error>;

    /// Other lanes learn of a task's end.
    fn signal(&mut self, signal: Self::Signal);

    /// A list has ended.
    fn finish(&mut self, list: Self::List, outcome: Result<(), Self::Error>);
}

/// How others learn of a task's end.
#[derive(Debug)]
pub struct Told<S> {
    /// Nanoseconds until they know.
    pub after_ns: u64,
    /// For lanes that wait for it.
    pub signal: Option<S>,
    /// Whether the lane does nothing else until those that wait know.
    pub blocks: bool,
}

/// The costs of a lane besides the costs of its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCosts {
    /// Nanoseconds to submit a list, or a task whose wait is over, to an idle processor.
    pub submit_ns: u64,
    /// Whether the end of each task is waited for.
    pub waits_each_run: bool,
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

/// The work of a machine so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// The time, in nanoseconds.
    pub now_ns: u64,
    /// Nanoseconds that each processor worked.
    pub busy_ns: Vec<u64>,
    /// The part of them spent mostly waiting for memory or weights.
    pub stream_ns: Vec<u64>,
    /// Bytes read and written.
    pub bytes: u64,
    /// Frames drawn by the co-running task.
    pub frames: u64,
}

/// A lane, and what happens to it.
type OnLane<S> = (u64, What<S>);

/// Processors with their queues ("lanes").
pub struct Machine<W: LaneWork, S> {
    now: u64,
    sharing: S,
    lanes: BTreeMap<u64, Lane<W>>,
    /// Tasks and frames that run, by lane.
    running: BTreeMap<u64, Running>,
    /// The last update of what runs.
    since: u64,
    /// What happens to which lane, by time and then in the order in which it was planned.
    events: BTreeMap<(u64, u64), OnLane<W::Signal>>,
    /// Numbers of the last event and the last lane.
    made: u64,
    opened: u64,
    /// Lanes that wait for others.
    waiting: Vec<u64>,
    bytes: f64,
    busy: Vec<[u64; 2]>,
    frames: u64,
}

struct Lane<W: LaneWork> {
    processor: usize,
    costs: LaneCosts,
    work: W,
    current: Option<Current<W>>,
    queued: VecDeque<W::List>,
    frames: Option<Frames>,
}

/// The list that a lane runs.
struct Current<W: LaneWork> {
    list: W::List,
    /// Index of the task at hand.
    at: usize,
    /// Number of tasks whose waits are over.
    settled: usize,
    start: u64,
    doing: Doing<W::Task>,
}

/// What a lane is doing with its list.
enum Doing<T> {
    /// Looking for the next task.
    Nothing,
    /// Submitting the list, or a task, to the processor.
    Submitting,
    /// Running a task.
    Task(T),
    /// Telling others that the list or a task has ended.
    HandingOver,
    /// Waiting for a task of another lane.
    Waiting,
}

/// The frames of a co-running task.
struct Frames {
    task: CoRun,
    /// A queued frame runs after the list's tasks up to this one.
    queued: Option<usize>,
    drawing: bool,
}

struct Running {
    processor: usize,
    need: TaskCost,
    frame: bool,
    /// The rest of it, in nanoseconds of an idle machine.
    left: f64,
    share: f64,
    /// The number of its end event; others are outdated.
    event: u64,
}

/// What happens to a lane.
enum What<S> {
    /// A time in which the processor did not work is over.
    Passed,
    /// A task or frame has ended.
    Ended,
    /// Others learn of a task's end.
    Signal(S),
    /// Another lane made progress.
    Woken,
    /// The screen refreshes.
    Refresh,
}

impl<W: LaneWork, S: Sharing> Machine<W, S> {
    /// A machine that has done nothing yet.
    pub fn new(processors: usize, sharing: S) -> Machine<W, S> {
        Machine {
            now: 0,
            sharing,
            lanes: BTreeMap::new(),
            running: BTreeMap::new(),
            since: 0,
            events: BTreeMap::new(),
            made: 0,
            opened: 0,
            waiting: Vec::new(),
            bytes: 0.0,
            busy: vec![[0; 2]; processors],
            frames: 0,
        }
    }

    /// Opens a lane of a processor, which perhaps draws frames. Returns its number.
    pub fn open(
        &mut self,
        processor: usize,
        costs: LaneCosts,
        frames: Option<CoRun>,
        work: W,
    ) -> u64 {
        self.opened += 1;
        let frames = frames.map(|task| Frames { task, queued: None, drawing: false });
        let (current, queued) = (None, VecDeque::new());
        self.lanes.insert(self.opened, Lane { processor, costs, work, current, queued, frames });
        self.next_refresh(self.opened);
        self.opened
    }

    /// Removes a lane with all that it runs.
    pub fn close(&mut self, lane: u64) -> Option<W> {
        self.account();
        self.running.remove(&lane);
        self.share_out();
        self.lanes.remove(&lane).map(|lane| lane.work)
    }

    /// Number of a lane's lists that have not ended.
    pub fn in_flight(&self, lane: u64) -> usize {
        let lists = |l: &Lane<W>| l.queued.len() + usize::from(l.current.is_some());
        self.lanes.get(&lane).map_or(0, lists)
    }

    /// Whether a lane waits for another one.
    pub fn waits(&self, lane: u64) -> bool {
        let current = self.lanes.get(&lane).and_then(|l| l.current.as_ref());
        current.is_some_and(|c| matches!(c.doing, Doing::Waiting))
    }

    /// Gives a lane a list. Behind another one, submitting takes no extra time.
    pub fn submit(&mut self, lane: u64, list: W::List) {
        let first = self.in_flight(lane) == 0;
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        l.queued.push_back(list);
        let submit = l.costs.submit_ns;
        if first && submit > 0 {
            l.take_list(self.now);
            return self.pass(lane, Doing::Submitting, submit);
        }
        self.proceed(lane);
    }

    /// The time.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Time has come so far, without an event.
    pub fn pass_to(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<u64> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    /// Time has come so far; all events up to then happen.
    pub fn run_until(&mut self, until: u64) {
        while self.next_event().is_some_and(|at| at <= until) {
            let Some(((at, number), (lane, what))) = self.events.pop_first() else { break };
            self.now = self.now.max(at);
            match what {
                What::Passed => self.passed(lane),
                What::Ended => self.ended(lane, number),
                What::Woken => self.woken(lane),
                What::Refresh => self.refresh(lane),
                What::Signal(signal) => {
                    if let Some(l) = self.lanes.get_mut(&lane) {
                        l.work.signal(signal);
                    }
                    self.wake();
                }
            }
        }
        self.now = self.now.max(until);
    }

    /// Its work so far.
    pub fn usage(&mut self) -> Usage {
        self.account();
        let [busy_ns, stream_ns] = [0, 1].map(|i| self.busy.iter().map(|b| b[i]).collect());
        let (bytes, frames) = (self.bytes.round() as u64, self.frames);
        Usage { now_ns: self.now, busy_ns, stream_ns, bytes, frames }
    }

    /// A processor worked for some time on something other than a list.
    pub fn worked(&mut self, processor: usize, ns: u64) {
        self.busy[processor][0] += ns;
    }

    fn event(&mut self, after: u64, lane: u64, what: What<W::Signal>) -> u64 {
        self.made += 1;
        let (at, number) = (self.now.saturating_add(after), self.made);
        self.events.insert((at, number), (lane, what));
        number
    }

    /// Tells all lanes that wait that some lane has made progress.
    fn wake(&mut self) {
        for lane in std::mem::take(&mut self.waiting) {
            self.event(0, lane, What::Woken);
        }
    }

    /// Accounts for the work done until now.
    fn account(&mut self) {
        let passed = self.now.saturating_sub(self.since);
        self.since = self.now;
        for run in self.running.values_mut() {
            let done = (passed as f64 * run.share).min(run.left);
            run.left -= done;
            self.bytes += done * run.need.wants();
            self.busy[run.processor][0] += passed;
            self.busy[run.processor][1] += if run.need.streams { passed } else { 0 };
        }
    }

    /// Starts a task or frame on a lane.
    fn start(&mut self, lane: u64, need: TaskCost, frame: bool) {
        self.account();
        let Some(l) = self.lanes.get(&lane) else { return };
        let (processor, left) = (l.processor, need.ns as f64);
        let run = Running { processor, need, frame, left, share: 0.0, event: 0 };
        self.running.insert(lane, run);
        self.share_out();
    }

    /// Divides the bandwidth anew, and moves the ends of what runs.
    fn share_out(&mut self) {
        let needs: Vec<TaskCost> = self.running.values().map(|r| r.need).collect();
        let shares = self.sharing.shares(&needs);
        let mut ends = Vec::new();
        for ((lane, run), share) in self.running.iter_mut().zip(shares) {
            if share != run.share {
                run.share = share;
                ends.push((*lane, (run.left / share).ceil() as u64));
            }
        }
        for (lane, after) in ends {
            let event = self.event(after, lane, What::Ended);
            if let Some(run) = self.running.get_mut(&lane) {
                run.event = event;
            }
        }
    }

    fn ended(&mut self, lane: u64, event: u64) {
        if self.running.get(&lane).is_none_or(|run| run.event != event) {
            return;
        }
        self.account();
        let frame = self.running.remove(&lane).is_some_and(|run| run.frame);
        self.share_out();
        if frame { self.drawn(lane) } else { self.end_task(lane) }
    }

    /// Lets time pass while the processor does not work.
    fn pass(&mut self, lane: u64, doing: Doing<W::Task>, ns: u64) {
        let current = self.lanes.get_mut(&lane).and_then(|l| l.current.as_mut());
        if let Some(current) = current {
            current.doing = doing;
            self.event(ns, lane, What::Passed);
        }
    }

    fn passed(&mut self, lane: u64) {
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        let Some(current) = &mut l.current else { return };
        let handed = matches!(current.doing, Doing::HandingOver);
        current.doing = Doing::Nothing;
        if handed && current.at >= l.work.tasks(&current.list) {
            self.finish(lane, Ok(()));
        }
        self.proceed(lane);
    }

    /// Starts what it can: the next task of the list, or the next list.
    fn proceed(&mut self, lane: u64) {
        loop {
            if self.draw(lane) {
                return;
            }
            let Some(l) = self.lanes.get_mut(&lane) else { return };
            if l.current.is_none() && !l.take_list(self.now) {
                return;
            }
            let Some(current) = &mut l.current else { return };
            if !matches!(current.doing, Doing::Nothing) {
                return;
            }
            if current.at >= l.work.tasks(&current.list) {
                self.finish(lane, Ok(()));
                continue;
            }
            if current.settled <= current.at {
                match l.work.settled(&current.list, current.at) {
                    Ok(true) => current.settled = current.at + 1,
                    Ok(false) => {
                        current.doing = Doing::Waiting;
                        self.waiting.push(lane);
                        return;
                    }
                    Err(e) => {
                        self.finish(lane, Err(e));
                        continue;
                    }
                }
            }
            match l.work.begin(&current.list, current.at) {
                Err(e) => self.finish(lane, Err(e)),
                Ok((need, task)) => {
                    current.start = self.now;
                    current.doing = Doing::Task(task);
                    return self.start(lane, need, false);
                }
            }
        }
    }

    /// Another lane made progress: checks the current wait.
    fn woken(&mut self, lane: u64) {
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        let Some(current) = &mut l.current else { return };
        if !matches!(current.doing, Doing::Waiting) {
            return;
        }
        current.doing = Doing::Nothing;
        let submit = l.costs.submit_ns;
        let early = submit == 0 || l.work.submitted_early(&current.list, current.at);
        if !early && matches!(l.work.settled(&current.list, current.at), Ok(true)) {
            // The waiting task is submitted now.
            current.settled = current.at + 1;
            return self.pass(lane, Doing::Submitting, submit);
        }
        self.proceed(lane);
    }

    fn end_task(&mut self, lane: u64) {
        let now = self.now;
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        let Some(current) = &mut l.current else { return };
        let Doing::Task(task) = std::mem::replace(&mut current.doing, Doing::Nothing) else {
            return;
        };
        let told = l.work.end(&mut current.list, current.at, task, current.start..now);
        current.at += 1;
        let last = current.at >= l.work.tasks(&current.list);
        match told {
            Err(e) => self.finish(lane, Err(e)),
            Ok(Told { after_ns, signal, blocks }) => {
                let waits = last || (signal.is_some() && blocks) || l.costs.waits_each_run;
                if let Some(signal) = signal {
                    self.event(after_ns, lane, What::Signal(signal));
                }
                if waits && after_ns > 0 {
                    return self.pass(lane, Doing::HandingOver, after_ns);
                }
            }
        }
        self.proceed(lane);
    }

    /// Reports the list.
    fn finish(&mut self, lane: u64, outcome: Result<(), W::Error>) {
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        let Some(current) = l.current.take() else { return };
        let failed = outcome.is_err();
        l.work.finish(current.list, outcome);
        if failed {
            self.wake();
        }
    }

    fn next_refresh(&mut self, lane: u64) {
        let frames = self.lanes.get(&lane).and_then(|l| l.frames.as_ref());
        if let Some(period) = frames.map(|f| f.task.period_ns) {
            self.event(period, lane, What::Refresh);
        }
    }

    /// The screen refreshes: queues the next frame, unless the last one is unfinished.
    fn refresh(&mut self, lane: u64) {
        self.next_refresh(lane);
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        let submitted = l.current.as_ref().map_or(0, |c| l.work.next_wait(&c.list, c.at));
        let Some(frames) = &mut l.frames else { return };
        if frames.queued.is_some() || frames.drawing {
            return;
        }
        frames.queued = Some(submitted);
        if !l.current.as_ref().is_some_and(|c| matches!(c.doing, Doing::Task(_))) {
            self.draw(lane);
        }
    }

    /// Draws a queued frame if all work before it is done. Returns whether one is drawn.
    fn draw(&mut self, lane: u64) -> bool {
        let Some(l) = self.lanes.get_mut(&lane) else { return false };
        let Some(frames) = &mut l.frames else { return false };
        let blocked = l.current.as_ref().is_some_and(|c| matches!(c.doing, Doing::Waiting));
        let at = l.current.as_ref().map(|c| c.at);
        let turn = |behind: usize| blocked || at.is_none_or(|at| at >= behind);
        if frames.drawing || !frames.queued.is_some_and(turn) {
            return frames.drawing;
        }
        (frames.queued, frames.drawing) = (None, true);
        let need = TaskCost { ns: frames.task.frame_ns, ..TaskCost::default() };
        self.start(lane, need, true);
        true
    }

    fn drawn(&mut self, lane: u64) {
        self.frames += 1;
        let Some(l) = self.lanes.get_mut(&lane) else { return };
        if let Some(frames) = &mut l.frames {
            frames.drawing = false;
        }
        if let Some(current) = &mut l.current
            && matches!(current.doing, Doing::Waiting)
        {
            current.doing = Doing::Nothing;
        }
        self.proceed(lane);
    }
}

impl<W: LaneWork> Lane<W> {
    /// Takes the next list, if there is one and none runs.
    fn take_list(&mut self, start: u64) -> bool {
        let Some(list) = self.queued.pop_front() else { return false };
        self.current = Some(Current { list, at: 0, settled: 0, start, doing: Doing::Nothing });
        true
    }
}
