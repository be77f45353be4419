//! Kernels on a software device against plain code in double precision, on odd sizes.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;

use common::{ACTIVATIONS, BOUND, Numbers, act, dot, gated, loc, near, rounded, runner, weight};
use half::{bf16, f16};
use troika_gpu::kernels::{
    self, Append, Around, AttentionShape, BatchWords, Before, Columns, ExpertShape, Floats, Matrix,
    NormShape, Rotation, RotationAt, Stack, WeightFormat,
};
use troika_graph::{
    ActivationFormat, Attention, DType, Growth, Op, Rescale, Rope, RopeFreqs, RopeStyle, Rounding,
    Router, ScaleOrigin, Score, WeightRef,
};

fn columns(dtype: DType) -> [usize; 2] {
    match dtype.block_len() {
        1 => [20, 100],
        256 => [256, 512],
        n => [n, 288usize.next_multiple_of(n)],
    }
}

#[test]
fn tables_give_the_very_numbers_of_their_types() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(1);
    for &dtype in DType::WEIGHTS {
        for cols in columns(dtype) {
            let (floats, packed) = weight(&mut n, dtype, 7, cols);
            let format = WeightFormat::of(dtype).expect("a format");
            let row = format.row_bytes(cols as u32);
            let ids = gpu.words(&[9, 6, 0, 3, 5, 900]);
            let y = gpu.floats(&vec![-5.0; 5 * (cols + 3) + 2]);
            // The table lies in two buffers.
            for (first, rows) in [(0u32, 4u32), (4, 3)] {
                let part = &packed[first as usize * row..][..rows as usize * row];
                let table = Matrix { format, rows, cols: cols as u32, first, eight_bits: false };
                let to = loc(2, cols + 3);
                let d = kernels::embed(table, 2.0, 5, loc(1, 1), to).expect("a dispatch");
                gpu.run(&d, &[&gpu.bytes(part), &ids, &y]);
            }
            let y = gpu.read_floats(&y);
            for (r, id) in [6, 0, 3, 5].into_iter().enumerate() {
                let row = &y[2 + r * (cols + 3)..];
                for c in 0..cols {
                    let expected = 2.0 * floats[id * cols + c];
                    let near = (row[c] - expected).abs() <= 1e-6 * expected.abs();
                    assert!(near, "{dtype} {id} {c}: {} not {expected}", row[c]);
                }
                assert_eq!(row[cols], -5.0, "{dtype}: a gap between rows");
            }
            assert_eq!(y[2 + 4 * (cols + 3)], -5.0, "{dtype}: an id past the table");
        }
    }
}

#[test]
fn outliers_of_all_types_are_as_by_the_sum() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(9);
    for (i, &dtype) in DType::WEIGHTS.iter().enumerate() {
        // More columns than a workgroup looks at at once.
        for cols in [columns(dtype)[i % 2], 1044_usize.next_multiple_of(dtype.block_len())] {
            let (outs, rows, limit) = (101, 1 + i % 5, 0.9);
            let (floats, packed) = weight(&mut n, dtype, outs, cols);
            let format = WeightFormat::of(dtype).expect("a format");
            let clipped = ActivationFormat::of_tensor(8, ScaleOrigin::Clipped);
            let rounding = Rounding::of(clipped, limit).expect("a limit");
            let factors: Vec<f32> = (0..cols).map(|c| [1.0, 0.5, 2.0][c % 3]).collect();
            // Few values are above, some of them in the last columns.
            let mut x = n.floats(rows * (cols + 3));
            let far = |i: usize| i % 97 == 5 || i % (cols + 3) == cols - 1;
            x.iter_mut().enumerate().filter(|(i, _)| far(*i)).for_each(|(_, x)| *x *= 30.0);
            let y = gpu.floats(&vec![-5.0; rows * (outs + 2)]);
            let clipping = [&[rounding.step, rounding.most], &factors[..]].concat();
            let (input, clipping) = (gpu.floats(&x), gpu.floats(&clipping));
            let row = format.row_bytes(cols as u32);
            // The weight lies in two buffers.
            for (first, part) in [(0, 70), (70, 31)] {
                let bytes = gpu.bytes(&packed[first * row..][..part * row]);
                let (part, first) = (part as u32, first as u32);
                let of = Matrix { format, rows: part, cols: cols as u32, first, eight_bits: false };
                let d = kernels::outliers(of, rows as u32, loc(0, cols + 3), loc(0, outs + 2));
                gpu.run(&d.expect("a dispatch"), &[&bytes, &clipping, &input, &y]);
            }
            for (r, y) in gpu.read_floats(&y).chunks_exact(outs + 2).enumerate() {
                let x = &x[r * (cols + 3)..][..cols];
                let rests: Vec<f32> =
                    x.iter().zip(&factors).map(|(x, f)| f * rounding.clipped(x / f)).collect();
                let sums = floats.chunks_exact(cols).map(|w| dot(&rests, w));
                let sums: Vec<f64> = sums.collect();
                near(&format!("{dtype} {cols} row {r}"), &y[..outs], &sums, BOUND);
                assert_eq!(y[outs], -5.0, "{dtype}: a gap between rows");
            }
        }
    }
}

/// Two tests share out the types, since drivers take long to compile.
#[test]
fn products_of_the_first_types_and_of_few_and_many_rows() {
    products_of(&DType::WEIGHTS[..DType::WEIGHTS.len() / 2]);
}

#[test]
fn products_of_the_other_types_and_of_few_and_many_rows() {
    products_of(&DType::WEIGHTS[DType::WEIGHTS.len() / 2..]);
}

