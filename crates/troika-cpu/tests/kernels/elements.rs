use std::sync::Arc;

use half::{bf16, f16};
use proptest::prelude::*;
use troika_cpu::kernels::elementwise::{
    self, Element, ElementRows, Floats, FloatsMut, Slice, StridedOperands,
};
use troika_cpu::kernels::linear::WeightView;
use troika_cpu::kernels::norm::{self, Norm};
use troika_cpu::kernels::simd::{Kernel, Lanes, MAX_LANES, dispatch};
use troika_cpu::kernels::{KernelError, embed, kv, rope};
use troika_cpu::{SharedMut, SharedRef};
use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::{Activation, DType, Growth, Rope, RopeFreqs, RopeStyle, StateKind, blocks};

use crate::{Random, close, on_each_isa, reference};

const ELEMENTS: [Element; 13] = [
    Element::Activate(Activation::Silu),
    Element::Activate(Activation::Gelu),
    Element::Activate(Activation::GeluTanh),
    Element::Activate(Activation::Relu),
    Element::Activate(Activation::Xielu { alpha_p: 0.7, alpha_n: 0.9 }),
    Element::Gate(Activation::Silu),
    Element::Gate(Activation::Gelu),
    Element::Gate(Activation::GeluTanh),
    Element::Gate(Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 }),
    Element::Add,
    Element::Scale(1.5),
    Element::Clamp(2.0),
    Element::SoftCap(30.0),
];

