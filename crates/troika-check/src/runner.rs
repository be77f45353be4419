//! Runs a case on a device, in its own memory, with copies where the host has no access.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use troika_device::{
    Bindings, Buffer, Clock, CommandList, CopyRows, Device, DeviceError, HostData, HostTask,
    RealClock, Run, SpaceId, View, Weights, Work,
};
use troika_graph::{Subgraph, ValueId};

use crate::bench::Bench;
use crate::build::{DeviceCase, POSITIONS, Result};
use crate::values::{Values, forward};

/// A device with a queue for cases.
pub struct CaseRunner<'a> {
    /// The device.
    pub device: &'a dyn Device,
    bench: Bench,
}

/// The layout of inputs and outputs in memory.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Number of rows with room.
    pub bound: usize,
    /// Whether there are gaps between rows.
    pub apart: bool,
}

impl DeviceCase {
    /// Runs it in real time, with as much room as it has rows.
    ///
    /// # Errors
    /// Those of [`CaseRunner::open`] and [`CaseRunner::run`].
    pub fn run(
        &self,
        device: &dyn Device,
        weights: &Arc<Weights>,
        start: &Values,
    ) -> Result<Values> {
        let layout = Layout { bound: start.rows, apart: false };
        let mut runner = CaseRunner::open(device, Arc::new(RealClock::new()))?;
        Ok(runner.run(&self.graph, weights, start, layout)?.values)
    }
}

/// The results of a run.
pub struct Ran {
    /// Caches and outputs.
    pub values: Values,
    /// A value that was written beyond its valid rows.
    pub spoilt: Option<String>,
}

/// The initial bytes of outputs.
const UNWRITTEN: u8 = 0xaa;
/// The bytes of input padding and of gaps between rows: NaN.
const PADDING: u8 = 0xff;
/// Bytes between rows with gaps.
const GAP: usize = 64;

/// A value's memory: the device's, and the host's if that is separate.
struct CaseBuffer {
    id: ValueId,
    device: Buffer,
    host: Buffer,
    rows: usize,
    stride: usize,
    fill: u8,
}

