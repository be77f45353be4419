//! Weights packed for the integer kernels.
//!
//! Rows are taken by sixteen, a panel; the last panel is filled up with zeros. A panel has its
//! blocks one after another: what a block has once, then its groups of 32 columns:
//!
//! | | Q8_0 | Q4_0 | Q4_K | Q5_K | Q6_K | Q4_Gn |
//! |---|---|---|---|---|---|---|
//! | `supers`, per block | | | 16 f16, 16 f16 (of minima) | as Q4_K | 16 f16 | 16 f16, 16 u8 (zero points) |
//! | `quants`, per group | 8 x 64 bytes | 4 x 64 | 4 x 64 | 4 x 64 | 4 x 64 | 4 x 64 |
//! | `high` | | | | 64 | 2 x 64 | |
//! | `scales` | (once) 2 x 16 f16 | 16 f16 | 16 u8, 16 u8 (minima) | as Q4_K | 2 x 16 i8 | |
//!
//! So one activation row reads a weight as a single stream. With scales in a section of their own,
//! two cores of a Zen 5 read 4-bit weights at 40 GB/s instead of 50, and one core of a Zen 4 reads
//! Q8_0 at 14 to 19 GB/s instead of 20 to 24. A packed block of Q8_0 has two groups (two of its
//! GGUF blocks), with their scales before them: 64 bytes, so that each quad keeps to a cache line.
//! An odd last group has a block to itself.
//!
//! 64 bytes are a *quad*: four columns of sixteen rows, row by row. Of eight quads in a group,
//! nibbles hold quad `j` low and quad `j + 4` high; a byte of `high` holds the fifth bits of
//! quads 0 to 7, or the upper two bits of four quads. Values are unsigned; [`zero`] says which
//! value stands for zero. So a weight takes as many bytes as in its GGUF blocks (Q4_K and Q5_K:
//! four more per 256, for scales of eight bits instead of six).

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use troika_graph::DType;

use crate::kernels::linear::scale_min;

/// Weight rows of a panel, and of a register.
pub const ROWS: usize = 16;

/// Columns of a group.
pub const GROUP: usize = 32;

/// Bytes of a quad.
pub(super) const QUAD: usize = 4 * ROWS;

/// Groups of a packed block of Q8_0: the scales of two fill a cache line.
pub(super) const PAIR: usize = 2;

/// Which of a type's unsigned values stands for zero.
pub(super) const fn zero(dtype: DType) -> i32 {
    match dtype {
        DType::Q8_0 => 128,
        DType::Q4_0 => 8,
        DType::Q6_K => 32,
        _ => 0,
    }
}

/// Where the parts of a panel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Type of the weight. As all fields, as [`Layout::new`] made it: kernels follow them.
    pub(crate) dtype: DType,
    /// Rows.
    pub(crate) rows: usize,
    /// Columns.
    pub(crate) cols: usize,
    /// The first group.
    pub(super) head: usize,
    pub(super) high: usize,
    pub(super) scales: usize,
    pub(super) supers: usize,
    /// Groups of a packed block.
    groups: usize,
    /// Bytes from group to group of a block.
    step: usize,
    /// Bytes of a panel.
    pub(super) panel: usize,
}

impl Layout {
    /// The layout of a weight; `None` for types and widths that have none.
    pub fn new(dtype: DType, rows: usize, cols: usize) -> Option<Layout> {
        if !dtype.has_integer_path() || !cols.is_multiple_of(dtype.block_len()) {
            return None;
        }
        let values = QUAD * if dtype == DType::Q8_0 { 8 } else { 4 };
        let (head, more) = match dtype {
            DType::Q8_0 => (PAIR * 2 * ROWS, 0),
            DType::Q4_K => (4 * ROWS, 0),
            DType::Q5_K => (4 * ROWS, QUAD),
            DType::Q6_K => (2 * ROWS, 2 * QUAD),
            _ if dtype.has_zero_points() => (3 * ROWS, 0),
            _ => (0, 0),
        };
        let high = head + values;
        let (step, scales, supers) = match dtype {
            DType::Q8_0 => (values, 0, 0),
            _ if dtype.has_zero_points() => (values, 0, 2 * ROWS),
            _ => (values + more + 2 * ROWS, high + more, 0),
        };
        let groups = if dtype == DType::Q8_0 { PAIR } else { dtype.block_len() / GROUP };
        let blocks = (cols / GROUP).div_ceil(groups);
        let panel = (blocks * (head + groups * step)).next_multiple_of(64);
        rows.div_ceil(ROWS).checked_mul(panel)?;
        Some(Layout { dtype, rows, cols, head, high, scales, supers, groups, step, panel })
    }

