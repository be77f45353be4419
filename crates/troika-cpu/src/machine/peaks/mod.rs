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

use std::time::{Duration, Instant};

use super::Multiply;
use super::topology::last_level_caches;
use crate::runtime::Pool;

pub use bandwidth::measure_bandwidth;

/// The loop that measures a way to multiply; `None` where this machine lacks the instructions.
fn probe(multiply: Multiply) -> Option<Probe> {
    #[cfg(target_arch = "x86_64")]
    return x86::probe(multiply);
    #[cfg(target_arch = "aarch64")]
    return aarch64::probe(multiply);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
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
pub struct Peak {
    /// Of what.
    pub multiply: Multiply,
    /// 10^9 operations per second, two per product, of all threads together.
    pub value: f64,
}

/// What this machine can do at most.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// Threads measured with.
    pub threads: usize,
    /// Bytes read from memory, GB/s.
    pub read: f64,
    /// Bytes of the last-level caches; `None` when the system does not say.
    pub cache: Option<u64>,
    /// The multiply instructions this machine has.
    pub multiply: Vec<Peak>,
}

impl Peaks {
    /// The peak of a way to multiply.
    pub fn of(&self, multiply: Multiply) -> Option<Peak> {
        self.multiply.iter().find(|p| p.multiply == multiply).copied()
    }
}

/// Measures all peaks with `threads` threads. Takes about two seconds.
pub fn measure(threads: usize) -> Peaks {
    let threads = threads.max(1);
    // The same threads for all, so that the system has long given each a core of its own.
    let mut multiply = Vec::new();
    if let Ok(mut pool) = Pool::new(threads, None) {
        for m in Multiply::ALL {
            let value = probe(m).map(|p| rate(p, &mut pool, TIME, RUNS));
            multiply.extend(value.map(|value| Peak { multiply: m, value }));
        }
    }
    Peaks { threads, read: measure_bandwidth(threads), cache: last_level_caches(), multiply }
}

/// Whether this machine has the instructions of a way to multiply, so that it is measured.
pub fn is_measured(multiply: Multiply) -> bool {
    probe(multiply).is_some()
}

/// Length of a measurement of a multiply rate.
const TIME: Duration = Duration::from_millis(12);
/// Measurements of a rate; the best counts.
const RUNS: usize = 5;

/// The best of `runs` measurements, in 10^9 operations per second.
fn rate(probe: Probe, pool: &mut Pool, time: Duration, runs: usize) -> f64 {
    let (passes, threads) = (passes(probe, time), pool.threads());
    let mut best = 0.0f64;
    for _ in 0..runs {
        let start = Instant::now();
        if pool.run(threads, &|_, _| (probe.run)(passes)).is_err() {
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
        (probe.run)(n);
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
        for multiply in Multiply::ALL {
            let Some(probe) = probe(multiply) else { continue };
            for threads in [1, 2] {
                let mut pool = Pool::new(threads, None).unwrap();
                let value = rate(probe, &mut pool, Duration::from_micros(200), 1);
                assert!(value.is_finite() && value > 0.0, "{multiply:?}");
            }
        }
        let plain = Isa::available() == [Isa::Scalar];
        assert!(plain || Multiply::ALL.into_iter().any(is_measured));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = Multiply::ALL.iter().map(|m| m.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Multiply::ALL.len());
    }
}