proptest! {
    #![proptest_config(crate::cases(192))]

    #[test]
    fn element_ops_match_the_reference(
        op in prop::sample::select(ELEMENTS.to_vec()),
        n in prop::sample::select(vec![1usize, 7, 8, 15, 16, 17, 33, 1000, 40_000]),
        spread in prop::sample::select(vec![1.0f32, 12.0, 120.0]),
        seed: u64,
    ) {
        let mut r = Random(seed);
        let a: Vec<f32> = r.floats(n + 1).iter().map(|x| x * spread).collect();
        let b: Vec<f32> = r.floats(n + 1).iter().map(|x| x * spread).collect();
        let (a, b) = (&a[1..], &b[1..]);
        let two = matches!(op, Element::Gate(_) | Element::Add);
        let want: Vec<f32> =
            a.iter().zip(b).map(|(a, b)| reference::element(op, *a, *b)).collect();
        on_each_isa(2, |cx| {
            let mut y = vec![f32::NAN; n];
            elementwise::elementwise(cx, op, a, two.then_some(b), &mut y).unwrap();
            close(&y, &want, 2e-6, &format!("{op:?}"));
        });
    }

    /// Rows that lie apart give the same bits, and what lies between them is left alone.
    #[test]
    fn rows_that_lie_apart_give_the_same_bits(
        op in prop::sample::select(ELEMENTS.to_vec()),
        rows in 1usize..40,
        cols in prop::sample::select(vec![1usize, 7, 16, 33, 1000]),
        gaps in prop::array::uniform3(0usize..20),
        seed: u64,
    ) {
        let mut r = Random(seed);
        let two = matches!(op, Element::Gate(_) | Element::Add);
        let [a, b] = [gaps[0], gaps[1]].map(|gap| r.floats((rows - 1) * (cols + gap) + cols));
        let pick = |x: &[f32], gap: usize| -> Vec<f32> {
            x.chunks(cols + gap).flat_map(|row| row[..cols].to_vec()).collect()
        };
        let (dense_a, dense_b) = (pick(&a, gaps[0]), pick(&b, gaps[1]));
        on_each_isa(2, |cx| {
            let mut want = vec![f32::NAN; rows * cols];
            let dense = two.then_some(&dense_b[..]);
            elementwise::elementwise(cx, op, &dense_a, dense, &mut want).unwrap();
            let stride = cols + gaps[2];
            let mut y = vec![-7.0; (rows - 1) * stride + cols];
            let [a, b] = [(&a, gaps[0]), (&b, gaps[1])].map(|(x, gap)| ElementRows {
                data: SharedRef::new(x),
                stride: cols + gap,
            });
            let (b, to) = (two.then_some(b), SharedMut::new(&mut y));
            let operands = StridedOperands { rows, cols, a, b, y: to, stride };
            // SAFETY: the slices are this test's own.
            unsafe { elementwise::elementwise_rows(cx, op, operands) }.unwrap();
            assert_eq!(pick(&y, gaps[2]), want, "{op:?}");
            for row in y.chunks(stride) {
                assert!(row[cols..].iter().all(|x| *x == -7.0), "{op:?}");
            }
        });
    }

    /// Each number is rounded by itself, from every type to every other.
    #[test]
    fn conversions_match_the_reference(
        n in prop::sample::select(vec![1usize, 7, 17, 255, 257, 1000, 40_000]),
        spread in prop::sample::select(vec![1e-6f32, 1.0, 1e6]),
        seed: u64,
    ) {
        let x: Vec<f32> = Random(seed).floats(n + 1).iter().map(|x| x * spread).collect();
        let x = &x[1..];
        let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
        let wide: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
        let between: Vec<bf16> = halves.iter().map(|x| bf16::from_f32(x.to_f32())).collect();
        on_each_isa(2, |cx| {
            let (mut f, mut h, mut b) = (vec![0f32; n], vec![f16::ZERO; n], vec![bf16::ZERO; n]);
            let done = elementwise::convert(cx, Floats::F32(x), FloatsMut::F16(&mut h));
            assert_eq!(h, halves);
            // What became infinite is not passed over in silence.
            assert_eq!(done.is_err(), halves.iter().any(|x| x.is_infinite()));
            elementwise::convert(cx, Floats::F32(x), FloatsMut::BF16(&mut b)).unwrap();
            assert_eq!(b, brains);
            elementwise::convert(cx, Floats::F16(&h), FloatsMut::F32(&mut f)).unwrap();
            assert_eq!(f, wide);
            elementwise::convert(cx, Floats::F16(&h), FloatsMut::BF16(&mut b)).unwrap();
            assert_eq!(b, between);
            elementwise::convert(cx, Floats::F32(x), FloatsMut::F32(&mut f)).unwrap();
            assert_eq!(f, x);
        });
    }

    #[test]
    fn norms_match_the_reference(
        lines in 1usize..40,
        group in prop::sample::select(vec![1usize, 7, 16, 17, 64, 100, 1030]),
        kind in 0usize..4,
        shift in -3.0f32..3.0,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let x: Vec<f32> = r.floats(lines * group).iter().map(|x| x + shift).collect();
        let (w, b) = (r.floats(group), r.floats(group));
        let n = match kind {
            0 => Norm::Rms { weight: None, eps: 1e-6, offset: 0.0 },
            1 => Norm::Rms { weight: Some(&w), eps: 1e-5, offset: 1.0 },
            2 => Norm::Layer { weight: &w, bias: None, eps: 1e-3 },
            _ => Norm::Layer { weight: &w, bias: Some(&b), eps: 1e-3 },
        };
        let mut want = vec![0.0; x.len()];
        for (x, y) in x.chunks(group).zip(want.chunks_mut(group)) {
            reference::norm(n, x, y);
        }
        on_each_isa(2, |cx| {
            let mut y = vec![f32::NAN; x.len()];
            norm::norm(cx, n, &x, &mut y, group).unwrap();
            close(&y, &want, 2e-5, "norm");
        });
    }

    #[test]
    fn ropes_match_the_reference(
        rows in 1usize..20,
        heads in 1usize..5,
        half in 1usize..20,
        offset in 0usize..5,
        rest in 0usize..5,
        interleaved: bool,
        start in prop::sample::select(vec![0usize, 5, 4000, 130_000]),
        seed: u64,
    ) {
        let mut r = Random(seed);
        let freqs = |r: &mut Random, factor| RopeFreqs {
            inv_freq: Arc::from((0..half).map(|_| r.float().abs()).collect::<Vec<_>>()),
            factor,
            growth: (factor > 1.0).then_some(Growth { beta: 0.1, original: 30 }),
        };
        let rotary_dim = 2 * half;
        let op = Rope {
            head_dim: offset + rotary_dim + rest,
            offset,
            rotary_dim,
            style: if interleaved { RopeStyle::Interleaved } else { RopeStyle::Half },
            freqs: freqs(&mut r, 1.0),
            long: Some((freqs(&mut r, 1.2), 100)),
        };
        let cols = heads * op.head_dim;
        let x = r.floats(rows * cols);
        // The second sequence is long.
        let cut = rows / 2;
        let seq = |rows: std::ops::Range<usize>, known_len| {
            SeqRows { seq: 0, rows, pos: start, known_len, tables: vec![] }
        };
        let forward = ForwardBatch { seqs: vec![seq(0..cut, 100), seq(cut..rows, 101)] };
        let positions: Vec<i32> = (0..rows).map(|i| (start + i) as i32).collect();
        on_each_isa(2, |cx| {
            let mut y = vec![f32::NAN; x.len()];
            rope::rope(cx, &op, &forward, &x, &positions, &mut y).unwrap();
            for (i, (x, y)) in x.chunks(op.head_dim).zip(y.chunks(op.head_dim)).enumerate() {
                let row = i / heads;
                let f = if row < cut { &op.freqs } else { &op.long.as_ref().unwrap().0 };
                let mut want = vec![0.0; op.head_dim];
                reference::rope_head(&op, f, positions[row], x, &mut want);
                close(y, &want, 1e-6, "rope");
            }
        });
    }

    #[test]
    fn appended_rows_lie_where_the_tables_say(
        a in 1usize..9,
        b in 1usize..9,
        pos in 0usize..9,
        width in prop::sample::select(vec![1usize, 5, 64, 200]),
        seed: u64,
    ) {
        let mut r = Random(seed);
        let table = |pages: Vec<u32>| {
            vec![PageTable::default(), PageTable::new(StateKind::Paged(None), 4, pages)]
        };
        let forward = ForwardBatch { seqs: vec![
            SeqRows { seq: 0, rows: 0..a, pos, known_len: 0, tables: table(vec![3, 0, 7, 9, 2]) },
            SeqRows { seq: 1, rows: a..a + b, pos: 0, known_len: 0, tables: table(vec![8, 1, 5]) },
        ] };
        let x = r.floats((a + b) * width);
        let mut want = vec![0.0; 40 * width];
        reference::append(&forward, 1, &x, width, &mut want);
        on_each_isa(3, |cx| {
            let mut got = vec![0.0; 40 * width];
            kv::append(cx, &forward, 1, &x, width, kv::CacheMut::f32(&mut got)).unwrap();
            assert_eq!(got, want);
            let mut got = vec![half::f16::ZERO; 40 * width];
            kv::append(cx, &forward, 1, &x, width, kv::CacheMut::f16(&mut got)).unwrap();
            let rounded: Vec<_> = want.iter().map(|x| half::f16::from_f32(*x)).collect();
            assert_eq!(got, rounded);
            let mut small = vec![0.0; width];
            let short = kv::append(cx, &forward, 1, &x, width, kv::CacheMut::f32(&mut small));
            assert!(matches!(short, Err(KernelError::Operand(_))));
        });
    }
}

