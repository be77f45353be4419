//! A SoC's prices for the solver.

use troika_graph::{Subgraph, bind_static};
use troika_plan::{PlanDevice, SyncMode};
use troika_solve::{CostModel, Mover, PricedRun, QueueCosts};
use troika_time::{Bandwidth, LaneCosts, Sharing, TaskCost, Usage};

use crate::devices::sim::{PricedRows, Prices, Processor, Soc};

/// Prices for the solver's devices, each a processor of the SoC.
pub struct SocCosts<'a> {
    soc: &'a Soc,
    processors: Vec<&'a Processor>,
    prices: Vec<Prices>,
}

impl<'a> SocCosts<'a> {
    /// Prices of devices that are named after processors.
    pub fn of(soc: &'a Soc, devices: &[PlanDevice]) -> SocCosts<'a> {
        let find = |d: &PlanDevice| soc.processors.iter().find(|p| p.name == d.name);
        SocCosts::new(soc, devices.iter().filter_map(find).collect())
    }

    /// Prices of devices that are processors of these names, in their order.
    pub fn named(soc: &'a Soc, names: &[String]) -> SocCosts<'a> {
        let find = |name: &String| soc.processors.iter().find(|p| p.name == *name);
        SocCosts::new(soc, names.iter().filter_map(find).collect())
    }

    /// Prices of devices that are these processors.
    pub fn new(soc: &'a Soc, processors: Vec<&'a Processor>) -> SocCosts<'a> {
        let prices = processors.iter().map(|p| Prices::new(soc, p)).collect();
        SocCosts { soc, processors, prices }
    }
}

impl CostModel for SocCosts<'_> {
    fn source(&self) -> String {
        format!("the model of {} ({})", self.soc.name, self.soc.file)
    }

    fn run(&self, run: &PricedRun<'_>) -> TaskCost {
        let rows = PricedRows { rows: run.rows, room: run.room, cached: run.cached };
        self.prices[run.device].run(run.graph, rows)
    }

    fn moving(&self, mover: Mover, device: usize, bytes: u64) -> TaskCost {
        match mover {
            Mover::Copy | Mover::Host => self.prices[device].copy(bytes),
            Mover::Load => self.prices[device].load(bytes),
        }
    }

    fn shares(&self, running: &[(Option<PricedRun<'_>>, TaskCost)]) -> Vec<f64> {
        let needs: Vec<TaskCost> = running.iter().map(|(_, need)| *need).collect();
        Bandwidth(self.soc.bandwidth_gb_s).shares(&needs)
    }

    fn queue(&self, device: usize, _: &[usize], sync: SyncMode) -> QueueCosts {
        let of = self.processors[device];
        let blocks = sync == SyncMode::Blocking;
        QueueCosts {
            lane: LaneCosts { submit_ns: of.submit_ns, waits_each_run: of.waits_each_run },
            told_ns: if blocks { of.hand_over.blocking_ns } else { of.hand_over.predicted_ns },
            told_bytes_per_ns: (blocks && of.hand_over.blocking_copies)
                .then(|| self.prices[device].bytes_per_ns()),
            tells_all: true,
            submits_waits: true,
        }
    }

    fn machine_j(&self, usage: &Usage) -> Option<f64> {
        let all = &self.soc.processors;
        let place = |p: &&Processor| all.iter().position(|o| o.name == p.name);
        let mut busy = [vec![0; all.len()], vec![0; all.len()]];
        for (at, of) in self.processors.iter().enumerate() {
            let place = place(of)?;
            busy[0][place] = usage.busy_ns[at];
            busy[1][place] = usage.stream_ns[at];
        }
        let [busy_ns, stream_ns] = busy;
        let to = Usage { busy_ns, stream_ns, ..usage.clone() };
        let none = vec![0; all.len()];
        let zero = Usage { now_ns: 0, busy_ns: none.clone(), stream_ns: none, bytes: 0, frames: 0 };
        self.soc.energy_j(&zero, &to)
    }

    fn compile_ns(&self, device: usize, graph: &Subgraph, room: usize) -> f64 {
        let fixed = self.processors[device].static_shapes;
        let ns = match fixed {
            true => self.prices[device].compile_ns(&bind_static(graph, room)),
            false => self.prices[device].compile_ns(graph),
        };
        ns as f64
    }

    fn run_j(&self, run: &PricedRun<'_>) -> Option<f64> {
        let (price, power) = (self.run(run), self.processors[run.device].power?);
        let memory = Some(self.soc.memory_power).filter(|m| m.known)?;
        let watts = if price.streams { power.stream_w } else { power.busy_w } - power.idle_w;
        let bytes = price.bytes as f64 * memory.pj_per_byte * 1e-12;
        Some(price.ns as f64 * 1e-9 * watts + bytes)
    }

    fn idle_w(&self) -> Option<f64> {
        let memory = Some(self.soc.memory_power).filter(|m| m.known)?;
        let idle = self.soc.processors.iter().map(|p| Some(p.power?.idle_w));
        Some(memory.rest_w + idle.sum::<Option<f64>>()?)
    }
}
