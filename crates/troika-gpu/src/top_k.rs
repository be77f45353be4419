//! The largest numbers of rows, chosen on the device so that the host reads few bytes.

use troika_device::{Access, DeviceError, Rect, View};

use crate::bound::{MultiplyCount, Ready, window};
use crate::gpu::{Gpu, Memory, Use};
use crate::kernels::{TopKShape, top_k};
use crate::recorder::Recorder;

/// The most prepared choices that are kept. They keep the memory that they read.
const MOST: usize = 4;

/// Chooses the largest numbers of rows.
#[derive(Default)]
pub(crate) struct Chooser {
    /// Working memory, and what was prepared for it.
    work: Option<Memory>,
    prepared: Vec<Prepared>,
}

/// The dispatches that choose from the rows of a view.
struct Prepared {
    from: View,
    kept: usize,
    dispatches: Vec<Ready>,
    /// Where the results are in the working memory.
    results: Rect,
}

impl Chooser {
    /// Writes the `kept` largest numbers of each row of `from`, which is the device's memory, to a
    /// row of `to`, which is the host's: the numbers, then their columns.
    ///
    /// # Errors
    /// Rows of too few numbers or of another length, memory that is in use or not the device's, no
    /// memory, or a lost device.
    pub fn choose(
        &mut self,
        recorder: &mut Recorder,
        from: &View,
        to: &View,
        kept: usize,
    ) -> Result<(), DeviceError> {
        let (r, w) = (from.rect(), to.rect());
        let gpu = recorder.gpu.clone();
        if (r.rows(), kept.saturating_mul(8)) != (w.rows(), w.row_bytes()) {
            let (rows, to, bytes) = (r.rows(), w.rows(), w.row_bytes());
            return Err(gpu.error(format!(
                "the {kept} largest numbers of {rows} rows do not go to {to} rows of {bytes} bytes"
            )));
        }
        if r.is_empty() {
            return Ok(());
        }
        if [r.offset(), r.row_bytes(), r.stride()].iter().any(|bytes| !bytes.is_multiple_of(4)) {
            return Err(gpu.error("rows to choose from are no whole words"));
        }
        let is_known = |p: &Prepared| {
            p.kept == kept && p.from.buffer().id() == from.buffer().id() && p.from.rect() == r
        };
        let known = match self.prepared.iter().position(is_known) {
            Some(known) => known,
            None => {
                let prepared = self.prepare(&gpu, from, kept)?;
                if self.prepared.len() >= MOST {
                    self.prepared.remove(0);
                }
                self.prepared.push(prepared);
                self.prepared.len() - 1
            }
        };
        let (Some(work), Some(prepared)) = (&self.work, self.prepared.get(known)) else {
            return Ok(());
        };
        let _held = from.buffer().claim(&[(*r, Access::Read)])?;
        let pass = recorder.pass();
        prepared.dispatches.iter().for_each(|ready| ready.record(pass));
        recorder.add_work(prepared.dispatches.len(), 0)?;
        recorder.download(&prepared.results, &work.buffer, &mut to.write()?)
    }

    fn prepare(&mut self, gpu: &Gpu, from: &View, kept: usize) -> Result<Prepared, DeviceError> {
        let rect = *from.rect();
        let bound = window(gpu, from, &rect).map_err(|why| gpu.error(why))?;
        let numbers = [rect.rows(), rect.row_bytes() / 4, kept];
        let [rows, cols, most] = numbers.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let shape = TopKShape { rows, cols, kept: most };
        let made = top_k(shape, bound.loc).map_err(|e| gpu.error(e.to_string()))?;
        let row = 4 * shape.row_words() as usize;
        let need = row.saturating_mul(rect.rows());
        if gpu.grow(&mut self.work, need as u64, Use::Storage, "the largest logits")? {
            self.prepared.clear();
        }
        let work = self.work.as_ref().ok_or_else(|| gpu.error("it has no working memory"))?;
        let buffers = [(&bound.buffer, bound.range), (&work.buffer, 0..work.buffer.size())];
        let ready = made
            .into_iter()
            .map(|dispatch| Ready::new(gpu, dispatch, &buffers, MultiplyCount::default()));
        let dispatches = ready.collect::<Result<Vec<_>, _>>()?;
        gpu.check()?;
        let results = Rect::new(0, rect.rows(), kept * 8, row);
        let results = results.ok_or_else(|| gpu.error("too many rows of logits"))?;
        Ok(Prepared { from: from.clone(), kept, dispatches, results })
    }
}
