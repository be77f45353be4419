//! Commands on their way to the device: recorded in order, submitted together.

use std::collections::VecDeque;
use std::iter::zip;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use troika_device::{Access, Clock, DeviceError, Rect, View, WriteRows};

use crate::gpu::{Gpu, Memory, PIECE, Use};

/// Submissions under way before the host waits for the first of them.
const MOST_SUBMITTED: usize = 3;
/// The longest that a submission should take, so that a desktop on the same device stays alive.
const LONGEST: Duration = Duration::from_millis(100);
/// Multiplications of a first submission, and the least and the most of later ones.
const FIRST_WORK: u64 = 1 << 31;
const LEAST_WORK: u64 = 1 << 24;
const MOST_WORK: u64 = 1 << 42;
/// Dispatches of the first submissions after the device was idle: it begins while the host records
/// the rest. Not where the host's cores stand in for a GPU.
const FIRST_DISPATCHES: [usize; 2] = [16, 64];
/// What offsets of copies and mapped memory are multiples of.
const ALIGNED: u64 = 16;

/// The least bytes of memory that the host reads results from.
const LEAST_DOWNLOAD: u64 = 1 << 16;

/// Records commands of one queue.
pub(crate) struct Recorder {
    pub gpu: Arc<Gpu>,
    /// Memory whose first word kernels set where a number is beyond f16. It is read with each copy to
    /// the host.
    pub watched: Option<wgpu::Buffer>,
    /// The pass that dispatches are added to, until something else is recorded. It is dropped before
    /// the encoder is used.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    /// The piece of staging memory in use, and its bytes that are taken.
    piece: Option<(Memory, u64)>,
    /// Pieces that recorded copies read.
    full: Vec<Memory>,
    /// Memory that the host reads results from.
    download: Option<Memory>,
    submitted: VecDeque<Submitted>,
    /// Multiplications that were recorded since the last submission.
    work: u64,
    /// How many make a new submission.
    most_work: u64,
    /// Submissions since the host last waited for all.
    submissions: usize,
    /// Dispatches since the last submission.
    dispatches: usize,
    /// When the device was last seen to finish something.
    finished: Duration,
    clock: Arc<dyn Clock>,
}

impl Drop for Recorder {
    /// Gives back staging memory, also after a failure.
    fn drop(&mut self) {
        self.abandon();
    }
}

/// A submission under way.
struct Submitted {
    index: wgpu::SubmissionIndex,
    at: Duration,
    work: u64,
}

impl Recorder {
    pub fn new(gpu: &Arc<Gpu>, clock: &Arc<dyn Clock>) -> Recorder {
        Recorder {
            gpu: gpu.clone(),
            watched: None,
            pass: None,
            encoder: None,
            piece: None,
            full: Vec::new(),
            download: None,
            submitted: VecDeque::new(),
            work: 0,
            most_work: FIRST_WORK,
            submissions: 0,
            dispatches: 0,
            finished: clock.now(),
            clock: clock.clone(),
        }
    }

