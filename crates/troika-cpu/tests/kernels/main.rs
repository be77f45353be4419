//! Every kernel, on every instruction set, against its plain reference: natively on the instruction
//! sets of this machine, in plain Rust on others that have an emulation.

#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    unsafe_code
)]
#![allow(missing_docs)]

#[cfg(feature = "emulate")]
mod arm;
mod attention;
mod elements;
#[cfg(unix)]
mod guard;
mod int8;
mod linear;
mod moe;
mod outliers;
mod random;
mod recurrence;
mod reference;
mod router;
mod threads;

use proptest::test_runner::Config as ProptestConfig;
use random::Random;
use troika_cpu::kernels::Context;
use troika_cpu::{Isa, PerWorker, Pool};
use troika_graph::DType;

/// Random cases of a property: `n`, or fewer where `PROPTEST_CASES` says so (proptest itself asks
/// it only where a test gives no number).
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

/// Every set that the processor reports is tested natively, and with the feature `emulate` the others
/// in plain Rust (`-- --nocapture` lists them).
#[test]
fn every_reported_instruction_set_is_under_test() {
    let (mut native, mut emulated) = (Vec::new(), Vec::new());
    on_each_isa(1, |cx| {
        if cx.isa.is_available() { &mut native } else { &mut emulated }.push(cx.isa.name());
    });
    println!("kernels run natively on {native:?}, in plain Rust on {emulated:?}");
    assert_eq!(Some(Isa::detect().name()), native.last().copied());
    // On ARM, what is missing is not emulated (`Isa::is_emulated`).
    if cfg!(feature = "emulate") && !cfg!(target_arch = "aarch64") {
        assert_eq!(native.len() + emulated.len(), Isa::all().len());
    }
    // Whether tiles may be used is up to the system, too.
    native.retain(|name| *name != "amx");
    assert_eq!(native, reported());
}

/// The sets of this machine, without AMX, as the processor itself tells them.
fn reported() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let sets = {
        // Intel's manual, volume 2, CPUID.
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        let (first, all, more) = (__cpuid(1), __cpuid_count(7, 0), __cpuid_count(7, 1));
        let has = |word: u32, bits: &[u32]| bits.iter().all(|bit| word & 1 << bit != 0);
        // FMA and F16C; AVX2; F, DQ, BW and VL.
        let avx2 = has(first.ecx, &[12, 29]) && has(all.ebx, &[5]);
        let avx512 = avx2 && has(all.ebx, &[16, 17, 30, 31]);
        [("avx2", avx2), ("avx vnni", avx2 && has(more.eax, &[4])), ("avx512", avx512)]
    };
    #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
    let sets = {
        // Linux: `arch/arm64/include/uapi/asm/hwcap.h`.
        // SAFETY: asks for numbers.
        let [one, two] =
            [libc::AT_HWCAP, libc::AT_HWCAP2].map(|word| unsafe { libc::getauxval(word) });
        let dot = one & 1 << 20 != 0;
        [("neon", true), ("neon dotprod", dot), ("neon i8mm", dot && two & 1 << 13 != 0)]
    };
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_os = "linux"))))]
    let sets: Vec<(&str, bool)> = {
        let known = Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar);
        known.map(|isa| (isa.name(), true)).collect()
    };
    let has = sets.into_iter().filter(|(_, has)| *has).map(|(name, _)| name);
    std::iter::once("scalar").chain(has).collect()
}

/// Runs `f` on one instruction set with `threads` threads.
pub fn with<T>(isa: Isa, threads: usize, f: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let each = 1 << 17;
    let mut scratch = vec![f32::NAN; each * threads];
    let mut pool = Pool::new(threads, None).unwrap();
    let scratch = PerWorker::new(&mut scratch, each);
    f(&mut Context { pool: &mut pool, isa, scratch })
}

impl Random {
    /// Between -1 and 1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
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
                    troika_graph::blocks::set_scale(dtype, &mut block, self.float() * 0.05);
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
