//! Products with activations in eight bits.

use proptest::prelude::*;
use troika_cpu::kernels::Context;
use troika_cpu::kernels::elementwise::{self, Element};
use troika_cpu::kernels::int8::{
    ActivationRows, DTYPES, INT7, Layout, PackedView, Product, Quantization, floats, kinds, linear,
    quantize, scalar,
};
use troika_cpu::kernels::linear::{OutView, RowsView, WeightView};
use troika_cpu::kernels::moe;
use troika_cpu::kernels::norm::{self, Norm};
use troika_cpu::{Isa, SharedMut};
use troika_graph::{Activation, ActivationFormat, DType};

use crate::moe::{operands, run as run_experts};
use crate::{Random, on_each_isa, with};

/// Quantizes, multiplies.
fn run(
    cx: &mut Context<'_>,
    w: PackedView<'_>,
    b: Option<&[f32]>,
    (x, activations): (&[f32], ActivationFormat),
) -> Vec<f32> {
    let (dtype, n, k) = (w.layout.dtype(), w.layout.rows(), w.layout.cols());
    let rows = x.len() / k;
    let mut q = vec![f32::NAN; rows * floats(k)];
    let quantization = Quantization::of(dtype, activations);
    quantize(cx, ActivationRows::Plain(x), k, &mut [(quantization, &mut q)]).unwrap();
    let mut y = vec![f32::NAN; rows * n];
    let product = Product {
        weight: w,
        bias: b,
        x: RowsView::dense(&q, floats(k)),
        quantization,
        y: OutView::dense(SharedMut::new(&mut y), n),
    };
    // SAFETY: nobody else has the results.
    unsafe { linear(cx, rows, &[product]) }.unwrap();
    y
}

fn rows() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![1usize, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 17, 31, 32, 33, 129])
}

/// Blocks with all values, the ends of their range among them.
fn weight(r: &mut Random, dtype: DType, len: usize) -> Vec<u8> {
    let mut bytes = r.weight(dtype, len);
    let block = dtype.block_bytes();
    for (i, b) in bytes.chunks_exact_mut(block * 3).enumerate() {
        // Largest magnitudes next to each other, and largest unsigned values.
        let byte = [0x80, 0x7f][i % 2];
        b[..block].fill(if dtype == DType::Q8_0 { byte } else { 0xff });
        troika_graph::blocks::set_scale(dtype, &mut b[..block], 0.03);
    }
    bytes
}

proptest! {
    #![proptest_config(crate::cases(160))]

    /// Every instruction set gives the bits of the plain reference, for every number of rows.
    #[test]
    fn integer_products_are_the_reference_to_the_bit(
        rows in rows(),
        n in 1usize..70,
        blocks in 1usize..6,
        (dtype, activations) in prop::sample::select(kinds()),
        bias: bool,
        one_sign: bool,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let k = dtype.block_len() * blocks;
        let bytes = weight(&mut r, dtype, n * k);
        let view = WeightView { dtype, bytes: &bytes, rows: n, cols: k };
        // A float and a byte in front: slices are not aligned.
        let mut x = r.floats(1 + rows * k);
        if one_sign {
            // All at the largest: sums of 16 bits must not overflow.
            x.iter_mut().for_each(|x| *x = 1.0);
        }
        let x = &x[1..];
        let b = r.floats(n);
        let b = bias.then_some(&b[..]);
        let layout = Layout::new(dtype, n, k).unwrap();
        let packed = [vec![0], layout.pack(&bytes)].concat();
        let packed = PackedView { layout, bytes: &packed[1..] };
        let mut want = vec![0.0; rows * n];
        scalar::linear(view, b, x, activations, &mut want);
        on_each_isa(2, |cx| {
            let got = run(cx, packed, b, (x, activations));
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!(g.to_bits() == w.to_bits() || g == w, "{dtype} {activations:?} {rows}x{n}x{k} {:?}, {i}: {g} is not {w}", cx.isa);
            }
        });
    }

    /// Against products of f32 with the same weights: half a step of each activation, as if
    /// all errors had one sign.
    #[test]
    fn integer_products_are_near_the_float_ones(
        rows in rows(),
        n in 1usize..40,
        blocks in 1usize..4,
        (dtype, activations) in prop::sample::select(kinds()),
        seed: u64,
    ) {
        let mut r = Random(seed);
        let k = dtype.block_len() * blocks;
        let bytes = r.weight(dtype, n * k);
        let view = WeightView { dtype, bytes: &bytes, rows: n, cols: k };
        let x = r.floats(rows * k);
        let layout = Layout::new(dtype, n, k).unwrap();
        let packed = layout.pack(&bytes);
        let mut want = vec![0.0; rows * n];
        crate::reference::linear(view, None, &x, &mut want);
        let mut w = vec![0.0; n * k];
        troika_graph::blocks::dequantize(dtype, &bytes, &mut w);
        let packed = PackedView { layout, bytes: &packed };
        let got = with(Isa::detect(), 2, |cx| run(cx, packed, None, (&x, activations)));
        let steps = if activations == INT7 { 64.0 } else { 127.0 };
        for i in 0..got.len() {
            let row: f32 = w[i % n * k..][..k].iter().map(|w| w.abs()).sum();
            let bound = row * 0.501 / steps + 1e-5;
            assert!((got[i] - want[i]).abs() <= bound, "{dtype} {activations:?}: {} is not {}", got[i], want[i]);
        }
    }
}

