//! A queue: a thread that runs compiled models.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Clock, CommandList, Completion, DeviceError, Queue, Run, Submission, ThreadQueue,
    ThreadQueueOptions, WaitTimes, Work,
};

use crate::loaded::LoadedModel;
use crate::session::RunError;

/// The most lists in a queue.
pub(crate) const QUEUE_DEPTH: usize = 16;

/// Starts a queue.
pub(crate) fn start(
    device: &str,
    number: usize,
    clock: Arc<dyn Clock>,
    done: SyncSender<Completion>,
) -> Result<Box<dyn Queue>, DeviceError> {
    let device = device.to_string();
    let options =
        ThreadQueueOptions { device: device.clone(), number, depth: QUEUE_DEPTH, runs_here: true };
    let mut learnt = WaitTimes::default();
    let run = move |list: CommandList| {
        list.run(number, &*clock, &mut learnt, |Submission { work, .. }, _| match work {
            Work::Run(run) => run_model(&device, run),
            Work::Copy(copy) => Ok(copy.from.copy_to(&copy.to)?),
            Work::Host(host) => Err(no_host_program(&device, host.name())),
        })
    };
    Ok(Box::new(ThreadQueue::start(options, run, done, || {})?))
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
    loaded.code.run(run).map_err(|e| match e {
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