fn products_of(types: &[DType]) {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(2);
    for &dtype in types {
        for cols in columns(dtype) {
            let outs = 37;
            let (floats, packed) = weight(&mut n, dtype, outs, cols);
            let format = WeightFormat::of(dtype).expect("a format");
            let row = format.row_bytes(cols as u32);
            let bias = n.floats(outs);
            for (rows, gap, eight_bits, units) in [
                (1, 0, false, false),
                (3, 4, false, false),
                (8, 1, false, false),
                (70, 0, false, false),
                (1, 4, true, false),
                (5, 1, true, false),
                (70, 0, true, false),
                (70, 4, true, true),
            ] {
                if units && !gpu.matrix_units {
                    continue;
                }
                // Drivers take long to compile: few shapes do for bytes.
                let covered = cols > 256 && (gap != 1 || dtype == DType::Q8_0);
                if eight_bits && !(covered && format.is_whole_numbers()) {
                    continue;
                }
                let stride = cols + gap;
                let x = n.floats(4 + rows * stride);
                let x_at = loc(if gap == 1 { 3 } else { 4 }, stride);
                let y = gpu.floats(&vec![-5.0; rows * (outs + 2) + 1]);
                let (x_on, bias_on) = (gpu.floats(&x), gpu.floats(&bias));
                for (first, part_rows) in [(0u32, 20u32), (20, 17)] {
                    let w = &packed[first as usize * row..][..part_rows as usize * row];
                    let w = gpu.bytes(w);
                    let cols = cols as u32;
                    let of = Matrix { format, rows: part_rows, cols, first, eight_bits };
                    let biased = rows > 1;
                    let around = Around { bias: biased.then_some(0), ..Around::default() };
                    let d = kernels::linear(of, rows as u32, &around, x_at, loc(1, outs + 2));
                    let mut d = d.expect("a dispatch");
                    if units {
                        kernels::with_matrix_units(&mut d);
                    }
                    let bound = if biased { &bias_on } else { &w };
                    let x = &x_on;
                    gpu.run(&d, &[&w, bound, x, &y, x, x, x, x]);
                }
                let y = gpu.read_floats(&y);
                let (mut is, mut expected) = (Vec::new(), Vec::new());
                for r in 0..rows {
                    let x = &x[x_at.offset as usize + r * stride..][..cols];
                    let x = &rounded(x, eight_bits)[..];
                    for o in 0..outs {
                        let b = if rows > 1 { f64::from(bias[o]) } else { 0.0 };
                        expected.push(dot(x, &floats[o * cols..][..cols]) + b);
                    }
                    is.extend(&y[1 + r * (outs + 2)..][..outs]);
                    assert_eq!(y[1 + r * (outs + 2) + outs], -5.0, "a gap between rows");
                }
                // f16 has eleven bits; what lies between two numbers of eight bits may become either.
                let bound = if eight_bits { 2e-3 } else { BOUND };
                let what = format!("{dtype} {cols} {rows} {eight_bits} {units}");
                near(&what, &is, &expected, bound);
            }
        }
    }
}

#[test]
fn heads_have_weights_of_their_own() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(3);
    let (heads, outs, cols) = (3, 5, 32);
    let (floats, packed) = weight(&mut n, DType::Q8_0, heads * outs, cols);
    let w = gpu.bytes(&packed);
    for rows in [1, 11] {
        let x = n.floats(rows * heads * cols);
        let y = gpu.floats(&vec![0.0; rows * heads * outs]);
        let of = Matrix {
            format: WeightFormat::Q8_0,
            rows: (heads * outs) as u32,
            cols: cols as u32,
            first: 0,
            eight_bits: false,
        };
        let (x_at, y_at) = (loc(0, heads * cols), loc(0, heads * outs));
        let d = kernels::head_linear(of, heads as u32, rows as u32, x_at, y_at);
        let x_on = &gpu.floats(&x);
        gpu.run(&d.expect("a dispatch"), &[&w, &w, x_on, &y, x_on, x_on, x_on, x_on]);
        let mut expected = Vec::new();
        for r in 0..rows {
            for o in 0..heads * outs {
                let x = &x[(r * heads + o / outs) * cols..][..cols];
                expected.push(dot(x, &floats[o * cols..][..cols]));
            }
        }
        near("heads", &gpu.read_floats(&y)[..expected.len()], &expected, BOUND);
    }
}

