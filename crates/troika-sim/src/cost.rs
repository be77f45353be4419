//! Modelled time: the launch plus the longer of computing and moving bytes. Pure functions, in
//! whole nanoseconds.

use std::sync::Arc;

use troika_graph::{ActivationFormat, ProductForm};
use troika_time::TaskCost;

use crate::demand::{Demand, Product};
use crate::measured::MeasuredRuns;
use crate::soc::{PeakRates, Processor, ProductTraits, Soc, Tile};

/// The speed of a processor within its SoC.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    /// 10^9 operations per second are one per nanosecond.
    peaks: PeakRates,
    /// Bytes per nanosecond.
    pub bandwidth: f64,
    launch_ns: u64,
    tile: Tile,
    /// Costs of products besides their operations, if any.
    pub products: Option<ProductTraits>,
    /// Measured times of runs.
    pub measured: Arc<[MeasuredRuns]>,
}

impl Rates {
    /// The processor's rates, with at most the memory's bandwidth.
    pub fn new(soc: &Soc, processor: &Processor) -> Rates {
        let shared = soc.bandwidth_gb_s.unwrap_or(f64::INFINITY);
        Rates {
            peaks: processor.peak_gops,
            bandwidth: processor.bandwidth_gb_s.min(shared),
            launch_ns: processor.launch_ns,
            tile: processor.tile,
            products: processor.products.matter().then_some(processor.products),
            measured: processor.measured.clone().into(),
        }
    }

    fn peak(&self, format: ActivationFormat) -> f64 {
        self.peaks.own(format).unwrap_or(self.peaks.f32)
    }

    /// The cost of a run whose products count as plain operations.
    pub fn run(&self, demand: &Demand) -> TaskCost {
        self.need(self.operations(demand), demand.bytes)
    }

    /// The cost of a run with the products' traits; `decoding` if each sequence adds one row.
    pub fn run_with(
        &self,
        demand: &Demand,
        products: &[Product],
        traits: &ProductTraits,
        decoding: bool,
    ) -> TaskCost {
        let each = products.iter().map(|p| self.product(p, traits, decoding));
        let mut need = self.need(self.operations(demand) + each.sum::<f64>(), demand.bytes);
        need.streams |= decoding && traits.decode_gweights_s.is_some();
        need
    }

    /// The cost of a run whose time was measured. What it moves faster than memory does comes from a
    /// cache, and takes no bandwidth from others.
    pub fn measured(&self, ns: f64, bytes: u64, decoding: bool) -> TaskCost {
        let moved = bytes.min((ns * self.bandwidth) as u64);
        TaskCost { ns: ns.ceil() as u64, bytes: moved, streams: decoding, tag: 0 }
    }

    /// The cost of a copy, which reads and writes the bytes.
    pub fn copy(&self, bytes: u64) -> TaskCost {
        self.need(0.0, bytes)
    }

    fn need(&self, compute: f64, bytes: u64) -> TaskCost {
        let moving = bytes as f64 / self.bandwidth;
        let ns = self.launch_ns.saturating_add(compute.max(moving).ceil() as u64);
        TaskCost { ns, bytes, streams: moving >= compute, tag: 0 }
    }

    fn operations(&self, demand: &Demand) -> f64 {
        let formats = [
            (demand.f32, ActivationFormat::F32),
            (demand.int8, ActivationFormat::INT8),
            (demand.bf16, ActivationFormat::Bf16),
        ];
        formats.iter().fold(0.0, |sum, (count, format)| sum + *count as f64 / self.peak(*format))
    }

    /// Nanoseconds to compute a product.
    fn product(&self, p: &Product, traits: &ProductTraits, decoding: bool) -> f64 {
        let weights = p.weights() as f64;
        let long = traits.long_sum.map_or(1.0, |most| (p.terms as f64 / most as f64).max(1.0));
        if let Some(rate) = traits.decode_gweights_s.filter(|_| decoding) {
            return weights / rate * long;
        }
        // The first operand's rows pass each tile of the second one.
        let first = if p.form == Some(ProductForm::Exchanged) { p.outs } else { p.rows };
        let loading = 1.0 + traits.tile_load_rows / first.max(1) as f64;
        let slow = loading * long * p.tallness(traits.square_gain);
        let multiply = p.operations(self.tile) as f64 / self.peak(p.format) * slow;
        match traits.expand_gweights_s.filter(|_| p.quantized) {
            None => multiply,
            Some(rate) => {
                // Without expansion, weights are read again for every few rows.
                let reads = p.rows.div_ceil(traits.rows_at_once.max(1)) as f64;
                let again = reads * p.bytes as f64 / self.bandwidth;
                (weights / rate + multiply).min(multiply.max(again))
            }
        }
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
        let run_ns = |demand: &Demand| rates.run(demand).ns;
        assert_eq!(run_ns(&demand(0, 0, 0, 0)), 1500);
        // 10 operations and 4 bytes per nanosecond.
        assert_eq!(run_ns(&demand(1000, 0, 0, 100)), 1500 + 100);
        assert_eq!(run_ns(&demand(1000, 0, 0, 404)), 1500 + 101);
        assert_eq!(run_ns(&demand(1001, 0, 0, 0)), 1500 + 101);
        // Formats may have their own rates; others use the rate of f32.
        assert_eq!(run_ns(&demand(10, 2000, 0, 0)), 1500 + 1 + 10);
        assert_eq!(run_ns(&demand(0, 0, 2000, 0)), 1500 + 200);
        assert_eq!(rates.copy(401).ns, 1500 + 101);
        assert!(run_ns(&demand(u64::MAX, 0, 0, 0)) > u64::MAX / 16);
    }

    #[test]
    fn the_memory_of_the_soc_bounds_its_processors() {
        assert_eq!(rates("memory = { bandwidth_gb_s = 2 }").copy(400).ns, 1500 + 200);
        assert_eq!(rates("memory = { bandwidth_gb_s = 9 }").copy(400).ns, 1500 + 100);
    }
}
