//! Products of weights packed as [`panels`](super::panels), in registers: few activation rows meet
//! them as they lie; for many rows their words are copied. (Tiles have products of their own, `amx`.)

use std::ops::Range;

use troika_graph::DType;

use super::panels::{F16Columns, LINE, LineReader, ROWS, panel_bytes};
use super::sink::Sink;
use super::terms::Halves;
use super::weights::F32Row;
use super::{BLOCK, Product, ProductPart};
use crate::kernels::simd::{Lanes, Mac};
use crate::runtime::prefetch;

/// Bytes before the words in use that are asked for: about the latency of memory.
pub(super) const PREFETCH_DISTANCE: usize = 4096;
/// The most registers of a panel's rows.
const MAX_REGISTERS: usize = 4;
/// Activation rows up to which panels are read as they lie, and a panel from its beginning to its end.
pub(super) const FEW: usize = 32;

/// The lines of a panel, from weight row `n` on.
///
/// # Safety
/// The weight is packed and has the row, the first of a panel.
#[inline(always)]
pub(super) unsafe fn panel(p: &Product<'_>, n: usize) -> *const u8 {
    debug_assert!(n.is_multiple_of(ROWS), "a panel's first row");
    let at = n / ROWS * panel_bytes(p.weight.dtype, p.weight.cols);
    // SAFETY: by the caller.
    unsafe { p.weight.bytes.as_ptr().add(at) }
}

/// Calls a function for the reader of a weight's lines.
macro_rules! by_lines {
    ($a:ty, $dtype:expr, $f:ident::<$t:ty>($($arg:expr),*)) => {
        match (<$a>::PAIRS, $dtype) {
            (false, DType::F16) => $f::<$t, F16Columns>($($arg),*),
            (false, DType::BF16) => $f::<$t, Halves>($($arg),*),
            _ => $f::<$t, F32Row>($($arg),*),
        }
    };
}

/// Few activation rows, at most [`FEW`].
///
/// # Safety
/// The weight is packed.
#[inline(always)]
pub(super) unsafe fn few_rows<A: Mac>(part: &ProductPart<'_>) {
    // SAFETY: passed on.
    unsafe { by_lines!(A, part.product.weight.dtype, all::<A>(part)) }
}

/// All panels, one after the other: with two of them side by side, memory is a stream each, and one
/// Zen 4 thread reads 15 to 20 % less of it (bf16), though the sums of one panel wait for each other.
/// Several rows meet a block of columns while the first-level cache has it, and memory brings the
/// next one meanwhile.
///
/// # Safety
/// As for [`few_rows`].
#[inline(always)]
unsafe fn all<A: Mac, L: LineReader>(part: &ProductPart<'_>) {
    const { assert!(ROWS / A::V::N <= MAX_REGISTERS && BLOCK.is_multiple_of(L::WORDS)) };
    let p = &part.product;
    let words = A::words(p.weight.cols);
    for first in part.n.clone().step_by(ROWS) {
        for at in (0..words).step_by(BLOCK) {
            let end = (at + BLOCK).min(words);
            let sink = &Sink { product: p, first: at == 0, last: end == words };
            let mut m = part.m.start;
            // SAFETY: rows are checked; the panel holds all words.
            unsafe {
                let lines = panel(p, first).add(at / L::WORDS * LINE);
                let (words, prefetched) = (at..end, lines);
                let mut block = LineBlock { part, sink, lines, words, first, prefetched, every: 0 };
                let passes = passes::<A>(part.m.len());
                for pass in 0..passes {
                    // Passes of about as many rows each: few rows have few chains of sums.
                    let left = part.m.end - m;
                    let rows = left.div_ceil(passes - pass);
                    let of = m..m + rows;
                    block.choose_prefetch::<L>(pass, passes);
                    match rows {
                        1 => block.rows::<A, L, 1>(of),
                        2 => block.rows::<A, L, 2>(of),
                        5 if A::V::N == 8 => block.rows::<A, L, 5>(of),
                        6 if A::V::N == 8 => block.rows::<A, L, 6>(of),
                        5.. if A::V::N == 16 => block.rows::<A, L, 8>(of),
                        _ => block.rows::<A, L, 4>(of),
                    }
                    m += rows;
                }
            }
        }
    }
}

/// How often a block of lines is read for `rows` activation rows, whose sums are in registers. Six
/// rows of eight lanes fit, and take longer for a row than five do: their addresses leave
/// registers.
#[inline(always)]
fn passes<A: Mac>(rows: usize) -> usize {
    match A::V::N {
        16 => rows.div_ceil(8),
        8 if rows == 6 => 1,
        8 => rows.div_ceil(5),
        _ => rows.div_ceil(4),
    }
}

