//! Handing caches over. When a device continues a state that another one filled, the filled part is
//! copied, unless both use the same instance of it. The copies run before the forward batch.

use std::collections::HashMap;

use troika_device::{CopyRows, ForwardBatch, PagesView, SeqRows, SpaceId};
use troika_plan::Phase;

use crate::program::Program;
use crate::residency::{Area, Instance, Residency};
use crate::tasks::{BufferName, NamedTask, NamedView, NamedWork, StatePart, copy_name};

/// How many positions of each sequence each instance of a state holds.
#[derive(Debug, Default)]
pub struct Handover {
    /// By sequence, then by state, in the order of the state's instances.
    filled: HashMap<u64, Vec<Vec<usize>>>,
}

impl Handover {
    /// Notes that a sequence has at most `len` positions now.
    pub fn truncate(&mut self, seq: u64, len: usize) {
        if len == 0 {
            self.filled.remove(&seq);
            return;
        }
        for filled in self.filled.get_mut(&seq).into_iter().flatten().flatten() {
            *filled = len.min(*filled);
        }
    }

    /// The copies that a forward batch needs before it runs; notes the rows that it then fills.
    /// Usually none: states with one instance are skipped.
    pub fn before(
        &mut self,
        phase: Phase,
        forward: &ForwardBatch,
        program: &Program,
    ) -> Vec<NamedTask> {
        let mut copies = Copies { program, tasks: Vec::new(), staged: 0 };
        let states = &program.state_instances;
        for state in (0..states.len()).filter(|state| states[*state].len() > 1) {
            let homes = &program.state_homes[state][phase as usize];
            for rows in &forward.seqs {
                let empty = || states.iter().map(|s| vec![0; s.len()]).collect();
                let filled = &mut self.filled.entry(rows.seq).or_insert_with(empty)[state];
                if homes.iter().any(|home| filled[*home] < rows.pos) {
                    homes.iter().for_each(|home| copies.fill(state, filled, *home, rows));
                }
                homes.iter().for_each(|home| filled[*home] = rows.pos + rows.rows.len());
            }
        }
        copies.tasks
    }
}

/// The copies of a hand-over.
struct Copies<'a> {
    program: &'a Program,
    tasks: Vec<NamedTask>,
    /// Number of staging buffers.
    staged: usize,
}

impl Copies<'_> {
    /// Appends the copies of earlier positions of a sequence that an instance of a state lacks.
    /// `filled` has the number of positions of each instance.
    fn fill(&mut self, state: usize, filled: &[usize], home: usize, rows: &SeqRows) {
        let instances = &self.program.state_instances[state];
        let mut held = Residency::default();
        for (instance, positions) in instances.iter().zip(filled) {
            held.add(instance.clone(), Area { rows: 0..*positions, cols: instance.cols.clone() });
        }
        let group = self.program.lowered.states[state].page_group;
        let Some(pages) = PagesView::new(rows, group) else { return };
        let to = &instances[home];
        let wanted = Area { rows: 0..rows.pos, cols: to.cols.clone() };
        for missing in held.missing(to, &wanted) {
            let Some(from) = instances.iter().position(|i| *i == missing.from) else {
                continue;
            };
            let mut runs = Vec::new();
            pages.rows_of(missing.area.rows.clone(), |run| runs.push(run));
            for rows in runs {
                let area = Area { rows, cols: missing.area.cols.clone() };
                let part = |instance| StatePart { state, instance };
                self.copy(part(from), part(home), &area);
            }
        }
    }

    /// Copies rows and columns from one instance to another. Between the memories of two devices it
    /// goes through host memory, since no device reaches both.
    fn copy(&mut self, from: StatePart, to: StatePart, area: &Area) {
        let dtype = self.program.lowered.states[from.state].dtype;
        let view = |part: StatePart| {
            let instance = &self.program.state_instances[part.state][part.instance];
            NamedView::of(BufferName::State(part), instance, area, dtype)
        };
        let (source, target) = (view(from), view(to));
        if source.space == SpaceId::HOST || target.space == SpaceId::HOST {
            return self.push(source, target);
        }
        let dense = Area { rows: 0..area.rows.len(), cols: 0..area.cols.len() };
        let host = Instance::new(SpaceId::HOST, dense.cols.clone());
        let staging = NamedView::of(BufferName::Staging(self.staged), &host, &dense, dtype);
        self.staged += 1;
        self.push(source, staging.clone());
        self.push(staging, target);
    }

    fn push(&mut self, from: NamedView, to: NamedView) {
        let device = self.program.copier(from.space, to.space, 0);
        let work = NamedWork::Copy(CopyRows::whole(from, to));
        self.tasks.push(NamedTask { device, name: copy_name(), chunk: 0, rows: 0..0, work });
    }
}
