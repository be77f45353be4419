//! Speed of the kernels, per op and format: `cargo bench -p troika-cpu [-- FILTER]`.
//!
//! `item/s` are operations, two per product (so Gitem/s is GOP/s or GFLOP/s), `B/s` bytes of
//! weights, cache or values read and written once. Operands of one row lie in more memory than the
//! caches hold and are taken in turn, as a model's are. `troika bench` measures the limits to
//! compare with.

#![allow(clippy::disallowed_methods, clippy::expect_used, unsafe_code)]
#![allow(missing_docs)]

mod attention;
mod elements;
mod float;
mod int8;
mod moe;

use troika_cpu::kernels::Context;
use troika_cpu::{Isa, PerWorker, Pool};
use troika_graph::DType;

fn main() {
    divan::main();
}

/// Bytes of all copies of an operand: beyond the caches.
pub const MEMORY: usize = 192 << 20;

/// Runs `f` on an instruction set with all cores.
pub fn with<T>(isa: Isa, f: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let threads =
        std::env::var("XT").ok().and_then(|s| s.parse().ok()).unwrap_or(troika_cpu::cores());
    let each = 1 << 17;
    let mut scratch = vec![0.0; each * threads];
    let mut pool = Pool::new(threads, None).expect("threads");
    let scratch = PerWorker::new(&mut scratch, each);
    f(&mut Context { pool: &mut pool, isa, scratch })
}

/// Instruction sets worth measuring: all but the scalar one, where there is another.
pub fn isas() -> Vec<Isa> {
    let all = Isa::available();
    if all.len() > 1 { all[1..].to_vec() } else { all }
}

/// A matrix product: `rows` rows times an `n` x `k` weight.
#[derive(Clone, Copy)]
pub struct Matrix {
    pub isa: Isa,
    pub dtype: DType,
    pub n: usize,
    pub k: usize,
    pub rows: usize,
}

impl std::fmt::Display for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Matrix { isa, dtype, n, k, rows } = self;
        write!(f, "{} {dtype} {rows} x ({n} x {k})", isa.name())
    }
}

impl Matrix {
    /// All instruction sets, types and rows for the shapes of a small model's layers.
    pub fn all(dtypes: &[DType], rows: &[usize]) -> Vec<Matrix> {
        let mut all = Vec::new();
        for isa in isas() {
            for &dtype in dtypes {
                for (n, k) in [(3072, 1024), (1024, 3072)] {
                    all.extend(rows.iter().map(|&rows| Matrix { isa, dtype, n, k, rows }));
                }
            }
        }
        all
    }

    /// Operations of the product.
    pub fn ops(&self) -> u64 {
        2 * (self.n * self.k * self.rows) as u64
    }

    /// How many copies of the weight are taken in turn.
    pub fn copies(&self, bytes: usize) -> usize {
        if self.rows < 8 { (MEMORY / bytes).max(1) } else { 1 }
    }
}

/// Some numbers between -0.5 and 0.5.
pub fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 31 % 83) as f32 / 83.0 - 0.5).collect()
}

/// The bytes of a weight whose numbers are small and finite.
pub fn weight(dtype: DType, len: usize) -> Vec<u8> {
    let x = floats(len.min(1 << 16));
    let some = x.iter().cycle().take(len);
    match dtype {
        DType::F32 => some.flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => some.flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
        DType::BF16 => some.flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect(),
        // Any bytes below 64 are blocks with small scales.
        _ => (0..len / dtype.block_len() * dtype.block_bytes())
            .map(|i| (i * 37 % 60) as u8)
            .collect(),
    }
}
