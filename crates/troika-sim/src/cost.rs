//! Modelled time: the launch, and the longer of computing and moving bytes. Pure functions, in whole
//! nanoseconds.

use crate::demand::Demand;
use crate::soc::{PeakRates, Processor, Soc};

/// How fast a processor is within its SoC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// 10^9 operations in a second are one in a nanosecond.
    peaks: PeakRates,
    /// Bytes in a nanosecond.
    bandwidth: f64,
    launch_ns: u64,
}

impl Rates {
    /// The processor's own, and no more bandwidth than the memory has.
    pub fn new(soc: &Soc, processor: &Processor) -> Rates {
        let shared = soc.bandwidth_gb_s.unwrap_or(f64::INFINITY);
        Rates {
            peaks: processor.peak_gops,
            bandwidth: processor.bandwidth_gb_s.min(shared),
            launch_ns: processor.launch_ns,
        }
    }

    /// Nanoseconds of a run.
    pub fn run_ns(&self, demand: &Demand) -> u64 {
        let formats = [
            (demand.f32, self.peaks.f32),
            (demand.int8, self.peaks.int8.unwrap_or(self.peaks.f32)),
            (demand.bf16, self.peaks.bf16.unwrap_or(self.peaks.f32)),
        ];
        let compute = formats.iter().fold(0.0, |sum, (count, peak)| sum + *count as f64 / peak);
        self.launched(compute.max(demand.bytes as f64 / self.bandwidth))
    }

    /// Nanoseconds of a copy.
    pub fn copy_ns(&self, bytes: u64) -> u64 {
        self.launched(bytes as f64 / self.bandwidth)
    }

    /// Rounded up; what cannot be counted is the most there is.
    fn launched(&self, ns: f64) -> u64 {
        self.launch_ns.saturating_add(ns.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::Rates;
    use crate::demand::Demand;
    use crate::soc::Soc;

    fn rates(memory: &str) -> Rates {
        let text = format!(
            "name = \"s\"\n{memory}\n[[processor]]\nname = \"p\"\nkind = \"npu\"\n\
             peak_gops = {{ f32 = 10, int8 = 200.0 }}\nbandwidth_gb_s = 4\nlaunch_us = 1.5\n"
        );
        let soc = Soc::parse("s.toml", &text).unwrap();
        Rates::new(&soc, soc.processor(None).unwrap())
    }

    #[test]
    fn a_run_takes_the_launch_and_the_longer_of_computing_and_moving() {
        let rates = rates("");
        let demand = |f32, int8, bf16, bytes| Demand { f32, int8, bf16, bytes };
        assert_eq!(rates.run_ns(&demand(0, 0, 0, 0)), 1500);
        // 10 operations and 4 bytes in a nanosecond.
        assert_eq!(rates.run_ns(&demand(1000, 0, 0, 100)), 1500 + 100);
        assert_eq!(rates.run_ns(&demand(1000, 0, 0, 404)), 1500 + 101);
        assert_eq!(rates.run_ns(&demand(1001, 0, 0, 0)), 1500 + 101);
        // Formats have their own rates; those without one take that of f32.
        assert_eq!(rates.run_ns(&demand(10, 2000, 0, 0)), 1500 + 1 + 10);
        assert_eq!(rates.run_ns(&demand(0, 0, 2000, 0)), 1500 + 200);
        assert_eq!(rates.copy_ns(401), 1500 + 101);
        assert!(rates.run_ns(&demand(u64::MAX, 0, 0, 0)) > u64::MAX / 16);
    }

    #[test]
    fn the_memory_of_the_soc_bounds_its_processors() {
        assert_eq!(rates("memory = { bandwidth_gb_s = 2 }").copy_ns(400), 1500 + 200);
        assert_eq!(rates("memory = { bandwidth_gb_s = 9 }").copy_ns(400), 1500 + 100);
    }
}
