//! Handing caches over. When a device continues a state that another one filled, the filled part is
//! copied, unless both use the same instance of it. The copies run before the forward batch.

use std::collections::HashMap;

use troika_device::{Buffer, CopyRows, DeviceError, PagesView, SeqRows, SpaceId, View, Work};
use troika_model::lower::StateDecl;

use crate::batching::PlannedBatch;
use crate::error::EngineError;
use crate::kv::SeqId;
use crate::memory::allocate;
use crate::program::Program;
use crate::residency::{Area, Instance, Residency};
use crate::schedule::Task;
use crate::tasks::States;

/// How many positions of each sequence each instance of a state holds.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// By sequence, then by state, in the order of the state's instances.
    filled: HashMap<u64, Vec<Vec<usize>>>,
}

impl Handover {
    /// Notes that a sequence has at most `len` positions now.
    pub fn truncate(&mut self, seq: SeqId, len: usize) {
        if len == 0 {
            self.filled.remove(&seq.number());
            return;
        }
        for filled in self.filled.get_mut(&seq.number()).into_iter().flatten().flatten() {
            *filled = len.min(*filled);
        }
    }

    /// The copies that a forward batch needs before it runs; notes the rows that it then fills.
    /// Usually none: states with one instance are skipped.
    pub fn before(
        &mut self,
        batch: &PlannedBatch,
        program: &Program,
        (states, decls): (&States, &[StateDecl]),
    ) -> Result<Vec<Task>, EngineError> {
        let mut tasks = Vec::new();
        for (state, buffers) in states.iter().enumerate().filter(|(_, b)| b.len() > 1) {
            let homes = program.state_homes(batch.phase, state);
            for rows in &batch.forward.seqs {
                let empty = || states.iter().map(|s| vec![0; s.len()]).collect();
                let filled = &mut self.filled.entry(rows.seq).or_insert_with(empty)[state];
                if homes.iter().any(|home| filled[*home] < rows.pos) {
                    let from = Filled { buffers, decl: &decls[state], positions: filled };
                    for &home in homes {
                        from.fill(home, rows, program, &mut tasks)?;
                    }
                }
                homes.iter().for_each(|home| filled[*home] = rows.pos + rows.rows.len());
            }
        }
        Ok(tasks)
    }
}

/// A state, and what its instances hold of a sequence.
struct Filled<'a> {
    buffers: &'a [(Instance, Buffer)],
    decl: &'a StateDecl,
    /// Number of positions held by each instance.
    positions: &'a [usize],
}

impl Filled<'_> {
    /// Appends the copies of earlier positions of a sequence that an instance lacks.
    fn fill(
        &self,
        home: usize,
        rows: &SeqRows,
        program: &Program,
        tasks: &mut Vec<Task>,
    ) -> Result<(), EngineError> {
        let mut held = Residency::default();
        for ((instance, _), positions) in self.buffers.iter().zip(self.positions) {
            held.add(instance.clone(), Area { rows: 0..*positions, cols: instance.cols.clone() });
        }
        let Some(pages) = PagesView::new(rows, self.decl.page_group) else { return Ok(()) };
        let (to, _) = &self.buffers[home];
        let wanted = Area { rows: 0..rows.pos, cols: to.cols.clone() };
        for missing in held.missing(to, &wanted) {
            let mut runs = Vec::new();
            pages.rows_of(missing.area.rows.clone(), |run| runs.push(run));
            for rows in runs {
                let area = Area { rows, cols: missing.area.cols.clone() };
                self.copy((&missing.from, to), &area, program, tasks)?;
            }
        }
        Ok(())
    }

    /// Copies rows and columns from one instance to another. Between the memories of two devices it
    /// goes through host memory, since no device reaches both.
    fn copy(
        &self,
        (from, to): (&Instance, &Instance),
        area: &Area,
        program: &Program,
        tasks: &mut Vec<Task>,
    ) -> Result<(), EngineError> {
        let buffer = |i: &Instance| self.buffers.iter().find(|(b, _)| b == i).map(|(_, b)| b);
        // Only held positions are copied, and every instance has a buffer.
        let Some((source, target)) = buffer(from).zip(buffer(to)) else { return Ok(()) };
        let mut push = |device: usize, from: View, to: View| {
            let work = Work::Copy(CopyRows { from, to });
            let name = program.copy_name.clone();
            tasks.push(Task { device, name, chunk: 0, rows: 0..0, work });
        };
        let (source, target) = (self.view(source, from, area)?, self.view(target, to, area)?);
        if from.space == SpaceId::HOST || to.space == SpaceId::HOST {
            push(program.copier(from.space, to.space, 0), source, target);
            return Ok(());
        }
        let shape = (area.rows.len(), area.cols.len() * self.decl.dtype.block_bytes());
        let what = "a cache on its way to another device";
        let between = allocate(shape.0.checked_mul(shape.1), what)?;
        let dense = || View::dense(&between, 0, shape).map_err(DeviceError::View);
        push(program.copier(from.space, SpaceId::HOST, 0), source, dense()?);
        push(program.copier(SpaceId::HOST, to.space, 0), dense()?, target);
        Ok(())
    }

    /// The memory of an area in an instance.
    fn view(&self, buffer: &Buffer, has: &Instance, area: &Area) -> Result<View, EngineError> {
        let element = self.decl.dtype.block_bytes();
        let stride = has.cols.len() * element;
        let at = area.rows.start * stride + (area.cols.start - has.cols.start) * element;
        let shape = (area.rows.len(), area.cols.len() * element);
        Ok(View::new(buffer, at, shape, stride).map_err(DeviceError::View)?)
    }
}
