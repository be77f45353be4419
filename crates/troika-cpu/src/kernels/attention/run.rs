//! Running a part: its lines go over the blocks of its splits.

use std::ops::Range;

use troika_graph::Attention;

use super::block::{Caches, Element, KeyBlock, Seen, by_element};
use super::large_q::RowPrefetch;
use super::part::{AttentionPart, MAX_LINES, SMALL_Q_LINES, Target};
use super::softmax::{Scores, Total, merge};
use super::{KEY_BLOCK, SPLIT, large_q, small_q};
use crate::kernels::linear::{Bf16Row, F16Row, F32Row, Pairs};
use crate::kernels::simd::{Lanes, MAX_LANES, Mac, part_of};

/// Elements of a query and of an accumulator, rounded up to whole registers of all lanes.
pub(super) fn padded(op: &Attention) -> (usize, usize) {
    let pad = |n: usize| n.next_multiple_of(MAX_LANES * large_q::ACROSS);
    (pad(op.k_dim), pad(op.v_dim))
}

/// Words of a query rounded up to whole registers.
#[inline(always)]
fn k_pad<A: Mac>(op: &Attention) -> usize {
    A::words(op.k_dim).next_multiple_of(A::V::N)
}

/// Scratch floats a worker needs.
pub fn worker_floats(op: &Attention) -> usize {
    let (k_pad, v_pad) = padded(op);
    MAX_LINES * (k_pad + 2 * v_pad + KEY_BLOCK + 5) + KEY_BLOCK * (k_pad + v_pad)
}

/// The memory of a part.
struct PartMemory<'a> {
    q: &'a mut [f32],
    acc: &'a mut [f32],
    all: &'a mut [f32],
    scores: &'a mut [f32],
    shrink: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// Of the split at hand, and of all so far.
    totals: [[Total; MAX_LINES]; 2],
}

