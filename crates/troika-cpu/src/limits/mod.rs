//! What this machine can do at most, measured now: bytes read from memory and products per
//! second of each multiply instruction. Measurements of models and kernels are shares of these.
//!
//! A multiply figure is the rate of a loop of nothing but the instructions a kernel would need
//! per product, on registers that never wait for each other. So it is an upper bound: loads,
//! scales and stores come on top in a kernel.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod bandwidth;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use troika_graph::{Acts, DType};

use crate::Isa;
use crate::kernels::{int8, linear};

pub use bandwidth::measure_bandwidth;

/// A way to multiply: an instruction with what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Multiply {
    /// `vfmadd231ps` on 256 bits.
    F32Avx2,
    /// `vpmaddubsw`, `vpmaddwd`, `vpaddd` on 256 bits: bytes into sums of 32 bits.
    Int8Avx2,
    /// Four `vpmaddubsw` added in 16 bits before they are widened, on 256 bits: possible when one
    /// operand has few bits.
    Int8SumsAvx2,
    /// `vpmaddwd`, `vpaddd` on 256 bits: words into sums of 32 bits.
    Int16Avx2,
    /// `vpdpbusd` on 256 bits (AVX-VNNI).
    Int8AvxVnni,
    /// `vfmadd231ps` on 512 bits.
    F32Avx512,
    /// `vpdpbusd` on 512 bits (AVX-512 VNNI).
    Int8Avx512,
    /// `vdpbf16ps` on 512 bits.
    Bf16Avx512,
    /// `tdpbssd` on tiles of 16 rows of 64 bytes.
    Int8Amx,
    /// `tdpbf16ps` on tiles of 16 rows of 32 values.
    Bf16Amx,
    /// `fmla` on 128 bits.
    F32Neon,
    /// `sdot` on 128 bits.
    Int8Dot,
    /// `smmla` on 128 bits.
    Int8Mmla,
}

impl Multiply {
    /// All of them.
    pub const ALL: [Multiply; 13] = [
        Multiply::F32Avx2,
        Multiply::Int8Avx2,
        Multiply::Int8SumsAvx2,
        Multiply::Int16Avx2,
        Multiply::Int8AvxVnni,
        Multiply::F32Avx512,
        Multiply::Int8Avx512,
        Multiply::Bf16Avx512,
        Multiply::Int8Amx,
        Multiply::Bf16Amx,
        Multiply::F32Neon,
        Multiply::Int8Dot,
        Multiply::Int8Mmla,
    ];

    /// Its name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Multiply::F32Avx2 => "f32_fma_avx2",
            Multiply::Int8Avx2 => "int8_maddubs_avx2",
            Multiply::Int8SumsAvx2 => "int8_maddubs_avx2_i16x4",
            Multiply::Int16Avx2 => "int16_maddwd_avx2",
            Multiply::Int8AvxVnni => "int8_vnni_avx2",
            Multiply::F32Avx512 => "f32_fma_avx512",
            Multiply::Int8Avx512 => "int8_vnni_avx512",
            Multiply::Bf16Avx512 => "bf16_avx512",
            Multiply::Int8Amx => "int8_amx",
            Multiply::Bf16Amx => "bf16_amx",
            Multiply::F32Neon => "f32_fma_neon",
            Multiply::Int8Dot => "int8_sdot_neon",
            Multiply::Int8Mmla => "int8_smmla_neon",
        }
    }

    /// What is counted: products of floats, or of integers.
    pub const fn unit(self) -> &'static str {
        match self {
            Multiply::F32Avx2
            | Multiply::F32Avx512
            | Multiply::Bf16Avx512
            | Multiply::Bf16Amx
            | Multiply::F32Neon => "GFLOP/s",
            _ => "GOP/s",
        }
    }

    /// What products with weights of a type use on an instruction set, if it is known.
    pub fn in_use(isa: Isa, weight: DType, acts: Acts) -> Option<Multiply> {
        match acts {
            Acts::Int8 => int8::multiply(isa, weight),
            Acts::F32 | Acts::Bf16 => linear::multiply(isa, acts),
        }
    }

    /// The loop that measures it; `None` where this machine cannot.
    fn probe(self) -> Option<Probe> {
        #[cfg(target_arch = "x86_64")]
        return x86::probe(self);
        #[cfg(target_arch = "aarch64")]
        return aarch64::probe(self);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        None
    }
}

/// A loop to be timed.
#[derive(Clone, Copy)]
struct Probe {
    /// Runs the loop that many times.
    run: fn(u64),
    /// Operations of a pass, two per product.
    ops: u64,
}

/// A measured rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Of what.
    pub multiply: Multiply,
    /// 10^9 operations per second, two per product, of all threads together.
    pub value: f64,
}

