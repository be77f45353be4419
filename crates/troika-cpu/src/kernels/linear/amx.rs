//! AMX: products of pairs of bf16 on tiles.
//!
//! `tdpbf16ps` adds up 16 pairs of columns: the lower products from zero, the upper ones from
//! zero, then both sums together, then that to what was there. `vdpbf16ps` adds each product to
//! the sum itself, so the two instructions do not give the same bits. That is why one row is
//! computed on tiles, too: an element of the result is always the same chain of products of 16
//! pairs (the last filled up with zeros), in blocks of [`BLOCK`] words as everywhere.
//!
//! The activations are the first operand, as they lie. A [packed](panels) weight has 16 rows side
//! by side, a line for each word: sixteen lines are the second operand, as they lie, too. Other
//! weights are packed block by block.
//!
//! # Speed
//! On two cores of an Emerald Rapids, 512 rows of a model of 0.6 billion parameters reach 9 % of the
//! peak of tiles. Half of the time is products, which wait for the second-level cache, and a fifth
//! is attention. Two panels side by side are two streams of memory, which one row reads faster
//! than one (20 and 17 tokens/s). Measure with `cargo bench -p troika-cpu -- linear_bf16`.

use std::mem::MaybeUninit;

use super::pack::{WIDE, WeightBlock, pack};
use super::sink::Sink;
use super::{BLOCK, ProductPart, RowsView, packed, panels};
use crate::kernels::simd::Lanes;
use crate::machine::instructions::x86::{Held, TileConfig, TileRegisters};
use crate::runtime::prefetch;

/// Rows of a tile, and words of its rows.
const SIDE: usize = 16;
/// Rows of activations, or of weights, that meet at once: two tiles.
const STEP: usize = 2 * SIDE;
/// Bytes of a tile's row.
const ROW: usize = 4 * SIDE;

const _: () = assert!(BLOCK.is_multiple_of(SIDE));

/// Bytes of a tile.
const TILE: usize = SIDE * ROW;

const _: () = assert!(SIDE == panels::ROWS && ROW == panels::LINE);

/// Computes a part of a product of pairs.
///
/// # Safety
/// Needs the features of `T`.
#[inline(always)]
pub(super) unsafe fn part<V: Lanes, T: TileRegisters>(mut part: ProductPart<'_>) {
    assert!(part.product.pairs, "a product of pairs");
    if part.m.is_empty() {
        return;
    }
    // Few rows wait for memory, which reads a packed weight from its beginning to its end.
    let streams = part.product.panels && part.m.len() <= packed::FEW;
    let all = part.n.clone();
    let step = if streams { STEP } else { all.len().max(1) };
    // SAFETY: passed on.
    unsafe {
        let mut held = Held::<T>::new();
        for n in all.clone().step_by(step) {
            part.n = n..(n + step).min(all.end);
            by_blocks::<V, T>(&mut part, held.tiles());
        }
    }
}

/// Two tiles' shares of up to [`STEP`] rows.
fn halves(rows: usize) -> [u8; 2] {
    [rows.min(SIDE) as u8, rows.saturating_sub(SIDE) as u8]
}

/// A tile of `rows` rows of `bytes` bytes; an empty one for 0 rows.
fn tile(rows: u8, bytes: usize) -> (u8, u16) {
    (rows, if rows == 0 { 0 } else { bytes as u16 })
}

/// Words copied to be whole tiles; aligned to cache lines.
#[repr(C, align(64))]
struct Copied<T>(T);