#[test]
fn norms_of_whole_rows_and_of_groups() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(4);
    for (rows, groups, group) in [(3, 1, 333), (2, 5, 7), (1, 2, 64)] {
        let cols = groups * group;
        let (a, b) = (n.floats(rows * cols), n.floats(rows * cols));
        let (weight, bias) = (n.floats(group), n.floats(group));
        let [a_on, b_on, w_on, bias_on] = [&a, &b, &weight, &bias].map(|x| gpu.floats(x));
        let shape = NormShape {
            rows: rows as u32,
            groups: groups as u32,
            group: group as u32,
            own_weights: false,
            eps: 1e-3,
        };
        let at = loc(0, cols);
        let expected = |x: &[f32], layer: bool, f: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
            let line = |x: &[f32]| {
                let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let mean = if layer { x.iter().sum::<f64>() / x.len() as f64 } else { 0.0 };
                let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
                let scale = 1.0 / (square + 1e-3).sqrt();
                x.iter().enumerate().map(|(i, x)| f(i, (x - mean) * scale)).collect::<Vec<_>>()
            };
            x.chunks_exact(group).flat_map(line).collect()
        };
        let len = rows * cols;
        let fresh = || gpu.floats(&vec![0.0; len]);
        let y = fresh();
        let d = kernels::rms_norm(shape, None, None, [at; 2]).expect("one");
        gpu.run(&d, &[&w_on, &w_on, &a_on, &a_on, &y]);
        near("rms", &gpu.read_floats(&y)[..len], &expected(&a, false, &|_, x| x), BOUND);
        let y = fresh();
        let wide = n.floats(cols);
        let own = NormShape { own_weights: true, ..shape };
        let d = kernels::rms_norm(own, Some(0.5), None, [at; 2]).expect("one");
        gpu.run(&d, &[&gpu.floats(&wide), &w_on, &a_on, &a_on, &y]);
        let scaled = expected(&a, false, &|_, x| x).into_iter().zip(wide.iter().cycle());
        let scaled: Vec<f64> = scaled.map(|(x, w)| x * (0.5 + f64::from(*w))).collect();
        near("own weights", &gpu.read_floats(&y)[..len], &scaled, BOUND);
        let y = fresh();
        let d = kernels::rms_norm(shape, Some(1.0), Some(at), [at; 2]).expect("one");
        gpu.run(&d, &[&w_on, &w_on, &a_on, &b_on, &y]);
        let of = |i: usize, x: f64| x * (1.0 + f64::from(weight[i]));
        let sums: Vec<f64> =
            expected(&a, false, &of).into_iter().zip(&b).map(|(x, b)| x + f64::from(*b)).collect();
        near("sums", &gpu.read_floats(&y)[..len], &sums, BOUND);
        let y = fresh();
        let d = kernels::layer_norm(shape, true, None, [at; 2]).expect("one");
        gpu.run(&d, &[&w_on, &bias_on, &a_on, &a_on, &y]);
        let of = |i: usize, x: f64| x * f64::from(weight[i]) + f64::from(bias[i]);
        near("layer", &gpu.read_floats(&y)[..len], &expected(&a, true, &of), BOUND);
    }
}

/// Rows times weights, as large as other rows, and what they have above their deviations.
#[test]
fn rows_are_scaled_matched_and_cut() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(14);
    for (rows, cols) in [(3, 333), (2, 7)] {
        let (a, b, w) = (n.floats(rows * cols), n.floats(rows * cols), n.floats(cols));
        let [a_on, b_on, w_on] = [&a, &b, &w].map(|x| gpu.floats(x));
        let at = loc(0, cols);
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let [mut scaled, mut matched, mut largest] = [const { Vec::new() }; 3];
        for (x, like) in a.chunks(cols).zip(b.chunks(cols)) {
            let (x, like) = (wide(x), wide(like));
            scaled.extend(x.iter().zip(&w).map(|(x, w)| x * f64::from(*w)));
            let factor = (square(&like) / square(&x).max(0.3)).sqrt();
            matched.extend(x.iter().map(|x| x * factor));
            let mean = x.iter().sum::<f64>() / cols as f64;
            let apart: Vec<f64> = x.iter().map(|x| x - mean).collect();
            let least = mean + 0.5 * square(&apart).sqrt();
            largest.extend(x.iter().map(|x| (x - least).max(0.0)));
        }
        for (name, rescale, expected) in [
            ("columns", Rescale::Columns(WeightRef(0)), scaled),
            ("match", Rescale::Match { least: 0.3 }, matched),
            ("largest", Rescale::Largest { deviations: 0.5 }, largest),
        ] {
            let like = matches!(rescale, Rescale::Match { .. }).then_some(at);
            let made = kernels::rescale(rescale, rows as u32, cols as u32, like, [at; 2]);
            let y = gpu.floats(&vec![0.0; rows * cols]);
            gpu.run(&made.expect("one"), &[&w_on, &w_on, &a_on, &b_on, &y]);
            near(name, &gpu.read_floats(&y)[..rows * cols], &expected, BOUND);
        }
    }
}

#[test]
fn streams_are_mixed() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(15);
    for (from, to, width) in [(3, 2, 301), (1, 4, 7)] {
        let (x, c) = (n.floats(2 * from * width), n.floats(2 * to * from));
        let mut expected = Vec::new();
        for (x, c) in x.chunks(from * width).zip(c.chunks(to * from)) {
            for (i, c) in c.chunks(from).enumerate() {
                let of = |j: usize, k: usize| f64::from(x[j * width + k]);
                let sum = |k| (0..from).map(|j| f64::from(c[j]) * of(j, k)).sum::<f64>();
                expected.extend((0..width).map(|k| of(i % from, k) + sum(k)));
            }
        }
        let at = [loc(0, from * width), loc(0, to * from), loc(0, to * width)];
        let d = kernels::mix(2, width as u32, from as u32, to as u32, at).expect("one");
        let y = gpu.floats(&vec![0.0; expected.len()]);
        gpu.run(&d, &[&gpu.floats(&x), &gpu.floats(&c), &y]);
        near("mix", &gpu.read_floats(&y)[..expected.len()], &expected, BOUND);
    }
}

