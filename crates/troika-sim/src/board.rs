//! What the processors of a SoC share: modelled time, memory bandwidth and battery.

use std::sync::{Arc, Mutex};

use troika_device::{Clock, lock};
use troika_time::{Bandwidth, CoRun, LaneCosts, Machine, Usage};

use crate::clock::VirtualClock;
use crate::lane::Lane;
use crate::soc::{ProcessorKind, Soc};

/// A running SoC, shared by its processors, which are opened as devices.
pub struct Board {
    soc: Soc,
    clock: Arc<VirtualClock>,
    state: Mutex<State>,
}

struct State {
    machine: Machine<Lane, Bandwidth>,
    /// The next time at which the clock lets the machine go on.
    next: Option<u64>,
    /// The processor that draws frames, and how.
    co_run: Option<(usize, CoRun)>,
}

impl Board {
    /// A SoC that has done nothing yet.
    pub fn new(soc: &Soc, clock: Arc<VirtualClock>) -> Arc<Board> {
        let mut machine = Machine::new(soc.processors.len(), Bandwidth(soc.bandwidth_gb_s));
        let start = machine.usage();
        let state = Mutex::new(State { machine, next: None, co_run: None });
        let board = Arc::new(Board { soc: soc.clone(), clock, state });
        let metered = Arc::downgrade(&board);
        board.clock.meter(move || {
            let board = metered.upgrade()?;
            let now = board.usage();
            Some((board.soc.energy_j(&start, &now), board.soc.cpu_time(&start, &now)))
        });
        board
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
    pub fn usage(self: &Arc<Board>) -> Usage {
        self.with(Machine::usage)
    }

    /// Makes a processor, given by its index in the SoC, draw frames once its queue is opened.
    pub fn co_run(&self, processor: usize, task: CoRun) {
        lock(&self.state).co_run = Some((processor, task));
    }

    /// Opens a queue of a processor. Returns its number on the board.
    pub(crate) fn open(self: &Arc<Board>, processor: usize, lane: Lane) -> u64 {
        let of = &self.soc.processors[processor];
        let costs = LaneCosts { submit_ns: of.submit_ns, waits_each_run: of.waits_each_run };
        let co_run = lock(&self.state).co_run.filter(|(p, _)| *p == processor);
        self.with(|machine| machine.open(processor, costs, co_run.map(|(_, task)| task), lane))
    }

    /// Code was made for a processor, told by its place in the SoC: the CPU was busy with it, or on
    /// a SoC without one the processor itself.
    pub(crate) fn compiled(self: &Arc<Board>, processor: usize, ns: u64) {
        let cpu = self.soc.processors.iter().position(|p| p.kind == ProcessorKind::Cpu);
        self.with(|machine| machine.worked(cpu.unwrap_or(processor), ns));
    }

    /// Does something with the machine, as of now. The clock will let it go on. Host functions and
    /// loads run while the machine is locked: they must not wait on its clock, compile for its
    /// devices or ask for its usage.
    pub(crate) fn with<T>(
        self: &Arc<Board>,
        run: impl FnOnce(&mut Machine<Lane, Bandwidth>) -> T,
    ) -> T {
        let now = self.now();
        let mut state = lock(&self.state);
        state.machine.pass_to(now);
        let done = run(&mut state.machine);
        self.plan_ahead(&mut state, now);
        done
    }

    /// Lets the machine go on at the time of its next event.
    fn plan_ahead(self: &Arc<Board>, state: &mut State, now: u64) {
        let Some(at) = state.machine.next_event() else { return };
        if state.next.is_some_and(|next| next <= at) {
            return;
        }
        state.next = Some(at);
        let board = Arc::downgrade(self);
        let resume = move || _ = board.upgrade().map(|board| board.resume());
        self.clock.after(at.saturating_sub(now), resume);
    }

    fn resume(self: &Arc<Board>) {
        let now = self.now();
        let mut state = lock(&self.state);
        if state.next.is_none_or(|next| next > now) {
            // Another time, nearer or already over, took its place.
            return;
        }
        state.next = None;
        state.machine.run_until(now);
        self.plan_ahead(&mut state, now);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX)
    }
}