/// Longer than a block of columns, so that sums are put down and taken up again.
#[test]
fn rows_and_threads_do_not_change_bits() {
    let mut r = Random(11);
    let (n, k, rows) = (75, 5 * 1024 + 256, 37);
    for (dtype, activations) in kinds() {
        let bytes = r.weight(dtype, n * k);
        let (x, b) = (r.floats(rows * k), r.floats(n));
        let layout = Layout::new(dtype, n, k).unwrap();
        let packed = layout.pack(&bytes);
        let packed = PackedView { layout, bytes: &packed };
        let all = with(Isa::detect(), 1, |cx| run(cx, packed, Some(&b), (&x, activations)));
        for isa in crate::runnable() {
            for threads in 1..=3 {
                assert!(
                    all == with(isa, threads, |cx| run(cx, packed, Some(&b), (&x, activations))),
                    "{dtype}"
                );
            }
            for row in [0, 17, 36] {
                let x = &x[row * k..][..k];
                let one = with(isa, 2, |cx| run(cx, packed, Some(&b), (x, activations)));
                assert!(all[row * n..][..n] == one, "{dtype}");
            }
        }
    }
}

#[test]
fn packed_weights_take_the_bytes_of_their_blocks() {
    let larger = [(DType::Q4_K, 148), (DType::Q5_K, 180), (DType::Q3_K, 116)];
    let codes = [
        (DType::IQ4_XS, 140),
        (DType::IQ3_S, 140),
        (DType::IQ3_XXS, 140),
        (DType::IQ2_S, 116),
        (DType::IQ2_XS, 116),
        (DType::IQ2_XXS, 108),
        (DType::IQ1_M, 116),
        (DType::IQ1_S, 108),
        (DType::NVFP4, 160),
        (DType::TQ2_0, 80),
        (DType::TQ1_0, 80),
        (DType::Q2_0, 80),
        (DType::Q1_0, 80),
    ];
    for &dtype in DTYPES {
        let other = larger.iter().chain(&codes).find(|(other, _)| *other == dtype);
        let own = dtype.block_bytes() * 256 / dtype.block_len();
        let bytes = other.map_or(own, |(_, bytes)| *bytes);
        let layout = Layout::new(dtype, 1024, 3072).unwrap();
        assert_eq!(layout.bytes(), 1024 * 3072 / 256 * bytes, "{dtype}");
    }
    assert!(Layout::new(DType::Q8_0, 4, 40).is_none());
    assert!(Layout::new(DType::BF16, 4, 64).is_none());
}