impl<'a> PartMemory<'a> {
    fn new(scratch: &'a mut [f32], lines: usize, k_pad: usize, v_pad: usize) -> PartMemory<'a> {
        let (q, rest) = scratch.split_at_mut(lines * k_pad);
        let (acc, rest) = rest.split_at_mut(lines * v_pad);
        let (all, rest) = rest.split_at_mut(lines * v_pad);
        let (scores, rest) = rest.split_at_mut(lines * KEY_BLOCK);
        let (keys, rest) = rest.split_at_mut(KEY_BLOCK * k_pad);
        let (values, rest) = rest.split_at_mut(KEY_BLOCK * v_pad);
        let shrink = &mut rest[..lines];
        q.fill(0.0);
        all.fill(0.0);
        let totals = [[Total::NONE; MAX_LINES]; 2];
        PartMemory { q, acc, all, scores, shrink, keys, values, totals }
    }
}

/// Runs a part.
#[inline(always)]
pub(super) fn run<A: Mac>(mut part: AttentionPart<'_>) {
    let caches = Caches::new(part.x.keys, part.x.values);
    let small_q = part.per_head() <= SMALL_Q_LINES;
    let count = part.per_head() * part.kv_heads.len();
    let lines = if small_q { count } else { count.next_multiple_of(large_q::tile_lines::<A::V>()) };
    assert!(lines <= MAX_LINES && (small_q || part.kv_heads.len() == 1), "lines of a part");
    let (_, v_pad) = padded(part.x.op);
    let scratch = std::mem::take(&mut part.scratch);
    let mut work = PartMemory::new(scratch, lines, k_pad::<A>(part.x.op), v_pad);
    if !small_q {
        // Elements past the last one are multiplied, too, though never looked at.
        work.values.fill(0.0);
    }
    queries::<A>(&part, &mut work, small_q);
    for split in part.splits.clone() {
        let at = part.seen(split * SPLIT..(split + 1) * SPLIT);
        if at.is_empty() {
            continue;
        }
        work.acc.fill(0.0);
        work.totals[0] = [Total::NONE; MAX_LINES];
        // SAFETY: the positions are seen by lines of the part, and the caches are its own.
        unsafe {
            if small_q {
                small_q_lines::<A>(&part, &mut work, caches, at);
            } else {
                large_q_lines::<A>(&part, &mut work, caches, at);
            }
        }
        keep::<A::V>(&part, &mut work, split);
    }
    if let Target::Out(out) = part.to {
        for line in 0..count {
            let (row, head) = part.line(line);
            let v_dim = part.x.op.v_dim;
            let start = ((part.seq.rows.start + row) * part.x.op.heads + head) * v_dim;
            // SAFETY: a line of the part: `AttentionPart::new` was promised that it is alone.
            let out = unsafe { out.slice(start..start + v_dim) };
            let scale = work.totals[1][line].finish(part.x.sinks.map(|s| s[head]));
            let acc = &work.all[line * v_pad..][..v_dim];
            out.iter_mut().zip(acc).for_each(|(o, a)| *o = a * scale);
        }
    }
}

/// Scales the queries, and packs them where there are many lines.
#[inline(always)]
fn queries<A: Mac>(part: &AttentionPart<'_>, work: &mut PartMemory<'_>, small_q: bool) {
    let op = part.x.op;
    let k_pad = k_pad::<A>(op);
    let m = large_q::SCORE_LINES;
    for line in 0..part.per_head() * part.kv_heads.len() {
        let (row, head) = part.line(line);
        let row = part.seq.rows.start + row;
        let q = &part.x.q[(row * op.heads + head) * op.k_dim..][..op.k_dim];
        if small_q {
            query_words::<A>(q, op.scale, &mut work.q[line * k_pad..][..k_pad]);
        } else {
            // Memory that is free before the first block.
            let words = &mut work.keys[..k_pad];
            query_words::<A>(q, op.scale, words);
            large_q::pack_query::<A::V>(words, &mut work.q[line / m * m * k_pad + line % m..]);
        }
    }
}

/// A scaled query as words, zeros behind it.
#[inline(always)]
fn query_words<A: Mac>(q: &[f32], scale: f32, words: &mut [f32]) {
    let n = A::V::N;
    for (i, words) in words.chunks_exact_mut(n).enumerate() {
        let word = if A::PAIRS {
            A::pairs(scaled(q, 2 * i * n, scale), scaled(q, (2 * i + 1) * n, scale))
        } else {
            scaled(q, i * n, scale)
        };
        word.write_to(words);
    }
}

/// A register of the elements from `at` on, zeros past the last one, times `scale`.
#[inline(always)]
fn scaled<V: Lanes>(q: &[f32], at: usize, scale: f32) -> V {
    part_of::<V>(&q[at.min(q.len())..]).mul(V::splat(scale))
}

/// The block with position `pos` of the positions `at`, and which of its keys are meant; none past
/// the last position.
#[inline(always)]
fn block_at(
    part: &AttentionPart<'_>,
    size: usize,
    at: &Range<usize>,
    pos: usize,
) -> Option<(KeyBlock, Range<usize>)> {
    let end = ((pos / KEY_BLOCK + 1) * KEY_BLOCK).min(at.end);
    let table = &part.seq.tables[part.x.op.page_group];
    let block = (pos < end).then(|| KeyBlock::locate(&part.x, size, table, pos..end))?;
    Some((block, pos - block.start..end - block.start))
}

/// Block after block, each for all key/value heads.
///
/// # Safety
/// The caches belong to the part. Lines of it see the positions `at`, which belong to one split.
#[inline(always)]
unsafe fn small_q_lines<A: Mac>(
    part: &AttentionPart<'_>,
    work: &mut PartMemory<'_>,
    caches: Caches,
    at: Range<usize>,
) {
    let op = part.x.op;
    let (k_pad, (_, v_pad)) = (k_pad::<A>(op), padded(op));
    let (count, size, first) = (part.per_head(), caches.size, part.kv_heads.start);
    let (k_bytes, v_bytes) = (op.k_dim * size, part.x.value_width() / op.kv_heads * size);
    let mut next = block_at(part, size, &at, at.start);
    while let Some((block, range)) = next {
        next = block_at(part, size, &at, block.start + KEY_BLOCK);
        let seen = Seen::new(part, block.start, count);
        let rows = |base: *const u8, offsets, next, len, stride| small_q::CachedRows {
            base: base.wrapping_add(first * stride),
            offsets,
            end: range.end,
            next,
            len,
            stride,
            kv_heads: part.kv_heads.len(),
            rows: part.rows.len(),
            heads: part.heads.len(),
            seen: &seen,
        };
        let next = next.as_ref();
        let next_keys = next.map_or(&[][..], |(b, r)| &b.k[..r.end]);
        let next_values = next.map_or(&[][..], |(b, r)| &b.v[..r.end]);
        let keys = rows(caches.k, &block.k, next_keys, op.k_dim, k_bytes);
        let values = rows(caches.v, &block.v, next_values, op.v_dim, v_bytes);
        let (q, acc, scores) = (&*work.q, &mut *work.acc, &mut *work.scores);
        let mut lines = small_q::QueryLines { q, acc, scores, shrink: work.shrink, k_pad, v_pad };
        // SAFETY: passed on; the heads of a position's row.
        unsafe {
            if block.start <= at.start {
                keys.prefetch_first(range.start);
            }
            by_element!(caches.element, small_q::scores, A, (&mut lines, &keys));
            if block.start <= at.start {
                values.prefetch_first(range.start);
            }
            for kv in 0..part.kv_heads.len() {
                let of = |n: usize| kv * count * n..(kv + 1) * count * n;
                let scores = &mut lines.scores[of(KEY_BLOCK)];
                let (shrink, totals) = (&mut lines.shrink[of(1)], &mut work.totals[0][of(1)]);
                Scores { scores, shrink, totals }.weigh::<A>(op, &seen);
            }
            by_element!(caches.element, small_q::values, A, (&mut lines, &values));
        }
    }
}

/// Block after block.
///
/// # Safety
/// As for [`small_q_lines`].
#[inline(always)]
unsafe fn large_q_lines<A: Mac>(
    part: &AttentionPart<'_>,
    work: &mut PartMemory<'_>,
    caches: Caches,
    at: Range<usize>,
) {
    let op = part.x.op;
    let (k_pad, (_, v_pad)) = (k_pad::<A>(op), padded(op));
    let (count, kv) = (part.per_head(), part.kv_heads.start);
    let (size, element) = (caches.size, caches.element);
    let lines = count.next_multiple_of(large_q::tile_lines::<A::V>());
    let v_dim = part.x.value_width() / op.kv_heads;
    let keys = caches.k.wrapping_add(kv * op.k_dim * size);
    let values = caches.v.wrapping_add(kv * v_dim * size);
    let (score_tiles, value_tiles) = large_q::tiles::<A::V>(lines, op.v_dim);
    let mut next = block_at(part, size, &at, at.start);
    while let Some((block, range)) = next {
        next = block_at(part, size, &at, block.start + KEY_BLOCK);
        let seen = Seen::new(part, block.start, lines);
        let next_keys = next.as_ref().map_or(&[][..], |(b, r)| &b.k[r.clone()]);
        let keys_prefetch = RowPrefetch::new(keys, next_keys, op.k_dim * size, value_tiles);
        let rows = &block.v[range.clone()];
        let values_prefetch = RowPrefetch::new(values, rows, op.v_dim * size, score_tiles);
        // SAFETY: passed on; head `kv` of a position's row.
        unsafe {
            let mut tiles = large_q::PackedLines {
                q: work.q,
                acc: work.acc,
                scores: work.scores,
                shrink: work.shrink,
                keys: work.keys,
                values: work.values,
                k_pad,
                v_pad,
                lines,
            };
            let (k_dim, v_dim, of_keys) = (op.k_dim, op.v_dim, range.clone());
            by_element!(element, large_q::pack_keys, A, (&mut tiles, &block, keys, k_dim, of_keys));
            large_q::scores::<A>(&mut tiles, &seen, values_prefetch);
            tiles.shrink.fill(1.0);
            let totals = &mut work.totals[0][..count];
            let (scores, shrink) = (&mut *tiles.scores, &mut *tiles.shrink);
            Scores { scores, shrink, totals }.weigh::<A>(op, &seen);
            by_element!(
                element,
                large_q::pack_values,
                A,
                (&mut tiles, &block, values, v_dim, range)
            );
            large_q::values::<A>(&mut tiles, &seen, op.v_dim, keys_prefetch);
        }
    }
}

/// Merges the results of a split with the results of the splits before it, or keeps them apart.
#[inline(always)]
fn keep<V: Lanes>(part: &AttentionPart<'_>, work: &mut PartMemory<'_>, split: usize) {
    assert!(part.splits.contains(&split), "a split of the part");
    let (_, v_pad) = padded(part.x.op);
    for line in 0..part.per_head() * part.kv_heads.len() {
        let (row, head) = part.line(line);
        let splits = part.x.splits(part.seq.pos + row);
        if !splits.contains(&split) {
            continue;
        }
        let (acc, total) = (&work.acc[line * v_pad..][..v_pad], work.totals[0][line]);
        match &part.to {
            Target::Out(_) => {
                let all = &mut work.all[line * v_pad..][..v_pad];
                merge::<V>(all, &mut work.totals[1][line], acc, total);
            }
            Target::Partials { floats, shape } => {
                let at = shape.at(part.seq.rows.start + row, head, split - splits.start);
                // SAFETY: of the part: `AttentionPart::new` was promised that it is alone.
                let to = unsafe { floats.slice(at) };
                to[..v_pad].copy_from_slice(acc);
                (to[v_pad], to[v_pad + 1]) = (total.max, total.sum);
            }
        }
    }
}
