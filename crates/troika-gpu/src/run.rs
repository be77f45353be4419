//! Runs compiled subgraphs: what steps bind and dispatch for the rows of a submission.

use std::collections::HashMap;
use std::iter::zip;
use std::ops::Range;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use troika_device::{
    Access, AccessError, Bindings, Buffer, Claim, Clock, CopyRows, DeviceError, ForwardBatch,
    HeldClaim, Rect, Run, Weights,
};

use crate::bindings::GraphRun;
use crate::bound::{Bound, Ready, window};
use crate::code::{Code, HEAD_WORDS, RECORD_WORDS, Shape};
use crate::emit::{Emitter, Operand, PlacedDispatch};
use crate::gpu::{Gpu, Memory, Use};
use crate::kernels::Loc;
use crate::places::{PlacedValue, ValueStorage};
use crate::recorder::Recorder;
use crate::top_k::Chooser;
use crate::weights::LoadedGraph;

/// The most prepared runs that are kept.
const MOST: usize = 4096;
/// Words of a forward batch that have room from the start.
const FIRST_WORDS: u64 = 1 << 14;

/// Runs what a queue is given.
pub(crate) struct Runner {
    pub recorder: Recorder,
    /// What kernels under way use of the host's memory: a claim for each buffer, until the device is
    /// done.
    claims: Vec<HeldClaim>,
    chooser: Chooser,
    gpu: Arc<Gpu>,
    /// Memory for values between ops, by number.
    scratch: Vec<Option<Memory>>,
    /// Memory between the dispatches of an op.
    inner: Option<Memory>,
    words: Option<Memory>,
    /// The batch whose words were recorded last.
    batch: Option<Arc<ForwardBatch>>,
    prepared: HashMap<Key, Prepared>,
    /// What is asked for of a state, and the words of a batch: kept, so that a run needs no memory.
    wanted: Vec<(Rect, Access)>,
    batch_words: Vec<u32>,
}

/// What a prepared run is for.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// The address of the weights.
    weights: usize,
    /// The address of the bindings.
    bindings: usize,
    shape: Shape,
}

/// The dispatches of a run, ready to be recorded.
struct Prepared {
    /// Keep the addresses from being taken by others.
    _of: (Weak<Weights>, Weak<Bindings>),
    /// What is claimed of inputs, states and outputs.
    bound: Vec<Rect>,
    dispatches: Vec<Ready>,
}

impl Runner {
    pub fn new(gpu: &Arc<Gpu>, clock: &Arc<dyn Clock>) -> Runner {
        Runner {
            recorder: Recorder::new(gpu, clock),
            claims: Vec::new(),
            chooser: Chooser::default(),
            gpu: gpu.clone(),
            scratch: Vec::new(),
            inner: None,
            words: None,
            batch: None,
            prepared: HashMap::new(),
            wanted: Vec::new(),
            batch_words: Vec::new(),
        }
    }

    /// Submits what was recorded, and waits until it is done.
    pub fn finish(&mut self) -> Result<(), DeviceError> {
        let done = match self.gpu.host {
            // Nothing is copied to the host that would tell of numbers beyond f16.
            Some(_) => self.recorder.look(),
            None => self.recorder.finish(),
        };
        self.claims.clear();
        done
    }

    /// Forgets what was recorded, after a failure.
    pub fn abandon(&mut self) {
        self.recorder.abandon();
        self.batch = None;
        if self.gpu.host.is_some() {
            // What was submitted before still uses the host's memory.
            let _ = self.gpu.wait(None);
            self.claims.clear();
        }
    }

    /// Copies rows, or the largest numbers of rows. What the host reads is there when this returns.
    pub fn copy(&mut self, copy: &CopyRows) -> Result<(), DeviceError> {
        if self.gpu.host.is_some() {
            self.finish()?;
        }
        match copy.top_k {
            None => self.recorder.copy(&copy.from, &copy.to),
            Some(kept) => self.chooser.choose(&mut self.recorder, &copy.from, &copy.to, kept),
        }
    }