/// The limits of this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Threads measured with.
    pub threads: usize,
    /// Bytes read from memory, GB/s.
    pub read: f64,
    /// The multiply instructions this machine has.
    pub multiply: Vec<Limit>,
    isa: Isa,
}

impl Limits {
    /// The multiply limit of products of activations with weights of a type: that of the
    /// instructions the kernels use for it.
    pub fn of(&self, weight: DType, acts: Acts) -> Option<Limit> {
        let wanted = Multiply::in_use(self.isa, weight, acts)?;
        self.multiply.iter().find(|l| l.multiply == wanted).copied()
    }
}

/// Measures all limits with `threads` threads; `isa` is what kernels will run on. Takes about two
/// seconds.
pub fn measure(threads: usize, isa: Isa) -> Limits {
    let threads = threads.max(1);
    let one = |multiply: Multiply| {
        multiply.probe().map(|p| Limit { multiply, value: rate(p, threads, TIME, RUNS) })
    };
    Limits {
        threads,
        read: measure_bandwidth(threads),
        multiply: Multiply::ALL.into_iter().filter_map(one).collect(),
        isa,
    }
}

/// Length of a measurement of a multiply rate.
const TIME: Duration = Duration::from_millis(12);
/// Measurements of a rate; the best counts.
const RUNS: usize = 5;

/// The best of `runs` measurements, in 10^9 operations per second.
fn rate(probe: Probe, threads: usize, time: Duration, runs: usize) -> f64 {
    let passes = passes(probe, time);
    let mut best = 0.0f64;
    for _ in 0..runs {
        let Some(seconds) = together(threads, || (probe.run)(passes)) else { continue };
        best = best.max((threads as u64 * passes * probe.ops) as f64 / seconds / 1e9);
    }
    best
}

/// How many passes of a loop take `time` on one thread.
fn passes(probe: Probe, time: Duration) -> u64 {
    let mut n = 1000;
    loop {
        let start = Instant::now();
        (probe.run)(n);
        let took = start.elapsed();
        if took * 8 >= time || n >= 1 << 40 {
            let scale = time.as_secs_f64() / took.as_secs_f64().max(1e-9);
            return ((n as f64 * scale) as u64).max(1);
        }
        n *= 4;
    }
}

/// Runs `work` on some threads at once; the seconds from the first one's start to the last one's
/// end. `None` when there is no thread to be had.
fn together(threads: usize, work: impl Fn() + Sync) -> Option<f64> {
    let waiting = AtomicUsize::new(threads);
    let one = || {
        // All begin at once, so that none runs with the others' share of the power.
        waiting.fetch_sub(1, Ordering::SeqCst);
        while waiting.load(Ordering::SeqCst) > 0 {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        work();
        (start, Instant::now())
    };
    std::thread::scope(|s| {
        let mut others = Vec::new();
        for _ in 1..threads {
            match std::thread::Builder::new().spawn_scoped(s, one) {
                Ok(handle) => others.push(handle),
                // Those that run already would wait for this one.
                Err(_) => drop(waiting.fetch_sub(1, Ordering::SeqCst)),
            }
        }
        let complete = others.len() + 1 == threads;
        let (mut first, mut last) = one();
        for handle in others {
            let (start, end) = handle.join().ok()?;
            first = first.min(start);
            last = last.max(end);
        }
        complete.then(|| (last - first).as_secs_f64())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_of_this_machine_is_measured() {
        let mut measured = Vec::new();
        for multiply in Multiply::ALL {
            let Some(probe) = multiply.probe() else { continue };
            measured.push(multiply);
            for threads in [1, 2] {
                let value = rate(probe, threads, Duration::from_micros(200), 1);
                assert!(value.is_finite() && value > 0.0, "{multiply:?}");
            }
        }
        // Every set beside the plain one multiplies floats and bytes with something.
        for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let float = Multiply::in_use(isa, DType::F32, Acts::F32);
            let byte = Multiply::in_use(isa, DType::Q8_0, Acts::Int8);
            for used in [float, byte] {
                let used = used.unwrap_or_else(|| panic!("{isa:?}"));
                assert!(measured.contains(&used), "{isa:?}: {used:?}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = Multiply::ALL.iter().map(|m| m.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Multiply::ALL.len());
    }

    /// What the kernels say they use is something this machine has.
    #[test]
    fn kernels_use_what_is_measured() {
        for isa in Isa::available() {
            for acts in [Acts::F32, Acts::Int8, Acts::Bf16] {
                for dtype in crate::device::WEIGHT_DTYPES {
                    let used = Multiply::in_use(isa, dtype, acts);
                    assert!(used.is_none_or(|m| m.probe().is_some()), "{isa:?} {dtype} {acts:?}");
                }
            }
        }
    }
}
