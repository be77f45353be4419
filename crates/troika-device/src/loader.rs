//! The queue that loads a device's weights while the device computes.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::clock::Clock;
use crate::device::{Completion, Queue, Submission, Work};
use crate::error::DeviceError;
use crate::thread_queue::{ThreadQueueOptions, thread_queue};

/// The most lists in such a queue.
pub const LOADER_DEPTH: usize = 1024;

/// The name of the queue that loads a device's weights, which is its lane in traces.
pub fn loader_name(device: &str) -> String {
    format!("{device} load")
}

/// A queue in real time that only runs functions of the host.
///
/// # Errors
/// The system has no thread left.
pub fn loader(
    device: &str,
    number: usize,
    clock: Arc<dyn Clock>,
    done: SyncSender<Completion>,
) -> Result<Box<dyn Queue>, DeviceError> {
    let name = loader_name(device);
    let options =
        ThreadQueueOptions { device: name.clone(), number, depth: LOADER_DEPTH, runs_here: false };
    thread_queue(options, clock, done, move |lists, list| {
        lists.run(list, |Submission { work, .. }, _| match work {
            Work::Host(task) => task.run(&name),
            Work::Run(_) | Work::Copy(_) => {
                let (task, why) = ("a run".into(), format!("{name} computes nothing"));
                Err(DeviceError::Submission { task, why })
            }
        })
    })
}