#[test]
fn what_is_not_a_number_stays_so() {
    let mut r = Random(2);
    let bytes = r.weight(DType::Q8_0, 3 * 64);
    let layout = Layout::new(DType::Q8_0, 3, 64).unwrap();
    let packed = layout.pack(&bytes);
    let packed = PackedView { layout, bytes: &packed };
    for activations in [ActivationFormat::INT8, INT7] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let mut x = vec![0.25; 2 * 64];
            x[70] = bad;
            on_each_isa(1, |cx| {
                let y = run(cx, packed, None, (&x, activations));
                assert!(y[..3].iter().all(|y| y.is_finite()), "{y:?}");
                assert!(y[3..].iter().all(|y| !y.is_finite()), "{y:?}");
            });
        }
        on_each_isa(1, |cx| {
            let mut of = |x: f32| run(cx, packed, None, (&[x; 64], activations));
            assert!(of(0.0).iter().all(|y| *y == 0.0));
            assert!(of(1e-42).iter().all(|y| y.abs() < 1e-30));
        });
    }
}

/// Experts with packed weights, and their raw bytes.
struct Experts {
    /// Of gates, ups and downs.
    dtypes: [DType; 3],
    activations: ActivationFormat,
    k: usize,
    inter: usize,
    raw: Vec<[Vec<u8>; 3]>,
    packed: Vec<[Vec<u8>; 3]>,
}

impl Experts {
    fn new(
        r: &mut Random,
        (dtypes, activations): ([DType; 3], ActivationFormat),
        (experts, k, inter): (usize, usize, usize),
    ) -> Experts {
        let raw: Vec<[Vec<u8>; 3]> =
            (0..experts).map(|_| dtypes.map(|dtype| r.weight(dtype, k * inter))).collect();
        let shape = |i: usize| if i < 2 { (inter, k) } else { (k, inter) };
        let pack = |raw: &[Vec<u8>; 3]| {
            std::array::from_fn(|i| {
                let (n, k) = shape(i);
                Layout::new(dtypes[i], n, k).unwrap().pack(&raw[i])
            })
        };
        let packed = raw.iter().map(pack).collect();
        Experts { dtypes, activations, k, inter, raw, packed }
    }

    fn packed(&self, e: usize) -> moe::Expert<'_, PackedView<'_>> {
        let view = |i: usize, rows, cols| PackedView {
            layout: Layout::new(self.dtypes[i], rows, cols).unwrap(),
            bytes: &self.packed[e][i],
        };
        let (k, inter) = (self.k, self.inter);
        let (gate, up, down) = (view(0, inter, k), view(1, inter, k), view(2, k, inter));
        moe::Expert { gate, up, down, bias: [None; 3] }
    }

    /// One expert on one row, by the plain reference.
    fn plain(&self, e: usize, x: &[f32]) -> Vec<f32> {
        let product = |i: usize, n: usize, k: usize, x: &[f32]| {
            let bytes = &self.raw[e][i][..];
            let mut y = vec![0.0; n];
            let w = WeightView { dtype: self.dtypes[i], bytes, rows: n, cols: k };
            scalar::linear(w, None, x, self.activations, &mut y);
            y
        };
        let (gate, up) = (product(0, self.inter, self.k, x), product(1, self.inter, self.k, x));
        let inner: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| g.max(0.0) * u).collect();
        product(2, self.k, self.inter, &inner)
    }
}

/// Types of gates, ups and downs, like and unlike ones.
fn expert_cases() -> Vec<([DType; 3], ActivationFormat, (usize, usize))> {
    use DType::{IQ4_NL, Q3_K, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};
    const INT8: ActivationFormat = ActivationFormat::INT8;
    vec![
        ([Q8_0; 3], INT8, (96, 160)),
        ([Q8_0; 3], INT7, (96, 160)),
        ([Q4_0; 3], INT8, (64, 96)),
        ([Q4_K; 3], INT8, (256, 512)),
        ([Q6_K; 3], INT8, (256, 256)),
        ([Q4_K, Q4_K, Q5_0], INT8, (256, 96)),
        ([Q4_0, Q8_0, Q4_0], INT7, (64, 96)),
        ([Q3_K, Q6_K, IQ4_NL], INT8, (256, 96)),
    ]
}

