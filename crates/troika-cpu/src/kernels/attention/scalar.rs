//! The plain reference.

use troika_device::SeqRows;

use super::Operands;
use crate::kernels::kv::CacheRef;

fn at(cache: CacheRef<'_>, i: usize) -> f64 {
    match cache {
        CacheRef::F32(c) => f64::from(c.get(i)),
        CacheRef::F16(c) => f64::from(c.get(i).to_f32()),
        CacheRef::BF16(c) => f64::from(c.get(i).to_f32()),
    }
}

/// One row of a sequence and one head, in f64, without online softmax.
///
/// # Panics
/// If a visible position is not kept.
#[expect(clippy::expect_used, reason = "a reference for tests, whose documentation says so")]
pub fn line(x: &Operands<'_>, seq: &SeqRows, row: usize, head: usize, out: &mut [f32]) {
    let op = x.op;
    let pos = seq.pos + row - seq.rows.start;
    let kv = head / (op.heads / op.kv_heads);
    let q = &x.q[(row * op.heads + head) * op.k_dim..][..op.k_dim];
    let table = &seq.tables[op.page_group];
    let rows: Vec<usize> = x.visible(pos).map(|p| table.row(p).expect("a kept position")).collect();
    let score = |row: &usize| {
        let start = row * op.kv_heads * op.k_dim + kv * op.k_dim;
        let dot: f64 =
            q.iter().enumerate().map(|(i, q)| f64::from(*q) * at(x.keys, start + i)).sum();
        let s = dot * f64::from(op.scale);
        op.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = rows.iter().map(score).collect();
    let sink = x.sinks.map(|s| f64::from(s[head]));
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
    let v_dim = if op.value_in_key { op.k_dim } else { op.v_dim };
    for (i, o) in out.iter_mut().enumerate() {
        let value = |(s, row): (&f64, &usize)| {
            (s - max).exp() * at(x.values, row * op.kv_heads * v_dim + kv * v_dim + i)
        };
        *o = (scores.iter().zip(&rows).map(value).sum::<f64>() / sum) as f32;
    }
}
