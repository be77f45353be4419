use proptest::prelude::*;
use troika_cpu::Isa;
use troika_cpu::kernels::int8::{DTYPES, Layout, PackedView};
use troika_cpu::kernels::linear::WeightView;
use troika_cpu::kernels::moe::{self, Expert, Memory, Operands};
use troika_cpu::kernels::{Context, KernelError};
use troika_graph::{Activation, ActivationFormat, DType};

use crate::{Random, close, on_each_isa, with};

struct Case {
    weights: Vec<[Vec<u8>; 3]>,
    biases: Option<Vec<[Vec<f32>; 3]>>,
    dtype: DType,
    k: usize,
    inter: usize,
}

impl Case {
    fn new(r: &mut Random, dtype: DType, dims: (usize, usize, usize), bias: bool) -> Case {
        let (experts, k, inter) = dims;
        let weights = (0..experts).map(|_| std::array::from_fn(|_| r.weight(dtype, k * inter)));
        let weights = weights.collect();
        let mut one = || [r.floats(inter), r.floats(inter), r.floats(k)];
        let biases = bias.then(|| (0..experts).map(|_| one()).collect());
        Case { weights, biases, dtype, k, inter }
    }

    fn expert(&self, e: usize) -> Expert<'_, WeightView<'_>> {
        let [g, u, d] = &self.weights[e];
        let view = |bytes, rows, cols| WeightView { dtype: self.dtype, bytes, rows, cols };
        let bias = |i: usize| self.biases.as_ref().map(|b| &b[e][i][..]);
        Expert {
            gate: view(g, self.inter, self.k),
            up: view(u, self.inter, self.k),
            down: view(d, self.k, self.inter),
            bias: [bias(0), bias(1), bias(2)],
        }
    }
}

/// Experts on the rows of a group, with activations in f32.
pub fn operands<'a, E>(
    experts: usize,
    k: usize,
    inter: usize,
    expert: &'a (dyn Fn(usize) -> E + Sync),
    x: &'a [f32],
) -> Operands<'a, E> {
    let (act, activations) = (Activation::Silu, ActivationFormat::F32);
    Operands { experts, expert, act, x, activations, k, inter, ids: &[], weights: &[], top_k: 1 }
}

/// Runs experts that rows chose, or with a capacity a group, whose last rows may be missing.
pub fn run<W: moe::Weight>(
    cx: &mut Context<'_>,
    x: Operands<'_, Expert<'_, W>>,
    capacity: Option<usize>,
) -> Result<Vec<f32>, KernelError> {
    let rows = x.x.len() / x.k;
    let mut floats = vec![f32::NAN; moe::floats(rows, x.top_k, x.k, x.inter, x.activations)];
    let mut words = vec![u32::MAX; moe::words(rows * x.top_k, x.experts)];
    let mut y = vec![f32::NAN; x.x.len()];
    let memory = Memory { floats: &mut floats, words: &mut words };
    match capacity {
        None => moe::experts(cx, x, memory, &mut y)?,
        Some(capacity) => moe::group(cx, x, capacity, memory, &mut y)?,
    }
    Ok(y)
}

fn choose(r: &mut Random, rows: usize, top_k: usize, experts: usize) -> Vec<i32> {
    let mut ids = Vec::new();
    for _ in 0..rows {
        let mut all: Vec<i32> = (0..experts as i32).collect();
        ids.extend((0..top_k).map(|_| all.swap_remove(r.below(all.len()))));
    }
    ids
}

proptest! {
    #![proptest_config(crate::cases(96))]

    #[test]
    fn experts_match_the_reference(
        rows in prop::sample::select(vec![1usize, 2, 4, 5, 17, 90]),
        experts in 2usize..9,
        top_k in 1usize..3,
        dtype in prop::sample::select(vec![DType::F32, DType::BF16, DType::Q8_0, DType::MXFP4]),
        (k, inter) in prop::sample::select(vec![(32usize, 64usize), (96, 32), (64, 160)]),
        bias: bool,
        clamped: bool,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let case = Case::new(&mut r, dtype, (experts, k, inter), bias);
        let (x, weights) = (r.floats(rows * k), r.floats(rows * top_k));
        let ids = choose(&mut r, rows, top_k, experts);
        let expert = |e| case.expert(e);
        let act = if clamped {
            Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 }
        } else {
            Activation::Silu
        };
        let x = operands(experts, k, inter, &expert, &x);
        let x = Operands { act, ids: &ids, weights: &weights, top_k, ..x };
        let mut want = vec![0.0; rows * k];
        crate::reference::experts(&x, &mut want);
        let scale = want.iter().fold(1.0f32, |m, w| m.max(w.abs()));
        on_each_isa(2, |cx| {
            let got = run(cx, x, None).unwrap();
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() <= 1e-5 * scale, "{g} is not {w}");
            }
            // A row alone has the same bits.
            let row = rows - 1;
            let one = Operands {
                x: &x.x[row * k..],
                ids: &ids[row * top_k..],
                weights: &weights[row * top_k..],
                ..x
            };
            assert_eq!(run(cx, one, None).unwrap(), &got[row * k..]);
            if dtype == DType::BF16 {
                // Activations in bf16: near the reference, and again the same bits alone.
                let rounded = |x| Operands { activations: ActivationFormat::Bf16, ..x };
                let got = run(cx, rounded(x), None).unwrap();
                for (g, w) in got.iter().zip(&want) {
                    assert!((g - w).abs() <= 1e-2 * scale, "{g} is not {w}");
                }
                assert_eq!(run(cx, rounded(one), None).unwrap(), &got[row * k..]);
            }
        });
    }
}