#[test]
fn rotations_at_far_positions() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(5);
    let (rows, heads, dim) = (6, 3, 22);
    let positions = [0, 1, 77, 4095, 131_071, 1_000_000];
    let x = n.floats(rows * heads * dim);
    let at = loc(0, heads * dim);
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        for (offset, rotary) in [(0, 22), (6, 12), (3, 8)] {
            let inv: Vec<f32> =
                (0..rotary / 2).map(|i| 1e4f32.powf(-(i as f32) / rotary as f32)).collect();
            let freqs = RopeFreqs { inv_freq: inv.clone().into(), factor: 1.0, growth: None };
            let op = Rope { head_dim: dim, offset, rotary_dim: rotary, style, freqs, long: None };
            let y = gpu.floats(&vec![0.0; x.len()]);
            let heads_of = [heads as u32, 0];
            let of = Rotation {
                rope: &op,
                factor: 1.5,
                growth: Some(Growth { beta: 0.1, original: 60 }),
                rows: rows as u32,
                heads: heads_of,
                norm: None,
            };
            let places = RotationAt { from: [at; 2], positions: loc(0, 1), to: [at; 2] };
            let d = kernels::rope(&of, places).expect("one");
            let places = gpu.words(&positions.map(|p| p as u32));
            let (inv_on, x_on) = (gpu.floats(&inv), gpu.floats(&x));
            gpu.run(&d, &[&inv_on, &inv_on, &x_on, &x_on, &places, &y, &y]);
            let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for (row, p) in positions.into_iter().enumerate() {
                for (head, i) in (0..heads).flat_map(|h| (0..rotary / 2).map(move |i| (h, i))) {
                    let angle = f64::from(p as f32 * inv[i]);
                    let growth = 1.5 * (1.0 + 0.1 * (1.0 + f64::from(p / 60)).ln());
                    let (sin, cos) = (growth * angle.sin(), growth * angle.cos());
                    let start = (row * heads + head) * dim + offset;
                    let [a, b] = match style {
                        RopeStyle::Half => [start + i, start + i + rotary / 2],
                        RopeStyle::Interleaved => [start + 2 * i, start + 2 * i + 1],
                    };
                    let [p, q] = [a, b].map(|at| f64::from(x[at]));
                    expected[a] = p * cos - q * sin;
                    expected[b] = q * cos + p * sin;
                }
            }
            let (y, near_end) = (gpu.read_floats(&y), 5 * heads * dim);
            near("rotations", &y[..near_end], &expected[..near_end], 1e-6);
            near("far rotations", &y[near_end..x.len()], &expected[near_end..], 1e-5);
        }
    }
}

/// A cache as numbers, and what its rows become.
fn cached(format: Floats, x: &[f32]) -> Vec<f32> {
    let round = |x: &f32| match format {
        Floats::F32 => *x,
        Floats::F16 => f16::from_f32(*x).to_f32(),
        Floats::Bf16 => bf16::from_f32(*x).to_f32(),
    };
    x.iter().map(round).collect()
}

struct Case {
    k_dim: usize,
    v_dim: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
    value_in_key: bool,
}

