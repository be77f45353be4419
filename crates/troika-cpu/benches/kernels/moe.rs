//! Experts of a layer: 32 of 768 on 1024 columns, four per row.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use troika_cpu::Isa;
use troika_cpu::kernels::int8::{Layout, PackedView};
use troika_cpu::kernels::linear::WeightView;
use troika_cpu::kernels::moe::{self, Expert, Memory, Operands};
use troika_graph::{Activation, ActivationFormat, DType};

use crate::{floats, isas, weight, with};

const EXPERTS: usize = 32;
const TOP_K: usize = 4;
const K: usize = 1024;
const INTER: usize = 768;

#[derive(Clone, Copy)]
struct Case {
    isa: Isa,
    dtype: DType,
    rows: usize,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} rows", self.isa.name(), self.dtype, self.rows)
    }
}

fn cases(dtypes: &[DType]) -> Vec<Case> {
    let of = |isa| {
        let one = move |&dtype| [1, 512].map(|rows| Case { isa, dtype, rows });
        dtypes.iter().flat_map(one).collect::<Vec<_>>()
    };
    isas().into_iter().flat_map(of).collect()
}

/// Which experts a row chooses: all alike often.
fn choices(rows: usize) -> (Vec<i32>, Vec<f32>) {
    let id = |i: usize| ((i / TOP_K * 5 + i % TOP_K * 7) % EXPERTS) as i32;
    ((0..rows * TOP_K).map(id).collect(), vec![0.25; rows * TOP_K])
}

#[divan::bench(args = cases(&[DType::BF16]), sample_count = 12)]
fn experts_float(bencher: Bencher<'_, '_>, c: Case) {
    let bytes: Vec<Vec<u8>> = (0..EXPERTS).map(|_| weight(c.dtype, K * INTER)).collect();
    let expert = |e: usize| {
        let view = |rows, cols| WeightView { dtype: c.dtype, bytes: &bytes[e], rows, cols };
        Expert { gate: view(INTER, K), up: view(INTER, K), down: view(K, INTER), bias: [None; 3] }
    };
    run(bencher, c, &expert, ActivationFormat::F32, 3 * bytes[0].len());
}

#[divan::bench(args = cases(&[DType::Q8_0, DType::Q4_0, DType::Q4_K]), sample_count = 12)]
fn experts_int8(bencher: Bencher<'_, '_>, c: Case) {
    let (up, down) = (Layout::new(c.dtype, INTER, K), Layout::new(c.dtype, K, INTER));
    let (up, down) = (up.expect("whole blocks"), down.expect("whole blocks"));
    let raw = weight(c.dtype, K * INTER);
    let packed: Vec<[Vec<u8>; 3]> =
        (0..EXPERTS).map(|_| [up.pack(&raw), up.pack(&raw), down.pack(&raw)]).collect();
    let expert = |e: usize| {
        let [g, u, d] = packed[e].each_ref();
        Expert {
            gate: PackedView { layout: up, bytes: g },
            up: PackedView { layout: up, bytes: u },
            down: PackedView { layout: down, bytes: d },
            bias: [None; 3],
        }
    };
    run(bencher, c, &expert, ActivationFormat::INT8, 2 * up.bytes() + down.bytes());
}

/// Runs experts of `bytes` bytes each. It counts the operations of all pairs, and the bytes of the
/// experts used.
fn run<'e, W: moe::Weight>(
    bencher: Bencher<'_, '_>,
    c: Case,
    expert: &(dyn Fn(usize) -> Expert<'e, W> + Sync),
    activations: ActivationFormat,
    bytes: usize,
) {
    let (ids, weights) = choices(c.rows);
    let x = floats(c.rows * K);
    let mut y = vec![0.0; x.len()];
    let mut room = vec![0.0; moe::floats(c.rows, TOP_K, K, INTER, activations)];
    let mut words = vec![0; moe::words(ids.len(), EXPERTS)];
    let items = ItemsCount::new(c.rows * TOP_K * 3 * 2 * K * INTER);
    let size = BytesCount::new((c.rows * TOP_K).min(EXPERTS) * bytes);
    with(c.isa, |cx| {
        bencher.counter(items).counter(size).bench_local(|| {
            let x = Operands {
                experts: EXPERTS,
                expert,
                act: Activation::Silu,
                x: &x,
                activations,
                k: K,
                inter: INTER,
                ids: &ids,
                weights: &weights,
                top_k: TOP_K,
            };
            let memory = Memory { floats: &mut room, words: &mut words };
            moe::experts(cx, x, memory, &mut y).expect("no panic")
        });
    });
}