    /// Records the dispatches of a run.
    ///
    /// # Errors
    /// A submission that does not fit, memory that is in use, no memory, or a lost device.
    pub fn run(&mut self, of: &LoadedGraph, run: &Run) -> Result<(), DeviceError> {
        let gpu = self.gpu.clone();
        let of = GraphRun { gpu: &gpu, of, run };
        of.check()?;
        let shape = of.shape()?;
        self.grow(of.code(), &shape)?;
        self.record_batch(of.code(), &run.forward)?;
        let weights = Arc::as_ptr(&run.weights) as usize;
        let bindings = Arc::as_ptr(&run.bindings) as usize;
        let key = Key { weights, bindings, shape };
        if !self.prepared.contains_key(&key) {
            let prepared = self.prepare(of, &key.shape)?;
            if self.prepared.len() >= MOST {
                self.prepared.clear();
            }
            self.prepared.insert(key.clone(), prepared);
        }
        let Some(prepared) = self.prepared.get(&key) else { return Ok(()) };
        // In the device's own memory, work is done in the order of submissions, so that claims may
        // end when it is recorded.
        let mut claims = SmallVec::<[Claim<'_>; 12]>::new();
        for ((bound, view), rect) in zip(of.bound(), &prepared.bound) {
            of.uses(bound, rect, &mut self.wanted);
            match (self.wanted.is_empty(), &gpu.host) {
                (true, _) => {}
                (false, Some(_)) => hold(&mut self.claims, view.buffer(), &self.wanted)?,
                (false, None) => claims.push(view.buffer().claim(&self.wanted)?),
            }
        }
        let ends = run.forward.seqs.iter().map(|s| (s.pos + s.rows.len()) as u64);
        record(&mut self.recorder, &prepared.dispatches, ends.max().unwrap_or(0))
    }

    /// Sees to it that scratch memory is large enough.
    fn grow(&mut self, code: &Code, shape: &Shape) -> Result<(), DeviceError> {
        let (rows, what) = (shape.rows.max(1), "values between ops");
        let mut is_new = false;
        if self.scratch.len() < code.scratch.len() {
            self.scratch.resize_with(code.scratch.len(), || None);
        }
        for (own, each) in zip(&mut self.scratch, &code.scratch) {
            let bytes = each.saturating_mul(rows) as u64;
            is_new |= self.gpu.grow(own, bytes, Use::Storage, what)?;
        }
        let nodes = 0..code.graph.nodes.len();
        let inner = nodes.map(|node| code.inner_bytes(node, shape.rows, shape.longest)).max();
        if let Some(bytes) = inner.filter(|bytes| *bytes > 0) {
            is_new |= self.gpu.grow(&mut self.inner, bytes as u64, Use::Storage, what)?;
        }
        if is_new {
            self.prepared.clear();
        }
        Ok(())
    }

    /// Records the words of a forward batch, unless they are those that are there.
    fn record_batch(&mut self, code: &Code, batch: &Arc<ForwardBatch>) -> Result<(), DeviceError> {
        let is_known = self.batch.as_ref().is_some_and(|known| Arc::ptr_eq(known, batch));
        if !code.uses_pages() || is_known {
            return Ok(());
        }
        words_of(batch, &mut self.batch_words);
        let bytes = 4 * (self.batch_words.len() as u64).max(FIRST_WORDS);
        let is_new = self.gpu.grow(&mut self.words, bytes, Use::Storage, "page tables")?;
        let Some(buffer) = self.words.as_ref().map(|words| words.buffer.clone()) else {
            return Ok(());
        };
        if is_new {
            self.recorder.watched = Some(buffer.clone());
            self.prepared.clear();
        }
        // The first words are the kernels'.
        let own = bytemuck::cast_slice(&self.batch_words[HEAD_WORDS as usize..]);
        self.recorder.upload(own, &buffer, 4 * u64::from(HEAD_WORDS))?;
        self.batch = Some(batch.clone());
        Ok(())
    }

    /// Makes the dispatches of a run.
    fn prepare(&self, of: GraphRun<'_>, shape: &Shape) -> Result<Prepared, DeviceError> {
        let rects = of.locate()?;
        let bounds = self.bounds(of, &rects)?;
        let locs: Vec<Loc> = bounds.iter().map(|b| b.loc).collect();
        let placed = Emitter::all(of.code(), shape, &locs);
        let placed = placed.map_err(|e| of.misfit(e.to_string()))?;
        let dispatches = placed.into_iter().map(|placed| self.ready(of, &bounds, placed));
        let dispatches = dispatches.collect::<Result<Vec<_>, _>>()?;
        self.gpu.check()?;
        let addresses = (Arc::downgrade(&of.run.weights), Arc::downgrade(&of.run.bindings));
        Ok(Prepared { _of: addresses, bound: rects, dispatches })
    }

    /// Where each value is, then where each output is.
    fn bounds(&self, of: GraphRun<'_>, rects: &[Rect]) -> Result<Vec<Bound>, DeviceError> {
        let code = of.code();
        let bound = zip(of.bound(), rects).map(|((bound, view), rect)| {
            let name = &code.values[bound.value].name;
            let found = window(&self.gpu, view, rect);
            found.map_err(|why| of.misfit(format!("value {name} {why}")))
        });
        let mut bound = bound.collect::<Result<Vec<Bound>, _>>()?;
        let mut all = Vec::with_capacity(code.values.len() + code.graph.outputs.len());
        for value in &code.values {
            all.push(match value.storage {
                ValueStorage::Binding(i) => bound[i].clone(),
                ValueStorage::Scratch(i) => whole(held(of, self.scratch.get(i))?, value),
                ValueStorage::None => whole(&self.gpu.unread, value),
            });
        }
        all.extend(bound.drain(bound.len() - code.graph.outputs.len()..));
        Ok(all)
    }

    /// Binds a dispatch.
    fn ready(
        &self,
        of: GraphRun<'_>,
        bounds: &[Bound],
        placed: PlacedDispatch,
    ) -> Result<Ready, DeviceError> {
        let mut parts: SmallVec<[(&wgpu::Buffer, Range<u64>); 8]> = SmallVec::new();
        for operand in &placed.operands {
            let buffer = match *operand {
                Operand::Value(value) => {
                    let Bound { buffer, range, .. } = &bounds[value];
                    parts.push((buffer, range.clone()));
                    continue;
                }
                Operand::Weight { of: node, pack, part } => {
                    let memory = of.of.weights[node].get(pack).and_then(|p| p.parts.get(part));
                    &memory.ok_or_else(|| of.misfit("lacks a weight"))?.buffer
                }
                Operand::Unused => &self.gpu.spare,
                Operand::Words => held(of, Some(&self.words))?,
                Operand::Inner => held(of, Some(&self.inner))?,
            };
            parts.push((buffer, 0..buffer.size()));
        }
        Ready::new(&self.gpu, placed.dispatch, &parts, placed.work)
    }
}

/// Claims rectangles besides those that are claimed already: uses of one queue, which follow each
/// other, do not exclude each other.
fn hold(
    claims: &mut Vec<HeldClaim>,
    buffer: &Buffer,
    wanted: &[(Rect, Access)],
) -> Result<(), AccessError> {
    match claims.iter_mut().find(|held| held.buffer().id() == buffer.id()) {
        Some(held) => held.extend(wanted)?,
        None => claims.push(buffer.hold(wanted)?),
    }
    Ok(())
}

/// Memory that was made before.
fn held<'m>(
    of: GraphRun<'_>,
    memory: Option<&'m Option<Memory>>,
) -> Result<&'m wgpu::Buffer, DeviceError> {
    let memory = memory.and_then(Option::as_ref);
    memory.map(|memory| &memory.buffer).ok_or_else(|| of.misfit("has no scratch memory"))
}

