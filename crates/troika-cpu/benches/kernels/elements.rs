//! Norms, rotary embeddings and gates: bytes in and out.

use std::sync::Arc;

use divan::Bencher;
use divan::counter::BytesCount;
use troika_cpu::Isa;
use troika_cpu::kernels::elementwise::{Element, elementwise};
use troika_cpu::kernels::norm::{Norm, norm};
use troika_cpu::kernels::rope::rope;
use troika_device::{ForwardBatch, SeqRows};
use troika_graph::{Activation, Rope, RopeFreqs, RopeStyle};

use crate::{floats, with};

const ROWS: [usize; 2] = [1, 512];

#[divan::bench(args = ROWS)]
fn rms_norm(bencher: Bencher<'_, '_>, rows: usize) {
    let group = 1024;
    let (x, w) = (floats(rows * group), floats(group));
    let mut y = vec![0.0; x.len()];
    with(Isa::detect(), |cx| {
        bencher.counter(BytesCount::new(x.len() * 8)).bench_local(|| {
            let n = Norm::Rms { weight: Some(&w), eps: 1e-6, offset: 0.0 };
            norm(cx, n, &x, &mut y, group).expect("no panic")
        });
    });
}

#[divan::bench(args = ROWS)]
fn rope_half(bencher: Bencher<'_, '_>, rows: usize) {
    let (dim, cols) = (128, 16 * 128);
    let inv_freq = (0..dim / 2).map(|i| 1e6f32.powf(-2.0 * i as f32 / dim as f32));
    let op = Rope {
        head_dim: dim,
        offset: 0,
        rotary_dim: dim,
        style: RopeStyle::Half,
        freqs: RopeFreqs {
            inv_freq: Arc::from(inv_freq.collect::<Vec<_>>()),
            factor: 1.0,
            growth: None,
        },
        long: None,
    };
    let seq = SeqRows { seq: 0, rows: 0..rows, pos: 100, known_len: 0, tables: vec![] };
    let forward = ForwardBatch { seqs: vec![seq] };
    let positions: Vec<i32> = (0..rows).map(|i| 100 + i as i32).collect();
    let x = floats(rows * cols);
    let mut y = vec![0.0; x.len()];
    with(Isa::detect(), |cx| {
        bencher
            .counter(BytesCount::new(x.len() * 8))
            .bench_local(|| rope(cx, &op, &forward, &x, &positions, &mut y).expect("no panic"));
    });
}

#[divan::bench(args = ROWS)]
fn swiglu(bencher: Bencher<'_, '_>, rows: usize) {
    let (a, b) = (floats(rows * 3072), floats(rows * 3072));
    let mut y = vec![0.0; a.len()];
    with(Isa::detect(), |cx| {
        bencher.counter(BytesCount::new(a.len() * 12)).bench_local(|| {
            let op = Element::Gate(Activation::Silu);
            elementwise(cx, op, &a, Some(&b), &mut y).expect("no panic")
        });
    });
}
