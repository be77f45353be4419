//! Measures this machine's peak performance: read bandwidth, and products per second of each
//! multiply instruction. Measurements of models and kernels are shares of these.
//!
//! A multiply figure is the rate of a loop with only the instructions that a kernel needs per
//! product, on independent registers. It is an upper bound, since kernels also load, scale and
//! store.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod bandwidth;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::time::{Duration, Instant};

use super::Multiply;
use super::topology::last_level_caches;
use crate::runtime::Pool;

pub use bandwidth::measure_bandwidth;

/// The loop that measures a way to multiply; `None` if this machine lacks the instructions.
fn probe(multiply: Multiply) -> Option<Probe> {
    #[cfg(target_arch = "x86_64")]
    return x86::probe(multiply);
    #[cfg(target_arch = "aarch64")]
    return aarch64::probe(multiply);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

/// A loop to time.
#[derive(Clone, Copy)]
struct Probe {
    /// Repeats the loop. This machine must have its instructions.
    run: unsafe fn(u64),
    /// Operations per pass, two per product.
    ops: u64,
}

impl Probe {
    /// Runs the loop `passes` times.
    fn run(self, passes: u64) {
        // SAFETY: this machine has the instructions, or there were no such value.
        unsafe { (self.run)(passes) }
    }
}

/// A measured rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The way to multiply.
    pub multiply: Multiply,
    /// 10^9 operations per second, two per product, over all threads.
    pub value: f64,
}

/// This machine's peak performance.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// Number of threads.
    pub threads: usize,
    /// Read bandwidth in GB/s.
    pub read: f64,
    /// Bytes of the last-level caches; `None` when the system does not say.
    pub cache: Option<u64>,
    /// The multiply instructions this machine has.
    pub multiply: Vec<Peak>,
}

/// Measures all peaks with `threads` threads. Takes about two seconds.
pub fn measure(threads: usize) -> Peaks {
    let threads = threads.max(1);
    // Uses the same threads throughout, so that the system has given each a core.
    let mut multiply = Vec::new();
    if let Ok(mut pool) = Pool::new(threads, None) {
        for &m in Multiply::ALL {
            let value = probe(m).map(|p| rate(p, &mut pool, TIME, RUNS));
            multiply.extend(value.map(|value| Peak { multiply: m, value }));
        }
    }
    Peaks { threads, read: measure_bandwidth(threads), cache: last_level_caches(), multiply }
}

/// Whether this machine has the instructions, so that their peak can be measured.
pub fn is_measured(multiply: Multiply) -> bool {
    probe(multiply).is_some()
}

/// Duration of a measurement.
const TIME: Duration = Duration::from_millis(12);
/// Number of measurements; the best counts.
const RUNS: usize = 5;

/// The best of `runs` measurements, in 10^9 operations per second.
fn rate(probe: Probe, pool: &mut Pool, time: Duration, runs: usize) -> f64 {
    let (passes, threads) = (passes(probe, time), pool.threads());
    let mut best = 0.0f64;
    for _ in 0..runs {
        let start = Instant::now();
        if pool.run(threads, &|_, _| probe.run(passes)).is_err() {
            break;
        }
        let ops = threads as u64 * passes * probe.ops;
        best = best.max(ops as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}

/// How many passes of a loop take `time` on one thread.
fn passes(probe: Probe, time: Duration) -> u64 {
    let mut n = 1000;
    loop {
        let start = Instant::now();
        probe.run(n);
        let took = start.elapsed();
        if took * 8 >= time || n >= 1 << 40 {
            let scale = time.as_secs_f64() / took.as_secs_f64().max(1e-9);
            return ((n as f64 * scale) as u64).max(1);
        }
        n *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Isa;

    #[test]
    fn every_instruction_of_this_machine_is_measured() {
        for &multiply in Multiply::ALL {
            let Some(probe) = probe(multiply) else { continue };
            for threads in [1, 2] {
                let mut pool = Pool::new(threads, None).unwrap();
                let value = rate(probe, &mut pool, Duration::from_micros(200), 1);
                assert!(value.is_finite() && value > 0.0, "{multiply:?}");
            }
        }
        let plain = Isa::available() == [Isa::Scalar];
        assert!(plain || Multiply::ALL.iter().copied().any(is_measured));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = Multiply::ALL.iter().map(|m| m.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Multiply::ALL.len());
    }
}
