//! Kernels that serve several ops at once against plain code in double precision, or against those
//! that serve one.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;

use common::{ACTIVATIONS, BOUND, Numbers, act, dot, gated, loc, near, rounded, runner, weight};
use troika_gpu::kernels::{
    self, Around, FewRows, HeadNorm, Matrix, NormShape, Rotation, RotationAt, RowNorm, WeightFormat,
};
use troika_graph::{Activation, DType, Rope, RopeFreqs, RopeStyle};

/// Norms in front of products, with their weights and biases.
fn row_norms() -> [Option<RowNorm>; 4] {
    let norm = |layer, bias, offset| Some(RowNorm { layer, bias, eps: 1e-2, offset });
    [None, norm(false, false, 1.0), norm(true, false, 0.0), norm(true, true, 0.0)]
}

/// Rows of `cols` columns as a norm leaves them; `vectors` begin with its weight and its bias.
fn normed(norm: Option<RowNorm>, x: &[f32], cols: usize, vectors: &[f32]) -> Vec<f32> {
    let Some(norm) = norm else { return x.to_vec() };
    let line = |x: &[f32]| {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mean = if norm.layer { x.iter().sum::<f64>() / cols as f64 } else { 0.0 };
        let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
        let scale = 1.0 / (square + f64::from(norm.eps)).sqrt();
        let of = |(i, x): (usize, &f64)| {
            let bias = if norm.bias { vectors[cols + i] } else { 0.0 };
            ((x - mean) * scale * f64::from(norm.offset + vectors[i]) + f64::from(bias)) as f32
        };
        x.iter().enumerate().map(of).collect::<Vec<_>>()
    };
    x.chunks_exact(cols).flat_map(line).collect()
}

/// Floats of a norm among the vectors.
fn norm_floats(norm: Option<RowNorm>, cols: usize) -> usize {
    norm.map_or(0, |n| cols * (1 + usize::from(n.bias)))
}

#[test]
fn products_at_once_are_those_apart() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(12);
    for (dtype, cols) in [
        (DType::F32, 100),
        (DType::F16, 160),
        (DType::Q8_0, 64),
        (DType::Q4_0, 640),
        (DType::Q4_K, 256),
    ] {
        let format = WeightFormat::of(dtype).expect("a format");
        let weights = [37, 5, 18].map(|rows| weight(&mut n, dtype, rows, cols));
        let on = [0, 1, 2].map(|i| gpu.bytes(&weights[i].1));
        let of = |eight_bits| {
            let cols = cols as u32;
            [37, 5, 18].map(|rows| Matrix { format, rows, cols, first: 0, eight_bits })
        };
        let vectors = n.floats(2 * cols + 2 * 37);
        let vectors_on = gpu.floats(&vectors);
        // Norms are the same for all formats, and drivers take long to compile.
        let norms = if dtype == DType::F32 { 4 } else { 2 };
        let shapes = [1, 3, 1, 2].into_iter().zip(row_norms()).take(norms);
        let eight = [(1, row_norms()[0]), (4, row_norms()[1])];
        let eight = eight.into_iter().filter(|_| matches!(dtype, DType::Q8_0 | DType::Q4_0));
        for ((rows, norm), eight_bits) in shapes.map(|s| (s, false)).chain(eight.map(|s| (s, true)))
        {
            let x = n.floats(rows * cols);
            let x_on = gpu.floats(&x);
            let x = rounded(&normed(norm, &x, cols, &vectors), eight_bits);
            // What lies between two numbers of eight bits may become either.
            let bound = if eight_bits && norm.is_some() { 5e-3 } else { BOUND };
            let bias = norm_floats(norm, cols);
            // Its biases begin `skipped` floats behind the norm.
            let expected = |w: &[f32], outs: usize, skipped: usize| -> Vec<f64> {
                let of = |r: usize, o: usize| {
                    let product = dot(&x[r * cols..][..cols], &w[o * cols..][..cols]);
                    product + f64::from(vectors[bias + skipped + o])
                };
                (0..rows * outs).map(|at| of(at / outs, at % outs)).collect()
            };
            let few = FewRows { rows: rows as u32, norm, bias: Some(bias as u32) };
            let y = [37, 5, 18].map(|outs| gpu.floats(&vec![0.0; rows * outs]));
            let at = [loc(0, cols), loc(0, 37), loc(0, 5), loc(0, 18)];
            let d = kernels::linear_three(of(eight_bits), few, at).expect("one");
            let [a, b, c] = &y;
            gpu.run(&d, &[&on[0], &on[1], &on[2], &vectors_on, &x_on, a, b, c]);
            for (i, (outs, skipped)) in [(37, 0), (5, 37), (18, 42)].into_iter().enumerate() {
                let expected = expected(&weights[i].0, outs, skipped);
                let is = gpu.read_floats(&y[i]);
                near(&format!("{dtype} {rows} {i}"), &is[..expected.len()], &expected, bound);
            }
            // A gate and up.
            let (other, other_on) = weight(&mut n, dtype, 37, cols);
            let act = ACTIVATIONS[4];
            let at = [loc(0, cols), loc(0, 37)];
            let d = kernels::gate_up(of(eight_bits)[0], 37, act, few, at).expect("one");
            gpu.run(&d, &[&on[0], &gpu.bytes(&other_on), &vectors_on, &x_on, &y[0]]);
            let (gates, ups) = (expected(&weights[0].0, 37, 0), expected(&other, 37, 37));
            let expected: Vec<f64> =
                gates.into_iter().zip(ups).map(|(g, u)| gated(act, g, u)).collect();
            let is = gpu.read_floats(&y[0]);
            near(&format!("{dtype} gate"), &is[..expected.len()], &expected, bound);
        }
    }
}