    /// The pass to add dispatches to.
    pub fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        let (device, encoder) = (&self.gpu.device, &mut self.encoder);
        self.pass.get_or_insert_with(|| {
            let encoder =
                encoder.get_or_insert_with(|| device.create_command_encoder(&Default::default()));
            encoder.begin_compute_pass(&Default::default()).forget_lifetime()
        })
    }

    /// Records a copy of bytes, rounded up to whole words.
    fn copy_bytes(
        &mut self,
        source: &wgpu::Buffer,
        from: u64,
        target: &wgpu::Buffer,
        to: u64,
        bytes: u64,
    ) {
        self.pass = None;
        let device = &self.gpu.device;
        let encoder =
            self.encoder.get_or_insert_with(|| device.create_command_encoder(&Default::default()));
        let size = Some(bytes.next_multiple_of(4));
        encoder.copy_buffer_to_buffer(source, from, target, to, size);
    }

    /// Submits what was recorded. Where many submissions are under way, waits for the first.
    ///
    /// # Errors
    /// The device is lost, or a command was wrong.
    pub fn flush(&mut self) -> Result<(), DeviceError> {
        self.pass = None;
        if let Some((piece, _)) = self.piece.take() {
            self.full.push(piece);
        }
        let Some(encoder) = self.encoder.take() else {
            self.full.drain(..).for_each(|piece| self.gpu.staging.give_back_unused(piece));
            return self.gpu.check();
        };
        self.full.iter().for_each(|piece| piece.buffer.unmap());
        let index = self.gpu.submit(encoder.finish());
        self.full.drain(..).for_each(|piece| self.gpu.staging.give_back(piece));
        let work = std::mem::take(&mut self.work);
        self.submissions += 1;
        self.dispatches = 0;
        self.submitted.push_back(Submitted { index, at: self.clock.now(), work });
        self.gpu.check()?;
        self.wait(MOST_SUBMITTED)
    }

    /// Waits until at most `most` submissions are under way, and learns how long they take.
    fn wait(&mut self, most: usize) -> Result<(), DeviceError> {
        while self.submitted.len() > most {
            let Some(first) = self.submitted.pop_front() else { break };
            self.gpu.wait(Some(first.index))?;
            let began = first.at.max(self.finished);
            self.finished = self.clock.now();
            let took = self.finished.saturating_sub(began);
            let each = &mut self.most_work;
            if took > LONGEST && first.work * 2 > *each {
                *each = (*each / 2).max(LEAST_WORK);
            } else if took < LONGEST / 4 && first.work >= *each {
                *each = (*each * 2).min(MOST_WORK);
            }
        }
        Ok(())
    }

    /// Multiplications that may be recorded before the next submission.
    pub fn room_for_work(&self) -> u64 {
        self.most_work.saturating_sub(self.work)
    }

    /// Dispatches that may be recorded before the next submission.
    pub fn room_for_dispatches(&self) -> usize {
        let first = if self.gpu.is_software { &[][..] } else { &FIRST_DISPATCHES[..] };
        let most = first.get(self.submissions);
        most.map_or(usize::MAX, |most| most.saturating_sub(self.dispatches))
    }

    /// Notes recorded dispatches and their multiplications, and submits them if they are many.
    pub fn add_work(&mut self, dispatches: usize, work: u64) -> Result<(), DeviceError> {
        self.work = self.work.saturating_add(work);
        self.dispatches += dispatches;
        let is_full = self.work > self.most_work || self.room_for_dispatches() == 0;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Submits what was recorded, and waits until it is done.
    pub fn finish(&mut self) -> Result<(), DeviceError> {
        self.flush()?;
        self.submissions = 0;
        self.wait(0)
    }

    /// Drops what was recorded and not submitted, after a failure.
    pub fn abandon(&mut self) {
        self.pass = None;
        self.encoder = None;
        (self.work, self.submissions, self.dispatches) = (0, 0, 0);
        self.full.extend(self.piece.take().map(|(piece, _)| piece));
        self.full.drain(..).for_each(|piece| self.gpu.staging.give_back_unused(piece));
    }

    /// Records the copy of bytes to a place in device memory, which is a multiple of 4. The bytes
    /// are read at once. Of a last word that is not whole, the rest becomes zeros.
    ///
    /// # Errors
    /// There is no staging memory.
    pub fn upload(
        &mut self,
        bytes: &[u8],
        to: &wgpu::Buffer,
        mut at: u64,
    ) -> Result<(), DeviceError> {
        for part in bytes.chunks(PIECE as usize) {
            let size = (part.len() as u64).next_multiple_of(4);
            let (piece, from) = self.room(size)?;
            let mapped = piece.slice(from..from + size).get_mapped_range_mut();
            let mut mapped = mapped.map_err(|e| self.gpu.error(e.to_string()))?;
            mapped.slice(..part.len()).copy_from_slice(part);
            if part.len() as u64 != size {
                let rest = (size as usize) - part.len();
                mapped.slice(part.len()..).copy_from_slice(&[0; 4][..rest]);
            }
            drop(mapped);
            self.copy_bytes(&piece, from, to, at, size);
            at += size;
        }
        Ok(())
    }

    /// Room in a mapped piece of staging memory.
    fn room(&mut self, size: u64) -> Result<(wgpu::Buffer, u64), DeviceError> {
        if let Some((piece, used)) = &mut self.piece
            && *used + size <= PIECE
        {
            let at = *used;
            *used = (at + size).next_multiple_of(ALIGNED);
            return Ok((piece.buffer.clone(), at));
        }
        if let Some((piece, _)) = self.piece.take() {
            self.full.push(piece);
            // Its copies must be submitted before it can be used again.
            self.flush()?;
        }
        let piece = self.gpu.staging.take(&self.gpu)?;
        let buffer = piece.buffer.clone();
        self.piece = Some((piece, size.next_multiple_of(ALIGNED)));
        Ok((buffer, 0))
    }

    /// Copies rows between host memory and the device's, or within the latter. What the host reads
    /// is there when this returns.
    ///
    /// # Errors
    /// Views of different shapes, in use, or of other memory; rows that are not whole words.
    pub fn copy(&mut self, from: &View, to: &View) -> Result<(), DeviceError> {
        let (r, w) = (from.rect(), to.rect());
        let is_alike = (r.rows(), r.row_bytes()) == (w.rows(), w.row_bytes());
        let (read, write) = ([(*r, Access::Read)], [(*w, Access::Write)]);
        match (self.own(from), self.own(to)) {
            (None, None) => from.copy_to(to)?,
            // It says what is wrong.
            _ if !is_alike => from.copy_to(to)?,
            _ if r.is_empty() => {}
            (None, Some(target)) => {
                let _held = to.buffer().claim(&write)?;
                let read = from.read()?;
                let all = read.as_slice::<u8>().filter(|_| w.is_dense());
                for (i, place) in spans(w, all.is_some()).into_iter().enumerate() {
                    let Some(bytes) = all.or_else(|| read.row::<u8>(i)) else { continue };
                    self.words(&place, target.size())?;
                    self.upload(bytes, &target, place.start as u64)?;
                }
            }
            (Some(source), None) => {
                let _held = from.buffer().claim(&read)?;
                self.download(r, &source, &mut to.write()?)?;
            }
            (Some(source), Some(target)) => {
                let _read = from.buffer().claim(&read)?;
                let _write = to.buffer().claim(&write)?;
                self.within(r, &source, w, &target)?;
            }
        }
        Ok(())
    }

    /// The device's memory behind a view; `None` if it is not this device's.
    fn own(&self, view: &View) -> Option<wgpu::Buffer> {
        let is_own = view.buffer().space() == self.gpu.space;
        view.buffer().owner::<Memory>().filter(|_| is_own).map(|m| m.buffer.clone())
    }

    /// Checks that a range consists of words, but for a last word that ends the buffer.
    fn words(&self, range: &Range<usize>, size: u64) -> Result<(), DeviceError> {
        let whole = range.len().is_multiple_of(4) || range.end as u64 + 4 > size;
        if range.start.is_multiple_of(4) && whole {
            return Ok(());
        }
        let (bytes, start) = (range.len(), range.start);
        Err(self.gpu.error(format!(
            "it copies words of 4 bytes, and rows of {bytes} bytes from byte {start} on are none"
        )))
    }

    /// Reads rows back to the host.
    ///
    /// # Errors
    /// Rows that are not whole words, no memory, or a lost device.
    pub fn download(
        &mut self,
        r: &Rect,
        source: &wgpu::Buffer,
        to: &mut WriteRows<'_>,
    ) -> Result<(), DeviceError> {
        let dense = r.is_dense() && to.as_slice::<u8>().is_some();
        let ranges = spans(r, dense);
        self.read(source, &ranges, |i, own| {
            let target = if dense { to.as_mut_slice::<u8>() } else { to.row_mut::<u8>(i) };
            if let Some(target) = target.filter(|t| t.len() == own.len()) {
                target.copy_from_slice(own);
            }
        })
    }

    /// Submits what was recorded, waits until it is done, and looks at what kernels watch for.
    ///
    /// # Errors
    /// Numbers beyond f16, no memory, or a lost device.
    pub fn look(&mut self) -> Result<(), DeviceError> {
        match self.watched.clone() {
            Some(words) => self.read(&words, &[], |_, _| {}),
            None => self.finish(),
        }
    }

    /// Reads ranges of a buffer after what was recorded, and gives each by its index.
    fn read(
        &mut self,
        source: &wgpu::Buffer,
        ranges: &[Range<usize>],
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<(), DeviceError> {
        let place = |range: &Range<usize>| (range.len() as u64).next_multiple_of(ALIGNED);
        let results: u64 = ranges.iter().map(place).sum();
        let total = results + ALIGNED;
        let least = total.max(LEAST_DOWNLOAD);
        self.gpu.grow(&mut self.download, least, Use::Download, "copies")?;
        let Some(download) = self.download.take() else { return Ok(()) };
        let mut at = 0;
        for range in ranges {
            self.words(range, source.size())?;
            let bytes = range.len() as u64;
            self.copy_bytes(source, range.start as u64, &download.buffer, at, bytes);
            at += place(range);
        }
        let watched = self.watched.clone();
        if let Some(words) = &watched {
            self.copy_bytes(words, 0, &download.buffer, results, 4);
        }
        self.flush()?;
        let mapped = download.buffer.slice(..total);
        mapped.map_async(wgpu::MapMode::Read, |_| ());
        self.finish()?;
        let bytes = mapped.get_mapped_range().map_err(|e| self.gpu.error(e.to_string()))?;
        let mut at = 0;
        for (i, range) in ranges.iter().enumerate() {
            each(i, &bytes[at as usize..][..range.len()]);
            at += place(range);
        }
        let beyond = watched.is_some() && bytes[results as usize..][..4] != [0; 4];
        drop(bytes);
        download.buffer.unmap();
        self.download = Some(download);
        if let Some(words) = watched.filter(|_| beyond) {
            self.upload(&[0; 4], &words, 0)?;
            let why = "keys or values exceed the range of f16; use a cache of bf16 or f32";
            return Err(DeviceError::Submission { task: "kv_append".into(), why: why.into() });
        }
        Ok(())
    }

    /// Copies rows within the device's memory, one by one through other memory if both are in one
    /// buffer.
    fn within(
        &mut self,
        r: &Rect,
        source: &wgpu::Buffer,
        w: &Rect,
        target: &wgpu::Buffer,
    ) -> Result<(), DeviceError> {
        let mut through = None;
        if source == target {
            self.gpu.grow(&mut through, r.row_bytes() as u64, Use::Storage, "copies")?;
        }
        let dense = r.is_dense() && w.is_dense() && through.is_none();
        for (read, write) in zip(spans(r, dense), spans(w, dense)) {
            self.words(&read, source.size())?;
            self.words(&write, target.size())?;
            let (from, to, bytes) = (read.start as u64, write.start as u64, read.len() as u64);
            match &through {
                Some(own) => {
                    self.copy_bytes(source, from, &own.buffer, 0, bytes);
                    self.copy_bytes(&own.buffer, 0, target, to, bytes);
                }
                None => self.copy_bytes(source, from, target, to, bytes),
            }
        }
        Ok(())
    }
}

/// The bytes of all rows together, or of each.
fn spans(rect: &Rect, together: bool) -> SmallVec<[Range<usize>; 8]> {
    match together {
        true => smallvec![rect.span()],
        false => (0..rect.rows()).filter_map(|i| rect.row(i)).collect(),
    }
}
