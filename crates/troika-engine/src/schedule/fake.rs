//! A device whose tasks do what a test says, with a thread for each queue.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

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
        let (send, lists) = sync_channel::<CommandList>(8);
        let hook = self.hook.clone();
        let run = move |list: CommandList, learnt: &mut WaitTimes| {
            let run = |task: &Submission, _: Option<&Submission>| match &task.work {
                Work::Host(host) => host.run("fake"),
                Work::Run(run) => hook(run, task.tag),
                Work::Copy(_) => Ok(()),
            };
            list.run(number, &*clock, learnt, run)
        };
        let run: RunList = Arc::new(run);
        let here = self.here.then(|| run.clone());
        let thread = std::thread::spawn(move || {
            let mut learnt = WaitTimes::default();
            for list in lists {
                let _ = done.send(run(list, &mut learnt));
            }
        });
        let lists = (!self.gone).then_some(send);
        Ok(Box::new(FakeQueue { lists, here, thread: Some(thread) }))
    }
}

type RunList = Arc<dyn Fn(CommandList, &mut WaitTimes) -> Completion + Send + Sync>;

struct FakeQueue {
    lists: Option<SyncSender<CommandList>>,
    here: Option<RunList>,
    thread: Option<JoinHandle<()>>,
}

impl Queue for FakeQueue {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        let gone = || DeviceError::Gone("fake".into());
        self.lists.as_ref().ok_or_else(gone)?.send(list).map_err(|_| gone())
    }

    fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    fn run_here(&mut self, list: CommandList) -> Result<Completion, CommandList> {
        match &self.here {
            Some(run) => Ok(run(list, &mut WaitTimes::default())),
            None => Err(list),
        }
    }
}

impl Drop for FakeQueue {
    fn drop(&mut self) {
        self.lists = None;
        self.thread.take().map(JoinHandle::join);
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
    Runner::new(&devices, (policy, 0), &clock, Tracer::off()).unwrap()
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