/// Some columns of a panel.
struct LineBlock<'a, 'b, 'p> {
    part: &'p ProductPart<'a>,
    sink: &'p Sink<'a, 'b>,
    /// The first line.
    lines: *const u8,
    words: Range<usize>,
    /// First weight row.
    first: usize,
    /// The first line that is prefetched meanwhile.
    prefetched: *const u8,
    /// Its followers are prefetched at every line, or at every second, fourth, ...: this is the
    /// exponent.
    every: u32,
}

impl LineBlock<'_, '_, '_> {
    /// Says what a pass over the lines asks memory for. Several passes share out the next block, so
    /// that memory is busy in all of them.
    #[inline(always)]
    fn choose_prefetch<L: LineReader>(&mut self, pass: usize, passes: usize) {
        self.every = passes.ilog2();
        let lines = self.words.len().div_ceil(L::WORDS);
        let share = pass * (lines >> self.every);
        self.prefetched = match passes {
            1 => self.lines.wrapping_add(PREFETCH_DISTANCE),
            _ if share < lines => self.lines.wrapping_add((lines + share) * LINE),
            // The next block is asked for.
            _ => self.lines,
        };
    }

    /// Some activation rows, at least one and at most `M`; the last one stands in for those that
    /// are not there.
    ///
    /// # Safety
    /// The rows are the part's; the lines hold all words.
    #[inline(always)]
    unsafe fn rows<A: Mac, L: LineReader, const M: usize>(&self, of: Range<usize>) {
        let (p, end) = (&self.part.product, self.words.end);
        let registers = ROWS / A::V::N;
        // SAFETY: by the caller.
        unsafe {
            let xs: [_; M] = std::array::from_fn(|i| p.x.row((of.start + i).min(of.end - 1), end));
            let mut acc = [[A::V::splat(0.0); MAX_REGISTERS]; M];
            let mut line = self.lines;
            for (i, k) in self.words.clone().step_by(L::WORDS).enumerate() {
                prefetch::once(self.prefetched.wrapping_add((i >> self.every) * LINE));
                for word in 0..L::WORDS {
                    // Of the last line, the last column may be none.
                    if word > 0 && k + word >= end {
                        break;
                    }
                    let mut w = [A::V::splat(0.0); MAX_REGISTERS];
                    for (r, w) in w.iter_mut().take(registers).enumerate() {
                        *w = L::word::<A::V>(line, r * A::V::N, word);
                    }
                    for (x, acc) in xs.iter().zip(&mut acc) {
                        let x = A::V::splat(*x.add(k + word));
                        for (acc, w) in acc.iter_mut().zip(w).take(registers) {
                            *acc = A::mac(x, w, *acc);
                        }
                    }
                }
                line = line.wrapping_add(LINE);
            }
            for (m, acc) in of.zip(acc) {
                let y = p.y.at(m, p.weight.rows);
                for (r, acc) in acc.into_iter().take(registers).enumerate() {
                    let n = self.first + r * A::V::N;
                    if n < self.part.n.end {
                        self.sink.put(y, n, self.part.n.end - n, acc);
                    }
                }
            }
        }
    }
}

/// The `words` words from word `at` on of the weight rows from `n` on, `width` side by side.
///
/// # Safety
/// The weight is packed and has the words; `n` begins a panel, and `at` a line.
#[inline(always)]
pub(super) unsafe fn copy<A: Mac>(
    p: &Product<'_>,
    n: usize,
    at: usize,
    words: usize,
    to: &mut [f32],
    width: usize,
) {
    // SAFETY: passed on.
    unsafe { by_lines!(A, p.weight.dtype, copy_lines::<A::V>(p, n, at, words, to, width)) }
}

/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn copy_lines<V: Lanes, L: LineReader>(
    p: &Product<'_>,
    n: usize,
    at: usize,
    words: usize,
    to: &mut [f32],
    width: usize,
) {
    assert!(to.len() >= words * width && width.is_multiple_of(ROWS), "memory of a panel");
    for g in (0..width.min(p.weight.rows - n)).step_by(ROWS) {
        // SAFETY: by the caller; there is room for all words.
        unsafe {
            let from = panel(p, n + g).add(at / L::WORDS * LINE);
            let starts = (0..words).step_by(L::WORDS);
            for (i, k) in starts.enumerate() {
                let line = from.add(i * LINE);
                prefetch::once(line.wrapping_add(PREFETCH_DISTANCE));
                for word in 0..L::WORDS.min(words - k) {
                    for lane in (0..ROWS).step_by(V::N) {
                        let v = L::word::<V>(line, lane, word);
                        v.store(to.as_mut_ptr().add((k + word) * width + g + lane));
                    }
                }
            }
        }
    }
}
