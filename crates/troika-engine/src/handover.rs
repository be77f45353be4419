//! Handing caches over between memory spaces: a state that one device fills and another one goes on
//! with is copied as far as it is filled.

use std::collections::HashMap;

use troika_device::{CopyRows, DeviceError, PagesView, SpaceId, View, Work};
use troika_model::lower::StateDecl;

use crate::batching::PlannedBatch;
use crate::error::EngineError;
use crate::kv::SeqId;
use crate::program::Program;
use crate::schedule::Task;
use crate::tasks::States;

/// How many positions of each sequence the spaces of a state hold.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// By state and sequence, in the order of the state's spaces.
    filled: HashMap<(usize, u64), Vec<usize>>,
}

impl Handover {
    /// A sequence has no more than `len` positions now.
    pub fn truncate(&mut self, seq: SeqId, len: usize) {
        for ((_, s), filled) in &mut self.filled {
            if *s == seq.index() as u64 {
                filled.iter_mut().for_each(|n| *n = len.min(*n));
            }
        }
    }

    /// The copies that a forward batch needs before it runs; it then fills its own rows. Most often
    /// none: a state that is used in one space is not looked at.
    pub fn before(
        &mut self,
        batch: &PlannedBatch,
        program: &Program,
        (states, decls): (&States, &[StateDecl]),
    ) -> Result<Vec<Task>, EngineError> {
        let mut tasks = Vec::new();
        for (state, buffers) in states.iter().enumerate().filter(|(_, b)| b.len() > 1) {
            let home = program.state_home(batch.phase, state);
            let decl = &decls[state];
            for rows in &batch.forward.seqs {
                let empty = || vec![0; buffers.len()];
                let filled = self.filled.entry((state, rows.seq)).or_insert_with(empty);
                let fullest = (0..buffers.len()).max_by_key(|i| filled[*i]).unwrap_or(home);
                let wanted = filled[home].min(rows.pos)..rows.pos;
                filled[home] = rows.pos + rows.rows.len();
                let Some(pages) = PagesView::new(rows, decl.page_group) else { continue };
                let bytes = decl.width * decl.dtype.block_bytes();
                let (from, to) = (&buffers[fullest], &buffers[home]);
                let device = program.copier(from.0, to.0, 0);
                let mut failed = None;
                pages.rows_of(wanted, |run| {
                    let view = |(_, buffer): &(SpaceId, _)| {
                        View::dense(buffer, run.start * bytes, (1, run.len() * bytes))
                    };
                    match (view(from), view(to)) {
                        (Ok(from), Ok(to)) => tasks.push(Task {
                            device,
                            name: program.copy_name.clone(),
                            chunk: 0,
                            rows: 0..0,
                            work: Work::Copy(CopyRows { from, to, seq: Some(rows.seq) }),
                        }),
                        (Err(e), _) | (_, Err(e)) => failed = Some(e),
                    }
                });
                if let Some(e) = failed {
                    return Err(DeviceError::View(e).into());
                }
            }
        }
        Ok(tasks)
    }
}
