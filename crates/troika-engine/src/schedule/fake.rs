//! A device whose tasks do what a test says, with a thread for each queue.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::*;
use troika_graph::Subgraph;
use troika_plan::Policy;
use troika_trace::Tracer;

use super::Runner;

/// What a task does, given its tag.
pub type Hook = Arc<dyn Fn(u32) -> Result<(), DeviceError> + Send + Sync>;

/// What a run does, given the run and its tag.
pub type RunHook = Arc<dyn Fn(&Run, u32) -> Result<(), DeviceError> + Send + Sync>;

pub struct Fake {
    caps: Caps,
    hook: RunHook,
    /// Whether its queues refuse all lists.
    gone: bool,
    /// Whether its queues run lists on the caller's thread if asked.
    here: bool,
}

impl Fake {
    pub fn new(queue_waits: bool, hook: &Hook) -> Fake {
        let hook = hook.clone();
        Fake::of_runs(queue_waits, 8, &(Arc::new(move |_: &Run, tag| hook(tag)) as RunHook))
    }

    /// A device that passes each run to a hook, with queues of a given depth.
    pub fn of_runs(queue_waits: bool, queue_depth: usize, hook: &RunHook) -> Fake {
        let caps = Caps { queue_depth, queue_waits, ..Caps::default() };
        Fake { caps, hook: hook.clone(), gone: false, here: false }
    }

    #[allow(dead_code)]
    pub fn without_host_tasks(mut self) -> Fake {
        self.caps.host_tasks = false;
        self
    }

    #[allow(dead_code)]
    pub fn here(self) -> Fake {
        Fake { here: true, ..self }
    }

    #[allow(dead_code)]
    pub fn gone(self) -> Fake {
        Fake { gone: true, ..self }
    }
}

impl Device for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        request.each(|_| Err(DeviceError::Gone("fake".into())))
    }

    fn load(
        &self,
        _: &Arc<Executable>,
        _: &Subgraph,
        _: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        Err(DeviceError::Gone("fake".into()))
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        if self.gone {
            return Ok(Box::new(GoneQueue));
        }
        let (device, depth) = ("fake".into(), self.caps.queue_depth);
        let options = ThreadQueueOptions { device, number, depth, runs_here: self.here };
        let hook = self.hook.clone();
        thread_queue(options, clock, done, move |lists, list| {
            lists.run(list, |task, _| match &task.work {
                Work::Host(host) => host.run("fake"),
                Work::Run(run) => hook(run, task.tag),
                Work::Copy(_) => Ok(()),
            })
        })
    }
}

struct GoneQueue;

impl Queue for GoneQueue {
    fn submit(&mut self, _: CommandList) -> Result<(), DeviceError> {
        Err(DeviceError::Gone("fake".into()))
    }
}

/// Tasks that do nothing.
pub fn idle() -> Hook {
    Arc::new(|_| Ok(()))
}

/// Runs graphs on some of these devices.
pub fn runner(fakes: impl IntoIterator<Item = Fake>, policy: Policy) -> Runner {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let devices: Vec<_> = fakes.into_iter().map(|d| Arc::new(d) as Arc<dyn Device>).collect();
    Runner::new(&devices, &[], (policy, 0), &clock, Tracer::off()).unwrap()
}

/// A run on some buffers.
pub fn run(inputs: &[&Buffer], outputs: &[&Buffer]) -> Run {
    let views = |b: &[&Buffer]| b.iter().map(|b| View::whole(b)).collect();
    let bindings = Bindings { inputs: views(inputs), states: vec![], outputs: views(outputs) };
    Run {
        weights: Arc::new(Weights::new(&Arc::new(Executable::new((), 0)), ())),
        bindings: Arc::new(bindings),
        rows: 1,
        forward: Arc::default(),
    }
}