#[test]
fn exponentials_are_accurate() {
    // Silu of large negative values shows the relative error of exp: x * e^x / (1 + e^x).
    on_each_isa(1, |cx| {
        let x: Vec<f32> = (0..80_000).map(|i| -80.0 + i as f32 * 0.001).collect();
        let mut y = vec![0.0; x.len()];
        let op = Element::Activate(Activation::Silu);
        elementwise::elementwise(cx, op, &x, None, &mut y).unwrap();
        for (x, y) in x.iter().zip(&y) {
            let e = f64::from(*x).exp();
            let want = f64::from(*x) * e / (1.0 + e);
            let error = (f64::from(*y) / want - 1.0).abs();
            assert!(error < 4e-7, "silu({x}) = {y}, {want}");
        }
        let odd = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1e30, 1e30, -88.0, 89.0];
        let mut y = [0.0; 7];
        elementwise::elementwise(cx, op, &odd, None, &mut y).unwrap();
        assert!(y[1] == f32::INFINITY && y[2].is_nan() && y[4] == 1e30 && y[6] == 89.0, "{y:?}");
        assert!(y[3].abs() < 1e-30 && y[5].abs() < 1e-30, "{y:?}");
    });
}

#[test]
fn soft_caps_are_close_everywhere() {
    let mut x: Vec<f32> = (-40_000..40_000).map(|i| i as f32 * 3e-4).collect();
    x.extend((0..600).map(|i| 10f32.powf(i as f32 * 0.1 - 38.0)));
    on_each_isa(1, |cx| {
        for cap in [0.5f32, 1.0, 30.0] {
            let mut y = vec![0.0; x.len()];
            elementwise::elementwise(cx, Element::SoftCap(cap), &x, None, &mut y).unwrap();
            for (x, y) in x.iter().zip(&y) {
                let want = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                let error = (f64::from(*y) - want).abs();
                assert!(error <= 6e-7 * want.abs() + 1e-37, "{cap} tanh({x} / {cap}): {y}");
            }
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38];
            let mut y = [0.0; 4];
            elementwise::elementwise(cx, Element::SoftCap(cap), &odd, None, &mut y).unwrap();
            let ends = [(y[1], cap), (y[2], -cap), (y[3], cap)];
            let near = ends.iter().all(|(y, want)| (y / want - 1.0).abs() < 6e-7);
            assert!(y[0].is_nan() && near, "{y:?}");
        }
    });
}

/// Compares the exponential of numbers up to 0 with the general one.
struct Falling<'a>(&'a [f32]);

impl Kernel for Falling<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for x in self.0.chunks_exact(V::N) {
            let mut e = [[0.0f32; MAX_LANES]; 2];
            V::from_slice(x).exp().write_to(&mut e[0]);
            V::from_slice(x).exp_falling().write_to(&mut e[1]);
            assert_eq!(e[0].map(f32::to_bits), e[1].map(f32::to_bits), "e^x of {x:?}");
        }
    }
}