    /// Bytes from the first packed block to the block of group `g`, as `Format::block_at`.
    fn block_at(&self, g: usize) -> usize {
        g / self.groups * (self.groups * self.step + self.head)
    }

    /// Bytes from the first group to group `g`, as `Format::at`.
    fn at(&self, g: usize) -> usize {
        self.block_at(g) + g % self.groups * self.step
    }

    /// The scales of group `g`.
    fn scales_at(&self, g: usize) -> usize {
        let of_block = match self.dtype {
            DType::Q8_0 => g % PAIR * 2 * ROWS,
            _ if self.dtype.has_zero_points() => 0,
            _ => g % self.groups * self.step,
        };
        self.scales + self.block_at(g) + of_block
    }

    /// Type of the weight.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows of the weight.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the weight.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Name of the layout, in the store's accounts and in files of packed weights: bytes that are
    /// packed otherwise need another one.
    pub fn name(&self) -> String {
        let blocks = match self.dtype {
            DType::Q8_0 => "two blocks by two",
            _ => "block by block",
        };
        format!("{} by {ROWS} rows, {blocks}", self.dtype)
    }

    /// Panels.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    /// Bytes of the packed weight.
    pub fn bytes(&self) -> usize {
        self.panels() * self.panel
    }

    /// Packs rows of blocks, on up to `threads` threads.
    ///
    /// # Panics
    /// If `raw` is not the rows of the layout.
    pub fn pack(&self, raw: &[u8], threads: usize) -> Vec<u8> {
        let row_bytes = self.dtype.row_bytes(self.cols).unwrap_or(0);
        assert_eq!(raw.len(), row_bytes * self.rows, "bytes of a {} weight", self.dtype);
        let mut out = vec![0u8; self.bytes()];
        if raw.is_empty() {
            return out;
        }
        let each = self.panels().div_ceil(threads.max(1)).max(MIN_PANELS_PER_THREAD);
        let packers = out.chunks_mut(each * self.panel).zip(raw.chunks(each * ROWS * row_bytes));
        let others = packers.len() - 1;
        let packers = Mutex::new(packers);
        let take = || packers.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((out, raw)) = take() {
                self.pack_panels(raw, out);
            }
        };
        std::thread::scope(|s| {
            for _ in 0..others {
                // Without another thread this one packs all.
                let _ = std::thread::Builder::new().spawn_scoped(s, work);
            }
            work();
        });
        out
    }

    /// Packs rows of blocks into zeroed panels. The first row begins a panel.
    pub fn pack_panels(&self, raw: &[u8], out: &mut [u8]) {
        let Some(row_bytes @ 1..) = self.dtype.row_bytes(self.cols) else { return };
        let panels = out.chunks_exact_mut(self.panel).zip(raw.chunks(ROWS * row_bytes));
        for (panel, rows) in panels {
            for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                self.pack_row(panel, r, row);
            }
        }
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel
    }

    fn pack_row(&self, panel: &mut [u8], r: usize, row: &[u8]) {
        let bytes = self.dtype.block_bytes();
        let mut q = [0u8; GROUP];
        let groups = self.dtype.block_len() / GROUP;
        for (b, block) in row.chunks_exact(bytes).enumerate() {
            for i in 0..groups {
                let g = b * groups + i;
                let group = &mut panel[self.head + self.at(g)..];
                match self.dtype {
                    DType::Q8_0 => quads::<8>(group, r, &block[2..], 0x80),
                    // A nibble's place in a block is that in a quad.
                    DType::Q4_0 => quads::<4>(group, r, &block[2..], 0),
                    _ if self.dtype.has_zero_points() => {
                        quads::<4>(group, r, &block[3 + 16 * i..][..16], 0);
                    }
                    _ => {
                        quants(self.dtype, block, i, &mut q);
                        self.place(group, r, &q);
                    }
                }
                self.place_scales(&mut panel[self.scales_at(g)..], r, block, i);
            }
            self.place_supers(&mut panel[self.supers + self.block_at(b * groups)..], r, block);
        }
    }

    /// Puts the values of a group into their quads.
    fn place(&self, group: &mut [u8], r: usize, q: &[u8; GROUP]) {
        let (four, _) = q.as_chunks::<4>();
        for j in 0..4 {
            let to = &mut group[j * QUAD + 4 * r..][..4];
            for i in 0..4 {
                to[i] = four[j][i] & 15 | (four[j + 4][i] & 15) << 4;
            }
        }
        let (quads, bits) = match self.dtype {
            DType::Q5_K => (8, 1),
            DType::Q6_K => (4, 2),
            _ => return,
        };
        for (h, part) in four.chunks_exact(quads).enumerate() {
            let at = (4 + h) * QUAD + 4 * r;
            for i in 0..4 {
                let high = |(j, v): (usize, &[u8; 4])| v[i] >> 4 << (j * bits);
                group[at + i] = part.iter().enumerate().map(high).fold(0, |a, b| a | b);
            }
        }
    }

    fn place_scales(&self, to: &mut [u8], r: usize, block: &[u8], i: usize) {
        match self.dtype {
            DType::Q4_K | DType::Q5_K => [to[r], to[ROWS + r]] = scale_min(i, &block[4..16]),
            DType::Q6_K => [to[r], to[ROWS + r]] = [block[192 + 2 * i], block[193 + 2 * i]],
            _ => to[2 * r..2 * r + 2].copy_from_slice(&block[..2]),
        }
    }

    /// What there is once per block, besides the scale of [`Layout::place_scales`].
    fn place_supers(&self, to: &mut [u8], r: usize, block: &[u8]) {
        match self.dtype {
            DType::Q4_K | DType::Q5_K => {
                to[2 * r..2 * r + 2].copy_from_slice(&block[..2]);
                to[2 * (ROWS + r)..][..2].copy_from_slice(&block[2..4]);
            }
            DType::Q6_K => to[2 * r..2 * r + 2].copy_from_slice(&block[208..210]),
            _ if self.dtype.has_zero_points() => to[r] = block[2],
            _ => {}
        }
    }
}

