use proptest::prelude::*;
use troika_cpu::kernels::linear::WeightView;
use troika_cpu::kernels::moe::{self, Expert, Memory, Operands};
use troika_cpu::kernels::{Context, KernelError};
use troika_graph::{Activation, ActivationFormat, DType, ExpertSlice};

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

fn run(
    cx: &mut Context<'_>,
    x: Operands<'_, Expert<'_, WeightView<'_>>>,
) -> Result<Vec<f32>, KernelError> {
    let rows = x.ids.len() / x.top_k;
    let mut floats = vec![f32::NAN; moe::floats(rows, x.top_k, x.k, x.inter, x.activations)];
    let mut words = vec![u32::MAX; moe::words(x.ids.len(), x.experts)];
    let mut y = vec![f32::NAN; x.x.len()];
    let memory = Memory { floats: &mut floats, words: &mut words };
    moe::experts(cx, x, memory, &mut y)?;
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
        let x = Operands {
            experts,
            slice: ExpertSlice { first: 0, of: experts },
            expert: &expert,
            act,
            x: &x,
            activations: ActivationFormat::F32,
            k,
            inter,
            ids: &ids,
            weights: &weights,
            top_k,
        };
        let mut want = vec![0.0; rows * k];
        crate::reference::experts(&x, &mut want);
        let scale = want.iter().fold(1.0f32, |m, w| m.max(w.abs()));
        on_each_isa(2, |cx| {
            let got = run(cx, x).unwrap();
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
            assert_eq!(run(cx, one).unwrap(), &got[row * k..]);
            if dtype == DType::BF16 {
                // Activations in bf16: near the reference, and again the same bits alone.
                let rounded = |x| Operands { activations: ActivationFormat::Bf16, ..x };
                let got = run(cx, rounded(x)).unwrap();
                for (g, w) in got.iter().zip(&want) {
                    assert!((g - w).abs() <= 1e-2 * scale, "{g} is not {w}");
                }
                assert_eq!(run(cx, rounded(one)).unwrap(), &got[row * k..]);
            }
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
    let operands = |ids: &'_ [i32]| -> Vec<Vec<f32>> {
        let x = Operands {
            experts: 6,
            slice: ExpertSlice { first: 0, of: 6 },
            expert: &expert,
            act: Activation::GeluTanh,
            x: &x,
            activations: ActivationFormat::F32,
            k: 48,
            inter: 80,
            ids,
            weights: &weights,
            top_k: 2,
        };
        (1..=3).filter_map(|t| with(troika_cpu::Isa::detect(), t, |cx| run(cx, x)).ok()).collect()
    };
    let all = operands(&ids);
    assert_eq!(all.len(), 3);
    assert!(all[0] == all[1] && all[1] == all[2]);
    close(&all[0], &all[2], 0.0, "threads");
    ids[7] = 6;
    assert!(operands(&ids).is_empty());
    ids[7] = -1;
    assert!(operands(&ids).is_empty());
}
