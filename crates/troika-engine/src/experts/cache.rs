//! Experts of a device that come and go: their weights in slots, and the tasks that load them.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use troika_device::{
    Buffer, Clock, Device, DeviceError, Executable, ExpertForecast, ExpertStats, View,
    WeightSource, Weights, lock,
};
use troika_graph::Subgraph;
use troika_program::{ExpertCache, ExpertSlots};

use crate::error::EngineError;
use crate::memory::allocate;

/// Bytes of the mark of a slot, by which tasks that use it wait for each other.
const MARK: usize = 64;

/// Where weights come from after a model was opened.
pub type LastingWeights = Arc<dyn WeightSource + Send + Sync>;

/// A group of experts that a device can load.
pub(crate) struct CachedGraph {
    pub graph: Subgraph,
    /// Its code; `None` if weights are part of it, so that loading makes it.
    pub code: Option<Arc<Executable>>,
}

/// What a slot holds: a group's number, and its weights.
type Held = Option<(u32, Arc<Weights>)>;

/// The experts of a device that come and go.
pub(crate) struct DeviceExperts {
    pub of: ExpertCache,
    device: Arc<dyn Device>,
    graphs: Vec<CachedGraph>,
    slots: Mutex<ExpertSlots>,
    held: Vec<Mutex<Held>>,
    marks: Buffer,
    source: Mutex<Option<LastingWeights>>,
    forecast: Mutex<Option<Arc<ExpertForecast>>>,
    clock: Arc<dyn Clock>,
}

impl DeviceExperts {
    /// An empty cache of some graphs, in the order of its groups.
    ///
    /// # Errors
    /// There is no memory for the marks of its slots.
    pub fn new(
        of: &ExpertCache,
        device: Arc<dyn Device>,
        graphs: Vec<CachedGraph>,
        clock: Arc<dyn Clock>,
    ) -> Result<DeviceExperts, EngineError> {
        Ok(DeviceExperts {
            device,
            graphs,
            slots: Mutex::new(ExpertSlots::new(of)),
            held: (0..of.slots).map(|_| Mutex::default()).collect(),
            marks: allocate(of.slots.checked_mul(MARK), "a cache of experts")?,
            of: of.clone(),
            source: Mutex::default(),
            forecast: Mutex::default(),
            clock,
        })
    }

    /// Says where weights come from and what names experts that will be chosen, and loads those that
    /// are there from the start. What fails is told when rows choose it.
    pub fn load_from(&self, source: &LastingWeights, forecast: Option<&Arc<ExpertForecast>>) {
        *lock(&self.source) = Some(source.clone());
        *lock(&self.forecast) = forecast.cloned();
        for (slot, group) in self.of.first().into_iter().enumerate() {
            let _ = self.loaded(group, slot);
        }
        let mut slots = self.slots();
        (slots.stats.bytes_read, slots.stats.stall) = (0, Duration::ZERO);
    }

    /// What names experts that will be chosen.
    pub fn forecast(&self) -> Option<Arc<ExpertForecast>> {
        lock(&self.forecast).clone()
    }

    /// Bytes of a group.
    pub fn bytes(&self, group: u32) -> u64 {
        self.of.bytes[group as usize]
    }

    /// The name of a group's graph.
    pub fn name(&self, group: u32) -> &str {
        &self.graphs[group as usize].graph.name
    }

    /// Which groups are where.
    pub fn slots(&self) -> MutexGuard<'_, ExpertSlots> {
        lock(&self.slots)
    }

    /// What became of groups.
    pub fn stats(&self) -> ExpertStats {
        let held = self.held.iter().filter_map(|slot| Some(lock(slot).as_ref()?.0));
        let held = held.map(|group| self.bytes(group)).sum();
        ExpertStats { held, ..self.slots().stats.clone() }
    }

    /// The mark of a slot.
    ///
    /// # Errors
    /// There is no such slot.
    pub fn mark(&self, slot: usize) -> Result<View, DeviceError> {
        Ok(View::dense(&self.marks, slot * MARK, (1, MARK))?)
    }

    /// The marks of all slots.
    pub fn marks(&self) -> View {
        View::whole(&self.marks)
    }

    /// The weights of a group in a slot, loaded if they are not there. What was there is given up
    /// before.
    ///
    /// # Errors
    /// The device does not load them.
    pub fn loaded(&self, group: u32, slot: usize) -> Result<Arc<Weights>, DeviceError> {
        let mut held = lock(&self.held[slot]);
        if let Some((_, weights)) = held.as_ref().filter(|(held, _)| *held == group) {
            return Ok(weights.clone());
        }
        *held = None;
        let began = self.clock.now();
        let weights = self.load(&self.graphs[group as usize])?;
        *held = Some((group, weights.clone()));
        let took: Duration = self.clock.now().saturating_sub(began);
        let mut slots = self.slots();
        slots.stats.bytes_read += self.bytes(group);
        slots.stats.stall += took;
        Ok(weights)
    }

    fn load(&self, of: &CachedGraph) -> Result<Arc<Weights>, DeviceError> {
        let source = lock(&self.source).clone();
        let closed = "its weights were closed when the model was opened";
        let source = source.ok_or_else(|| DeviceError::weight(&of.graph.name, closed))?;
        let compiled = || Executable::compiled(&*self.device, &of.graph, &*source);
        let code = of.code.clone().map_or_else(compiled, Ok)?;
        self.device.load(&code, &of.graph, &*source)
    }
}