/// Appends 300 positions in pages of 16 in a strange order, then attends with the last rows.
fn attends(format: Floats, case: &Case) {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(6);
    let (heads, kv_heads, len, rows, page) = (6, 2, 300usize, 3, 16usize);
    let Case { k_dim, v_dim, .. } = *case;
    let pages: Vec<u32> = (0..len.div_ceil(page) as u32).map(|i| i * 7 % 19 + 1).collect();
    let per_word = if format == Floats::F32 { 1 } else { 2 };
    let (k_width, v_width) = (kv_heads * k_dim, kv_heads * v_dim);
    let cache = |width: usize| gpu.words(&vec![u32::MAX; 21 * page * width / per_word]);
    let (keys_on, values_on) = (cache(k_width), cache(v_width));
    let (keys, values) = (n.floats(len * k_width), n.floats(len * v_width));
    // A first page of the table that is not the sequence's first.
    let words = |rows: std::ops::Range<usize>| {
        let mut w = vec![0, 0];
        w.extend(rows.clone().flat_map(|p| [p as u32, 2 + 4 * rows.len() as u32, 0, 0]));
        w.extend(&pages);
        gpu.words(&w)
    };
    let all = words(0..len);
    let batch = BatchWords { rows: 2, count: len as u32, page_len: page as u32, flag: 1 };
    let rows_of = |width: usize| Append { width: width as u32, x: loc(0, width), cache: format };
    let d = kernels::kv_append(batch, rows_of(k_width), Some(rows_of(v_width))).expect("one");
    gpu.run(&d, &[&gpu.floats(&keys), &gpu.floats(&values), &all, &keys_on, &values_on]);
    assert_eq!(gpu.read(&all)[..2], [0, 0], "nothing beyond f16");
    let op = Attention {
        heads,
        kv_heads,
        k_dim,
        v_dim,
        scale: 1.5,
        window: case.window,
        softcap: case.softcap,
        sinks: case.sinks.then_some(WeightRef(0)),
        value_in_key: case.value_in_key,
        page_group: 0,
        activations: ActivationFormat::F32,
    };
    let q = n.floats(rows * heads * k_dim);
    let sinks = n.floats(heads);
    let positions = [0, 140, 297].map(|p| p..p + 1);
    let mut is = Vec::new();
    for (r, p) in positions.clone().into_iter().enumerate() {
        let at = p.start;
        let batch = BatchWords { rows: 2, count: 1, page_len: page as u32, flag: 1 };
        let shape = AttentionShape { op: &op, batch, keys: format, values: format, append: None };
        let y = gpu.floats(&vec![0.0; heads * v_dim]);
        let q_at = loc((r * heads * k_dim) as u32, heads * k_dim);
        let d = kernels::attention(shape, None, q_at, loc(0, heads * v_dim)).expect("one");
        let of_values = if case.value_in_key { &keys_on } else { &values_on };
        let (of_sinks, q_on, batch_on) = (gpu.floats(&sinks), gpu.floats(&q), words(p));
        gpu.run(&d, &[&of_sinks, &q_on, &batch_on, &keys_on, of_values, &y, &q_on, &q_on]);
        let whole = gpu.read_floats(&y)[..heads * v_dim].to_vec();
        let wide: Vec<f64> = whole.iter().map(|x| f64::from(*x)).collect();
        // The same in parts, of which the last have nothing.
        let parts = 4;
        let width = kernels::part_floats(&op, parts);
        let between = gpu.floats(&vec![f32::NAN; width]);
        let merge = |what: &str| {
            let (from, to) = (loc(0, width), loc(0, heads * v_dim));
            let d = kernels::attention_merge(&op, 1, parts, from, to).expect("one");
            gpu.run(&d, &[&of_sinks, &between, &y]);
            near(what, &gpu.read_floats(&y)[..heads * v_dim], &wide, BOUND);
        };
        let d = kernels::attention(shape, Some(parts), q_at, loc(0, width)).expect("one");
        gpu.run(&d, &[&of_sinks, &q_on, &batch_on, &keys_on, of_values, &between, &q_on, &q_on]);
        merge("parts");
        // The same with the row's own key and value from elsewhere: the caches get them.
        let rows = if case.value_in_key { [k_width; 2] } else { [k_width, v_width] };
        let rows = rows.map(|width| loc((at * width) as u32, width));
        let shape = AttentionShape { append: Some(rows), ..shape };
        let Ok(d) = kernels::attention(shape, Some(parts), q_at, loc(0, width)) else {
            assert!(k_dim % 2 == 1 && format != Floats::F32);
            is.extend(whole);
            continue;
        };
        let (new_keys, new_values) = (gpu.floats(&keys), gpu.floats(&values));
        let new_values = if case.value_in_key { &new_keys } else { &new_values };
        let caches = [cache(k_width), cache(v_width)];
        let (mut k, mut v) = (keys.clone(), values.clone());
        k[at * k_width..][..k_width].fill(7.0);
        v[at * v_width..][..v_width].fill(7.0);
        let append = kernels::kv_append(
            BatchWords { count: len as u32, ..batch },
            rows_of(k_width),
            Some(rows_of(v_width)),
        );
        let (k, v) = (gpu.floats(&k), gpu.floats(&v));
        gpu.run(&append.expect("one"), &[&k, &v, &all, &caches[0], &caches[1]]);
        let of_values = if case.value_in_key { &caches[0] } else { &caches[1] };
        let keys_at = &caches[0];
        gpu.run(
            &d,
            &[&of_sinks, &q_on, &batch_on, keys_at, of_values, &between, &new_keys, new_values],
        );
        merge("appended");
        assert_eq!(gpu.read(&caches[0]), gpu.read(&keys_on));
        if !case.value_in_key {
            assert_eq!(gpu.read(&caches[1]), gpu.read(&values_on));
        }
        is.extend(whole);
    }
    let (keys, values) = (cached(format, &keys), cached(format, &values));
    let mut expected = Vec::new();
    for (r, p) in positions.into_iter().enumerate() {
        let last = p.start;
        let start = case.window.map_or(0, |w| (last + 1).saturating_sub(w));
        for h in 0..heads {
            let kv = h / (heads / kv_heads);
            let q = &q[(r * heads + h) * k_dim..][..k_dim];
            let score = |p: usize| {
                let s = 1.5 * dot(q, &keys[p * k_width + kv * k_dim..][..k_dim]);
                case.softcap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
            };
            let weights: Vec<f64> = (start..=last).map(|p| score(p).exp()).collect();
            let sink = if case.sinks { f64::from(sinks[h]).exp() } else { 0.0 };
            let total = weights.iter().sum::<f64>() + sink;
            for c in 0..v_dim {
                let value = |p: usize| match case.value_in_key {
                    true => keys[p * k_width + kv * k_dim + c],
                    false => values[p * v_width + kv * v_dim + c],
                };
                let of = weights.iter().enumerate();
                expected
                    .push(of.map(|(i, w)| w * f64::from(value(start + i))).sum::<f64>() / total);
            }
        }
    }
    near(&format!("{format:?} {k_dim} {v_dim}"), &is, &expected, 2e-5);
}

#[test]
fn attention_over_pages() {
    let plain = Case {
        k_dim: 24,
        v_dim: 20,
        window: None,
        softcap: None,
        sinks: false,
        value_in_key: false,
    };
    for format in [Floats::F32, Floats::F16, Floats::Bf16] {
        attends(format, &plain);
        attends(format, &Case { k_dim: 64, v_dim: 64, window: Some(133), ..plain });
        attends(format, &Case { softcap: Some(2.0), sinks: true, ..plain });
        attends(format, &Case { k_dim: 160, v_dim: 144, value_in_key: true, ..plain });
    }
    attends(Floats::F32, &Case { k_dim: 13, v_dim: 7, ..plain });
    attends(Floats::F16, &Case { k_dim: 13, v_dim: 7, ..plain });
}

#[test]
fn halves_that_overflow_are_flagged() {
    let Some(gpu) = runner() else { return };
    let cache = gpu.words(&[0; 8]);
    let batch = BatchWords { rows: 1, count: 1, page_len: 1, flag: 0 };
    for (x, flag) in [(65504.0, 0), (65519.9, 0), (-65520.0, 1), (f32::INFINITY, 0)] {
        let words = gpu.words(&[0, 0, 5, 0, 0, 0]);
        let rows = Append { width: 2, x: loc(0, 2), cache: Floats::F16 };
        let d = kernels::kv_append(batch, rows, None).expect("one");
        let x_on = gpu.floats(&[1.0, x]);
        gpu.run(&d, &[&x_on, &x_on, &words, &cache, &cache]);
        assert_eq!(gpu.read(&words)[0], flag, "{x}");
        let bits = u32::from(f16::from_f32(x).to_bits()) << 16 | 0x3c00;
        assert_eq!(gpu.read(&cache)[0], bits, "{x}");
    }
    let odd = Append { width: 3, x: loc(0, 3), cache: Floats::F16 };
    assert!(kernels::kv_append(batch, odd, None).is_err());
}

