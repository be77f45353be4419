//! The tasks of divided experts by name: rows are routed to packed buffers, what is full runs, and
//! results are added up row by row.

use std::ops::Range;
use std::sync::Arc;

use troika_device::SpaceId;

use crate::experts::{ExpertBuffer, ExpertMemory, ExpertStep, GroupGraph, PackedSet};
use crate::placed::Operand;
use crate::tasks::{
    BufferName, ChunkTasks, NamedHost, NamedView, NamedWork, OfExperts, Rows, ValueCols,
};

impl ChunkTasks<'_> {
    /// The tasks before the results are needed.
    pub(crate) fn dispatch_experts(&mut self, of: OfExperts<'_>, rows: &Range<usize>) {
        let OfExperts { experts, .. } = of;
        let device = experts.pieces.last().map_or(0, |rest| rest.device);
        let mut reads = Vec::new();
        for operand in &experts.inputs[..2] {
            reads.push(self.operand(of, operand, rows, device));
        }
        for value in experts.attention.into_iter().flatten() {
            let cols = 0..self.program.values.cols[value];
            reads.push(self.input(&ValueCols { value, cols }, all(rows), device));
        }
        let (set, place) = (self.place)(of.index);
        let own = PackedSet::Chunk(self.batch.set);
        let routed = self.packed(own, SpaceId::HOST, ExpertBuffer::Routed);
        let on_host = |buffer| self.packed(set, SpaceId::HOST, buffer);
        let (order, input) = (on_host(ExpertBuffer::Order), on_host(ExpertBuffer::Input));
        let (ids, output) = (on_host(ExpertBuffer::Ids), on_host(ExpertBuffer::Output));
        let ones = on_host(ExpertBuffer::Ones);
        let mut parts = vec![input.clone(), ids.clone(), output];
        let graphs = self.program.experts[of.number].groups.iter().flatten();
        for (space, buffer) in graphs.flat_map(GroupGraph::buffers) {
            let part = self.packed(set, space, buffer);
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        let caches = self.program.experts[of.number].caches();
        let in_order = caches.filter(|cache| self.program.caches[*cache].in_order);
        let mark =
            |cache| self.packed(PackedSet::Window(0), SpaceId::HOST, ExpertBuffer::Cache(cache));
        let marks = in_order.map(mark).collect();
        let host = |step, reads, writes, parts| {
            let experts = of.number;
            NamedHost { step, experts, set, place, reads, writes, parts }
        };
        let route = host(ExpertStep::Route, reads, vec![order, routed.clone()], vec![input, ids]);
        let dispatch = host(ExpertStep::Dispatch, vec![routed, ones], marks, parts);
        for task in [route, dispatch] {
            self.push_host(of, device, rows, task);
        }
        if experts.is_layer_major() {
            // The experts come next, which other chunks share.
            self.ends.push([self.tasks.len(); 2]);
            self.shared.push(of.index);
        }
    }

    /// The task that adds the results up.
    pub(crate) fn combine_experts(&mut self, of: OfExperts<'_>, rows: &Range<usize>) {
        let OfExperts { experts, .. } = of;
        let device = experts.pieces.last().map_or(0, |rest| rest.device);
        let weights = self.operand(of, &experts.inputs[2], rows, device);
        let (set, place) = (self.place)(of.index);
        let results = self.packed(set, SpaceId::HOST, ExpertBuffer::Output);
        let value = self.value_of(of, &experts.output);
        let sum = self.output(&value, all(rows), device);
        let task = NamedHost {
            step: ExpertStep::Combine,
            experts: of.number,
            set,
            place,
            reads: vec![weights, results],
            writes: vec![sum],
            parts: Vec::new(),
        };
        self.push_host(of, device, rows, task);
        if experts.is_layer_major()
            && let Some(ends) = self.ends.last_mut()
        {
            ends[1] = self.tasks.len();
        }
    }

    fn push_host(
        &mut self,
        of: OfExperts<'_>,
        device: usize,
        rows: &Range<usize>,
        task: NamedHost,
    ) {
        let segment = &self.program.lowered.segments[of.index].graph.name;
        let step = match task.step {
            ExpertStep::Route => "route",
            ExpertStep::Dispatch => "dispatch",
            ExpertStep::Combine => "combine",
        };
        let name: Arc<str> = format!("{segment} [{step}]").into();
        self.push(device, name, rows.clone(), NamedWork::Host(task));
    }

    fn value_of(&self, of: OfExperts<'_>, operand: &Operand) -> ValueCols {
        let value = self.program.value(of.index, of.placement, operand.value);
        ValueCols { value, cols: operand.cols.clone() }
    }

    fn operand(
        &mut self,
        of: OfExperts<'_>,
        operand: &Operand,
        rows: &Range<usize>,
        device: usize,
    ) -> NamedView {
        let value = self.value_of(of, operand);
        self.input(&value, all(rows), device)
    }

    fn packed(&self, set: PackedSet, space: SpaceId, buffer: ExpertBuffer) -> NamedView {
        let size = &self.program.packed;
        let rows = match (buffer, set) {
            (ExpertBuffer::Order | ExpertBuffer::Routed | ExpertBuffer::Cache(_), _) => 1,
            (_, PackedSet::Chunk(_)) => size.of_chunk,
            (_, PackedSet::Window(_)) => size.of_window,
        };
        let row_bytes = size.row_bytes(buffer);
        let buffer = BufferName::Experts(ExpertMemory { set, space, buffer });
        NamedView { buffer, space, offset: 0, rows, row_bytes, stride: row_bytes }
    }
}

fn all(rows: &Range<usize>) -> Rows {
    Rows { first: rows.start, count: rows.len(), room: rows.len() }
}
