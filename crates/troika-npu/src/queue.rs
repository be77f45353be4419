//! A queue: a thread that runs compiled models.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Clock, CommandList, Completion, DeviceError, ListRunner, Queue, Run, Submission, ThreadQueue,
    ThreadQueueOptions, WaitTimes, Work,
};

use crate::device::LoadedModel;
use crate::session::RunError;

/// The most lists in a queue.
pub(crate) const QUEUE_DEPTH: usize = 16;

struct Worker {
    device: String,
    number: usize,
    clock: Arc<dyn Clock>,
    learnt: WaitTimes,
}

/// Starts a queue.
pub(crate) fn start(
    device: &str,
    number: usize,
    clock: Arc<dyn Clock>,
    done: SyncSender<Completion>,
) -> Result<Box<dyn Queue>, DeviceError> {
    let device = device.to_string();
    let worker = Worker { device: device.clone(), number, clock, learnt: WaitTimes::default() };
    let options = ThreadQueueOptions { device, number, depth: QUEUE_DEPTH, runs_here: true };
    Ok(Box::new(ThreadQueue::start(options, worker, done, || {})?))
}

impl ListRunner for Worker {
    fn run(&mut self, list: CommandList) -> Completion {
        let Worker { device, number, clock, learnt } = self;
        list.run(*number, &**clock, learnt, |Submission { work, .. }, _| match work {
            Work::Run(run) => run_model(device, run),
            Work::Copy(copy) => Ok(copy.from.copy_to(&copy.to)?),
            Work::Host(host) => Err(no_host_program(device, host.name())),
            Work::Load(load) => Err(no_host_program(device, load.name())),
        })
    }
}

fn no_host_program(device: &str, task: &str) -> DeviceError {
    let why = format!("a function of the host cannot run on device {device}");
    DeviceError::Submission { task: task.into(), why }
}

fn run_model(device: &str, run: &Run) -> Result<(), DeviceError> {
    let Some(loaded) = run.weights.made::<LoadedModel>().filter(|l| l.device == device) else {
        let why = format!("is none of device {device}");
        return Err(DeviceError::Submission { task: format!("{:?}", run.weights), why });
    };
    loaded.model.run(run).map_err(|e| match e {
        RunError::Busy(e) => e.into(),
        RunError::Misfit(why) => {
            let why = format!("{why} on device {device}");
            DeviceError::Submission { task: loaded.graph.clone(), why }
        }
        RunError::Failed(why) => {
            let why = format!("{}: {why}", loaded.graph);
            DeviceError::System { device: device.into(), why }
        }
    })
}