/// A block of columns after the other: its panels meet all activation rows.
///
/// # Safety
/// As for [`part`]; a panel begins with the part's first weight row.
#[inline(always)]
unsafe fn by_blocks<V: Lanes, T: TileRegisters>(part: &mut ProductPart<'_>, tiles: &mut T) {
    let p = &part.product;
    let (scratch, wide) = part.scratch.split_at_mut(part.scratch.len() - WIDE);
    let mut copy = MaybeUninit::<Copied<[[f32; BLOCK]; STEP]>>::uninit();
    let mut at = 0;
    loop {
        let len = (2 * BLOCK).min(p.weight.cols - at);
        let words = len.div_ceil(2);
        let whole = words.next_multiple_of(SIDE);
        let last = at + len == p.weight.cols;
        let lie = p.panels && whole == words;
        let streams = lie && part.m.len() <= packed::FEW;
        if !lie {
            for (i, n) in part.n.clone().step_by(SIDE).enumerate() {
                let rows = SIDE.min(part.n.end - n);
                let panel = &mut scratch[i * SIDE * BLOCK..][..whole * SIDE];
                if p.panels {
                    // SAFETY: the panel's words are there, and room for them.
                    unsafe {
                        let from = packed::panel(p, n).add(at / 2 * ROW);
                        let to = panel.as_mut_ptr().cast();
                        std::ptr::copy_nonoverlapping(from, to, words * ROW);
                    }
                } else {
                    let block = WeightBlock { weight: p.weight, n, rows, at, len, pairs: true };
                    pack::<V>(block, panel, SIDE, wide);
                }
                panel[words * SIDE..].fill(0.0);
            }
        }
        let next =
            if lie { panels::panel_bytes(p.weight.dtype, p.weight.cols) } else { BLOCK * ROW };
        for m in part.m.clone().step_by(STEP) {
            let rows = STEP.min(part.m.end - m);
            let [a, b] = halves(rows);
            let (weights, s0, s1) = (tile(SIDE as u8, ROW), tile(a, ROW), tile(b, ROW));
            // SAFETY: features by the caller; `words_of` checks the rows, and panels, in the weight or
            // in working memory, have all tiles of the block.
            unsafe {
                tiles.ldtilecfg(&TileConfig::new(&[s0, s0, s1, s1, s0, s1, weights, weights]));
                let x = words_of(&p.x, m..m + rows, at / 2..at / 2 + words, copy.as_mut_ptr());
                for (i, n) in part.n.clone().step_by(STEP).enumerate() {
                    let sink = Sink { product: p, first: at == 0, last };
                    let panel = match lie {
                        true => packed::panel(p, n).add(at / 2 * ROW),
                        false => scratch[i * STEP * BLOCK..].as_ptr().cast(),
                    };
                    let rest = STEP.min(part.n.end - n);
                    let depth = whole / SIDE;
                    let t = Square { sink, x, panel, next, depth, m, rows, n, rest, streams };
                    match (b > 0, t.rest > SIDE) {
                        (false, false) => t.multiply::<V, T, 1, 1>(tiles),
                        (false, true) => t.multiply::<V, T, 1, 2>(tiles),
                        (true, false) => t.multiply::<V, T, 2, 1>(tiles),
                        (true, true) => t.multiply::<V, T, 2, 2>(tiles),
                    }
                }
            }
        }
        at += len;
        if last {
            break;
        }
    }
}

/// Words of some activation rows, the first row and bytes from row to row: as they lie, or, where
/// rows lie anywhere or words do not fill tiles, copied and filled up with zeros.
///
/// # Safety
/// `copy` is valid for writes, and the result for as long as it.
#[inline(always)]
unsafe fn words_of(
    x: &RowsView<'_>,
    m: std::ops::Range<usize>,
    words: std::ops::Range<usize>,
    copy: *mut Copied<[[f32; BLOCK]; STEP]>,
) -> (*const u8, usize) {
    let row = |m: usize| x.row(m, words.end).wrapping_add(words.start);
    let filled = words.len().next_multiple_of(SIDE);
    if x.index.is_none() && filled == words.len() {
        let _ = row(m.end - 1);
        return (row(m.start).cast(), 4 * x.stride);
    }
    for (i, m) in m.enumerate() {
        // SAFETY: a row of the copy, and words that `row` checked.
        unsafe {
            let to = copy.cast::<f32>().add(i * BLOCK);
            std::ptr::copy_nonoverlapping(row(m), to, words.len());
            to.add(words.len()).write_bytes(0, filled - words.len());
        }
    }
    (copy.cast_const().cast(), 4 * BLOCK)
}

