//! The tasks that become known by routing: runs of groups and of other experts on packed rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use troika_device::{Bindings, Buffer, CopyRows, DeviceError, Run, SpaceId, View, Work};
use troika_program::{ExpertBuffer, ExpertCounts, LayerCounts, PackedRun};
use troika_trace::{ExpertRows, Span, Tracer};

use super::LoadedGraph;
use super::route::{OfChunk, locked};
use crate::error::EngineError;
use crate::schedule::{Growth, Task, TaskGraph};

/// A graph of experts with its weights.
#[derive(Clone)]
pub(crate) struct ExpertGraph {
    pub device: usize,
    pub space: SpaceId,
    pub name: Arc<str>,
    pub loaded: LoadedGraph,
}

/// What is needed to run what a chunk's routing made ready.
pub(crate) struct Dispatcher {
    pub of: OfChunk,
    pub chunk: u32,
    pub groups: Vec<ExpertGraph>,
    pub rest: ExpertGraph,
    /// Packed buffers, by memory space.
    pub buffers: HashMap<(SpaceId, ExpertBuffer), Buffer>,
    /// Bytes of a row.
    pub row_bytes: usize,
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
            routing.look(place.0);
            let mut counts = LayerCounts::default();
            let assumed = routing.rows.assume(*place, *rows, &mut counts);
            let why = |why| DeviceError::Submission { task: self.rest.name.to_string(), why };
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

    /// Adds a run, between copies if its device has memory of its own.
    fn add(&self, run: &PackedRun, tasks: &mut Vec<Task>) -> Result<(), EngineError> {
        let graph = run.group.and_then(|g| self.groups.get(g)).unwrap_or(&self.rest);
        let rows = &run.rows;
        let view = |space, buffer| self.view((space, buffer), rows);
        let input = view(graph.space, ExpertBuffer::Input)?;
        let output = view(graph.space, ExpertBuffer::Output)?;
        let mut inputs = vec![input.clone()];
        if run.group.is_none() {
            inputs.push(view(SpaceId::HOST, ExpertBuffer::Ids)?);
            inputs.push(view(SpaceId::HOST, ExpertBuffer::Ones)?);
        }
        let bindings = Bindings { inputs, states: Vec::new(), outputs: vec![output.clone()] };
        let run = Run {
            weights: graph.loaded.of(&graph.name)?,
            bindings: Arc::new(bindings),
            rows: rows.len(),
            forward: Arc::default(),
        };
        let task = |device, name: &Arc<str>, work| {
            let (name, rows) = (name.clone(), 0..rows.len());
            Task { device, name, chunk: self.chunk, rows, work }
        };
        let compute = task(graph.device, &graph.name, Work::Run(run));
        if graph.space == SpaceId::HOST {
            tasks.push(compute);
            return Ok(());
        }
        let on_host = view(SpaceId::HOST, ExpertBuffer::Input)?;
        let to_host = view(SpaceId::HOST, ExpertBuffer::Output)?;
        // The owner of memory copies from and to it.
        let copy = |from, to| task(graph.device, &"copy".into(), Work::Copy(CopyRows { from, to }));
        tasks.push(copy(on_host, input));
        tasks.push(compute);
        tasks.push(copy(output, to_host));
        Ok(())
    }

    /// Rows of a packed buffer.
    fn view(
        &self,
        named: (SpaceId, ExpertBuffer),
        rows: &Range<usize>,
    ) -> Result<View, EngineError> {
        let bytes = match named.1 {
            ExpertBuffer::Input | ExpertBuffer::Output => self.row_bytes,
            _ => 4,
        };
        let lacks = || DeviceError::Submission {
            task: self.rest.name.to_string(),
            why: "its packed rows have no memory".into(),
        };
        let buffer = self.buffers.get(&named).ok_or_else(lacks)?;
        let view = View::dense(buffer, rows.start * bytes, (rows.len(), bytes));
        Ok(view.map_err(DeviceError::View)?)
    }
}