#[test]
fn products_take_on_what_is_around_them() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(14);
    let outs = 37;
    for (dtype, cols) in [(DType::F32, 100), (DType::Q8_0, 288), (DType::Q4_1, 64)] {
        let (floats, packed) = weight(&mut n, dtype, outs, cols);
        let format = WeightFormat::of(dtype).expect("a format");
        let of =
            Matrix { format, rows: outs as u32, cols: cols as u32, first: 0, eight_bits: false };
        let w = gpu.bytes(&packed);
        let vectors = n.floats(2 * cols + outs);
        let vectors_on = gpu.floats(&vectors);
        for (rows, norm) in
            [(1, 1), (5, 3), (70, 0), (1, 2), (8, 1)].map(|(rows, i)| (rows, row_norms()[i]))
        {
            let x = n.floats(rows * cols);
            let [a, b] = [0, 1].map(|_| n.floats(rows * (outs + 1)));
            let gates = n.floats(rows);
            let [x_on, a_on, b_on, gates_on] = [&x, &a, &b, &gates].map(|x| gpu.floats(x));
            let (y, kept) =
                (gpu.floats(&vec![0.0; rows * outs]), gpu.floats(&vec![0.0; rows * cols]));
            let bias = norm_floats(norm, cols);
            let around = Around {
                norm,
                normed: norm.map(|_| loc(0, cols)),
                bias: Some(bias as u32),
                act: Some(Activation::Silu),
                gate: Some(loc(0, 1)),
                addends: [Some(loc(0, outs + 1)), Some(loc(1, outs + 1))],
            };
            let d = kernels::linear(of, rows as u32, &around, loc(0, cols), loc(0, outs));
            let bound = [&w, &vectors_on, &x_on, &y, &gates_on, &a_on, &b_on, &kept];
            gpu.run(&d.expect("one"), &bound);
            let x = normed(norm, &x, cols, &vectors);
            let expected: Vec<f64> = (0..rows * outs)
                .map(|at| {
                    let (r, o) = (at / outs, at % outs);
                    let v = dot(&x[r * cols..][..cols], &floats[o * cols..][..cols]);
                    let v = act(Activation::Silu, v + f64::from(vectors[bias + o]));
                    let gate = 1.0 / (1.0 + (-f64::from(gates[r])).exp());
                    let at = r * (outs + 1) + o;
                    v * gate + f64::from(a[at]) + f64::from(b.get(at + 1).copied().unwrap_or(0.0))
                })
                .collect();
            let is = gpu.read_floats(&y);
            near(&format!("{dtype} {rows}"), &is[..rows * outs], &expected, BOUND);
            if norm.is_some() {
                let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                near("kept rows", &gpu.read_floats(&kept)[..rows * cols], &wide, BOUND);
            }
        }
    }
}