#[test]
fn ops_on_elements() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(7);
    let (rows, cols) = (3, 301);
    let x: Vec<f32> = n.floats(rows * cols).iter().map(|x| x * 12.0).collect();
    let b = n.floats(rows * cols);
    let (x_on, b_on) = (gpu.floats(&x), gpu.floats(&b));
    let at = loc(0, cols);
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (xs, bs) = (wide(&x), wide(&b));
    let run = |op: Op, second: &wgpu::Buffer, f: &dyn Fn(f64, f64) -> f64| {
        let d = kernels::elements(&op, rows as u32, cols as u32, [at; 3]);
        let y = gpu.floats(&vec![0.0; x.len()]);
        gpu.run(&d.expect("one"), &[&x_on, second, &y]);
        let expected: Vec<f64> = xs.iter().zip(&bs).map(|(x, b)| f(*x, *b)).collect();
        near(&format!("{op:?}"), &gpu.read_floats(&y)[..x.len()], &expected, 1e-6);
    };
    for of in ACTIVATIONS {
        run(Op::Gate(of), &b_on, &|x, b| gated(of, x, b));
        run(Op::Activate(of), &x_on, &|x, _| act(of, x));
    }
    run(Op::Add, &b_on, &|x, b| x + b);
    run(Op::Scale { factor: 0.3 }, &x_on, &|x, _| x * f64::from(0.3f32));
    run(Op::Clamp { limit: 1.5 }, &x_on, &|x, _| x.clamp(-1.5, 1.5));
    run(Op::SoftCap { cap: 2.0 }, &x_on, &|x, _| 2.0 * (x / 2.0).tanh());
    run(Op::SoftCap { cap: 300.0 }, &x_on, &|x, _| 300.0 * (x / 300.0).tanh());
    let y = gpu.floats(&vec![0.0; x.len()]);
    let at = [at, loc(1, 2), at];
    let d = kernels::elements(&Op::SigmoidGate, rows as u32, cols as u32, at);
    gpu.run(&d.expect("one"), &[&x_on, &b_on, &y]);
    let expected: Vec<f64> =
        (0..x.len()).map(|i| xs[i] / (1.0 + (-bs[1 + 2 * (i / cols)]).exp())).collect();
    near("gate of rows", &gpu.read_floats(&y)[..x.len()], &expected, 1e-6);
}

#[test]
fn ops_that_move_columns() {
    let Some(gpu) = runner() else { return };
    let x: Vec<f32> = (0..60).map(|i| i as f32).collect();
    let x_on = gpu.floats(&x);
    let y = gpu.floats(&[-1.0; 40]);
    let of = Columns { rows: 2, groups: 3, group: 10, start: 4, kept: 5, joined: 0 };
    let d = kernels::columns(of, [loc(0, 30), loc(0, 30), loc(1, 16)]);
    gpu.run(&d.expect("one"), &[&x_on, &x_on, &y]);
    let y = gpu.read_floats(&y);
    assert_eq!(y[..7], [-1.0, 4.0, 5.0, 6.0, 7.0, 8.0, 14.0]);
    assert_eq!(y[15..19], [28.0, -1.0, 34.0, 35.0]);
    let y = gpu.floats(&[-1.0; 24]);
    let of = Columns { rows: 2, groups: 2, group: 2, start: 0, kept: 2, joined: 3 };
    let d = kernels::columns(of, [loc(0, 4), loc(20, 6), loc(0, 12)]);
    gpu.run(&d.expect("one"), &[&x_on, &x_on, &y]);
    let y = gpu.read_floats(&y);
    assert_eq!(y[..11], [0., 1., 20., 21., 22., 2., 3., 23., 24., 25., -1.]);
    assert_eq!(y[12..17], [4., 5., 26., 27., 28.]);
}

#[test]
fn conversions_round_as_the_host_does() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(8);
    let mut x: Vec<f32> = (0..999).map(|_| f32::from_bits(n.bits())).collect();
    x.retain(|x| x.is_finite() && (*x == 0.0 || x.is_normal()));
    x.extend([0.0, -0.0, 1e-7, 6e-8, 2.9e-8, 3.1e-8, 65519.0, 65520.0, 1.0 + 1.0 / 2048.0]);
    x.extend(n.floats(300).iter().map(|x| x * 6e-5));
    x.extend(n.floats(300));
    if x.len().is_multiple_of(2) {
        x.push(7.5);
    }
    let count = x.len();
    let run = |from, to, words: &[u32]| {
        let y = gpu.words(&vec![u32::MAX; count + 3]);
        let d = kernels::convert(from, to, count as u32, 0, 1).expect("one");
        gpu.run(&d, &[&gpu.words(words), &y]);
        let y = gpu.read(&y);
        assert_eq!(y[0], u32::MAX);
        y
    };
    let pairs = |bits: &dyn Fn(f32) -> u16| -> Vec<u32> {
        let word =
            |x: &[f32]| u32::from(bits(x[0])) | x.get(1).map_or(0, |x| u32::from(bits(*x)) << 16);
        x.chunks(2).map(word).collect()
    };
    let bits: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
    let half = pairs(&|x| f16::from_f32(x).to_bits());
    let brain = pairs(&|x| bf16::from_f32(x).to_bits());
    assert_eq!(run(Floats::F32, Floats::F16, &bits)[1..=half.len()], half);
    assert_eq!(run(Floats::F32, Floats::Bf16, &bits)[1..=half.len()], brain);
    let back: Vec<u32> = x.iter().map(|x| bf16::from_f32(*x).to_f32().to_bits()).collect();
    assert_eq!(run(Floats::Bf16, Floats::F32, &brain)[1..=count], back);
    let wide = run(Floats::F16, Floats::F32, &half);
    for (w, x) in wide[1..].iter().zip(&x) {
        let expected = f16::from_f32(*x);
        // Devices may take numbers below the smallest normal one as zero.
        let small = expected.to_f32().abs() < f16::MIN_POSITIVE.to_f32();
        let is = f32::from_bits(*w);
        assert!(is == expected.to_f32() || small && is == 0.0, "{x}: {is}");
    }
}

