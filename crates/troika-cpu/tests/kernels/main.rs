//! Every kernel, on every instruction set, against its plain reference: natively on those of this
//! machine, in plain Rust on others that have an emulation.

#![allow(missing_docs)]

mod arm;
mod attention;
mod elements;
mod int8;
mod linear;
mod moe;
mod router;
mod threads;

use proptest::test_runner::Config as ProptestConfig;
use troika_cpu::kernels::Context;
use troika_cpu::{Isa, PerWorker, Pool};
use troika_graph::DType;

/// Random cases of a property: so many, or fewer where `PROPTEST_CASES` says so (proptest itself
/// asks it only where a test gives no number).
pub fn cases(n: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let fewer = std::env::var_os("PROPTEST_CASES").map_or(n, |_| config.cases.min(n));
    ProptestConfig { cases: fewer, ..config }
}

/// Runs `f` on each instruction set with `threads` threads.
pub fn on_each_isa(threads: usize, mut f: impl FnMut(&mut Context<'_>)) {
    for isa in runnable() {
        with(isa, threads, &mut f);
    }
}

/// The instruction sets kernels can run on here.
pub fn runnable() -> impl Iterator<Item = Isa> {
    Isa::all().into_iter().filter(|isa| isa.can_run())
}

/// Says how each instruction set is tested here (`-- --nocapture`).
#[test]
fn instruction_sets_under_test() {
    for isa in Isa::all() {
        let how = match isa {
            _ if isa.is_available() => "natively",
            _ if isa.is_emulated() => "emulated",
            _ => "not tested here",
        };
        println!("kernels on {:<12} {how}", isa.name());
    }
    assert!(Isa::detect().is_available());
    assert!(!Isa::available().into_iter().any(Isa::is_emulated));
}

/// Runs `f` on one instruction set with `threads` threads.
pub fn with<T>(isa: Isa, threads: usize, f: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let each = 1 << 17;
    let mut scratch = vec![f32::NAN; each * threads];
    let mut pool = Pool::new(threads, None).unwrap();
    let scratch = PerWorker::new(&mut scratch, each);
    f(&mut Context { pool: &mut pool, isa, scratch })
}

/// A small generator: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Between -1 and 1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Random elements of a weight type. Block bytes are random but for their scales, which are
    /// kept finite and small.
    pub fn weight(&mut self, dtype: DType, len: usize) -> Vec<u8> {
        let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
        match dtype {
            DType::F32 => (0..len).flat_map(|_| self.float().to_le_bytes()).collect(),
            DType::F16 => (0..len).flat_map(|_| half(self.float())).collect(),
            DType::BF16 => {
                (0..len).flat_map(|_| half::bf16::from_f32(self.float()).to_le_bytes()).collect()
            }
            _ => {
                let mut out = Vec::new();
                for _ in 0..len / dtype.block_len() {
                    let mut block: Vec<u8> =
                        (0..dtype.block_bytes()).map(|_| self.bits() as u8).collect();
                    let at = match dtype {
                        DType::Q2_K => vec![80, 82],
                        DType::Q3_K => vec![108],
                        DType::Q6_K => vec![208],
                        DType::MXFP4 => {
                            block[0] = 120 + block[0] % 4;
                            vec![]
                        }
                        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => vec![0, 2],
                        _ => vec![0],
                    };
                    for at in at {
                        let scale = half(self.float() * 0.05);
                        block[at..at + 2].copy_from_slice(&scale);
                    }
                    out.extend(block);
                }
                out
            }
        }
    }
}

/// Asserts that all elements agree within `tol`, relative to `scale`.
#[track_caller]
pub fn close(got: &[f32], want: &[f32], tol: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let ok = (g - w).abs() <= tol * w.abs().max(1.0) || g == w;
        assert!(ok, "{what}, element {i}: {g} is not {w}");
    }
}
