//! Where the keys and values of a block lie, and which of them each line sees.

use std::ops::Range;

use troika_device::PageTable;

use super::part::{AttentionPart, MAX_LINES};
use super::{KEY_BLOCK, Operands};
use crate::SharedRef;
use crate::kernels::kv::CacheRef;

/// Type of a cache's elements.
#[derive(Clone, Copy)]
pub(super) enum Element {
    F32,
    F16,
    BF16,
}

/// Calls a function for the arithmetic and an element type's rows; only what reads the caches is
/// compiled for each type. Pairs are of bf16.
macro_rules! by_element {
    ($element:expr, $m:ident :: $f:ident, $a:ty, ($($arg:expr),*)) => {
        match $element {
            _ if <$a>::PAIRS => $m::$f::<$a, Pairs>($($arg),*),
            Element::F32 => $m::$f::<$a, F32Row>($($arg),*),
            Element::F16 => $m::$f::<$a, F16Row>($($arg),*),
            Element::BF16 => $m::$f::<$a, Bf16Row>($($arg),*),
        }
    };
}
pub(super) use by_element;

/// Key and value memory of one element type.
#[derive(Clone, Copy)]
pub(super) struct Caches {
    pub k: *const u8,
    pub v: *const u8,
    pub element: Element,
    /// Bytes of an element.
    pub size: usize,
}

impl Caches {
    pub fn new(keys: CacheRef<'_>, values: CacheRef<'_>) -> Caches {
        match (keys, values) {
            (CacheRef::F32(k), CacheRef::F32(v)) => Caches::of(k, v, Element::F32),
            (CacheRef::F16(k), CacheRef::F16(v)) => Caches::of(k, v, Element::F16),
            (CacheRef::BF16(k), CacheRef::BF16(v)) => Caches::of(k, v, Element::BF16),
            _ => unreachable!("caches of two types are refused when compiled"),
        }
    }

    fn of<T: Copy>(k: SharedRef<'_, T>, v: SharedRef<'_, T>, element: Element) -> Caches {
        Caches { k: k.as_ptr().cast(), v: v.as_ptr().cast(), element, size: size_of::<T>() }
    }
}

/// A block of positions. Offsets are in bytes, for key/value head 0. Positions that are not kept
/// have the offset of one that is, so that every offset may be read.
#[derive(Clone, Copy)]
pub(super) struct KeyBlock {
    /// First position of the block: a multiple of [`KEY_BLOCK`].
    pub start: usize,
    pub k: [usize; KEY_BLOCK],
    pub v: [usize; KEY_BLOCK],
}

impl KeyBlock {
    /// Finds the positions `at`, which lie in one block and are kept.
    #[inline(always)]
    pub fn locate(x: &Operands<'_>, size: usize, table: &PageTable, at: Range<usize>) -> KeyBlock {
        let k_bytes = x.op.kv_heads * x.op.k_dim * size;
        let v_bytes = x.value_width() * size;
        let start = at.start / KEY_BLOCK * KEY_BLOCK;
        let first = table.row(at.start).unwrap_or(0);
        let (k, v) = ([first * k_bytes; KEY_BLOCK], [first * v_bytes; KEY_BLOCK]);
        let mut block = KeyBlock { start, k, v };
        let mut pos = at.start;
        while pos < at.end {
            // Checked before: every visible position has a row inside of the caches. The rows of
            // a page are neighbours.
            let row = table.row(pos).unwrap_or(0);
            let end = ((pos / table.page_len + 1) * table.page_len).min(at.end);
            for (i, pos) in (pos..end).enumerate() {
                block.k[pos - start] = (row + i) * k_bytes;
                block.v[pos - start] = (row + i) * v_bytes;
            }
            pos = end;
        }
        block
    }
}

/// The keys of a block that the lines of one key/value head see: all are ranges of consecutive
/// keys, counted from the block's first position.
pub(super) struct Seen {
    from: [u8; MAX_LINES],
    to: [u8; MAX_LINES],
    /// Whether every line sees the whole block.
    whole: bool,
}

impl Seen {
    /// For `lines` lines. Lines past the part's own see what its last one sees.
    #[inline(always)]
    pub fn new(part: &AttentionPart<'_>, start: usize, lines: usize) -> Seen {
        let mut seen = Seen { from: [0; MAX_LINES], to: [0; MAX_LINES], whole: true };
        let heads = part.heads.len();
        let mut line = 0;
        for row in part.rows.clone() {
            let v = part.x.visible(part.seq.pos + row);
            let to = v.end.saturating_sub(start).min(KEY_BLOCK);
            let from = v.start.saturating_sub(start).min(to);
            seen.whole &= from == 0 && to == KEY_BLOCK;
            seen.from[line..line + heads].fill(from as u8);
            seen.to[line..line + heads].fill(to as u8);
            line += heads;
        }
        for i in line..lines.max(line) {
            (seen.from[i], seen.to[i]) = (seen.from[line - 1], seen.to[line - 1]);
        }
        seen
    }

    /// Keys a line sees.
    #[inline(always)]
    pub fn by(&self, line: usize) -> Range<usize> {
        usize::from(self.from[line])..usize::from(self.to[line])
    }

    /// The smallest range with all keys that some of these lines sees.
    #[inline(always)]
    pub fn by_any(&self, lines: Range<usize>) -> Range<usize> {
        if self.whole {
            return 0..KEY_BLOCK;
        }
        let (mut from, mut to) = (KEY_BLOCK as u8, 0);
        for i in lines {
            // A line that sees nothing does not count.
            if self.from[i] < self.to[i] {
                (from, to) = (from.min(self.from[i]), to.max(self.to[i]));
            }
        }
        usize::from(from.min(to))..usize::from(to)
    }

    /// Keys that all of these lines see, and whether there are no others.
    #[inline(always)]
    pub fn by_all(&self, lines: Range<usize>) -> (Range<usize>, bool) {
        if self.whole {
            return (0..KEY_BLOCK, true);
        }
        let (mut from, mut to) = (0, KEY_BLOCK as u8);
        let (mut low, mut high) = (KEY_BLOCK as u8, 0);
        for i in lines {
            (from, to) = (from.max(self.from[i]), to.min(self.to[i]));
            (low, high) = (low.min(self.from[i]), high.max(self.to[i]));
        }
        (usize::from(from)..usize::from(to), from == low && to == high)
    }
}