/// Chooses as the CPU's router does.
fn route(op: &Router, bias: &[f32], logits: &[f32]) -> Vec<(usize, f64)> {
    let logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    let softmax = |x: &[f64]| {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|e| e / sum).collect::<Vec<_>>()
    };
    let scores = match op.score {
        Score::Softmax => softmax(&logits),
        Score::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        _ => logits.clone(),
    };
    let mut free: Vec<bool> = vec![true; op.experts];
    let choice: Vec<f64> = scores.iter().zip(bias).map(|(s, b)| s + f64::from(*b)).collect();
    if let Some((groups, kept)) = op.groups {
        let len = op.experts / groups;
        let best = |g: usize| {
            let mut all = choice[g * len..][..len].to_vec();
            all.sort_by(|a, b| b.total_cmp(a));
            all[..if op.bias.is_some() { 2 } else { 1 }].iter().sum::<f64>()
        };
        let mut order: Vec<usize> = (0..groups).collect();
        order.sort_by(|a, b| best(*b).total_cmp(&best(*a)));
        order[kept..].iter().for_each(|g| free[g * len..(g + 1) * len].fill(false));
    }
    let mut chosen: Vec<(usize, f64)> = Vec::new();
    for _ in 0..op.top_k {
        let left = || (0..op.experts).filter(|i| free[*i]);
        let best = left().reduce(|a, b| if choice[b] > choice[a] { b } else { a });
        let best = best.expect("an expert");
        let mut w = scores[best];
        if let Score::SparseMixer { eps } = op.score {
            let near =
                |i: &usize| (w - scores[*i]) / scores[*i].abs().max(w) <= 2.0 * f64::from(eps);
            w = 1.0 / left().filter(near).map(|i| (scores[i] - w).exp()).sum::<f64>();
        }
        chosen.push((best, w));
        free[best] = false;
    }
    let mut weights: Vec<f64> = chosen.iter().map(|c| c.1).collect();
    if op.score == Score::TopKSoftmax {
        weights = softmax(&weights);
    }
    let total: f64 = if op.normalize { weights.iter().sum() } else { 1.0 };
    chosen.iter().zip(weights).map(|(c, w)| (c.0, w / total * f64::from(op.scale))).collect()
}

#[test]
fn routers_choose_as_on_the_host() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(9);
    let scores =
        [Score::Softmax, Score::TopKSoftmax, Score::Sigmoid, Score::SparseMixer { eps: 0.1 }];
    for score in scores {
        for (experts, top_k, groups) in [(5, 2, None), (130, 6, None), (24, 3, Some((4, 2)))] {
            let mixes = matches!(score, Score::SparseMixer { .. });
            let (top_k, groups) = if mixes { (2, None) } else { (top_k, groups) };
            let normalize = groups.is_some() || experts == 130;
            let biased = groups.is_some() || score == Score::Sigmoid;
            let bias = biased.then_some(WeightRef(0));
            let expert_scales = (experts == 130).then_some(WeightRef(1));
            let scale = 2.5;
            let op =
                Router { experts, top_k, score, normalize, scale, groups, bias, expert_scales };
            let scales: Vec<f32> = match expert_scales {
                Some(_) => n.floats(experts),
                None => vec![1.0; experts],
            };
            let choice: Vec<f32> = match biased {
                true => n.floats(experts),
                false => vec![0.0; experts],
            };
            let of_choice = gpu.floats(&choice);
            let rows = 4;
            let mut logits: Vec<f32> = n.floats(rows * experts).iter().map(|x| x * 4.0).collect();
            // Equal scores.
            logits[..experts].fill(0.75);
            logits[experts + 3] = 4.5;
            logits[experts + 1] = 4.5;
            let ids = gpu.words(&vec![u32::MAX; rows * top_k]);
            let weights = gpu.floats(&vec![0.0; rows * top_k]);
            let at = [loc(0, experts), loc(0, top_k), loc(0, top_k)];
            let d = kernels::router(&op, rows as u32, at).expect("one");
            let of_experts = gpu.floats(&scales);
            gpu.run(&d, &[&gpu.floats(&logits), &ids, &weights, &of_choice, &of_experts]);
            let expected: Vec<_> =
                logits.chunks_exact(experts).flat_map(|x| route(&op, &choice, x)).collect();
            let ids: Vec<usize> = gpu.read(&ids).iter().map(|i| *i as usize).collect();
            let what = format!("{score:?} {experts}");
            let chosen: Vec<usize> = expected.iter().map(|e| e.0).collect();
            assert_eq!(ids[..rows * top_k], chosen, "{what}");
            let of: Vec<f64> = expected.iter().map(|e| e.1 * f64::from(scales[e.0])).collect();
            near(&what, &gpu.read_floats(&weights)[..rows * top_k], &of, BOUND);
        }
    }
}

