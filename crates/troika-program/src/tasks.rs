//! Tasks by name: the runs of the pieces of all segments for the shape of a forward batch, and
//! copies of values that a device cannot reach.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{Caps, CopyRows, SpaceId};
use troika_graph::DType;
use troika_model::lower::{Lowered, ModelPart};
use troika_plan::{Phase, own_space};

use crate::buffer_view::BufferView;
use crate::error::ProgramError;
use crate::experts::{ExpertMemory, ExpertStep, PackedSet};
use crate::place::state_instance;
use crate::placed::{Operand, PlacedExperts, PlacedPiece, PlacedStage, RowsRun};
use crate::program::{Placement, Program};
use crate::residency::{Area, Instance, Residency};
use crate::slots::{SlotMemory, Slots};

/// The shape of a forward batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// The phase whose placement all rows use.
    pub phase: Phase,
    /// Number of rows.
    pub rows: usize,
    /// Ranges of rows whose logits are wanted, ascending and with gaps between them.
    pub wanted: Vec<Range<usize>>,
    /// Likewise of rows whose states behind the last layer are wanted, in place of logits.
    pub states: Vec<Range<usize>>,
    /// Its chunk, counted from the first one in flight.
    pub chunk: u32,
    /// The set of buffers for the values between its segments.
    pub set: usize,
    /// Only this many of the largest logits go to the host ([`Program::top_k`]).
    pub top_k: Option<usize>,
}

/// A task on named buffers.
pub type NamedTask = Task<NamedWork>;

/// The run of a segment or piece for a chunk's rows on a device, a copy, or a host function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task<W> {
    /// Index of the device (queue).
    pub device: usize,
    /// The name in traces.
    pub name: Arc<str>,
    /// The chunk it belongs to.
    pub chunk: u32,
    /// Its rows within the chunk.
    pub rows: Range<usize>,
    /// The work for the queue.
    pub work: W,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedWork {
    /// Runs a piece.
    Run(NamedRun),
    /// Copies rows.
    Copy(NamedCopy),
    /// Routes rows to divided experts.
    Host(NamedHost),
}

/// A function of the host that routes rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedHost {
    /// What it does.
    pub step: ExpertStep,
    /// Index in the program's list of divided experts.
    pub experts: usize,
    /// The set of packed buffers.
    pub set: PackedSet,
    /// The chunk's place among those that share buffers, and whether it is the last one.
    pub place: (usize, bool),
    /// What it reads.
    pub reads: Vec<NamedView>,
    /// What it writes.
    pub writes: Vec<NamedView>,
    /// Views whose used parts are known only at run time.
    pub parts: Vec<NamedView>,
}

/// The run of a piece on some rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRun {
    /// Index in the program's list of graphs.
    pub graph: usize,
    /// Rows that are computed, padding included.
    pub room: usize,
    /// The values it reads.
    pub inputs: Vec<NamedView>,
    /// The parts of states it uses.
    pub states: Vec<StatePart>,
    /// The values it writes.
    pub outputs: Vec<NamedView>,
}

/// A copy between two memories.
pub type NamedCopy = CopyRows<NamedView>;

/// An instance of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatePart {
    /// The state.
    pub state: usize,
    /// Index among [`Program::state_instances`].
    pub instance: usize,
}

/// A buffer by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BufferName {
    /// Token ids of a chunk, on the host.
    Ids(u32),
    /// Positions of the rows of a chunk, on the host.
    Positions(u32),
    /// Logits of all chunks, on the host.
    Logits,
    /// A slot for values between segments, in a set of slots.
    Value {
        /// The set.
        set: usize,
        /// The slot and where it lies.
        memory: SlotMemory,
    },
    /// The memory of a state.
    State(StatePart),
    /// Rows that go through divided experts.
    Experts(ExpertMemory),
    /// Host memory for one copy between two devices, by number.
    Staging(usize),
}

/// A rectangle of a named buffer.
pub type NamedView = BufferView<BufferName>;