/// Puts bytes as they lie into the `N` quads of a group, some bits flipped.
#[inline(always)]
fn quads<const N: usize>(group: &mut [u8], r: usize, bytes: &[u8], flip: u8) {
    let to = &mut group[..N * QUAD];
    for (quad, four) in to.as_chunks_mut::<QUAD>().0.iter_mut().zip(bytes.as_chunks::<4>().0) {
        quad[4 * r..4 * r + 4].copy_from_slice(&four.map(|b| b ^ flip));
    }
}

/// Fewer panels are not worth a thread.
const MIN_PANELS_PER_THREAD: usize = 16;

/// The unsigned values of group `i` of a block.
pub(super) fn quants(dtype: DType, block: &[u8], i: usize, q: &mut [u8; GROUP]) {
    match dtype {
        DType::Q8_0 => {
            for (q, b) in q.iter_mut().zip(&block[2..]) {
                *q = b ^ 0x80;
            }
        }
        DType::Q4_0 => {
            for (l, b) in block[2..18].iter().enumerate() {
                (q[l], q[l + 16]) = (b & 15, b >> 4);
            }
        }
        DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128 => {
            for (l, b) in block[3 + 16 * i..][..16].iter().enumerate() {
                (q[l], q[l + 16]) = (b & 15, b >> 4);
            }
        }
        DType::Q4_K | DType::Q5_K => {
            let start = if dtype == DType::Q5_K { 48 } else { 16 };
            let low = &block[start + i / 2 * 32..][..32];
            for (q, b) in q.iter_mut().zip(low) {
                *q = b >> (i % 2 * 4) & 15;
            }
            if dtype == DType::Q5_K {
                for (q, b) in q.iter_mut().zip(&block[16..48]) {
                    *q |= (b >> i & 1) << 4;
                }
            }
        }
        _ => {
            // Q6_K. Halves of 128; within a half, four quarters of 32 share bytes.
            let (half, quarter) = (i / 4, i % 4);
            let low = &block[half * 64 + quarter % 2 * 32..][..32];
            let high = &block[128 + half * 32..][..32];
            for (l, q) in q.iter_mut().enumerate() {
                *q = low[l] >> (quarter / 2 * 4) & 15 | (high[l] >> (quarter * 2) & 3) << 4;
            }
        }
    }
}

/// A packed weight in memory.
#[derive(Clone, Copy, Debug)]
pub struct PackedView<'a> {
    /// Its shape and layout.
    pub layout: Layout,
    /// The panels.
    pub bytes: &'a [u8],
}

impl PackedView<'_> {
    /// The panels of these weight rows; both ends lie on panels or at the last row.
    pub(super) fn panels(&self, rows: &Range<usize>) -> Range<usize> {
        assert!(rows.start.is_multiple_of(ROWS) && rows.end <= self.layout.rows, "weight rows");
        assert_eq!(self.bytes.len(), self.layout.bytes(), "bytes of a packed weight");
        rows.start / ROWS..rows.end.div_ceil(ROWS)
    }
}
