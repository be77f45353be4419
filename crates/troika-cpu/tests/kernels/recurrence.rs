//! Recurrences, compared with plain references.

use troika_cpu::kernels::KernelError;
use troika_cpu::kernels::kv::CacheMut;
use troika_cpu::kernels::recurrence::{self, short_conv};
use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::{DecayingSum, ShortConv, StateKind, WeightRef};

use crate::{Random, reference, runnable, with};

const PAGE: usize = 4;

/// A sequence's rows behind `pos` positions.
fn batch(pos: usize, rows: usize) -> ForwardBatch {
    let pages = vec![3, 0, 4, 1, 2];
    let table = PageTable::new(StateKind::Fixed, PAGE, pages);
    let known_len = pos + rows;
    let seq = SeqRows { seq: 1, rows: 0..rows, pos, known_len, tables: vec![table] };
    ForwardBatch { seqs: vec![seq] }
}

#[test]
fn sums_go_on_from_chunk_to_chunk() {
    let (width, len) = (150, 18);
    let op = DecayingSum { width, decay: 0.75, page_group: 0 };
    let x = Random(5).floats(width * len);
    let want = reference::decaying_sum(&x, width, op.decay);
    for isa in runnable() {
        for (chunk, threads) in [(1, 1), (3, 2), (4, 3), (5, 1), (len, 4)] {
            let mut state = vec![f32::NAN; 5 * width];
            for from in (0..len).step_by(chunk) {
                let to = (from + chunk).min(len);
                let (forward, mut y) =
                    (batch(from, to - from), vec![f32::NAN; (to - from) * width]);
                let x = &x[from * width..to * width];
                with(isa, threads, |cx| {
                    let CacheMut::F32(state) = CacheMut::f32(&mut state) else { panic!() };
                    recurrence::decaying_sum(cx, &forward, &op, state, x, &mut y).unwrap();
                });
                assert_eq!(y, &want[from * width..to * width], "{chunk} rows from {from}");
                // The sums at the ends of pages, and behind the last row, are kept.
                let table = &forward.seqs[0].tables[0];
                for pos in (PAGE - 1..to).step_by(PAGE).chain([to - 1]) {
                    let row = table.row(pos).unwrap() * width;
                    assert_eq!(state[row..row + width], want[pos * width..][..width], "{pos}");
                }
            }
        }
    }
}

#[test]
fn positions_without_a_row_are_errors() {
    let op = DecayingSum { width: 2, decay: 0.5, page_group: 0 };
    let mut paged = batch(0, 2);
    paged.seqs[0].tables[0].fixed = false;
    let mut passed = batch(8, 2);
    passed.seqs[0].tables[0].first = 2;
    for forward in [paged, passed, batch(20, 2), batch(6, 4)] {
        let rows = forward.rows();
        let (mut state, mut y) = (vec![0.0; 4 * 2], vec![0.0; rows * 2]);
        let x = vec![1.0; rows * 2];
        with(runnable().next().unwrap(), 1, |cx| {
            let CacheMut::F32(state) = CacheMut::f32(&mut state) else { panic!() };
            let refused = recurrence::decaying_sum(cx, &forward, &op, state, &x, &mut y);
            assert!(matches!(refused, Err(KernelError::Operand(_))), "{forward:?}: {refused:?}");
        });
    }
}

/// `silu(bias + sum of the last inputs)`, the inputs and results gated.
fn convolved(op: &ShortConv, weight: &[f32], bias: &[f32], x: &[f32]) -> Vec<f32> {
    let (width, taps) = (op.width, op.taps);
    let input = |row: usize, c: usize| {
        let x = &x[row * op.input().unwrap()..];
        f64::from(if op.gated { x[c] * x[2 * width + c] } else { x[c] })
    };
    let one = |i: usize| {
        let (row, c) = (i / width, i % width);
        let mut sum = f64::from(bias[c]);
        for tap in (0..taps).filter(|tap| row + tap + 1 >= taps) {
            sum += f64::from(weight[tap * width + c]) * input(row + tap + 1 - taps, c);
        }
        let y = if op.silu { sum / (1.0 + (-sum).exp()) } else { sum };
        let gate = if op.gated { x[row * 3 * width + width + c] } else { 1.0 };
        (y * f64::from(gate)) as f32
    };
    (0..x.len() / op.input().unwrap() * width).map(one).collect()
}

#[test]
fn convolutions_go_on_from_chunk_to_chunk() {
    let (width, taps, len) = (150, 4, 18);
    for gated in [false, true] {
        let weight = WeightRef(0);
        let op = ShortConv { weight, bias: None, width, taps, silu: !gated, gated, page_group: 0 };
        let wide = op.input().unwrap();
        let x = Random(6).floats(wide * len);
        let (weight, bias) = (Random(7).floats(taps * width), Random(8).floats(width));
        let want = convolved(&op, &weight, &bias, &x);
        for isa in runnable() {
            let mut whole = Vec::new();
            for (chunk, threads) in [(len, 4), (1, 1), (2, 2), (3, 2), (5, 1)] {
                let mut state = vec![f32::NAN; 5 * (taps - 1) * width];
                let mut all = Vec::new();
                for from in (0..len).step_by(chunk) {
                    let rows = chunk.min(len - from);
                    let (forward, mut y) = (batch(from, rows), vec![f32::NAN; rows * width]);
                    let x = &x[from * wide..(from + rows) * wide];
                    with(isa, threads, |cx| {
                        let CacheMut::F32(state) = CacheMut::f32(&mut state) else { panic!() };
                        let (op, bias, forward) = (&op, Some(&*bias), &forward);
                        let weight = &weight;
                        let x = short_conv::Operands { op, weight, bias, forward, state, x };
                        short_conv::short_conv(cx, x, &mut y).unwrap();
                    });
                    all.extend(y);
                }
                for (got, want) in all.iter().zip(&want) {
                    assert!((got - want).abs() <= 1e-5, "{got}, not {want}");
                }
                if whole.is_empty() {
                    whole = all;
                } else {
                    assert_eq!(whole, all, "{chunk} rows at once");
                }
            }
        }
    }
}