proptest! {
    #![proptest_config(crate::cases(96))]

    /// A row of a group has the bits that its expert computes for it among other rows, in another
    /// order and alone.
    #[test]
    fn groups_have_the_bits_of_chosen_experts(
        experts in 1usize..6,
        capacity in prop::sample::select(vec![1usize, 2, 7, 16, 33]),
        missing in 0usize..20,
        dtype in prop::sample::select(vec![DType::F32, DType::BF16, DType::Q8_0, DType::MXFP4]),
        (k, inter) in prop::sample::select(vec![(32usize, 64usize), (96, 32), (64, 160)]),
        bias: bool,
        rounded: bool,
        seed: u64,
    ) {
        let mut r = Random(seed);
        let case = Case::new(&mut r, dtype, (experts, k, inter), bias);
        let rows = (experts * capacity).saturating_sub(missing).max(1);
        let mut x = r.floats(rows * k);
        // Padding in the middle: the rows of no token.
        x[rows / 2 * k..(rows / 2 + 1) * k].fill(0.0);
        let expert = |e| case.expert(e);
        let bf16 = rounded && dtype == DType::BF16;
        let activations = if bf16 { ActivationFormat::Bf16 } else { ActivationFormat::F32 };
        let operands = Operands { activations, ..operands(experts, k, inter, &expert, &x) };
        let (ones, ids) = (vec![1.0; rows], |row: usize| (row / capacity) as i32);
        let turned: Vec<usize> = (0..rows).map(|i| (i * 7 + 3) % rows).collect();
        let is_order = turned.iter().collect::<std::collections::BTreeSet<_>>().len() == rows;
        let order = if is_order { turned } else { (0..rows).rev().collect() };
        let among: Vec<f32> = order.iter().flat_map(|r| &x[r * k..][..k]).copied().collect();
        let among_ids: Vec<i32> = order.iter().map(|r| ids(*r)).collect();
        on_each_isa(2, |cx| {
            let got = run(cx, operands, Some(capacity)).unwrap();
            let chosen = Operands { x: &among, ids: &among_ids, weights: &ones, ..operands };
            let want = run(cx, chosen, None).unwrap();
            for (at, row) in order.iter().enumerate() {
                assert_eq!(&want[at * k..][..k], &got[row * k..][..k], "row {row}");
            }
            let last = rows - 1;
            let alone = Operands {
                x: &x[last * k..],
                ids: &[ids(last)],
                weights: &[1.0],
                ..operands
            };
            assert_eq!(run(cx, alone, None).unwrap(), &got[last * k..]);
        });
    }
}

#[test]
fn threads_do_not_change_bits_and_bad_ids_are_refused() {
    let mut r = Random(4);
    let case = Case::new(&mut r, DType::F32, (6, 48, 80), true);
    let (x, weights) = (r.floats(30 * 48), r.floats(60));
    let mut ids = choose(&mut r, 30, 2, 6);
    let expert = |e| case.expert(e);
    let results = |ids: &'_ [i32]| -> Vec<Vec<f32>> {
        let (act, x) = (Activation::GeluTanh, operands(6, 48, 80, &expert, &x));
        let x = Operands { act, ids, weights: &weights, top_k: 2, ..x };
        (1..=3).filter_map(|t| with(Isa::detect(), t, |cx| run(cx, x, None)).ok()).collect()
    };
    let all = results(&ids);
    assert_eq!(all.len(), 3);
    assert!(all[0] == all[1] && all[1] == all[2]);
    close(&all[0], &all[2], 0.0, "threads");
    ids[7] = 6;
    assert!(results(&ids).is_empty());
    ids[7] = -2;
    assert!(results(&ids).is_empty());
}

/// Activations in floats: blocks as they lie and packed ones, one row and several.
#[test]
fn packed_experts_have_the_bits_of_stored_ones() {
    let mut r = Random(41);
    for &dtype in DTYPES {
        let (k, inter) = (256, 512);
        let case = Case::new(&mut r, dtype, (3, k, inter), true);
        let packed = case.weights.iter().map(|all| {
            let shapes = [(inter, k), (inter, k), (k, inter)];
            let layouts = shapes.map(|(n, k)| Layout::new(dtype, n, k).unwrap());
            std::array::from_fn::<_, 3, _>(|i| (layouts[i], layouts[i].pack(&all[i])))
        });
        let packed: Vec<_> = packed.collect();
        let packed = |e: usize| {
            let view = |i: usize| {
                let (layout, bytes) = &packed[e][i];
                PackedView { layout: *layout, bytes }
            };
            Expert { gate: view(0), up: view(1), down: view(2), bias: case.expert(e).bias }
        };
        for (rows, top_k) in [(1, 2), (7, 2)] {
            let (x, weights) = (r.floats(rows * k), r.floats(rows * top_k));
            let ids = choose(&mut r, rows, top_k, 3);
            let stored = |e| case.expert(e);
            let (ids, weights) = (&ids[..], &weights[..]);
            let stored = operands(3, k, inter, &stored, &x);
            let stored = Operands { ids, weights, top_k, ..stored };
            let packed = operands(3, k, inter, &packed, &x);
            let packed = Operands { ids, weights, top_k, ..packed };
            on_each_isa(2, |cx| {
                let want = run(cx, stored, None).unwrap();
                assert_eq!(run(cx, packed, None).unwrap(), want, "{dtype}, {rows} rows");
            });
        }
    }
}