#[test]
fn experts_of_rows_and_of_groups() {
    let Some(gpu) = runner() else { return };
    let mut n = Numbers(10);
    let experts = 5;
    for (dtype, k, inter) in [
        (DType::F32, 20, 13),
        (DType::Q8_0, 64, 96),
        (DType::MXFP4, 32, 64),
        (DType::Q4_K, 256, 256),
    ] {
        let (gate, gate_on) = weight(&mut n, dtype, experts * inter, k);
        let (up, up_on) = weight(&mut n, dtype, experts * inter, k);
        let (down, down_on) = weight(&mut n, dtype, experts * k, inter);
        let [gb, ub] = [0, 1].map(|_| n.floats(experts * inter));
        let db = n.floats(experts * k);
        let format = WeightFormat::of(dtype).expect("a format");
        for (capacity, bias, of, eight_bits) in [
            (None, true, ACTIVATIONS[4], false),
            (None, false, ACTIVATIONS[0], false),
            (Some(2), true, ACTIVATIONS[2], false),
            (None, true, ACTIVATIONS[0], true),
            (Some(2), false, ACTIVATIONS[0], true),
        ] {
            if eight_bits && !format.is_whole_numbers() {
                continue;
            }
            let (rows, top_k) = if capacity.is_some() { (2 * experts, 1) } else { (3, 2) };
            let x = n.floats(rows * k);
            let ids = [4, 0, 2, 3, 1, 4u32];
            let shares = n.floats(rows * top_k);
            let shape = ExpertShape { rows: rows as u32, top_k: top_k as u32, capacity, bias };
            let x_on = gpu.floats(&x);
            let (ids_on, shares_on) = (gpu.words(&ids), gpu.floats(&shares));
            let h = gpu.floats(&vec![0.0; rows * top_k * inter]);
            let y = gpu.floats(&vec![f32::NAN; rows * k]);
            // The experts lie in two bindings.
            let parts = [(0, 3), (3, 2)];
            let slice = |all: &[u8], (first, count): (usize, usize)| {
                let each = all.len() / experts;
                gpu.bytes(&all[first * each..][..count * each])
            };
            let floats = |all: &[f32], (first, count): (usize, usize)| {
                let each = all.len() / experts;
                gpu.floats(&all[first * each..][..count * each])
            };
            for part in parts {
                let each =
                    Matrix { format, rows: inter as u32, cols: k as u32, first: 0, eight_bits };
                let stack = Stack { each, first: part.0 as u32, count: part.1 as u32 };
                let at = [loc(0, k), loc(0, top_k), loc(0, inter)];
                let d = kernels::experts_gate_up(stack, of, shape, at).expect("one");
                let (g, u) = (slice(&gate_on, part), slice(&up_on, part));
                let (gb, ub) = (floats(&gb, part), floats(&ub, part));
                let (gb, ub) = if bias { (&gb, &ub) } else { (&g, &g) };
                gpu.run(&d, &[&g, &u, gb, ub, &x_on, &ids_on, &h]);
            }
            for (i, part) in parts.into_iter().enumerate() {
                let each =
                    Matrix { format, rows: k as u32, cols: inter as u32, first: 0, eight_bits };
                let stack = Stack { each, first: part.0 as u32, count: part.1 as u32 };
                let at = [loc(0, inter), loc(0, top_k), loc(0, top_k), loc(0, k)];
                // The first adds to a value.
                let before = if i > 0 { Before::Results } else { Before::Value(loc(0, k)) };
                let d = kernels::experts_down(stack, shape, before, at).expect("one");
                let w = slice(&down_on, part);
                let of_bias = floats(&db, part);
                let b = if bias { &of_bias } else { &w };
                gpu.run(&d, &[&w, b, &h, &ids_on, &shares_on, &y, &x_on]);
            }
            let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for r in 0..rows {
                for slot in 0..top_k {
                    let (e, share) = match capacity {
                        Some(c) => (r / c as usize, 1.0),
                        None => {
                            (ids[r * top_k + slot] as usize, f64::from(shares[r * top_k + slot]))
                        }
                    };
                    let x = &rounded(&x[r * k..][..k], eight_bits)[..];
                    let h: Vec<f32> = (e * inter..(e + 1) * inter)
                        .map(|i| {
                            let (g, u) = (dot(x, &gate[i * k..][..k]), dot(x, &up[i * k..][..k]));
                            let b = |b: &[f32]| if bias { f64::from(b[i]) } else { 0.0 };
                            gated(of, g + b(&gb), u + b(&ub)) as f32
                        })
                        .collect();
                    let h = rounded(&h, eight_bits);
                    for c in 0..k {
                        let at = e * k + c;
                        let b = if bias { f64::from(db[at]) } else { 0.0 };
                        expected[r * k + c] += share * (dot(&h, &down[at * inter..][..inter]) + b);
                    }
                }
            }
            let what = format!("{dtype} {capacity:?} {of:?} {eight_bits}");
            // What lies between two numbers of eight bits may become either.
            let bound = if eight_bits { 5e-3 } else { 2e-5 };
            near(&what, &gpu.read_floats(&y)[..rows * k], &expected, bound);
        }
    }
}