#[test]
fn experts_are_the_reference_to_the_bit() {
    let mut r = Random(19);
    for (dtypes, activations, (k, inter)) in expert_cases() {
        let experts = Experts::new(&mut r, (dtypes, activations), (5, k, inter));
        for (rows, top_k) in [(1, 2), (2, 1), (17, 2), (180, 2)] {
            let (x, weights) = (r.floats(rows * k), r.floats(rows * top_k));
            let ids: Vec<i32> = (0..rows * top_k).map(|i| (i * 7 / 3 % 4) as i32).collect();
            let expert = |e| experts.packed(e);
            let (act, chosen) = (Activation::Relu, operands(5, k, inter, &expert, &x));
            let (ids, weights) = (&ids[..], &weights[..]);
            let chosen = moe::Operands { act, activations, ids, weights, top_k, ..chosen };
            let mut want = vec![0.0f32; rows * k];
            for (pair, id) in ids.iter().enumerate() {
                let row = pair / top_k;
                let down = experts.plain(*id as usize, &x[row * k..][..k]);
                let y = &mut want[row * k..][..k];
                y.iter_mut().zip(&down).for_each(|(y, d)| *y += weights[pair] * d);
            }
            on_each_isa(2, |cx| {
                let y = run_experts(cx, chosen, None).unwrap();
                assert!(y == want, "{dtypes:?}, {rows} rows");
            });
        }
    }
}

#[test]
fn groups_of_experts_are_the_reference_to_the_bit() {
    let mut r = Random(23);
    for (dtypes, activations, (k, inter)) in expert_cases() {
        let experts = Experts::new(&mut r, (dtypes, activations), (3, k, inter));
        for (capacity, missing) in [(1, 0), (2, 1), (17, 0), (40, 25)] {
            let rows = 3 * capacity - missing;
            let x = r.floats(rows * k);
            let expert = |e| experts.packed(e);
            let (act, group) = (Activation::Relu, operands(3, k, inter, &expert, &x));
            let group = moe::Operands { act, activations, ..group };
            let plain = |row: usize| experts.plain(row / capacity, &x[row * k..][..k]);
            let want: Vec<f32> = (0..rows).flat_map(plain).collect();
            on_each_isa(2, |cx| {
                let y = run_experts(cx, group, Some(capacity)).unwrap();
                assert!(y == want, "{dtypes:?}, {capacity} rows of an expert");
            });
        }
    }
}

/// Rows that are normalised or gated as they are quantized are those made before, to the bit.
#[test]
fn rows_made_while_quantizing_have_the_same_bits() {
    let of = |dtype| Quantization::of(dtype, INT7);
    for kinds in [[DType::Q4_K, DType::Q6_K], [DType::Q8_0, DType::Q4_0]] {
        made_while_quantizing(kinds.map(of));
    }
}

fn made_while_quantizing(kinds: [Quantization; 2]) {
    let (rows, k) = (37, 96);
    let mut r = Random(3);
    let (x, up, weight) = (r.floats(rows * k), r.floats(rows * k), r.floats(k));
    let norms = [
        Norm::Rms { weight: Some(&weight), eps: 1e-5, offset: 1.0 },
        Norm::Layer { weight: &weight, bias: Some(&x[..k]), eps: 1e-5 },
    ];
    let each = rows * floats(k);
    let bits = |cx: &mut Context<'_>, from: ActivationRows<'_>| {
        let (mut a, mut b) = (vec![0.0; each], vec![0.0; each]);
        quantize(cx, from, k, &mut [(kinds[0], &mut a), (kinds[1], &mut b)]).unwrap();
        a.extend(b);
        a.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    on_each_isa(3, |cx| {
        let mut made = vec![0.0; rows * k];
        for n in norms {
            norm::norm(cx, n, &x, &mut made, k).unwrap();
            assert_eq!(
                bits(cx, ActivationRows::Norm(n, &x)),
                bits(cx, ActivationRows::Plain(&made))
            );
        }
        let act = Activation::Silu;
        elementwise::elementwise(cx, Element::Gate(act), &x, Some(&up), &mut made).unwrap();
        assert_eq!(
            bits(cx, ActivationRows::Gate(act, [&x, &up])),
            bits(cx, ActivationRows::Plain(&made))
        );
    });
}
