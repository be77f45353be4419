//! The plain references: what every kernel is checked against.

use half::bf16;
use troika_cpu::kernels::attention;
use troika_cpu::kernels::elementwise::{Element, gelu};
use troika_cpu::kernels::kv::CacheRef;
use troika_cpu::kernels::linear::bf16::Instruction;
use troika_cpu::kernels::linear::bf16::scalar::{dot, flush};
use troika_cpu::kernels::linear::{BLOCK, WeightView};
use troika_cpu::kernels::moe::{self, Expert};
use troika_cpu::kernels::norm::Norm;
use troika_device::{ForwardBatch, SeqRows};
use troika_graph::{Activation, Rope, RopeFreqs, RopeStyle, blocks};

/// `y = x * W^T + b`, element by element, summed in f64.
pub fn linear(weight: WeightView<'_>, bias: Option<&[f32]>, x: &[f32], y: &mut [f32]) {
    let mut row = vec![0.0; weight.cols];
    for (n, bytes) in weight.bytes.chunks_exact(weight.row_bytes()).enumerate() {
        blocks::dequantize(weight.dtype, bytes, &mut row);
        for (x, y) in x.chunks_exact(weight.cols).zip(y.chunks_exact_mut(weight.rows)) {
            let dot: f64 = x.iter().zip(&row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            y[n] = (dot + bias.map_or(0.0, |b| f64::from(b[n]))) as f32;
        }
    }
}

/// `acc` and up to 16 pairs: the sum of the lower products and the sum of the upper ones, each from
/// zero, are added, then their sum to `acc` (a row of `tdpbf16ps`; there are always 16 pairs, the
/// last ones zeros).
pub fn dot_tile(acc: f32, x: &[bf16], w: &[bf16]) -> f32 {
    let number = |v: &[bf16], i: usize| flush(v.get(i).map_or(0.0, |v| v.to_f32()));
    let [lower, upper] = [0, 1].map(|half| {
        let products = (half..32).step_by(2).map(|i| (number(x, i), number(w, i)));
        products.fold(0.0, |sum, (x, w)| flush(x.mul_add(w, sum)))
    });
    flush(flush(acc) + flush(lower + upper))
}

/// A product of rows, summed as the kernels do it: blocks of [`BLOCK`] pairs.
pub fn bf16_linear(
    by: Instruction,
    w: &[bf16],
    bias: Option<&[f32]>,
    x: &[f32],
    k: usize,
    y: &mut [f32],
) {
    let n = w.len() / k;
    let pair = |v: &[bf16]| [v[0], v.get(1).copied().unwrap_or(bf16::ZERO)];
    for (x, y) in x.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
        let x: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
        for (i, (y, w)) in y.iter_mut().zip(w.chunks_exact(k)).enumerate() {
            let cols = 2 * BLOCK;
            let block = |(x, w): (&[bf16], &[bf16])| match by {
                Instruction::Registers => {
                    let pairs = x.chunks(2).zip(w.chunks(2));
                    pairs.fold(0.0, |acc, (x, w)| dot(acc, pair(x), pair(w)))
                }
                Instruction::Tiles => {
                    let tiles = x.chunks(32).zip(w.chunks(32));
                    tiles.fold(0.0, |acc, (x, w)| dot_tile(acc, x, w))
                }
            };
            let blocks = x.chunks(cols).zip(w.chunks(cols)).map(block);
            let sum = blocks.reduce(|a, b| a + b).unwrap_or(0.0);
            *y = bias.map_or(sum, |b| sum + b[i]);
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `act(g)`, or with `u` `act(g) * u`.
pub fn activate(act: Activation, g: f32, u: Option<f32>) -> f32 {
    let (x, u) = (f64::from(g), u.map(f64::from));
    let y = match act {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => f64::from(gelu(g)),
        Activation::GeluTanh => {
            let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + z.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        Activation::Sigmoid => sigmoid(x),
        Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Activation::Xielu { alpha_p, .. } if x > 0.0 => f64::from(alpha_p) * x * x + 0.5 * x,
        Activation::Xielu { alpha_n, .. } => {
            f64::from(alpha_n) * (x.min(-1e-6).exp_m1() - x) + 0.5 * x
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let limit = f64::from(limit);
            let g = x.min(limit);
            let u = u.unwrap_or(0.0).clamp(-limit, limit);
            return (g * sigmoid(f64::from(alpha) * g) * (u + 1.0)) as f32;
        }
    };
    (y * u.unwrap_or(1.0)) as f32
}

/// One element of any op.
pub fn element(op: Element, a: f32, b: f32) -> f32 {
    match op {
        Element::Activate(act) => activate(act, a, None),
        Element::Gate(act) => activate(act, a, Some(b)),
        Element::Add => a + b,
        Element::Scale(f) => a * f,
        Element::Clamp(limit) => a.clamp(-limit, limit),
        Element::SoftCap(cap) => (f64::from(cap) * (f64::from(a) / f64::from(cap)).tanh()) as f32,
    }
}

/// Normalises one group, in f64.
pub fn norm(norm: Norm<'_>, x: &[f32], y: &mut [f32]) {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let square = |shift: f64| x.iter().map(|x| (f64::from(*x) - shift).powi(2)).sum::<f64>() / n;
    for (i, y) in y.iter_mut().enumerate() {
        let x = f64::from(x[i]);
        *y = match norm {
            Norm::Rms { weight, eps, offset } => {
                let w = weight.map_or(1.0, |w| f64::from(offset) + f64::from(w[i]));
                (x / (square(0.0) + f64::from(eps)).sqrt() * w) as f32
            }
            Norm::Layer { weight, bias, eps } => {
                let z = (x - mean) / (square(mean) + f64::from(eps)).sqrt();
                let b = bias.map_or(0.0, |b| f64::from(b[i]));
                (z * f64::from(weight[i]) + b) as f32
            }
            Norm::Columns(weight) => (x * f64::from(weight[i])) as f32,
            Norm::Match { like, least } => {
                let like = like.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n;
                (x * (like / square(0.0).max(f64::from(least))).sqrt()) as f32
            }
            Norm::Largest { deviations } => {
                (x - mean - f64::from(deviations) * square(mean).sqrt()).max(0.0) as f32
            }
        };
    }
}

/// Rotates one head at a position, in f64 from the f32 angle on.
pub fn rope_head(rope: &Rope, freqs: &RopeFreqs, pos: i32, x: &[f32], y: &mut [f32]) {
    y.copy_from_slice(x);
    let half = rope.rotary_dim / 2;
    let growth = freqs
        .growth
        .map_or(1.0, |g| 1.0 + f64::from(g.beta) * (1.0 + (pos as usize / g.original) as f64).ln());
    let factor = f64::from(freqs.factor) * growth;
    for i in 0..half {
        let angle = f64::from(pos as f32 * freqs.inv_freq[i]);
        let (sin, cos) = angle.sin_cos();
        let (sin, cos) = (sin * factor, cos * factor);
        let (a, b) = match rope.style {
            RopeStyle::Half => (i, i + half),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (a, b) = (a + rope.offset, b + rope.offset);
        let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
        y[a] = (xa * cos - xb * sin) as f32;
        y[b] = (xb * cos + xa * sin) as f32;
    }
}

/// Writes rows one by one into an f32 cache.
pub fn append(
    forward: &ForwardBatch,
    page_group: usize,
    x: &[f32],
    width: usize,
    cache: &mut [f32],
) {
    for s in &forward.seqs {
        for row in s.rows.clone() {
            if let Some(at) = s.tables[page_group].row(s.pos + row - s.rows.start) {
                cache[at * width..][..width].copy_from_slice(&x[row * width..][..width]);
            }
        }
    }
}

/// `s = decay * s + x` for each row of a sequence.
pub fn decaying_sum(x: &[f32], width: usize, decay: f32) -> Vec<f32> {
    let mut sums = x.to_vec();
    for i in width..x.len() {
        sums[i] += decay * sums[i - width];
    }
    sums
}

fn at(cache: CacheRef<'_>, i: usize) -> f64 {
    match cache {
        CacheRef::F32(c) => f64::from(c.get(i)),
        CacheRef::F16(c) => f64::from(c.get(i).to_f32()),
        CacheRef::BF16(c) => f64::from(c.get(i).to_f32()),
    }
}

/// One row of a sequence and one head, in f64, without online softmax.
pub fn attention_line(
    x: &attention::Operands<'_>,
    seq: &SeqRows,
    row: usize,
    head: usize,
    out: &mut [f32],
) {
    let op = x.op;
    let pos = seq.pos + row - seq.rows.start;
    let kv = head / (op.heads / op.kv_heads);
    let q = &x.q[(row * op.heads + head) * op.k_dim..][..op.k_dim];
    let table = &seq.tables[op.page_group];
    let visible = op.window.map_or(0, |w| (pos + 1).saturating_sub(w))..pos + 1;
    let rows: Vec<usize> = visible.map(|p| table.row(p).unwrap()).collect();
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

/// Experts of one row after another.
pub fn experts(x: &moe::Operands<'_, Expert<'_, WeightView<'_>>>, y: &mut [f32]) {
    y.fill(0.0);
    for (row, y) in y.chunks_exact_mut(x.k).enumerate() {
        let input = &x.x[row * x.k..][..x.k];
        for slot in row * x.top_k..(row + 1) * x.top_k {
            let e = (x.expert)(x.ids[slot] as usize);
            let (mut gate, mut up) = (vec![0.0; x.inter], vec![0.0; x.inter]);
            linear(e.gate, e.bias[0], input, &mut gate);
            linear(e.up, e.bias[1], input, &mut up);
            let hidden: Vec<f32> =
                gate.iter().zip(&up).map(|(g, u)| activate(x.act, *g, Some(*u))).collect();
            let mut down = vec![0.0; x.k];
            linear(e.down, e.bias[2], &hidden, &mut down);
            y.iter_mut().zip(&down).for_each(|(y, d)| *y += x.weights[slot] * d);
        }
    }
}
