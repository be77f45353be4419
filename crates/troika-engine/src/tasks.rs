//! Makes tasks of forward batches: the runs of their segments' pieces, and copies of values that a
//! device cannot reach.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{Bindings, Buffer, Caps, CopyRows, DeviceError, Run, SpaceId, View, Work};
use troika_model::lower::{Lowered, SegmentKind};
use troika_plan::own_space;

use crate::batching::PlannedBatch;
use crate::error::EngineError;
use crate::pieces::Operand;
use crate::pool::EdgePool;
use crate::program::{CompiledPiece, Program, RowsRun, Where};
use crate::residency::{Area, Instance, Residency};
use crate::schedule::Task;

/// The memory of the model's states, by instance.
pub(crate) type States = [Vec<(Instance, Buffer)>];

/// What all chunks share.
pub(crate) struct Shared<'a> {
    pub lowered: &'a Lowered,
    pub program: &'a Program,
    pub states: &'a States,
    pub logits: &'a Buffer,
}

/// The memory of a chunk.
pub(crate) struct ChunkMemory<'a> {
    pub pool: &'a mut EdgePool,
    pub ids: &'a Buffer,
    pub positions: &'a Buffer,
}

/// Builds the tasks of one chunk.
pub(crate) struct ChunkTasks<'a> {
    shared: &'a Shared<'a>,
    memory: ChunkMemory<'a>,
    batch: &'a PlannedBatch,
    chunk: u32,
    /// Where each value is.
    residency: Vec<Residency>,
    /// The next row whose logits are computed, and its row in the logits buffer.
    logits_at: (usize, usize),
    tasks: Vec<Task>,
}

/// Rows of a run within the chunk: how many are computed, and how many the views have room for.
#[derive(Clone, Copy)]
struct Rows {
    first: usize,
    count: usize,
    room: usize,
}

