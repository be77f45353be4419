//! AMX: products of pairs of bf16 on tiles.
//!
//! `tdpbf16ps` adds up 16 pairs of columns: the lower products from zero, the upper ones from
//! zero, then both sums together, then that to what was there. `vdpbf16ps` adds each product to
//! the sum itself, so the two instructions do not give the same bits. That is why one row is
//! computed on tiles, too: an element of the result is always the same chain of products of 16
//! pairs (the last filled up with zeros), in blocks of [`BLOCK`] words as everywhere.
//!
//! - With several rows, the activations are the first operand, as they lie. A packed panel is a
//!   row of pairs per word, which is what the second operand wants.
//! - With one row, the weights are the first operand, as they lie in memory, and the row's words
//!   are the only column of the second: nothing is turned, and sums come out side by side. The
//!   operands of a product may change places without changing bits.
//!
//! # Speed
//! On two cores of an Emerald Rapids, 512 rows of a model of 0.6 billion parameters take 0.28 of
//! the time that `vdpbf16ps` takes, and 8 % of the peak of tiles: what is left is attention, and
//! packing weights. Measure with `cargo bench -p troika-cpu -- linear_bf16`.

use std::mem::MaybeUninit;

use super::pack::{WIDE, WeightBlock, pack, prefetch_rows};
use super::sink::Sink;
use super::{BLOCK, ProductPart, RowsView};
use crate::kernels::simd::Lanes;
use crate::machine::instructions::x86::{Held, TileConfig, TileRegisters};

/// Rows of a tile, and words of its rows.
const SIDE: usize = 16;
/// Rows of activations, or of weights, that meet at once: two tiles.
const STEP: usize = 2 * SIDE;
/// Bytes of a tile's row.
const ROW: usize = 4 * SIDE;

const _: () = assert!(BLOCK.is_multiple_of(SIDE));

/// Computes a part of a product of pairs.
///
/// # Safety
/// Needs the features of `T`.
#[inline(always)]
pub(super) unsafe fn part<V: Lanes, T: TileRegisters>(part: ProductPart<'_>) {
    assert!(part.product.pairs && !part.product.panels, "pairs, and a weight as it lies in a file");
    // SAFETY: passed on.
    unsafe {
        let mut held = Held::<T>::new();
        match part.m.len() {
            0 => {}
            1 => one_row::<V, T>(&part, held.tiles()),
            _ => by_panels::<V, T>(part, held.tiles()),
        }
    }
}

/// Two tiles' shares of up to [`STEP`] rows.
fn halves(rows: usize) -> [u8; 2] {
    [rows.min(SIDE) as u8, rows.saturating_sub(SIDE) as u8]
}

/// A tile of so many rows of `bytes` bytes, or none.
fn tile(rows: u8, bytes: usize) -> (u8, u16) {
    (rows, if rows == 0 { 0 } else { bytes as u16 })
}

/// Words copied to be whole tiles; aligned to cache lines.
#[repr(C, align(64))]
struct Copied<T>(T);

/// One activation row, the second operand.
///
/// # Safety
/// As for [`part`].
#[inline(always)]
unsafe fn one_row<V: Lanes, T: TileRegisters>(part: &ProductPart<'_>, tiles: &mut T) {
    let p = &part.product;
    let x = p.x.row(part.m.start, p.weight.cols.div_ceil(2));
    let y = p.y.at(part.m.start, p.weight.rows);
    for n in part.n.clone().step_by(STEP) {
        let rows = STEP.min(part.n.end - n);
        let [a, b] = halves(rows);
        let (none, x_tile) = ((0, 0), tile(SIDE as u8, 4));
        let sums = [tile(a, 4), none, tile(b, 4), none];
        let [s0, s1, s2, s3] = sums;
        let config = TileConfig::new(&[s0, s1, s2, s3, tile(a, ROW), tile(b, ROW), x_tile]);
        // SAFETY: the activation and result rows were checked; the weight has these rows.
        unsafe {
            tiles.ldtilecfg(&config);
            if b > 0 {
                weight_rows::<V, T, 2>(part, tiles, x, y, n..n + rows);
            } else {
                weight_rows::<V, T, 1>(part, tiles, x, y, n..n + rows);
            }
        }
    }
}

