//! Weights packed for the integer kernels.
//!
//! Rows are taken by sixteen, a panel; the last panel is filled up with zeros. A panel has its
//! blocks one after another: what a block has once ([`super::scales`]), then its groups of 32
//! columns, each with its values before its scales.
//!
//! So one activation row reads a weight as a single stream. With scales in a section of their own,
//! two cores of a Zen 5 read 4-bit weights at 40 GB/s instead of 50, and one core of a Zen 4 reads
//! Q8_0 at 14 to 19 GB/s instead of 20 to 24. A packed block of Q8_0 has two groups (two of its
//! GGUF blocks), with their scales before them: 64 bytes, so that each quad keeps to a cache line.
//! An odd last group has a block to itself.
//!
//! 64 bytes are a *quad*: four columns of sixteen rows, row by row. A group has eight of them. Of
//! values of eight bits, each is 64 bytes. Narrower values have their lower bits (2 or 4) in as many
//! quads of bytes, and their upper bits (1 or 2) in as many behind them. A byte of the lower ones
//! has the bits of quads that are two or four apart, a byte of the upper ones those of neighbours.
//! Values are unsigned; `Format::ZERO` says which stands for zero, or a table what codes stand for.

use std::ops::Range;

use troika_graph::DType;
use troika_graph::blocks::BlockParts;

use super::format::{self, Format};
use super::scales::{GroupBytes, Scales};
use super::shape::{GROUP, GroupScales, Panel, QUAD, ROWS};

/// The values that codes of a type stand for, more by what stands for zero.
static TABLES: [[u8; 16]; DType::WEIGHTS.len() + 1] = {
    let mut all = [[0; 16]; DType::WEIGHTS.len() + 1];
    let mut i = 0;
    while i < DType::WEIGHTS.len() {
        let dtype = DType::WEIGHTS[i];
        let levels = match dtype {
            // Three bits of each.
            DType::Q3_K => Some(&[0, 1, 2, 3, -4, -3, -2, -1, 0, 0, 0, 0, 0, 0, 0, 0]),
            _ => dtype.codebook(),
        };
        let mut code = 0;
        while let Some(levels) = levels
            && code < 16
        {
            all[dtype as usize][code] = (levels[code] as u8).wrapping_add(zero(dtype));
            code += 1;
        }
        i += 1;
    }
    all
};

/// The shape of a weight, and the bytes of its panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Type of the weight. As all fields, as [`Layout::new`] made it: kernels follow them.
    pub(crate) dtype: DType,
    /// Rows.
    pub(crate) rows: usize,
    /// Columns.
    pub(crate) cols: usize,
    /// Bytes of a panel.
    pub(crate) panel: usize,
    /// Whether the bytes are the weight's rows as they are stored, and not panels: these are packed
    /// when they are used.
    pub(crate) stored: bool,
}

impl Layout {
    /// The layout of a weight; `None` for types and widths that have none.
    pub fn new(dtype: DType, rows: usize, cols: usize) -> Option<Layout> {
        if !dtype.is_quantized() || !cols.is_multiple_of(dtype.block_len()) {
            return None;
        }
        let groups = cols / GROUP;
        let bytes =
            format::with_format!(dtype, F => F::block_at(groups.next_multiple_of(F::GROUPS)));
        let panel = bytes.next_multiple_of(64);
        rows.div_ceil(ROWS).checked_mul(panel)?;
        Some(Layout { dtype, rows, cols, panel, stored: false })
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

    /// Bytes of the packed weight, or of its rows as they are stored.
    pub fn bytes(&self) -> usize {
        match self.stored {
            true => self.dtype.row_size(self.cols) * self.rows,
            false => self.panels() * self.panel,
        }
    }

    /// Packs rows of blocks.
    ///
    /// # Panics
    /// If `raw` is not the rows of the layout.
    pub fn pack(&self, raw: &[u8]) -> Vec<u8> {
        let row_bytes = self.dtype.row_bytes(self.cols).unwrap_or(0);
        assert_eq!(raw.len(), row_bytes * self.rows, "bytes of a {} weight", self.dtype);
        let mut out = vec![0; self.bytes()];
        self.pack_panels(raw, &mut out);
        out
    }

    /// Packs rows of blocks into zeroed panels. The first row begins a panel.
    pub fn pack_panels(&self, raw: &[u8], out: &mut [u8]) {
        let Some(row_bytes @ 1..) = self.dtype.row_bytes(self.cols) else { return };
        let panels = out.chunks_exact_mut(self.panel).zip(raw.chunks(ROWS * row_bytes));
        for (panel, rows) in panels {
            for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                format::with_format!(self.dtype, F => self.pack_row::<F>(panel, r, row));
            }
        }
    }

