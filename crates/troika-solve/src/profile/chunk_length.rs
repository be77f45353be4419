//! The length of chunks by what was measured (llm.npu, section 3.2): the time of a token in products
//! of queries, keys and values, and in the feed-forward, over the rows of a chunk.

use troika_model::lower::SegmentKind;

use super::measured::{Profile, RunSample};
use crate::segment_part::SegmentPart;

/// The lengths that are measured.
pub const CHUNK_ROWS: [usize; 6] = [32, 64, 128, 256, 512, 1024];

/// Times that differ by less are the same: the error of measurements is not smaller.
const SAME: f64 = 1.03;

/// What a token of a chunk takes in a layer of each shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkTime {
    /// Rows of the chunk.
    pub rows: usize,
    /// Nanoseconds of a token in queries, keys and values.
    pub qkv_ns: f64,
    /// Nanoseconds of a token in the feed-forward or the experts.
    pub ffn_ns: f64,
}

impl ChunkTime {
    fn ns(&self) -> f64 {
        self.qkv_ns + self.ffn_ns
    }
}

impl Profile {
    /// A device's times of [`CHUNK_ROWS`], those that were measured; of its products, where it
    /// computes nothing else.
    pub fn chunk_times(&self, device: usize) -> Vec<ChunkTime> {
        let whole = self.times_of(device, SegmentPart::Whole);
        if whole.is_empty() { self.times_of(device, SegmentPart::Products) } else { whole }
    }

    fn times_of(&self, device: usize, part: SegmentPart) -> Vec<ChunkTime> {
        let token_ns = |kinds: &[SegmentKind], rows: usize| {
            // Padded ones tell nothing of shorter chunks.
            let of = |r: &&RunSample| {
                (r.device, r.rows, r.share, r.part) == (device, rows, 64, part)
                    && r.work.room == rows as f64
            };
            let runs = self.runs.iter().filter(of).filter(|r| kinds.contains(&r.segment));
            let sum: f64 = runs.map(RunSample::undisturbed_ns).sum();
            (sum > 0.0).then_some(sum / rows as f64)
        };
        let time = |rows: usize| {
            Some(ChunkTime {
                rows,
                qkv_ns: token_ns(&[SegmentKind::Qkv], rows)?,
                ffn_ns: token_ns(&[SegmentKind::Ffn, SegmentKind::Experts], rows)?,
            })
        };
        CHUNK_ROWS.into_iter().filter_map(time).collect()
    }

    /// The device that says how long chunks are, and their length there: the NPU on which a token of a
    /// prompt takes the least time, or else any device. `None` if none was measured with chunks.
    pub fn chunk_length(&self) -> Option<(usize, usize)> {
        let all = || 0..self.subject.devices.len();
        let npus = all().filter(|d| !self.subject.devices[*d].row_buckets.is_empty());
        self.fastest(npus).or_else(|| self.fastest(all()))
    }

    /// The length of chunks where a device computes all of a prompt.
    pub fn own_chunk_length(&self, device: usize) -> Option<usize> {
        self.fastest([device].into_iter()).map(|(_, rows)| rows)
    }

    /// The fastest one of some devices, and the shortest chunk that is as fast as any there: short
    /// ones are padded less, and others of the prompt run beside them.
    fn fastest(&self, among: impl Iterator<Item = usize>) -> Option<(usize, usize)> {
        let by_time = |a: &ChunkTime, b: &ChunkTime| a.ns().total_cmp(&b.ns());
        let all = among.map(|d| (d, self.chunk_times(d)));
        let best =
            all.filter_map(|(d, times)| Some((d, times.iter().copied().min_by(by_time)?, times)));
        let (device, best, times) = best.min_by(|a, b| by_time(&a.1, &b.1))?;
        let chosen = times.iter().find(|t| t.ns() <= best.ns() * SAME)?;
        Some((device, chosen.rows))
    }
}
