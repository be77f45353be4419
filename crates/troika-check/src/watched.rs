//! A device that is watched, and may be told to refuse or to fail.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use troika_device::{
    Buffer, Caps, Clock, CommandList, CompileRequest, CompileResults, Completion, Device,
    DeviceError, DeviceKind, Executable, OutOfMemory, Queue, WeightSource, Weights, lock,
};
use troika_graph::Subgraph;

/// What happens in place of a device's calls, or before them.
pub trait Watch: Send + Sync + 'static {
    /// In place of [`Device::examine`].
    fn examine(&self, device: &dyn Device, graph: &Subgraph) -> Vec<Option<String>> {
        device.examine(graph)
    }

    /// In place of [`Device::compile`].
    fn compile(&self, device: &dyn Device, request: &CompileRequest<'_>) -> CompileResults {
        device.compile(request)
    }

    /// Before a device does something, which an error refuses.
    ///
    /// # Errors
    /// Why it is refused.
    fn before(&self, _: Doing<'_>) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// What a device is about to do.
pub enum Doing<'a> {
    /// It loads the weights of a graph.
    Load(&'a Subgraph),
    /// It gets a list.
    Submit(&'a CommandList),
}

/// A device that is watched.
pub struct Watched<W> {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The capabilities that are told.
    pub caps: Caps,
    /// What watches it.
    pub watch: Arc<W>,
}

impl<W> Watched<W> {
    /// Watches a device.
    pub fn new(device: Arc<dyn Device>, watch: W) -> Watched<W> {
        let caps = device.caps().clone();
        Watched { device, caps, watch: Arc::new(watch) }
    }
}

impl<W: Watch> Device for Watched<W> {
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

    fn examine(&self, graph: &Subgraph) -> Vec<Option<String>> {
        self.watch.examine(&*self.device, graph)
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.device.allocate(bytes)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        self.watch.compile(&*self.device, request)
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        self.watch.before(Doing::Load(graph))?;
        self.device.load(executable, graph, weights)
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        let queue = self.device.queue(number, clock, done)?;
        Ok(Box::new(WatchedQueue { queue, watch: self.watch.clone() }))
    }
}

struct WatchedQueue<W> {
    queue: Box<dyn Queue>,
    watch: Arc<W>,
}

impl<W: Watch> Queue for WatchedQueue<W> {
    fn submit(&mut self, list: CommandList) -> Result<(), DeviceError> {
        self.watch.before(Doing::Submit(&list))?;
        self.queue.submit(list)
    }

    fn is_alive(&self) -> bool {
        self.queue.is_alive()
    }
}

/// What is called before a device does something. It may refuse it.
type BoxedHook = Box<dyn FnMut(Doing<'_>) -> Result<(), DeviceError> + Send>;

/// What a device calls before it does something; shared with the test, which may change it.
#[derive(Clone)]
pub struct Hook(Arc<Mutex<BoxedHook>>);

/// A device that calls a hook.
pub type Hooked = Watched<Hook>;

impl Default for Hook {
    /// Refuses nothing.
    fn default() -> Hook {
        Hook(Arc::new(Mutex::new(Box::new(|_| Ok(())))))
    }
}

impl Hook {
    /// Replaces what is called.
    pub fn set(&self, hook: impl FnMut(Doing<'_>) -> Result<(), DeviceError> + Send + 'static) {
        *lock(&self.0) = Box::new(hook);
    }

    /// Refuses nothing any more.
    pub fn clear(&self) {
        self.set(|_| Ok(()));
    }
}

impl Watch for Hook {
    fn before(&self, doing: Doing<'_>) -> Result<(), DeviceError> {
        lock(&self.0)(doing)
    }
}

/// An error of a device that was told to fail.
pub fn told_to_fail(device: &str) -> DeviceError {
    DeviceError::System { device: device.into(), why: "it was told to fail".into() }
}
