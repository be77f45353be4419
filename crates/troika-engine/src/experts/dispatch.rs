//! The tasks that become known by routing: runs of groups and of other experts on packed rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use troika_device::{Bindings, Buffer, CopyRows, DeviceError, Run, SpaceId, View, Weights, Work};
use troika_program::{
    BufferView, ExpertBuffer, ExpertCounts, GroupGraph, LayerCounts, PackedRun, PackedSize,
    PackedStep,
};
use troika_trace::{ExpertRows, Span, Tracer};

use super::route::{OfChunk, locked};
use crate::error::EngineError;
use crate::schedule::{Growth, Task, TaskGraph};

/// A graph of experts with its weights.
#[derive(Clone)]
pub(crate) struct ExpertGraph {
    pub of: GroupGraph,
    pub weights: Arc<Weights>,
}

/// What is needed to run what a chunk's routing made ready.
pub(crate) struct Dispatcher {
    pub of: OfChunk,
    pub chunk: u32,
    /// The graphs of each group, in an order in which they can run.
    pub groups: Vec<Vec<ExpertGraph>>,
    pub rest: ExpertGraph,
    /// Packed buffers, by memory space.
    pub buffers: HashMap<(SpaceId, ExpertBuffer), Buffer>,
    /// Columns of their rows.
    pub size: PackedSize,
    pub tracer: Tracer,
    /// The name of the rule's device, in traces.
    pub lane: Arc<str>,
}

/// The growth of a graph in which some tasks dispatch experts.
pub(crate) fn growth(dispatchers: HashMap<u32, Dispatcher>) -> Growth {
    Arc::new(move |task, result| match dispatchers.get(&task) {
        Some(dispatcher) => dispatcher.tasks(result.is_some()),
        None => Ok(Arc::default()),
    })
}

impl Dispatcher {
    /// The tasks. Where functions of the host are not computed, rows choose experts as the plan expects.
    fn tasks(&self, routed: bool) -> Result<Arc<TaskGraph>, EngineError> {
        let OfChunk { place, rows, layer, stats, .. } = &self.of;
        let mut routing = locked(&self.of.routing);
        if !routed {
            let mut counts = LayerCounts::default();
            let assumed = routing.rows.assume(*place, *rows, &mut counts);
            let why = |why| DeviceError::Submission { task: self.rest.of.name.to_string(), why };
            routing.note(place.0, assumed.map_err(why)?, counts);
        }
        let (runs, counts) = routing.take(place.0);
        if !runs.is_empty() {
            let now = self.of.clock.now();
            routing.began.get_or_insert(now);
        }
        drop(routing);
        stats.with(|stats| stats.layers.entry(*layer).or_default().add(&counts));
        self.trace(&counts);
        let mut tasks = Vec::new();
        for run in &runs {
            self.add(run, &mut tasks)?;
        }
        Ok(Arc::new(TaskGraph::new(tasks)))
    }

    /// Records what was routed.
    fn trace(&self, counts: &LayerCounts) {
        if !self.tracer.enabled() {
            return;
        }
        let now = self.of.clock.now();
        let sum = |of: fn(&ExpertCounts) -> u64| counts.experts.iter().map(of).sum();
        let rows = ExpertRows {
            layer: self.of.layer,
            rows: counts.experts.iter().map(|e| e.rows).collect(),
            padded: sum(|e| e.padding),
            dropped: sum(|e| e.dropped),
            launches: counts.group_runs + counts.rest_runs,
        };
        self.tracer.record(Span {
            name: format!("layer {} experts [rows]", self.of.layer).into(),
            lane: self.lane.clone(),
            start: now,
            end: now,
            args: rows.args(),
        });
    }

    /// Adds a run: of one graph, or of a group's parts.
    fn add(&self, run: &PackedRun, tasks: &mut Vec<Task>) -> Result<(), EngineError> {
        let group = run.group.and_then(|g| self.groups.get(g));
        let graphs = group.map_or(std::slice::from_ref(&self.rest), Vec::as_slice);
        graphs.iter().try_for_each(|graph| self.add_graph(graph, &run.rows, tasks))
    }

    /// Adds the run of a graph, between copies if its device has memory of its own.
    fn add_graph(
        &self,
        ExpertGraph { of: graph, weights }: &ExpertGraph,
        rows: &Range<usize>,
        tasks: &mut Vec<Task>,
    ) -> Result<(), EngineError> {
        for step in graph.steps(rows, &self.size) {
            let (name, work) = match step {
                PackedStep::Copy(from, to) => {
                    let copy = CopyRows::whole(self.view(&from)?, self.view(&to)?);
                    ("copy".into(), Work::Copy(copy))
                }
                PackedStep::Run(inputs, output) => {
                    let bindings = Bindings {
                        inputs: inputs.iter().map(|v| self.view(v)).collect::<Result<_, _>>()?,
                        states: Vec::new(),
                        outputs: vec![self.view(&output)?],
                    };
                    let run = Run {
                        weights: weights.clone(),
                        bindings: Arc::new(bindings),
                        rows: rows.len(),
                        forward: Arc::default(),
                    };
                    (graph.name.clone(), Work::Run(run))
                }
            };
            let rows = 0..rows.len();
            tasks.push(Task { device: graph.device, name, chunk: self.chunk, rows, work });
        }
        Ok(())
    }

    fn view(&self, of: &BufferView<ExpertBuffer>) -> Result<View, EngineError> {
        let buffer = self.buffer(of.space, of.buffer)?;
        let view = View::new(buffer, of.offset, (of.rows, of.row_bytes), of.stride);
        Ok(view.map_err(DeviceError::View)?)
    }

    fn buffer(&self, space: SpaceId, buffer: ExpertBuffer) -> Result<&Buffer, DeviceError> {
        let lacks = || DeviceError::Submission {
            task: self.rest.of.name.to_string(),
            why: "its packed rows have no memory".into(),
        };
        self.buffers.get(&(space, buffer)).ok_or_else(lacks)
    }
}