impl NamedView {
    /// The columns of an area in an instance.
    pub(crate) fn of(buffer: BufferName, instance: &Instance, area: &Area, dtype: DType) -> Self {
        let stride = dtype.row_size(instance.cols.len());
        NamedView {
            buffer,
            space: instance.space,
            offset: (area.rows.start - instance.row.unwrap_or(0)) * stride
                + dtype.row_size(area.cols.start - instance.cols.start),
            rows: area.rows.len(),
            row_bytes: dtype.row_size(area.cols.len()),
            stride,
        }
    }
}

/// Bytes of one of the largest logits of a row: its value and the number of its column.
const LARGEST_BYTES: usize = 8;

impl Program {
    /// How many of the largest logits of a batch's rows its device can pick for the host: `wanted`,
    /// if that is shorter than a row, and if all devices of the head compute whole rows in memory
    /// of their own and pick as many. Otherwise the host reads whole rows.
    pub fn top_k(&self, phase: Phase, rows: usize, wanted: usize) -> Option<usize> {
        let head = self.lowered.segments.len().checked_sub(1)?;
        let placement = self.placed(phase, rows, head);
        let logits = self.lowered.logits().0;
        let cols = self.values.cols[logits];
        let is_logits = |o: &&Operand| self.value(head, placement, o.value) == logits;
        let mut made = placement.segment.pieces().flat_map(|piece| {
            let outputs = piece.outputs.iter().filter(is_logits);
            outputs.map(|o| (&self.devices[piece.device].caps, o.cols.clone()))
        });
        let picks = |(caps, of): (&Caps, Range<usize>)| {
            own_space(caps) != SpaceId::HOST && caps.top_k >= wanted && of == (0..cols)
        };
        let fits = wanted > 0 && wanted * LARGEST_BYTES <= cols * size_of::<f32>();
        (fits && made.all(picks)).then_some(wanted)
    }
}

/// The buffers that a chunk fills in a segment, its place among those that fill them, and whether it
/// is the last.
pub(crate) type PlaceAmong<'a> = &'a dyn Fn(usize) -> (PackedSet, (usize, bool));

/// The tasks of a chunk, and where other chunks may come between them.
pub(crate) struct ChunkMade {
    pub tasks: Vec<NamedTask>,
    /// For each segment, two counts of tasks. Where chunks share experts: up to the routing of its
    /// rows, and up to the adding of the results. Elsewhere: up to its end, twice.
    pub ends: Vec<[usize; 2]>,
    /// Segments with such experts.
    pub shared: Vec<usize>,
}

pub(crate) struct ChunkTasks<'a> {
    pub(crate) program: &'a Program,
    slots: &'a Slots,
    pub(crate) batch: &'a BatchShape,
    pub(crate) place: PlaceAmong<'a>,
    /// Where each value is.
    residency: Vec<Residency>,
    /// The next row whose logits are computed, and its row in the logits buffer.
    logits_at: LogitsAt,
    pub(crate) tasks: Vec<NamedTask>,
    pub(crate) ends: Vec<[usize; 2]>,
    pub(crate) shared: Vec<usize>,
}

/// Where the logits of a row go.
#[derive(Clone, Copy)]
struct LogitsAt {
    row: usize,
    goes_to: usize,
}

impl LogitsAt {
    /// The row of the logits buffer for a row of the chunk.
    fn place(self, row: usize) -> usize {
        row - self.row + self.goes_to
    }
}

/// Rows of a run within the chunk: how many are computed, and how many the views have room for.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub first: usize,
    pub count: usize,
    pub room: usize,
}

/// Some columns of a value of the program.
pub(crate) struct ValueCols {
    pub value: usize,
    pub cols: Range<usize>,
}

