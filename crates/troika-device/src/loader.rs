//! The queue that loads a device's weights while the device computes.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_graph::Subgraph;

use crate::caps::{Caps, DeviceKind};
use crate::clock::Clock;
use crate::device::{
    CommandList, CompileRequest, CompileResults, Completion, Device, Queue, Submission, Work,
};
use crate::error::DeviceError;
use crate::executable::{Executable, Weights};
use crate::thread_queue::{ThreadQueue, ThreadQueueOptions};
use crate::wait_times::WaitTimes;
use crate::weight::WeightSource;

/// The most lists that wait for a loader.
const DEPTH: usize = 1024;

/// A device that only runs functions of the host, on a thread of its own: they load the weights of
/// another device.
#[derive(Debug)]
pub struct Loader {
    name: String,
    caps: Caps,
}

impl Loader {
    /// The loader of a device in real time.
    pub fn of(device: &str) -> Loader {
        let caps = Caps {
            numerics: Caps::NO_NUMERICS.into(),
            queue_depth: DEPTH,
            queue_waits: false,
            ..Caps::default()
        };
        Loader { name: Loader::name_of(device), caps }
    }

    /// The name of a device's loader, which is its lane in traces.
    pub fn name_of(device: &str) -> String {
        format!("{device} load")
    }

    fn refused(&self, graph: &Subgraph) -> DeviceError {
        let why = format!("{} computes nothing", self.name);
        DeviceError::Submission { task: graph.name.clone(), why }
    }
}

impl Device for Loader {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        request.each(|graph| Err(self.refused(graph)))
    }

    fn load(
        &self,
        _: &Arc<Executable>,
        graph: &Subgraph,
        _: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        Err(self.refused(graph))
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        let device = self.name.clone();
        let options =
            ThreadQueueOptions { device: device.clone(), number, depth: DEPTH, runs_here: false };
        let mut learnt = WaitTimes::default();
        let run = move |list: CommandList| {
            list.run(number, &*clock, &mut learnt, |Submission { work, .. }, _| match work {
                Work::Host(task) => task.run(&device),
                Work::Run(_) | Work::Copy(_) => Err(DeviceError::Submission {
                    task: "a run".into(),
                    why: format!("{device} computes nothing"),
                }),
            })
        };
        Ok(Box::new(ThreadQueue::start(options, run, done, || {})?))
    }
}