#[test]
fn exponentials_of_numbers_up_to_0_are_the_same() {
    let near = |x: f32| (0..64u32).map(move |i| f32::from_bits(x.to_bits() + i - 32));
    let mut x: Vec<f32> = (0..120_000).map(|i| i as f32 * -0.001).collect();
    x.extend(near(-87.336_54).chain(near(-87.0)).chain(near(-104.0)).chain(near(-1e-40)));
    x.extend([f32::NEG_INFINITY, f32::MIN, -0.0, 0.0].repeat(8));
    on_each_isa(1, |cx| dispatch(cx.isa, Falling(&x)));
}

#[test]
fn columns_are_sliced_and_joined() {
    on_each_isa(2, |cx| {
        let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let mut y = vec![0.0; 8];
        let s = Slice { group: 6, start: 1, len: 2 };
        elementwise::slice_cols(cx, s, &x, &mut y, 12).unwrap();
        assert_eq!(y, [1.0, 2.0, 7.0, 8.0, 13.0, 14.0, 19.0, 20.0]);
        let mut z = vec![0.0; 32];
        elementwise::concat_cols(cx, 2, &y, &x, [4, 12], &mut z).unwrap();
        assert_eq!(&z[..8], [1.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(&z[8..10], [7.0, 8.0]);
        let mut y = vec![0.0; 4];
        elementwise::sigmoid_gate(cx, &[1.0, 2.0, 3.0, 4.0], &[0.0, 100.0], &mut y, 2).unwrap();
        assert_eq!(y, [0.5, 1.0, 3.0, 4.0]);
    });
}

/// Sums of streams, each beside a scalar reference: from three to two, and from one to three.
#[test]
fn streams_are_mixed() {
    let mut r = Random(11);
    for (from, to, width) in [(3, 2, 37), (1, 3, 5), (4, 4, 2048)] {
        let rows = 3;
        let (x, c) = (r.floats(rows * from * width), r.floats(rows * to * from));
        let mut expected = Vec::new();
        for (x, c) in x.chunks(from * width).zip(c.chunks(to * from)) {
            for (i, c) in c.chunks(from).enumerate() {
                let sum = |k| (0..from).map(|j| c[j] * x[j * width + k]).sum::<f32>();
                expected.extend((0..width).map(|k| x[i % from * width + k] + sum(k)));
            }
        }
        on_each_isa(2, |cx| {
            let mut y = vec![0.0; expected.len()];
            elementwise::mix(cx, from, &x, &c, &mut y, from * width).unwrap();
            close(&y, &expected, 1e-5, &format!("{from} to {to} of {width}"));
        });
    }
}

/// Columns times weights, rows as large as others, and what is above a row's deviations.
#[test]
fn rows_are_scaled_and_cut() {
    let mut r = Random(12);
    for cols in [1, 7, 64, 1030] {
        let rows = 3;
        let (x, like, w) = (r.floats(rows * cols), r.floats(rows * cols), r.floats(cols));
        let lines = || x.chunks(cols).zip(like.chunks(cols));
        on_each_isa(2, |cx| {
            for kind in 0..3 {
                let of = |like| match kind {
                    0 => Norm::Columns(&w),
                    1 => Norm::Match { like, least: 0.3 },
                    _ => Norm::Largest { deviations: 0.7 },
                };
                let mut expected = vec![0.0; rows * cols];
                for ((x, like), y) in lines().zip(expected.chunks_mut(cols)) {
                    reference::norm(of(like), x, y);
                }
                let mut y = vec![0.0; rows * cols];
                norm::norm(cx, of(&like), &x, &mut y, cols).unwrap();
                close(&y, &expected, 1e-5, &format!("{cols} columns"));
            }
        });
    }
}

#[test]
fn embeddings_are_rows_of_the_table() {
    let mut r = Random(1);
    let bytes = r.weight(DType::Q8_0, 5 * 64);
    let table = WeightView { dtype: DType::Q8_0, bytes: &bytes, rows: 5, cols: 64 };
    let mut all = vec![0.0; 5 * 64];
    blocks::dequantize(DType::Q8_0, &bytes, &mut all);
    on_each_isa(2, |cx| {
        let mut y = vec![0.0; 2 * 64];
        embed::embed(cx, table, 2.0, &[4, 1], &mut y).unwrap();
        let want: Vec<f32> = all[4 * 64..].iter().chain(&all[64..128]).map(|x| x * 2.0).collect();
        assert_eq!(y, want);
        for bad in [-1, 5] {
            assert!(embed::embed(cx, table, 1.0, &[bad, 0], &mut y).is_err());
        }
    });
}
