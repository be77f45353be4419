//! The tasks that become known by routing: runs of groups and of other experts on packed rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use troika_device::{Bindings, Buffer, CopyRows, DeviceError, Run, SpaceId, View, Weights, Work};
use troika_program::{
    ExpertBuffer, ExpertCounts, GroupGraph, LayerCounts, PackedCols, PackedRun, PackedSize,
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
        let task = |name: &Arc<str>, work| {
            let (name, rows) = (name.clone(), 0..rows.len());
            Task { device: graph.device, name, chunk: self.chunk, rows, work }
        };
        // The owner of memory copies from and to it.
        let copy = |from, to| task(&"copy".into(), Work::Copy(CopyRows::whole(from, to)));
        let mut inputs = Vec::with_capacity(graph.reads.len());
        for buffer in &graph.reads {
            let input = self.view(graph.space, *buffer, rows)?;
            if graph.space != SpaceId::HOST {
                tasks.push(copy(self.view(SpaceId::HOST, *buffer, rows)?, input.clone()));
            }
            inputs.push(input);
        }
        let result = self.result(graph, rows)?;
        let output = match (graph.apart, graph.space) {
            (Some(part), _) => self.part(graph, part, rows)?,
            (None, SpaceId::HOST) => result.clone(),
            (None, _) => self.view(graph.space, graph.writes.buffer, rows)?,
        };
        let bindings = Bindings { inputs, states: Vec::new(), outputs: vec![output.clone()] };
        let run = Run {
            weights: weights.clone(),
            bindings: Arc::new(bindings),
            rows: rows.len(),
            forward: Arc::default(),
        };
        tasks.push(task(&graph.name, Work::Run(run)));
        if graph.apart.is_some() || graph.space != SpaceId::HOST {
            tasks.push(copy(output, result));
        }
        Ok(())
    }

    /// Rows of a packed buffer.
    fn view(
        &self,
        space: SpaceId,
        buffer: ExpertBuffer,
        rows: &Range<usize>,
    ) -> Result<View, EngineError> {
        let bytes = self.size.row_bytes(buffer);
        let buffer = self.buffer(space, buffer)?;
        let view = View::dense(buffer, rows.start * bytes, (rows.len(), bytes));
        Ok(view.map_err(DeviceError::View)?)
    }

    /// The columns that a graph computes, in the host's memory.
    fn result(&self, graph: &GroupGraph, rows: &Range<usize>) -> Result<View, EngineError> {
        let PackedCols { buffer, cols } = &graph.writes;
        let stride = self.size.row_bytes(*buffer);
        let at = rows.start * stride + cols.start * 4;
        let buffer = self.buffer(SpaceId::HOST, *buffer)?;
        let view = View::new(buffer, at, (rows.len(), cols.len() * 4), stride);
        Ok(view.map_err(DeviceError::View)?)
    }

    /// Room for the columns of a part alone.
    fn part(
        &self,
        graph: &GroupGraph,
        part: usize,
        rows: &Range<usize>,
    ) -> Result<View, EngineError> {
        let part = ExpertBuffer::Part(part);
        let (at, cols) = (rows.start * self.size.row_bytes(part), graph.writes.cols.len());
        let view = View::dense(self.buffer(graph.space, part)?, at, (rows.len(), cols * 4));
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