impl<'a> ChunkTasks<'a> {
    pub fn new(
        shared: &'a Shared<'a>,
        memory: ChunkMemory<'a>,
        batch: &'a PlannedBatch,
        chunk: usize,
    ) -> ChunkTasks<'a> {
        let mut residency = vec![Residency::default(); shared.program.values.cols.len()];
        let rows = 0..batch.forward.rows();
        for value in [Lowered::IDS.0, Lowered::POSITIONS.0] {
            let cols = 0..shared.program.values.cols[value];
            let host = Instance { space: SpaceId::HOST, cols: cols.clone() };
            residency[value].add(host, Area { rows: rows.clone(), cols });
        }
        let (chunk, logits_at, tasks) = (chunk as u32, (0, 0), Vec::new());
        ChunkTasks { shared, memory, batch, chunk, residency, logits_at, tasks }
    }

    /// Makes all tasks. Logits go to the rows from `logits_row` on. Returns the row behind them.
    pub fn make(mut self, logits_row: usize) -> Result<(Vec<Task>, usize), EngineError> {
        let mut logits_row = logits_row;
        for (i, segment) in self.shared.lowered.segments.iter().enumerate() {
            if segment.kind != SegmentKind::Head {
                self.segment(i, 0..self.batch.forward.rows())?;
                continue;
            }
            for run in joined(self.batch.wanted.iter().map(|(_, r)| r.clone())) {
                self.logits_at = (run.start, logits_row);
                logits_row += run.len();
                self.segment(i, run.clone())?;
                self.logits_to_host(run)?;
            }
        }
        Ok((self.tasks, logits_row))
    }

    /// What the placement of segments depends on.
    fn forward(&self) -> Where {
        (self.batch.phase, self.batch.forward.rows(), self.batch.way)
    }

    fn segment(&mut self, segment: usize, rows: Range<usize>) -> Result<(), EngineError> {
        let placed = self.shared.program.placed(self.forward(), segment).clone();
        for (area, pieces) in placed.areas(rows.len())? {
            for piece in pieces {
                let mut at = rows.start + area.start;
                let end = rows.start + area.end;
                while let Some(run) = piece.next_run(end - at, area.end < rows.len()) {
                    let rows = Rows { first: at, count: run.rows, room: run.room };
                    at += run.rows;
                    self.run(piece, &run, rows)?;
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, piece: &CompiledPiece, run: &RowsRun, rows: Rows) -> Result<(), EngineError> {
        let mut b = Bindings::default();
        for operand in &piece.inputs {
            b.inputs.push(self.input(operand, rows, piece.device)?);
        }
        for used in &piece.states {
            let instance = self.shared.program.state_instance(piece.device, used);
            let buffer = self.shared.states[used.state].iter().find(|(i, _)| *i == instance);
            b.states.extend(buffer.map(|(_, buffer)| View::whole(buffer)));
        }
        for operand in &piece.outputs {
            b.outputs.push(self.output(operand, rows, piece.device)?);
        }
        let range = rows.first..rows.first + rows.count;
        let work = Work::Run(Run {
            weights: self.shared.program.loaded[run.loaded].clone(),
            bindings: Arc::new(b),
            rows: rows.count,
            forward: self.batch.forward.slice(&range),
        });
        self.push(piece.device, piece.name.clone(), range, work);
        Ok(())
    }

    fn push(&mut self, device: usize, name: Arc<str>, rows: Range<usize>, work: Work) {
        self.tasks.push(Task { device, name, chunk: self.chunk, rows, work });
    }

    /// An input in memory that the device can read.
    fn input(&mut self, o: &Operand, rows: Rows, device: usize) -> Result<View, EngineError> {
        let caps = self.shared.program.devices[device].caps();
        let cols = self.extent(o, rows, caps);
        let area = Area { rows: rows.first..rows.first + rows.count, cols: o.cols.clone() };
        let reached = |i: &&Instance| i.cols == cols && caps.spaces.contains(&i.space);
        let held = &self.residency[o.value];
        // The instance that holds most of it already.
        let there = held.instances().filter(reached).min_by_key(|i| {
            held.missing(i, &area)
                .iter()
                .map(|m| m.area.rows.len() * m.area.cols.len())
                .sum::<usize>()
        });
        let instance = there.cloned().unwrap_or(Instance { space: own_space(caps), cols });
        self.fetch(o.value, &instance, &area, device)?;
        self.view(o, &instance, rows)
    }

    /// Memory for an output that the device can write.
    fn output(&mut self, o: &Operand, rows: Rows, device: usize) -> Result<View, EngineError> {
        let caps = self.shared.program.devices[device].caps();
        let cols = self.extent(o, rows, caps);
        let instance = Instance { space: own_space(caps), cols };
        let area = Area { rows: rows.first..rows.first + rows.count, cols: o.cols.clone() };
        let view = self.view(o, &instance, rows)?;
        self.residency[o.value].add(instance, area);
        Ok(view)
    }

    /// Bytes of an element of a value.
    fn element(&self, value: usize) -> usize {
        self.shared.program.values.element(value, self.batch.phase)
    }

    /// The columns of the instance that a device is bound to: all of the value's, unless they are
    /// not needed together, its rows must be dense, or they would span too many bytes.
    fn extent(&self, o: &Operand, rows: Rows, caps: &Caps) -> Range<usize> {
        let all = self.shared.program.values.cols[o.value];
        let span = rows.room.saturating_mul(all * self.element(o.value)) as u64;
        let apart = o.cols != (0..all) && rows.room > 1;
        let refused = !caps.strided_rows || caps.max_binding_bytes.is_some_and(|most| span > most);
        if self.shared.program.apart[o.value] || (apart && refused) {
            o.cols.clone()
        } else {
            0..all
        }
    }

    /// Copies the parts of an area that an instance lacks.
    fn fetch(
        &mut self,
        value: usize,
        to: &Instance,
        area: &Area,
        device: usize,
    ) -> Result<(), EngineError> {
        for missing in self.residency[value].missing(to, area) {
            let mut from = missing.from;
            if from.space != to.space && from.space != SpaceId::HOST && to.space != SpaceId::HOST {
                // No device reaches the memory of two others.
                let cols = 0..self.shared.program.values.cols[value];
                let host = Instance { space: SpaceId::HOST, cols };
                self.copy(value, (&from, &host), &missing.area, device)?;
                from = host;
            }
            self.copy(value, (&from, to), &missing.area, device)?;
        }
        Ok(())
    }

    fn copy(
        &mut self,
        value: usize,
        (from, to): (&Instance, &Instance),
        area: &Area,
        device: usize,
    ) -> Result<(), EngineError> {
        let operand = Operand { value, cols: area.cols.clone() };
        let rows = Rows { first: area.rows.start, count: area.rows.len(), room: area.rows.len() };
        let (source, target) = (self.view(&operand, from, rows)?, self.view(&operand, to, rows)?);
        let device = self.shared.program.copier(from.space, to.space, device);
        let work = Work::Copy(CopyRows { from: source, to: target });
        self.residency[value].add(to.clone(), area.clone());
        self.push(device, self.shared.program.copy_name.clone(), area.rows.clone(), work);
        Ok(())
    }

    /// Copies logits from a device's own memory to the host, where they are read.
    fn logits_to_host(&mut self, rows: Range<usize>) -> Result<(), EngineError> {
        let value = self.shared.lowered.logits().0;
        let cols = 0..self.shared.program.values.cols[value];
        let host = Instance { space: SpaceId::HOST, cols: cols.clone() };
        self.fetch(value, &host, &Area { rows, cols }, 0)
    }

    fn view(&mut self, o: &Operand, instance: &Instance, rows: Rows) -> Result<View, EngineError> {
        let cols = self.shared.program.values.cols[o.value];
        let on_host = instance.space == SpaceId::HOST && instance.cols == (0..cols);
        let (buffer, first) = if o.value == Lowered::IDS.0 && on_host {
            (self.memory.ids.clone(), rows.first)
        } else if o.value == Lowered::POSITIONS.0 && on_host {
            (self.memory.positions.clone(), rows.first)
        } else if o.value == self.shared.lowered.logits().0 && on_host {
            let (from, to) = self.logits_at;
            (self.shared.logits.clone(), rows.first - from + to)
        } else {
            let devices = &self.shared.program.devices;
            (self.memory.pool.buffer((o.value, cols), instance, devices)?, rows.first)
        };
        let element = self.element(o.value);
        let stride = instance.cols.len() * element;
        let offset = first * stride + (o.cols.start - instance.cols.start) * element;
        let shape = (rows.room, o.cols.len() * element);
        Ok(View::new(&buffer, offset, shape, stride).map_err(DeviceError::View)?)
    }
}

/// Joins adjacent runs, so that neighbouring rows share one task.
fn joined(runs: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for run in runs {
        match out.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => out.push(run),
        }
    }
    out
}
