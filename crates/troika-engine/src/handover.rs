//! Handing caches over between memory spaces: a state that one device fills and another one goes on
//! with is copied as far as it is filled. The copies run by themselves, before the forward batch.

use std::collections::HashMap;
use std::ops::Range;

use troika_device::{Buffer, CopyRows, DeviceError, PagesView, SpaceId, View, Work};
use troika_model::lower::StateDecl;

use crate::batching::PlannedBatch;
use crate::engine::allocate;
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
                let mut runs = Vec::new();
                pages.rows_of(wanted, |run| runs.push(run.start * bytes..run.end * bytes));
                for run in runs {
                    copy_bytes(program, (&buffers[fullest], &buffers[home]), &run, &mut tasks)?;
                }
            }
        }
        Ok(tasks)
    }
}

/// Copies bytes of a state from one space to another; between two devices' memory by way of the
/// host's, since no device reaches both.
fn copy_bytes(
    program: &Program,
    (from, to): (&(SpaceId, Buffer), &(SpaceId, Buffer)),
    bytes: &Range<usize>,
    tasks: &mut Vec<Task>,
) -> Result<(), EngineError> {
    let view = |buffer: &Buffer, at: usize| {
        View::dense(buffer, at, (1, bytes.len())).map_err(DeviceError::View)
    };
    let mut push = |device: usize, from: View, to: View| {
        let work = Work::Copy(CopyRows { from, to });
        let name = program.copy_name.clone();
        tasks.push(Task { device, name, chunk: 0, rows: 0..0, work });
    };
    let (source, target) = (view(&from.1, bytes.start)?, view(&to.1, bytes.start)?);
    if from.0 == SpaceId::HOST || to.0 == SpaceId::HOST {
        push(program.copier(from.0, to.0, 0), source, target);
        return Ok(());
    }
    let between = allocate(Some(bytes.len()), "a cache on its way to another device")?;
    push(program.copier(from.0, SpaceId::HOST, 0), source, view(&between, 0)?);
    push(program.copier(SpaceId::HOST, to.0, 0), view(&between, 0)?, target);
    Ok(())
}