/// One dispatch against the norms and rotations that it stands for.
#[test]
fn rotating_heads_at_once_is_what_it_is_apart() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(13);
    let (rows, heads, dim) = (3usize, [4usize, 2], 20);
    let inv = n.floats(8);
    let freqs = RopeFreqs { inv_freq: inv.clone().into(), factor: 1.0, growth: None };
    let x = heads.map(|heads| n.floats(rows * heads * dim));
    let positions = gpu.words(&[5, 6, 9]);
    let inv_on = gpu.floats(&inv);
    let fresh = |i: usize| gpu.floats(&vec![0.0; x[i].len()]);
    // Groups of one head, and of all.
    for (style, groups) in
        [(RopeStyle::Half, [dim; 2]), (RopeStyle::Interleaved, heads.map(|heads| heads * dim))]
    {
        let freqs = freqs.clone();
        let rope = Rope { head_dim: dim, offset: 2, rotary_dim: 16, style, freqs, long: None };
        let norms = n.floats(groups.iter().sum());
        let norms_on = gpu.floats(&norms);
        let x_on = [0, 1].map(|i| gpu.floats(&x[i]));
        let norm = HeadNorm { eps: 1e-5, offset: 1.0, groups: groups.map(|g| g as u32) };
        let of = Rotation {
            rope: &rope,
            factor: 1.25,
            growth: None,
            rows: rows as u32,
            heads: heads.map(|h| h as u32),
            norm: Some(norm),
        };
        let at = heads.map(|heads| loc(0, heads * dim));
        let places = RotationAt { from: at, positions: loc(0, 1), to: at };
        let y = [0, 1].map(fresh);
        let d = kernels::rope(&of, places).expect("one");
        gpu.run(&d, &[&inv_on, &norms_on, &x_on[0], &x_on[1], &positions, &y[0], &y[1]]);
        for i in 0..2 {
            let weight = gpu.floats(&norms[i * groups[0]..][..groups[i]]);
            let all = heads[i] * dim;
            let (normed, apart) = (fresh(i), fresh(i));
            let (rows, group) = (rows as u32, groups[i] as u32);
            let shape = NormShape {
                rows,
                groups: all as u32 / group,
                group,
                own_weights: false,
                eps: 1e-5,
            };
            let d = kernels::rms_norm(shape, Some(1.0), None, [at[i]; 2]).expect("one");
            gpu.run(&d, &[&weight, &weight, &x_on[i], &x_on[i], &normed]);
            let heads = [heads[i] as u32, 0];
            let of = Rotation { heads, norm: None, ..of };
            let places = RotationAt { from: [at[i]; 2], to: [at[i]; 2], ..places };
            let d = kernels::rope(&of, places).expect("one");
            let bound = [&inv_on, &inv_on, &normed, &normed, &positions, &apart, &apart];
            gpu.run(&d, &bound);
            let expected: Vec<f64> = gpu.read_floats(&apart).into_iter().map(f64::from).collect();
            near("heads", &gpu.read_floats(&y[i]), &expected, 1e-6);
        }
    }
}

/// Activations in bytes fit a workgroup's memory whole, or go through it in parts; where there are
/// many weight rows, a workgroup computes several rounds of them.
#[test]
fn products_of_wide_rows_and_of_many() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(14);
    let eps = 1e-5;
    let norm = Some(RowNorm { layer: false, bias: false, eps, offset: 0.5 });
    for (outs, cols, rows) in
        [(21, 4096, 1), (21, 4128, 1), (9, 9248, 1), (9, 2080, 3), (5, 1056, 8), (16_421, 1024, 1)]
    {
        let (floats, packed) = weight(&mut n, DType::Q8_0, outs, cols);
        let w = gpu.bytes(&packed);
        let (format, eight_bits) = (WeightFormat::Q8_0, true);
        let of = Matrix { format, rows: outs as u32, cols: cols as u32, first: 0, eight_bits };
        let (x, vectors) = (n.floats(rows * cols), n.floats(cols));
        let (x_on, vectors_on) = (&gpu.floats(&x), &gpu.floats(&vectors));
        let x = rounded(&normed(norm, &x, cols, &vectors), eight_bits);
        let product =
            |i: usize| dot(&x[i / outs * cols..][..cols], &floats[i % outs * cols..][..cols]);
        let products: Vec<f64> = (0..rows * outs).map(product).collect();
        let (x_at, y_at) = (loc(0, cols), loc(0, outs));
        let what = format!("{outs} {cols} {rows}");
        // What lies between two numbers of eight bits may become either.
        let bound = 5e-3;

        let y = gpu.floats(&vec![0.0; rows * outs]);
        let around = Around { norm, ..Around::default() };
        let d = kernels::linear(of, rows as u32, &around, x_at, y_at).expect("a dispatch");
        gpu.run(&d, &[&w, vectors_on, x_on, &y, x_on, x_on, x_on, x_on]);
        near(&what, &gpu.read_floats(&y)[..rows * outs], &products, bound);

        let few = FewRows { rows: rows as u32, norm, bias: None };
        let d = kernels::gate_up(of, outs as u32, Activation::Relu, few, [x_at, y_at]);
        gpu.run(&d.expect("a dispatch"), &[&w, &w, vectors_on, x_on, &y]);
        let expected: Vec<f64> = products.iter().map(|p| gated(Activation::Relu, *p, *p)).collect();
        near(&what, &gpu.read_floats(&y)[..rows * outs], &expected, 2.0 * bound);
    }
}