impl<'a> CaseRunner<'a> {
    /// Opens a queue with a clock.
    ///
    /// # Errors
    /// The device opens none.
    pub fn open(device: &'a dyn Device, clock: Arc<dyn Clock>) -> Result<CaseRunner<'a>> {
        Ok(CaseRunner { device, bench: Bench::open(device, 0, clock)? })
    }

    /// Submits lists without tasks, as many as are taken at once.
    ///
    /// # Errors
    /// They are not taken, or do not end in order.
    pub fn fill(&mut self, lists: usize) -> Result<(), Box<dyn Error>> {
        for id in 0..lists as u64 {
            self.bench.submit(CommandList { id, ..CommandList::default() })?;
        }
        for id in 0..lists as u64 {
            let done = self.bench.wait()?;
            if done.list.id != id || done.queue != 0 {
                let (list, queue) = (done.list.id, done.queue);
                return Err(format!("list {list} of queue {queue} came for {id}").into());
            }
        }
        Ok(())
    }

    /// Checks that host functions run in order with what they write, also after one that panics, or
    /// that the device refuses them by name.
    ///
    /// # Errors
    /// What is wrong.
    pub fn host_tasks(&mut self) -> Result<(), Box<dyn Error>> {
        let view = View::whole(&Buffer::zeroed(8).map_err(DeviceError::memory("a host task"))?);
        let written = view.clone();
        let task = |name: &str, reads, writes, sum: bool| {
            HostTask::new(name, (reads, writes), move |reads, writes| {
                for w in writes {
                    w.row_mut(0).ok_or("no row")?.copy_from_slice(&[1_u8, 2, 3, 4, 5, 6, 7, 8]);
                }
                let rows = reads.iter().filter_map(|r| r.row::<u8>(0)).flatten();
                Ok(sum.then(|| Box::new(rows.map(|b| u32::from(*b)).sum::<u32>()) as HostData))
            })
        };
        #[expect(clippy::panic, reason = "a function of the host may panic")]
        let panics = HostTask::new("broken", (vec![], vec![written.clone()]), |_, _| {
            std::panic::panic_any("as it should".to_string())
        })?;
        let writes = Arc::new(task("writer", vec![], vec![written], false)?);
        if !self.device.caps().host_tasks {
            return self.refuses(&writes, "writer");
        }
        self.refuses(&Arc::new(panics), "broken")?;
        let reads = Arc::new(task("reader", vec![view], vec![], true)?);
        self.submit_host(&[&writes, &reads])?;
        match reads.take_result().and_then(|data| data.downcast::<u32>().ok()).as_deref() {
            Some(36) => Ok(()),
            sum => Err(format!("the reader found {sum:?}, not 36").into()),
        }
    }

    fn refuses(&mut self, task: &Arc<HostTask>, name: &str) -> Result<(), Box<dyn Error>> {
        match self.submit_host(&[task]) {
            Err(e) if e.to_string().contains(name) => Ok(()),
            Err(e) => Err(format!("the error does not name {name}: {e}").into()),
            Ok(()) => Err(format!("{name} ran, which it cannot").into()),
        }
    }

    fn submit_host(&mut self, tasks: &[&Arc<HostTask>]) -> Result<()> {
        self.bench.run_all(tasks.iter().map(|task| Work::Host((*task).clone())))
    }

    fn place(&self, g: &Subgraph, id: ValueId, layout: Layout) -> Result<CaseBuffer> {
        let (row, state) = (g.value(id).row_bytes(), g.states.contains(&id));
        let rows = if state { POSITIONS } else { layout.bound };
        let stride = if layout.apart && !state { row + GAP } else { row };
        let no_memory = || DeviceError::memory("checking a device");
        let device = self.device.allocate(rows * stride).map_err(no_memory())?;
        let host = match device.space() {
            SpaceId::HOST => device.clone(),
            _ => Buffer::zeroed(rows * stride).map_err(no_memory())?,
        };
        let fill = if g.outputs.contains(&id) { UNWRITTEN } else { PADDING };
        Ok(CaseBuffer { id, device, host, rows, stride, fill })
    }

    /// Runs a loaded graph on given values.
    ///
    /// # Errors
    /// There is not enough memory, or the run fails.
    pub fn run(
        &mut self,
        g: &Subgraph,
        weights: &Arc<Weights>,
        start: &Values,
        layout: Layout,
    ) -> Result<Ran> {
        let ids = || g.inputs.iter().chain(&g.states).chain(&g.outputs).copied();
        let places = ids().map(|id| self.place(g, id, layout)).collect::<Result<Vec<_>, _>>()?;
        for (i, p) in places.iter().enumerate() {
            let mut guard = p.host.write()?;
            guard.fill(p.fill);
            // An input that is also an output has only one place.
            let Some(value) = start.bytes.get(&p.id).filter(|_| !is_output(g, i)) else { continue };
            let row = g.value(p.id).row_bytes();
            for (to, from) in guard.chunks_mut(p.stride).zip(value.chunks_exact(row)) {
                to[..row].copy_from_slice(from);
            }
        }
        let view = |p: &CaseBuffer| {
            let row = g.value(p.id).row_bytes();
            View::new(&p.device, 0, (p.rows, row), p.stride)
        };
        let mut views = places.iter().map(view).collect::<Result<Vec<_>, _>>()?;
        let outputs = views.split_off(g.inputs.len() + g.states.len());
        let states = views.split_off(g.inputs.len());
        let run = Run {
            weights: weights.clone(),
            bindings: Arc::new(Bindings { inputs: views, states, outputs }),
            rows: start.rows,
            forward: forward(start.rows),
        };
        let foreign = || places.iter().filter(|p| p.device.id() != p.host.id());
        let copy = |from: &Buffer, to: &Buffer| {
            let (from, to) = (View::whole(from), View::whole(to));
            Work::Copy(CopyRows::whole(from, to))
        };
        let work = foreign().map(|p| copy(&p.host, &p.device)).chain([Work::Run(run)]);
        let work = work.chain(foreign().map(|p| copy(&p.device, &p.host)));
        self.bench.run_all(work)?;
        read(g, &places, start.rows)
    }
}

fn is_output(g: &Subgraph, binding: usize) -> bool {
    binding >= g.inputs.len() + g.states.len()
}

/// The valid rows of caches and outputs, and whether anything else was written.
fn read(g: &Subgraph, places: &[CaseBuffer], rows: usize) -> Result<Ran> {
    let (mut bytes, mut spoilt) = (BTreeMap::new(), None);
    for (i, p) in places.iter().enumerate().skip(g.inputs.len()) {
        let row = g.value(p.id).row_bytes();
        let valid = if is_output(g, i) { rows } else { p.rows };
        let guard = p.host.read()?;
        let mut value = Vec::with_capacity(valid * row);
        for (i, line) in guard.chunks(p.stride).enumerate() {
            let (inside, gap) = line.split_at(row.min(line.len()));
            let written = if i < valid { gap } else { line };
            if written.iter().any(|b| *b != p.fill) {
                spoilt = Some(g.value(p.id).name.clone());
            }
            if i < valid {
                value.extend_from_slice(inside);
            }
        }
        bytes.insert(p.id, value);
    }
    Ok(Ran { values: Values { rows, bytes }, spoilt })
}
