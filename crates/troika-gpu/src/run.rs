//! Runs compiled subgraphs: what steps bind and dispatch for the rows of a submission.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use smallvec::{SmallVec, smallvec};
use troika_device::{
    Access, AccessError, Bindings, Buffer, Claim, Clock, CopyRows, DeviceError, ForwardBatch,
    PagesView, Rect, Run, View, Weights,
};
use troika_graph::{Dim, Op};

use crate::bound::{Bound, Ready, window};
use crate::compile::{Code, HEAD_WORDS, Operand, PlacedDispatch, RECORD_WORDS, Shape};
use crate::gpu::{Gpu, Memory, Use};
use crate::host_claims::HostClaims;
use crate::kernels::{FEW, Loc};
use crate::largest::Chooser;
use crate::loaded::LoadedGraph;
use crate::places::{Place, ValuePlace};
use crate::recorder::Recorder;

/// The most prepared runs that are kept.
const MOST: usize = 4096;
/// Sequences of at most the first run as those of so many positions, those beyond the last likewise.
const LEAST_POSITIONS: usize = 256;
const MOST_POSITIONS: usize = 8192;
/// Words of a forward batch that have room from the start.
const FIRST_WORDS: u64 = 1 << 14;

/// Runs what a queue is given.
pub(crate) struct Runner {
    pub recorder: Recorder,
    /// What kernels under way use of the host's memory.
    claims: HostClaims,
    chooser: Chooser,
    gpu: Arc<Gpu>,
    /// Memory for values between ops, by number.
    scratch: Vec<Memory>,
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
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The address of the weights.
    weights: usize,
    /// The address of the bindings.
    bindings: usize,
    rows: usize,
    /// Whether rows are of long sequences.
    is_long: bool,
    /// See [`Shape`].
    longest: usize,
    one_row_each: bool,
}

/// Runs of rows whose sequences take the same frequencies, as (first, count, long).
type LongRuns = SmallVec<[(usize, usize, bool); 4]>;

/// The dispatches of a run, ready to be recorded.
struct Prepared {
    /// Keep the addresses from being taken by others.
    _of: (Weak<Weights>, Weak<Bindings>),
    page_lens: SmallVec<[usize; 8]>,
    /// What is claimed of inputs and outputs.
    bound: Vec<Rect>,
    dispatches: Vec<Ready>,
}

fn misfit(of: &LoadedGraph, why: impl Into<String>) -> DeviceError {
    DeviceError::Submission { task: of.name.clone(), why: why.into() }
}