/// One activation row with some weight rows on `NT` tiles.
///
/// # Safety
/// As for [`part`]; the configuration is that of these rows.
#[inline(always)]
unsafe fn weight_rows<V: Lanes, T: TileRegisters, const NT: usize>(
    part: &ProductPart<'_>,
    tiles: &mut T,
    x: *const f32,
    y: *mut f32,
    n: std::ops::Range<usize>,
) {
    let (p, w) = (&part.product, &part.product.weight);
    let bytes = w.row_bytes();
    let mut at = 0;
    // SAFETY: the weight has these rows and columns, `x` a word for each pair.
    unsafe {
        let base = w.bytes.as_ptr().add(n.start * bytes);
        let starts: [_; STEP] = std::array::from_fn(|i| base.wrapping_add(i * bytes));
        loop {
            let len = (2 * BLOCK).min(w.cols - at);
            let sink = Sink { product: p, first: at == 0, last: at + len == w.cols };
            tiles.tilezero::<0>();
            if NT == 2 {
                tiles.tilezero::<2>();
            }
            let whole = len / STEP * STEP;
            for k in (at..at + whole).step_by(STEP) {
                for rows in starts.chunks_exact(V::N) {
                    prefetch_rows::<V>(rows, bytes, 2 * k, STEP / V::N);
                }
                multiply_rows::<T, NT>(tiles, base.add(2 * k), bytes, x.add(k / 2));
            }
            if whole < len {
                let mut last = Copied([[0u8; ROW]; STEP]);
                let mut words = [0f32; SIDE];
                let rest = len - whole;
                for (i, row) in last.0.iter_mut().take(n.len()).enumerate() {
                    let from = base.add(i * bytes + 2 * (at + whole));
                    std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), 2 * rest);
                }
                let from = x.add((at + whole) / 2);
                std::ptr::copy_nonoverlapping(from, words.as_mut_ptr(), rest.div_ceil(2));
                multiply_rows::<T, NT>(tiles, last.0.as_ptr().cast(), ROW, words.as_ptr());
            }
            let mut sums = Copied([0f32; STEP]);
            tiles.tilestored::<0>(sums.0.as_mut_ptr().cast(), 4);
            if NT == 2 {
                tiles.tilestored::<2>(sums.0.as_mut_ptr().add(SIDE).cast(), 4);
            }
            for i in (0..n.len()).step_by(V::N) {
                let sums = V::load(sums.0.as_ptr().add(i));
                sink.put(y, n.start + i, n.len() - i, sums);
            }
            at += len;
            if at >= w.cols {
                break;
            }
        }
    }
}

/// Adds the products of 16 pairs of columns of weight rows with the words `x`.
///
/// # Safety
/// As for [`weight_rows`]; the rows have these columns.
#[inline(always)]
unsafe fn multiply_rows<T: TileRegisters, const NT: usize>(
    tiles: &mut T,
    rows: *const u8,
    stride: usize,
    x: *const f32,
) {
    // SAFETY: by the caller.
    unsafe {
        tiles.tileloadd::<6>(x.cast(), 4);
        tiles.tileloadd::<4>(rows, stride);
        tiles.tdpbf16ps::<0, 4, 6>();
        if NT == 2 {
            tiles.tileloadd::<5>(rows.add(SIDE * stride), stride);
            tiles.tdpbf16ps::<2, 5, 6>();
        }
    }
}

/// Several activation rows: a block of weight rows is packed, then meets all rows.
///
/// # Safety
/// As for [`part`].
#[inline(always)]
unsafe fn by_panels<V: Lanes, T: TileRegisters>(part: ProductPart<'_>, tiles: &mut T) {
    let p = &part.product;
    let (panels, wide) = part.scratch.split_at_mut(part.scratch.len() - WIDE);
    let mut copy = MaybeUninit::<Copied<[[f32; BLOCK]; STEP]>>::uninit();
    let mut at = 0;
    loop {
        let len = (2 * BLOCK).min(p.weight.cols - at);
        let words = len.div_ceil(2);
        let whole = words.next_multiple_of(SIDE);
        for (i, n) in part.n.clone().step_by(STEP).enumerate() {
            let rows = STEP.min(part.n.end - n);
            let panel = &mut panels[i * STEP * BLOCK..][..whole * STEP];
            let block = WeightBlock { weight: p.weight, n, rows, at, len, pairs: true };
            pack::<V>(block, panel, STEP, wide);
            panel[words * STEP..].fill(0.0);
        }
        for m in part.m.clone().step_by(STEP) {
            let rows = STEP.min(part.m.end - m);
            let [a, b] = halves(rows);
            let (weights, s0, s1) = (tile(SIDE as u8, ROW), tile(a, ROW), tile(b, ROW));
            // SAFETY: features by the caller; the rows are checked by `words_of`.
            unsafe {
                tiles.ldtilecfg(&TileConfig::new(&[s0, s0, s1, s1, s0, s1, weights, weights]));
                let x = words_of(&p.x, m..m + rows, at / 2..at / 2 + words, copy.as_mut_ptr());
                for (i, n) in part.n.clone().step_by(STEP).enumerate() {
                    let sink = Sink { product: p, first: at == 0, last: at + len == p.weight.cols };
                    let panel = &panels[i * STEP * BLOCK..][..whole * STEP];
                    let t = Square { sink, x, panel, m, rows, n, rest: STEP.min(part.n.end - n) };
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
        if at >= p.weight.cols {
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
    /// Whole tiles of words, [`STEP`] weight rows wide.
    panel: &'b [f32],
    /// First activation row.
    m: usize,
    /// Activation rows.
    rows: usize,
    /// First weight row.
    n: usize,
    /// Weight rows.
    rest: usize,
}

impl Square<'_, '_> {
    /// On `MT` by `NT` tiles.
    ///
    /// # Safety
    /// As for [`part`]; the configuration is that of these rows.
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
            for (k, w) in self.panel.chunks_exact(SIDE * STEP).enumerate() {
                let (x, w) = (x.add(k * ROW), w.as_ptr().cast::<u8>());
                tiles.tileloadd::<4>(x, stride);
                tiles.tileloadd::<6>(w, 4 * STEP);
                tiles.tdpbf16ps::<0, 4, 6>();
                if NT == 2 {
                    tiles.tileloadd::<7>(w.add(ROW), 4 * STEP);
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