/// Records dispatches, where the longest sequence has this number of positions. A submission is
/// short, so that others get the device, too.
fn record(recorder: &mut Recorder, mut left: &[Ready], positions: u64) -> Result<(), DeviceError> {
    while !left.is_empty() {
        let mut work = 0_u64;
        let room = recorder.room_for_work();
        let fits = left.iter().take(recorder.room_for_dispatches()).take_while(|ready| {
            let fits = work <= room;
            work = work.saturating_add(ready.work.at(positions));
            fits
        });
        let (now, later) = left.split_at(fits.count().max(1));
        let pass = recorder.pass();
        now.iter().for_each(|ready| ready.record(pass));
        recorder.add_work(now.len(), work)?;
        left = later;
    }
    Ok(())
}

/// A value in memory of its own, without gaps between rows.
fn whole(buffer: &wgpu::Buffer, value: &PlacedValue) -> Bound {
    let stride = value.row_bytes().div_ceil(4) as u32;
    Bound { buffer: buffer.clone(), range: 0..buffer.size(), loc: Loc { offset: 0, stride } }
}

/// A forward batch as kernels read it: words that are the kernels' own, for each page group a record
/// of each row, then the page tables. Records for states of one row are those of `sequences.wgsl`.
fn words_of(batch: &ForwardBatch, words: &mut Vec<u32>) {
    let groups = batch.seqs.first().map_or(0, |s| s.tables.len());
    let rows = batch.rows();
    words.clear();
    words.resize(HEAD_WORDS as usize + groups * rows * RECORD_WORDS as usize, 0);
    for group in 0..groups {
        let records = HEAD_WORDS as usize + group * rows * RECORD_WORDS as usize;
        for seq in &batch.seqs {
            let table = words.len() as u32;
            let Some(pages) = seq.tables.get(group) else { continue };
            words.extend_from_slice(&pages.pages);
            let kept = |pos: Option<usize>| {
                pos.and_then(|pos| pages.row(pos)).map_or(u32::MAX, |row| row as u32)
            };
            for (i, row) in seq.rows.clone().enumerate() {
                let (pos, left) = (seq.pos + i, seq.rows.len() - i);
                let is_kept = left == 1 || (pos + 1).is_multiple_of(pages.page_len);
                let to = kept(is_kept.then_some(pos));
                let own = match pages.fixed {
                    true => [to, if i == 0 { left as u32 } else { 0 }, kept(pos.checked_sub(1)), 0],
                    false => [pos as u32, table, pages.first as u32, 0],
                };
                let at = records + row * RECORD_WORDS as usize;
                if let Some(record) = words.get_mut(at..at + RECORD_WORDS as usize) {
                    record.copy_from_slice(&own);
                }
            }
        }
    }
}
