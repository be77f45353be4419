//! A queue: a thread that runs compiled models.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Clock, Completion, DeviceError, Queue, Run, Submission, ThreadQueueOptions, Work, thread_queue,
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
    thread_queue(options, clock, done, move |lists, list| {
        lists.run(list, |Submission { work, .. }, _| match work {
            Work::Run(run) => run_model(&device, run),
            Work::Copy(copy) => Ok(copy.from.copy_to(&copy.to)?),
            Work::Host(host) => Err(DeviceError::no_host_program(&device, host.name())),
        })
    })
}

fn run_model(device: &str, run: &Run) -> Result<(), DeviceError> {
    let loaded = run.weights.made(device, |loaded: &LoadedModel| loaded.device == device)?;
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
