//! A device that is watched, and that fails when told to.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use troika_device::{
    Buffer, Caps, Clock, CommandList, CompileRequest, CompileResults, Completion, Device,
    DeviceError, DeviceKind, Executable, OutOfMemory, Queue, WeightSource, Weights,
};
use troika_graph::Subgraph;

/// What a device is about to do.
pub enum Doing<'a> {
    /// It loads the weights of a graph.
    Load(&'a Subgraph),
    /// It gets a list.
    Submit(&'a CommandList),
}

/// What is called before a device does something. It may refuse it.
type BoxedHook = Box<dyn FnMut(Doing<'_>) -> Result<(), DeviceError> + Send>;

/// What a device calls before it does something; shared with the test, which may change it.
#[derive(Clone)]
pub struct Hook(Arc<Mutex<BoxedHook>>);

impl Default for Hook {
    /// Refuses nothing.
    fn default() -> Hook {
        Hook(Arc::new(Mutex::new(Box::new(|_| Ok(())))))
    }
}

impl Hook {
    /// Replaces what is called.
    pub fn set(&self, hook: impl FnMut(Doing<'_>) -> Result<(), DeviceError> + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(hook);
    }

    /// Refuses nothing any more.
    pub fn clear(&self) {
        self.set(|_| Ok(()));
    }

    fn call(&self, doing: Doing<'_>) -> Result<(), DeviceError> {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner))(doing)
    }
}

/// An error of a device that was told to fail.
pub fn told_to_fail(device: &str) -> DeviceError {
    DeviceError::System { device: device.into(), why: "it was told to fail".into() }
}

/// A device that is watched.
pub struct Hooked {
    device: Arc<dyn Device>,
    hook: Hook,
    caps: Caps,
}

struct HookedQueue {
    queue: Box<dyn Queue>,
    hook: Hook,
}

impl Hooked {
    /// Watches a device.
    pub fn new(device: Arc<dyn Device>, hook: Hook) -> Hooked {
        let caps = device.caps().clone();
        Hooked { device, hook, caps }
    }

    /// The same with other capabilities.
    pub fn with_caps(self, caps: Caps) -> Hooked {
        Hooked { caps, ..self }
    }
}

impl Device for Hooked {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        self.device.clock()
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.device.allocate(bytes)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        self.device.compile(request)
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        self.hook.call(Doing::Load(graph))?;
        self.device.load(executable, graph, weights)
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        let queue = self.device.queue(number, clock, done)?;
        Ok(Box::new(HookedQueue { queue, hook: self.hook.clone() }))
    }
}

impl Queue for HookedQueue {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        self.hook.call(Doing::Submit(&list))?;
        self.queue.submit(list)
    }

    fn is_alive(&self) -> bool {
        self.queue.is_alive()
    }
}