    fn pack_row<F: Format>(&self, panel: &mut [u8], r: usize, row: &[u8]) {
        let (bytes, each) = (self.dtype.block_bytes(), self.dtype.block_len() / GROUP);
        let (mut parts, mut q) = (BlockParts::default(), [0u8; GROUP]);
        let codes = codes(self.dtype);
        for (b, block) in row.chunks_exact(bytes).enumerate() {
            let as_it_lies = match self.dtype {
                DType::Q8_0 => Some((&block[2..], 0x80)),
                // A nibble's place in a block is that in a quad.
                DType::Q4_0 => Some((&block[2..], 0)),
                dtype if dtype.has_zero_points() => Some((&block[3..], 0)),
                _ => None,
            };
            match as_it_lies {
                Some(_) => parts.take_scales(self.dtype, block),
                None => parts.take(self.dtype, block),
            }
            for i in 0..each {
                let g = b * each + i;
                let (before, group) = panel.split_at_mut(F::at(g));
                let (group, scales) = group.split_at_mut(F::BITS * QUAD);
                match as_it_lies {
                    Some((values, flip)) => {
                        let values = &values[i * F::BITS * GROUP / 8..];
                        match F::BITS {
                            8 => quads::<8>(group, r, values, flip),
                            _ => quads::<4>(group, r, values, flip),
                        }
                    }
                    None => {
                        for (q, level) in q.iter_mut().zip(&parts.levels[i * GROUP..]) {
                            *q = match F::CODES {
                                true => codes[usize::from(*level as u8)],
                                false => (i32::from(*level) + F::ZERO) as u8,
                            };
                        }
                        place::<F>(group, r, &q);
                    }
                }
                let head = &mut before[F::block_at(g)..];
                let to = GroupBytes { head, group: scales, row: r, g };
                F::Scales::pack(to, &GroupScales::new(self.dtype, block, &parts, i));
            }
        }
    }
}

/// The value that stands for zero in products with a type's codes.
const fn zero(dtype: DType) -> u8 {
    match dtype {
        DType::Q3_K | DType::IQ1_S | DType::IQ1_M | DType::MXFP4 | DType::NVFP4 | DType::F4_G16 => {
            16
        }
        _ => 128,
    }
}

/// The code of each level, by its byte.
fn codes(dtype: DType) -> [u8; 256] {
    let mut codes = [0; 256];
    for (code, value) in TABLES[dtype as usize].iter().enumerate().rev() {
        codes[usize::from(value.wrapping_sub(zero(dtype)))] = code as u8;
    }
    codes
}

/// Puts the values of a group into their quads.
fn place<F: Format>(group: &mut [u8], r: usize, q: &[u8; GROUP]) {
    let low_bits = format::low_bits(F::BITS);
    let high_bits = F::BITS - low_bits;
    for (j, four) in q.as_chunks::<4>().0.iter().enumerate() {
        let low = &mut group[j % low_bits * QUAD + 4 * r..][..4];
        for (to, v) in low.iter_mut().zip(four) {
            *to |= (v & ((1 << low_bits) - 1)) << (j / low_bits * low_bits);
        }
        if let Some(each) = 8usize.checked_div(high_bits) {
            let high = &mut group[(low_bits + j / each) * QUAD + 4 * r..][..4];
            for (to, v) in high.iter_mut().zip(four) {
                *to |= v >> low_bits << (j % each * high_bits);
            }
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
    pub(crate) fn panels(&self, rows: &Range<usize>) -> Range<usize> {
        assert!(rows.start.is_multiple_of(ROWS) && rows.end <= self.layout.rows, "weight rows");
        assert_eq!(self.bytes.len(), self.layout.bytes(), "bytes of a packed weight");
        assert!(!self.layout.stored, "panels of a weight");
        rows.start / ROWS..rows.end.div_ceil(ROWS)
    }

    /// Where a panel lies.
    ///
    /// # Safety
    /// There are as many panels, of a weight of this layout.
    #[inline(always)]
    pub(crate) unsafe fn panel(&self, index: usize) -> Panel {
        let table = TABLES[self.layout.dtype as usize].as_ptr();
        // SAFETY: by the caller.
        Panel { base: unsafe { self.bytes.as_ptr().add(index * self.layout.panel) }, table }
    }
}