/// Up to 32 activation rows and 32 weight rows.
struct Square<'a, 'b> {
    sink: Sink<'a, 'b>,
    /// Words of the activations, bytes from row to row.
    x: (*const u8, usize),
    /// The first tile of the weight; the other ones of its 16 rows follow.
    panel: *const u8,
    /// Bytes to the tile of the next 16 weight rows.
    next: usize,
    /// Tiles of a row.
    depth: usize,
    /// First activation row.
    m: usize,
    /// Activation rows.
    rows: usize,
    /// First weight row.
    n: usize,
    /// Weight rows.
    rest: usize,
    /// Whether the weight comes from memory.
    streams: bool,
}

impl Square<'_, '_> {
    /// On `MT` by `NT` tiles.
    ///
    /// # Safety
    /// As for [`part`]; the configuration is made for these rows. Each row of activations has
    /// `depth` times [`ROW`] bytes, the panel `depth` tiles, and so has the one behind it if `NT`
    /// is 2.
    #[inline(always)]
    unsafe fn multiply<V: Lanes, T: TileRegisters, const MT: usize, const NT: usize>(
        &self,
        tiles: &mut T,
    ) {
        let (x, stride) = self.x;
        // SAFETY: by the caller.
        unsafe {
            tiles.tilezero::<0>();
            tiles.tilezero::<1>();
            if MT == 2 {
                tiles.tilezero::<2>();
                tiles.tilezero::<3>();
            }
            for k in 0..self.depth {
                let (x, w) = (x.add(k * ROW), self.panel.add(k * TILE));
                if self.streams {
                    for line in (0..TILE).step_by(ROW) {
                        let ahead = w.wrapping_add(packed::PREFETCH_DISTANCE + line);
                        prefetch::once(ahead);
                        if NT == 2 {
                            prefetch::once(ahead.wrapping_add(self.next));
                        }
                    }
                }
                tiles.tileloadd::<4>(x, stride);
                tiles.tileloadd::<6>(w, ROW);
                tiles.tdpbf16ps::<0, 4, 6>();
                if NT == 2 {
                    tiles.tileloadd::<7>(w.add(self.next), ROW);
                    tiles.tdpbf16ps::<1, 4, 7>();
                }
                if MT == 2 {
                    tiles.tileloadd::<5>(x.add(SIDE * stride), stride);
                    tiles.tdpbf16ps::<2, 5, 6>();
                    if NT == 2 {
                        tiles.tdpbf16ps::<3, 5, 7>();
                    }
                }
            }
            self.put::<V, T, MT>(tiles);
        }
    }

    /// Brings the sums to where they go.
    ///
    /// # Safety
    /// As for [`Square::multiply`].
    #[inline(always)]
    unsafe fn put<V: Lanes, T: TileRegisters, const MT: usize>(&self, tiles: &mut T) {
        let mut sums = MaybeUninit::<Copied<[[f32; STEP]; STEP]>>::uninit();
        let p = self.sink.product;
        // SAFETY: the tiles' rows have room; those in use are read. Result rows are checked.
        unsafe {
            let to = sums.as_mut_ptr().cast::<u8>();
            tiles.tilestored::<0>(to, 4 * STEP);
            tiles.tilestored::<1>(to.add(ROW), 4 * STEP);
            if MT == 2 {
                let to = to.add(SIDE * 4 * STEP);
                tiles.tilestored::<2>(to, 4 * STEP);
                tiles.tilestored::<3>(to.add(ROW), 4 * STEP);
            }
            for i in 0..self.rows {
                let y = p.y.at(self.m + i, p.weight.rows);
                for u in (0..self.rest).step_by(V::N) {
                    let sums = V::load(sums.as_ptr().cast::<f32>().add(i * STEP + u));
                    self.sink.put(y, self.n + u, self.rest - u, sums);
                }
            }
        }
    }
}