impl Runner {
    pub fn new(gpu: &Arc<Gpu>, clock: &Arc<dyn Clock>) -> Runner {
        Runner {
            recorder: Recorder::new(gpu, clock),
            claims: HostClaims::default(),
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
    ///
    /// # Errors
    /// Those of [`Recorder::finish`].
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
    ///
    /// # Errors
    /// Those of [`Recorder::copy`] and [`Chooser::choose`].
    pub fn copy(&mut self, copy: &CopyRows) -> Result<(), DeviceError> {
        if self.gpu.host.is_some() {
            self.finish()?;
        }
        match copy.largest {
            None => self.recorder.copy(&copy.from, &copy.to),
            Some(kept) => self.chooser.choose(&mut self.recorder, &copy.from, &copy.to, kept),
        }
    }

    /// Records the dispatches of a run.
    ///
    /// # Errors
    /// A submission that does not fit, memory that is in use, no memory, or a lost device.
    pub fn run(&mut self, of: &LoadedGraph, run: &Run) -> Result<(), DeviceError> {
        check(of, run)?;
        let code = &of.code;
        let page_lens = page_lens(of, &run.forward)?;
        let runs = long_runs(code, run);
        let (is_mixed, is_long) = match runs[..] {
            [(_, _, long)] => (false, long),
            _ => (true, false),
        };
        let (longest, one_row_each) = reach(code, run);
        self.grow(code, run.rows, longest)?;
        self.record_batch(code, &run.forward)?;
        let key = Key {
            weights: Arc::as_ptr(&run.weights) as usize,
            bindings: Arc::as_ptr(&run.bindings) as usize,
            rows: run.rows,
            is_long,
            longest,
            one_row_each,
        };
        let known = self.prepared.get(&key);
        let known = known.is_some_and(|p| p.page_lens == page_lens) && !is_mixed;
        if !known {
            let prepared = self.prepare(of, run, &page_lens, &key, &runs)?;
            if self.prepared.len() >= MOST {
                self.prepared.clear();
            }
            self.prepared.insert(key, prepared);
        }
        let Some(prepared) = self.prepared.get(&key) else { return Ok(()) };
        let mut claims = SmallVec::<[Claim<'_>; 12]>::new();
        let host = &mut self.claims;
        claim(code, run, &prepared.bound, &mut self.wanted, &mut |buffer, wanted| {
            match self.gpu.host {
                Some(_) => host.add(buffer, wanted)?,
                None => claims.push(buffer.claim(wanted)?),
            }
            Ok(())
        })?;
        if prepared.dispatches.is_empty() {
            return Ok(());
        }
        let ends = run.forward.seqs.iter().map(|s| (s.pos + s.rows.len()) as u64);
        let positions = ends.max().unwrap_or(0);
        record(&mut self.recorder, &prepared.dispatches, positions)?;
        if is_mixed {
            self.prepared.remove(&key);
        }
        Ok(())
    }

    /// Sees to it that scratch memory is large enough.
    fn grow(&mut self, code: &Code, rows: usize, longest: usize) -> Result<(), DeviceError> {
        let mut grown = false;
        let gpu = self.gpu.clone();
        let what = || format!("values between ops on device {}", gpu.name);
        let make = |bytes: usize| {
            let size = bytes.checked_next_power_of_two().unwrap_or(bytes) as u64;
            let size = size.min(gpu.limits.max_storage_buffer_binding_size).max(bytes as u64);
            gpu.memory(size, Use::Storage).map_err(|e| DeviceError::memory(what())(e))
        };
        for (i, each) in code.scratch.iter().enumerate() {
            let bytes = each.saturating_mul(rows.max(1));
            match self.scratch.get(i) {
                Some(own) if own.buffer.size() >= bytes as u64 => {}
                Some(_) => {
                    self.scratch[i] = make(bytes)?;
                    grown = true;
                }
                None => self.scratch.push(make(bytes)?),
            }
        }
        let inner = (0..code.graph.nodes.len()).map(|n| code.inner_bytes(n, rows, longest)).max();
        let inner = inner.unwrap_or(0);
        let has = self.inner.as_ref().map_or(0, |m| m.buffer.size());
        if inner as u64 > has {
            self.inner = Some(make(inner)?);
            grown = true;
        }
        if grown {
            self.prepared.clear();
        }
        Ok(())
    }

    /// Records the words of a forward batch, unless they are those that are there.
    fn record_batch(&mut self, code: &Code, batch: &Arc<ForwardBatch>) -> Result<(), DeviceError> {
        let is_known = self.batch.as_ref().is_some_and(|known| Arc::ptr_eq(known, batch));
        if code.groups.is_empty() || is_known {
            return Ok(());
        }
        words_of(batch, &mut self.batch_words);
        let words = &self.batch_words;
        let bytes = 4 * words.len() as u64;
        if self.words.as_ref().is_none_or(|m| m.buffer.size() < bytes) {
            let size = bytes.next_power_of_two().max(4 * FIRST_WORDS);
            let what = format!("page tables on device {}", self.gpu.name);
            let made = self.gpu.memory(size, Use::Storage).map_err(DeviceError::memory(what))?;
            self.recorder.watched = Some(made.buffer.clone());
            self.words = Some(made);
            self.prepared.clear();
        }
        if let Some(words_of_batch) = &self.words {
            // The first words are the kernels'.
            let at = 4 * u64::from(HEAD_WORDS);
            let buffer = words_of_batch.buffer.clone();
            let own = bytemuck::cast_slice(&words[HEAD_WORDS as usize..]);
            self.recorder.upload(own, &buffer, at)?;
        }
        self.batch = Some(batch.clone());
        Ok(())
    }

    /// Makes the dispatches of a run.
    fn prepare(
        &self,
        of: &LoadedGraph,
        run: &Run,
        page_lens: &[usize],
        key: &Key,
        runs: &[(usize, usize, bool)],
    ) -> Result<Prepared, DeviceError> {
        let code = &of.code;
        let rects = locate(of, run, &self.gpu)?;
        let bounds = self.bounds(of, run, &rects)?;
        let locs: Vec<Loc> = bounds.iter().map(|b| b.loc).collect();
        let (longest, one_row_each) = (key.longest, key.one_row_each);
        let shape = Shape { rows: run.rows, locs: &locs, page_lens, runs, longest, one_row_each };
        let steps = code.steps(&shape).map_err(|e| misfit(of, e.to_string()))?;
        let dispatches = steps.into_iter().map(|step| self.ready(of, &bounds, step));
        let dispatches = dispatches.collect::<Result<Vec<_>, _>>()?;
        self.gpu.check()?;
        Ok(Prepared {
            _of: (Arc::downgrade(&run.weights), Arc::downgrade(&run.bindings)),
            page_lens: page_lens.into(),
            bound: rects,
            dispatches,
        })
    }

    /// Where each value is, then where each output is.
    fn bounds(
        &self,
        of: &LoadedGraph,
        run: &Run,
        rects: &[Rect],
    ) -> Result<Vec<Bound>, DeviceError> {
        let code = &of.code;
        let b = &run.bindings;
        let (inputs, states) = (b.inputs.len(), b.states.len());
        let view = |at: usize| -> Option<(&View, &Rect)> {
            let all = || b.inputs.iter().chain(&b.states).chain(&b.outputs);
            all().nth(at).zip(rects.get(at))
        };
        let bound = |at: usize, name: &str| {
            let (view, rect) = view(at).ok_or_else(|| misfit(of, "has too few bindings"))?;
            window(&self.gpu, view, rect).map_err(|why| misfit(of, format!("value {name} {why}")))
        };
        let mut bounds = Vec::with_capacity(code.slots.len() + b.outputs.len());
        for slot in &code.slots {
            bounds.push(match slot.place {
                Place::Input(i) => bound(i, &slot.name)?,
                Place::State(i) => bound(inputs + i, &slot.name)?,
                Place::Output(i) => bound(inputs + states + i, &slot.name)?,
                Place::Scratch(i) => {
                    let memory = self.scratch.get(i);
                    let memory = memory.ok_or_else(|| misfit(of, "has no scratch memory"))?;
                    whole(&memory.buffer, slot)
                }
                Place::Nowhere => whole(&self.gpu.unread, slot),
            });
        }
        for (i, id) in code.graph.outputs.iter().enumerate() {
            let name = &code.slots[id.0 as usize].name;
            bounds.push(bound(inputs + states + i, name)?);
        }
        Ok(bounds)
    }

    fn ready(
        &self,
        of: &LoadedGraph,
        bounds: &[Bound],
        step: PlacedDispatch,
    ) -> Result<Ready, DeviceError> {
        let lacks = || misfit(of, "lacks a weight");
        let mut parts: SmallVec<[(&wgpu::Buffer, Range<u64>); 8]> = SmallVec::new();
        for operand in &step.operands {
            parts.push(match operand {
                Operand::Value(value) => {
                    let bound = bounds.get(*value).ok_or_else(lacks)?;
                    (&bound.buffer, bound.range.clone())
                }
                Operand::Weight(at) => {
                    let packs = of.weights.0.get(at.of).ok_or_else(lacks)?;
                    let memory = packs.get(at.pack).and_then(|p| p.parts.get(at.part));
                    let buffer = &memory.ok_or_else(lacks)?.buffer;
                    (buffer, 0..buffer.size())
                }
                Operand::Spare => (&self.gpu.spare, 0..self.gpu.spare.size()),
                Operand::Words => {
                    let memory = self.words.as_ref().ok_or_else(lacks)?;
                    (&memory.buffer, 0..memory.buffer.size())
                }
                Operand::Inner => {
                    let memory = self.inner.as_ref().ok_or_else(lacks)?;
                    (&memory.buffer, 0..memory.buffer.size())
                }
            });
        }
        Ready::new(&self.gpu, step.dispatch, &parts, step.work)
    }
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
fn whole(buffer: &wgpu::Buffer, slot: &ValuePlace) -> Bound {
    let stride = slot.row_bytes().div_ceil(4) as u32;
    Bound { buffer: buffer.clone(), range: 0..buffer.size(), loc: Loc { offset: 0, stride } }
}

/// Checks the counts of bindings and rows.
fn check(of: &LoadedGraph, run: &Run) -> Result<(), DeviceError> {
    let (code, b) = (&of.code, &run.bindings);
    let g = &code.graph;
    let need = (g.inputs.len(), g.states.len(), g.outputs.len());
    let got = (b.inputs.len(), b.states.len(), b.outputs.len());
    if need != got {
        let why = format!("binds {got:?} inputs, states and outputs; needs {need:?}");
        return Err(misfit(of, why));
    }
    for slot in code.slots.iter().filter(|s| !matches!(s.place, Place::State(_))) {
        let fits = match slot.rows {
            Dim::Rows(most) => run.rows <= most,
            Dim::Fixed(n) | Dim::KvLen(n) => run.rows == n,
        };
        if !fits {
            return Err(misfit(of, format!("{} rows do not fit value {}", run.rows, slot.name)));
        }
    }
    let uses_batch = !code.groups.is_empty() || code.has_long;
    if !uses_batch {
        return Ok(());
    }
    let groups = || code.groups.iter().map(|g| g.1);
    let has_tables =
        run.forward.seqs.iter().all(|s| {
            groups().all(|g| s.tables.get(g).is_some_and(|t| t.page_len.is_power_of_two()))
        });
    if !run.forward.is_whole() || !has_tables {
        return Err(misfit(of, "sequences have gaps, or lack page tables"));
    }
    let rows = run.forward.rows();
    if rows != run.rows {
        return Err(misfit(of, format!("{} rows, but sequences have {rows}", run.rows)));
    }
    check_positions(of, run)
}

/// Checks that each position that a row sees or writes has a row of the cache.
fn check_positions(of: &LoadedGraph, run: &Run) -> Result<(), DeviceError> {
    let code = &of.code;
    for node in &code.graph.nodes {
        let (group, window) = match &node.op {
            Op::KvAppend(k) => (k.page_group, Some(1)),
            Op::Attention(a) => (a.page_group, a.window),
            _ => continue,
        };
        for id in &node.states {
            let Some(state) = code.graph.states.iter().position(|s| s == id) else { continue };
            let slot = &code.slots[id.0 as usize];
            let has = run.bindings.states[state].rect().span().len() / slot.row_bytes().max(1);
            for seq in &run.forward.seqs {
                let Some(table) = seq.tables.get(group) else { continue };
                let end = seq.pos.saturating_add(seq.rows.len());
                let first = window.map_or(0, |w| (seq.pos + 1).saturating_sub(w));
                let pages = first / table.page_len..end.div_ceil(table.page_len);
                let lacks = pages.clone().find(|page| {
                    let at = page.checked_sub(table.first);
                    let page = at.and_then(|at| table.pages.get(at));
                    page.is_none_or(|p| (*p as usize + 1).saturating_mul(table.page_len) > has)
                });
                if let Some(page) = lacks {
                    let pos = page.saturating_mul(table.page_len).max(first);
                    let why = format!("position {pos} has no row in cache {}", slot.name);
                    return Err(misfit(of, why));
                }
            }
        }
    }
    Ok(())
}

/// The positions of a page in each group.
fn page_lens(of: &LoadedGraph, batch: &ForwardBatch) -> Result<SmallVec<[usize; 8]>, DeviceError> {
    let Some(first) = batch.seqs.first().filter(|_| !of.code.groups.is_empty()) else {
        return Ok(SmallVec::new());
    };
    let lens: SmallVec<[usize; 8]> = first.tables.iter().map(|t| t.page_len).collect();
    let alike = |tables: &[troika_device::PageTable]| {
        tables.len() == lens.len() && tables.iter().zip(&lens).all(|(t, len)| t.page_len == *len)
    };
    if !batch.seqs.iter().all(|s| alike(&s.tables)) {
        return Err(misfit(of, "sequences have pages of different lengths"));
    }
    Ok(lens)
}

/// Runs of rows whose sequences take the same frequencies.
fn long_runs(code: &Code, run: &Run) -> LongRuns {
    let beyond = code.graph.nodes.iter().find_map(|n| match &n.op {
        Op::Rope(rope) => rope.long.as_ref().map(|(_, beyond)| *beyond),
        _ => None,
    });
    let whole = || smallvec![(0, run.rows, false)];
    let Some(beyond) = beyond else { return whole() };
    let mut runs = LongRuns::new();
    for seq in &run.forward.seqs {
        let is_long = seq.known_len > beyond;
        match runs.last_mut() {
            Some((_, count, long)) if *long == is_long => *count += seq.rows.len(),
            _ => runs.push((seq.rows.start, seq.rows.len(), is_long)),
        }
    }
    if runs.is_empty() { whole() } else { runs }
}

/// What attention depends on besides rows ([`Shape`]): the most positions that a row sees, rounded up
/// so that it seldom changes, and whether each row is the only one of its sequence.
fn reach(code: &Code, run: &Run) -> (usize, bool) {
    let attends = |n: &troika_graph::Node| matches!(n.op, Op::Attention(_));
    if run.rows > FEW as usize || !code.graph.nodes.iter().any(attends) {
        return (0, false);
    }
    let seqs = &run.forward.seqs;
    let ends = seqs.iter().map(|s| s.pos.saturating_add(s.rows.len()));
    let longest = ends.max().unwrap_or(0).clamp(LEAST_POSITIONS, MOST_POSITIONS);
    (longest.next_power_of_two(), seqs.iter().all(|s| s.rows.len() <= 1))
}

/// A forward batch as kernels read it: words that are the kernels' own, for each page group a record
/// of each row, then the page tables.
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
            for (i, row) in seq.rows.clone().enumerate() {
                let at = records + row * RECORD_WORDS as usize;
                if let Some(record) = words.get_mut(at..at + RECORD_WORDS as usize) {
                    record.copy_from_slice(&[(seq.pos + i) as u32, table, pages.first as u32, 0]);
                }
            }
        }
    }
}

/// The rectangles of all bindings, with as many rows as the submission has.
fn locate(of: &LoadedGraph, run: &Run, gpu: &Gpu) -> Result<Vec<Rect>, DeviceError> {
    let (code, b) = (&of.code, &run.bindings);
    let g = &code.graph;
    let ids = g.inputs.iter().chain(&g.states).chain(&g.outputs);
    let views = b.inputs.iter().chain(&b.states).chain(&b.outputs);
    let mut rects = Vec::new();
    for (id, view) in ids.zip(views) {
        let slot = &code.slots[id.0 as usize];
        let name = &slot.name;
        if view.buffer().space() != gpu.space {
            let why = format!("value {name} is bound to memory that is not the device's");
            return Err(misfit(of, why));
        }
        let r = view.rect();
        let row = slot.row_bytes();
        if matches!(slot.place, Place::State(_)) {
            let aligned = gpu.limits.min_storage_buffer_offset_alignment as usize;
            if !r.is_dense() || !r.offset().is_multiple_of(aligned.max(1)) {
                let why = format!("the rows of cache {name} lie apart, or begin at an odd place");
                return Err(misfit(of, why));
            }
            let span = r.span();
            rects.push(Rect::bytes(span.start..span.start + span.len() / row.max(1) * row));
            continue;
        }
        let rows = slot.rows_of(run.rows);
        let (stride, fits) = if r.is_dense() {
            (row, row.checked_mul(rows).is_some_and(|n| n <= r.span().len()))
        } else {
            (r.stride(), row == r.row_bytes() && rows <= r.rows())
        };
        let rect = Rect::new(r.offset(), rows, row, stride).filter(|_| fits);
        let Some(rect) = rect else {
            let (has, bytes) = (r.rows(), r.row_bytes());
            let why =
                format!("value {name} has {rows} rows of {row} bytes, its view {has} of {bytes}");
            return Err(misfit(of, why));
        };
        let is_word = |n: usize| n.is_multiple_of(4);
        if !is_word(rect.offset()) || (rows > 1 && !is_word(rect.stride())) {
            let (at, stride) = (rect.offset(), rect.stride());
            let why = format!(
                "value {name} starts at byte {at} with rows {stride} bytes apart, which are no \
                 multiples of 4"
            );
            return Err(misfit(of, why));
        }
        rects.push(rect);
    }
    check_overlap(of, run, &rects)?;
    Ok(rects)
}

/// Checks that written bindings share no bytes with others.
fn check_overlap(of: &LoadedGraph, run: &Run, rects: &[Rect]) -> Result<(), DeviceError> {
    let (code, b) = (&of.code, &run.bindings);
    let inputs = b.inputs.len();
    let written = |i: usize| match i.checked_sub(inputs) {
        None => false,
        Some(i) => code.written.get(i).is_none_or(|w| *w),
    };
    let views = b.inputs.iter().chain(&b.states).chain(&b.outputs);
    let buffers: SmallVec<[usize; 12]> = views.map(|v| v.buffer().id()).collect();
    for (j, &buffer) in buffers.iter().enumerate() {
        for i in 0..j {
            let clash =
                buffers[i] == buffer && (written(i) || written(j)) && rects[i].overlaps(&rects[j]);
            if clash {
                let g = &code.graph;
                let mut ids = g.inputs.iter().chain(&g.states).chain(&g.outputs);
                let of_place = |id: Option<&troika_graph::ValueId>| {
                    id.map_or("", |id| code.slots[id.0 as usize].name.as_str())
                };
                let a = of_place(ids.clone().nth(i));
                let c = of_place(ids.nth(j));
                return Err(misfit(of, format!("values {a} and {c} overlap in memory")));
            }
        }
    }
    Ok(())
}

/// Claims rectangles of a buffer.
type Take<'a, 'f> = dyn FnMut(&'a Buffer, &[(Rect, Access)]) -> Result<(), AccessError> + 'f;

/// Has the memory of a run claimed; of states only the rows in its sequences' pages. In the device's
/// own memory, work is done in the order of submissions, so that claims may end when it is recorded.
fn claim<'a>(
    code: &Code,
    run: &'a Run,
    rects: &[Rect],
    wanted: &mut Vec<(Rect, Access)>,
    take: &mut Take<'a, '_>,
) -> Result<(), AccessError> {
    let b = &*run.bindings;
    let (inputs, states) = (b.inputs.len(), b.states.len());
    for (view, rect) in b.inputs.iter().zip(rects) {
        take(view.buffer(), &[(*rect, Access::Read)])?;
    }
    for (i, (view, rect)) in b.states.iter().zip(&rects[inputs..]).enumerate() {
        let slot = &code.slots[code.graph.states[i].0 as usize];
        let (row, all) = (slot.row_bytes(), rect.span());
        let byte = |r: usize| r.saturating_mul(row).saturating_add(all.start).min(all.end);
        wanted.clear();
        for group in code.groups.iter().filter(|g| g.0 == i).map(|g| g.1) {
            for pages in run.forward.seqs.iter().filter_map(|s| PagesView::new(s, group)) {
                pages.runs(|rows, appended| {
                    let write = appended && code.written[i];
                    let access = if write { Access::Write } else { Access::Read };
                    wanted.push((Rect::bytes(byte(rows.start)..byte(rows.end)), access));
                });
            }
        }
        if !wanted.is_empty() {
            take(view.buffer(), wanted)?;
        }
    }
    for (view, rect) in b.outputs.iter().zip(&rects[inputs + states..]) {
        take(view.buffer(), &[(*rect, Access::Write)])?;
    }
    Ok(())
}