impl<'a> ChunkTasks<'a> {
    pub(crate) fn new(
        program: &'a Program,
        slots: &'a Slots,
        batch: &'a BatchShape,
        place: PlaceAmong<'a>,
    ) -> ChunkTasks<'a> {
        let mut residency = vec![Residency::default(); program.values.cols.len()];
        for value in [Lowered::IDS.0, Lowered::POSITIONS.0] {
            let cols = 0..program.values.cols[value];
            let host = Instance::new(SpaceId::HOST, cols.clone());
            residency[value].add(host, Area { rows: 0..batch.rows, cols });
        }
        let logits_at = LogitsAt { row: 0, goes_to: 0 };
        let (tasks, ends, shared) = (Vec::new(), Vec::new(), Vec::new());
        ChunkTasks { program, slots, batch, place, residency, logits_at, tasks, ends, shared }
    }

    /// `logits_row` is the next row of the logits buffer.
    pub(crate) fn make(mut self, logits_row: &mut usize) -> Result<ChunkMade, ProgramError> {
        for (i, segment) in self.program.lowered.segments.iter().enumerate() {
            if segment.kind.traits().part != ModelPart::Head {
                self.segment(i, 0..self.batch.rows)?;
                self.ends.resize(i + 1, [self.tasks.len(); 2]);
                continue;
            }
            for run in &self.batch.wanted {
                self.logits_at = LogitsAt { row: run.start, goes_to: *logits_row };
                *logits_row += run.len();
                self.segment(i, run.clone())?;
                self.logits_to_host(run.clone());
            }
            for run in &self.batch.states {
                self.states_to_host(i, run.clone(), *logits_row);
                *logits_row += run.len() * self.program.rows_of_state();
            }
        }
        let ChunkTasks { tasks, ends, shared, .. } = self;
        Ok(ChunkMade { tasks, ends, shared })
    }

    fn segment(&mut self, index: usize, rows: Range<usize>) -> Result<(), ProgramError> {
        let program = self.program;
        let placement = program.placed(self.batch.phase, self.batch.rows, index);
        let experts = placement.segment.experts.as_ref().zip(placement.experts);
        let experts =
            experts.map(|(experts, number)| OfExperts { index, placement, experts, number });
        let stages = &placement.segment.stages;
        for at in 0..=stages.len() {
            if let Some(of) = experts.filter(|of| of.experts.stages[0] == at) {
                self.dispatch_experts(of, &rows);
            }
            if let Some(of) = experts.filter(|of| of.experts.stages[1] == at) {
                self.combine_experts(of, &rows);
            }
            if let Some(stage) = stages.get(at) {
                self.stage(stage, index, placement, &rows)?;
            }
        }
        Ok(())
    }

    fn stage(
        &mut self,
        stage: &PlacedStage,
        index: usize,
        placement: &Placement,
        rows: &Range<usize>,
    ) -> Result<(), ProgramError> {
        for area in stage.areas(rows.len())? {
            for piece in area.pieces {
                let mut at = rows.start + area.rows.start;
                let end = rows.start + area.rows.end;
                while let Some(run) = piece.next_run(end - at, area.rows.end < rows.len()) {
                    let rows = Rows { first: at, count: run.rows, room: run.room };
                    at += run.rows;
                    self.run(index, placement, piece, &run, rows);
                }
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        index: usize,
        placement: &Placement,
        piece: &PlacedPiece,
        run: &RowsRun,
        rows: Rows,
    ) {
        let program = self.program;
        let graph = placement.graphs[piece.index][run.shape];
        let value = |o: &Operand| ValueCols {
            value: program.value(index, placement, o.value),
            cols: o.cols.clone(),
        };
        let inputs: Vec<NamedView> =
            piece.inputs.iter().map(|o| self.input(&value(o), rows, piece.device)).collect();
        let states = piece.states.iter().filter_map(|used| {
            let state = program.lowered.segments[index].states[used.state].0;
            let here = state_instance(&program.devices[piece.device], used);
            let instance = program.state_instances[state].iter().position(|i| *i == here)?;
            Some(StatePart { state, instance })
        });
        let states = states.collect();
        let outputs =
            piece.outputs.iter().map(|o| self.output(&value(o), rows, piece.device)).collect();
        let room = rows.room;
        let work = NamedWork::Run(NamedRun { graph, room, inputs, states, outputs });
        let rows = rows.first..rows.first + rows.count;
        self.push(piece.device, piece.name.clone(), rows, work);
    }

    pub(crate) fn push(
        &mut self,
        device: usize,
        name: Arc<str>,
        rows: Range<usize>,
        work: NamedWork,
    ) {
        self.tasks.push(NamedTask { device, name, chunk: self.batch.chunk, rows, work });
    }

    /// An input where the device can read it.
    pub(crate) fn input(&mut self, o: &ValueCols, rows: Rows, device: usize) -> NamedView {
        let caps = &self.program.devices[device].caps;
        let own = self.room(o, rows, caps);
        let area = Area { rows: rows.first..rows.first + rows.count, cols: o.cols.clone() };
        let like = |i: &Instance| (&i.cols, i.row) == (&own.cols, own.row);
        let reached = |i: &&Instance| like(i) && caps.spaces.contains(&i.space);
        let held = &self.residency[o.value];
        // Where most of it is already.
        let there = held.instances().filter(reached).min_by_key(|i| {
            let cells = |area: &Area| area.rows.len() * area.cols.len();
            held.missing(i, &area).iter().map(|m| cells(&m.area)).sum::<usize>()
        });
        let instance = there.unwrap_or(&own).clone();
        self.fetch(o.value, &instance, &area, device);
        self.view(o, &instance, rows)
    }

    /// Room for an output where the device can write it.
    pub(crate) fn output(&mut self, o: &ValueCols, rows: Rows, device: usize) -> NamedView {
        let caps = &self.program.devices[device].caps;
        let instance = self.room(o, rows, caps);
        let area = Area { rows: rows.first..rows.first + rows.count, cols: o.cols.clone() };
        let view = self.view(o, &instance, rows);
        self.residency[o.value].add(instance, area);
        view
    }

    fn dtype(&self, value: usize) -> DType {
        self.program.values.dtype(value, self.batch.phase)
    }

    /// The memory for a value on a device that can be bound to it. It has room for all columns,
    /// unless nobody reads them together or the device cannot be bound to a part of them: because
    /// of its stride, its span or the alignment of its first column. It begins with the first row
    /// in use if that row is not aligned, else with the value's first row.
    fn room(&self, o: &ValueCols, rows: Rows, caps: &Caps) -> Instance {
        let all = self.program.values.cols[o.value];
        let dtype = self.dtype(o.value);
        let aligned =
            |cols: usize| dtype.row_size(cols).is_multiple_of(caps.offset_alignment.max(1));
        let span = rows.room.saturating_mul(dtype.row_size(all)) as u64;
        let apart = o.cols != (0..all) && rows.room > 1;
        let refused = !caps.strided_rows || caps.max_binding_bytes.is_some_and(|most| span > most);
        let part = self.program.apart[o.value] || (apart && refused) || !aligned(o.cols.start);
        let cols = if part { o.cols.clone() } else { 0..all };
        let first = self.row_there(o.value, rows.first);
        let mut bound = aligned(first * cols.len());
        if o.value == self.program.lowered.logits().0 {
            bound = bound && aligned(self.logits_at.place(rows.first) * cols.len());
        }
        let row = (!bound).then_some(first);
        Instance { row, ..Instance::new(own_space(caps), cols) }
    }

    /// The row of a value's memory on a device for a row of the chunk. The memory of logits begins
    /// with the rows in work, since logits are long and a long chunk wants few of them.
    fn row_there(&self, value: usize, row: usize) -> usize {
        if value == self.program.lowered.logits().0 { row - self.logits_at.row } else { row }
    }

    /// Copies to an instance what it lacks of an area.
    fn fetch(&mut self, value: usize, to: &Instance, area: &Area, device: usize) {
        for missing in self.residency[value].missing(to, area) {
            let mut from = missing.from;
            if from.space != to.space && from.space != SpaceId::HOST && to.space != SpaceId::HOST {
                // No device reaches the memory of two others.
                let cols = 0..self.program.values.cols[value];
                let host = Instance::new(SpaceId::HOST, cols);
                self.copy(value, &from, &host, &missing.area, device);
                from = host;
            }
            self.copy(value, &from, to, &missing.area, device);
        }
    }

    fn copy(
        &mut self,
        value: usize,
        from: &Instance,
        to: &Instance,
        area: &Area,
        wanted_by: usize,
    ) {
        let operand = ValueCols { value, cols: area.cols.clone() };
        let rows = Rows { first: area.rows.start, count: area.rows.len(), room: area.rows.len() };
        let device = self.program.copier(from.space, to.space, wanted_by);
        self.residency[value].add(to.clone(), area.clone());
        let (from, to) = (self.view(&operand, from, rows), self.view(&operand, to, rows));
        let work = NamedWork::Copy(CopyRows::whole(from, to));
        self.push(device, copy_name(), area.rows.clone(), work);
    }

    /// Logits that a device computed into memory of its own are read on the host.
    fn logits_to_host(&mut self, rows: Range<usize>) {
        let value = self.program.lowered.logits().0;
        let cols = 0..self.program.values.cols[value];
        let host = Instance::new(SpaceId::HOST, cols.clone());
        let first = self.tasks.len();
        self.fetch(value, &host, &Area { rows, cols }, 0);
        let Some(kept) = self.batch.top_k else { return };
        for task in &mut self.tasks[first..] {
            if let NamedWork::Copy(copy) = &mut task.work {
                copy.top_k = Some(kept);
                copy.to.row_bytes = kept * LARGEST_BYTES;
            }
        }
    }

    /// What the head reads goes to the buffer of logits, from its row `to` on.
    fn states_to_host(&mut self, head: usize, rows: Range<usize>, to: usize) {
        let program = self.program;
        let placement = program.placed(self.batch.phase, self.batch.rows, head);
        let device = placement.segment.pieces().next().map_or(0, |piece| piece.device);
        let value = program.lowered.last_state().0;
        let cols = 0..program.values.cols[value];
        let host = Instance::new(SpaceId::HOST, cols.clone());
        let operand = ValueCols { value, cols: cols.clone() };
        let (first, count) = (rows.start, rows.len());
        self.fetch(value, &host, &Area { rows: rows.clone(), cols }, device);
        let from = self.view(&operand, &host, Rows { first, count, room: count });
        let row = program.output_cols() * size_of::<f32>();
        let (offset, stride) = (to * row, row * program.rows_of_state());
        let to = NamedView { buffer: BufferName::Logits, offset, stride, ..from.clone() };
        self.push(device, copy_name(), rows, NamedWork::Copy(CopyRows::whole(from, to)));
    }

    fn view(&self, o: &ValueCols, instance: &Instance, rows: Rows) -> NamedView {
        let cols = self.program.values.cols[o.value];
        let on_host = *instance == Instance::new(SpaceId::HOST, 0..cols);
        let mut first = self.row_there(o.value, rows.first);
        let buffer = if o.value == Lowered::IDS.0 && on_host {
            BufferName::Ids(self.batch.chunk)
        } else if o.value == Lowered::POSITIONS.0 && on_host {
            BufferName::Positions(self.batch.chunk)
        } else if o.value == self.program.lowered.logits().0 && on_host {
            first = self.logits_at.place(rows.first);
            BufferName::Logits
        } else {
            let memory = self.slots.memory(o.value, cols, instance);
            BufferName::Value { set: self.batch.set, memory }
        };
        let area = Area { rows: first..first + rows.room, cols: o.cols.clone() };
        NamedView::of(buffer, instance, &area, self.dtype(o.value))
    }
}

/// The divided experts of a segment in a placement.
#[derive(Clone, Copy)]
pub(crate) struct OfExperts<'a> {
    /// The segment.
    pub index: usize,
    pub placement: &'a Placement,
    pub experts: &'a PlacedExperts,
    /// Index in the program's list.
    pub number: usize,
}

/// The name of copies in traces.
pub(crate) fn copy_name() -> Arc<str> {
    Arc::from("copy")
}
