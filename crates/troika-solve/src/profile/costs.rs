//! Uses a profile as a cost model.

use troika_graph::Subgraph;

use super::measured::{PairSample, Profile, ProfileError, Slowdown};
use crate::cost::{CostModel, Mover, PricedRun, QueueCosts, WORTH_SHARING, lasting};
use crate::forms::Products;
use crate::segment_part::SegmentPart;
use troika_plan::{PlanDevice, SyncMode};
use troika_time::{LaneCosts, RunWork, TaskCost};

/// Prices from the fits of a profile.
pub struct ProfiledCosts<'a> {
    profile: &'a Profile,
    /// For each device of the solver, its index in the profile.
    places: Vec<usize>,
}

impl<'a> ProfiledCosts<'a> {
    /// The costs of the given devices.
    ///
    /// # Errors
    /// A device that was not measured.
    pub fn new(
        profile: &'a Profile,
        devices: &[PlanDevice],
    ) -> Result<ProfiledCosts<'a>, ProfileError> {
        let known = &profile.subject.devices;
        let place = |d: &PlanDevice| {
            known.iter().position(|k| k.name == d.name).ok_or_else(|| ProfileError::Foreign {
                what: "list of devices",
                found: known.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", "),
                here: d.name.clone(),
            })
        };
        let places = devices.iter().map(place).collect::<Result<_, _>>()?;
        Ok(ProfiledCosts { profile, places })
    }

    fn pair(&self, from: usize, to: usize) -> Option<&PairSample> {
        let (from, to) = (self.places[from], self.places[to]);
        self.profile.pairs.iter().find(|p| (p.from, p.to) == (from, to))
    }

    /// Nanoseconds of a run with products in their forms, given those of graphs with products as
    /// they are. `None` if they were not measured.
    fn formed(&self, run: &PricedRun<'_>, ns: &dyn Fn(&Subgraph) -> Option<f64>) -> Option<f64> {
        let (all, mut gain, mut least) = (ns(run.graph)?, 0.0, 1.0_f64);
        if run.graph.nodes.iter().all(|node| node.op.form().is_none()) {
            return Some(all);
        }
        for Products { graph, roles } in Products::of(run.graph) {
            let Some(form) = graph.nodes.iter().find_map(|node| node.op.form()) else { continue };
            let time = |form| {
                let part = SegmentPart::Form { of: *roles.first()?, form };
                let fit = self.profile.fits.get(self.places[run.device], run.kind, part)?;
                Some(fit.time.ns(&RunWork::of(&graph, run.room, run.cached)))
            };
            let ratio = time(Some(form))? / time(None)?;
            gain += ns(&graph)? * (1.0 - ratio);
            least = least.min(ratio);
        }
        Some((all - gain).max(all * least))
    }
}

/// The slowdown for a number of rows, interpolated on a logarithmic scale between the measured
/// numbers.
fn slower(measured: &[Slowdown], rows: usize) -> f64 {
    let rows = rows.max(1) as f64;
    let Some(above) = measured.iter().position(|s| s.rows as f64 >= rows) else {
        return measured.last().map_or(1.0, |s| s.factor);
    };
    let high = measured[above];
    let Some(low) = above.checked_sub(1).map(|i| measured[i]) else { return high.factor };
    let span = (high.rows as f64 / low.rows.max(1) as f64).ln();
    let share = (rows / low.rows.max(1) as f64).ln() / span;
    low.factor + (high.factor - low.factor) * share
}

/// Nanoseconds for some bytes, on a line through the first and the last of what was measured.
fn of_bytes(measured: &[(u64, f64)], bytes: u64) -> f64 {
    let (Some(first), Some(last)) = (measured.first(), measured.last()) else { return 0.0 };
    let span = last.0.saturating_sub(first.0).max(1) as f64;
    let each = ((last.1 - first.1) / span).max(0.0);
    (first.1 + (bytes as f64 - first.0 as f64) * each).max(0.0)
}

impl CostModel for ProfiledCosts<'_> {
    fn source(&self) -> String {
        format!("a profile measured on {}", self.profile.subject.machine)
    }

    /// Where no device is an NPU, segments were measured whole and in shares of their
    /// columns. Such fits tell little about a norm or an activation alone.
    fn knows_stages(&self) -> bool {
        self.profile.fits.runs.iter().any(|fit| fit.part == SegmentPart::Products)
    }

    /// Several devices must gain more than the fits are off.
    fn worth_sharing(&self) -> f64 {
        WORTH_SHARING.min(1.0 / (1.0 + self.profile.regret.map_or(0.0, |regret| regret.error)))
    }

    fn run(&self, run: &PricedRun<'_>) -> TaskCost {
        let part = SegmentPart::of(run.kind, run.graph);
        let of = |part| self.profile.fits.get(self.places[run.device], run.kind, part);
        let whole = || of(SegmentPart::Whole).filter(|_| SegmentPart::has_products(run.kind));
        let fit = of(part).or_else(whole);
        let work = |graph: &Subgraph| RunWork::of(graph, run.room, run.cached);
        let ns = |graph: &Subgraph| fit.map(|fit| fit.time.ns(&work(graph)));
        lasting(self.formed(run, &ns).unwrap_or(f64::INFINITY))
    }

    fn moving(&self, mover: Mover, device: usize, bytes: u64) -> TaskCost {
        let device = &self.profile.devices[self.places[device]];
        let measured = match mover {
            Mover::Copy => &device.copies,
            Mover::Host => &device.functions,
            Mover::Load if device.loads.is_empty() => return lasting(f64::INFINITY),
            Mover::Load => &device.loads,
        };
        lasting(of_bytes(measured, bytes))
    }

    /// Copies slow nothing down, and nothing slows them down.
    fn shares(&self, running: &[(Option<PricedRun<'_>>, TaskCost)]) -> Vec<f64> {
        let beside = |i: usize, run: &PricedRun<'_>| -> f64 {
            let others = running.iter().enumerate().filter(|(j, _)| *j != i);
            let by = |(_, (o, _)): (usize, &(Option<PricedRun<'_>>, TaskCost))| {
                let pair = o.and_then(|o| self.pair(o.device, run.device));
                pair.map_or(1.0, |p| slower(&p.slowdowns, run.rows))
            };
            others.map(by).product()
        };
        let running = running.iter().enumerate();
        running.map(|(i, (run, _))| run.map_or(1.0, |r| 1.0 / beside(i, &r).max(1.0))).collect()
    }

    fn queue(&self, device: usize, devices: &[usize], sync: SyncMode) -> QueueCosts {
        let others = devices.iter().filter_map(|to| self.pair(device, *to));
        let told = others.map(|p| match sync {
            SyncMode::Predicted => p.predicted_ns.median,
            SyncMode::Blocking => p.blocking_ns.median,
        });
        // A single device computes on the caller's thread.
        let submit = match devices.len() {
            0 | 1 => 0.0,
            _ => self.profile.devices[self.places[device]].submit_ns.median,
        };
        QueueCosts {
            lane: LaneCosts { submit_ns: lasting(submit).ns, waits_each_run: false },
            told_ns: lasting(told.fold(0.0, f64::max)).ns,
            ..QueueCosts::default()
        }
    }

    fn compile_ns(&self, device: usize, _: &Subgraph, _: usize) -> f64 {
        self.profile.devices[self.places[device]].compile_ns.median
    }
}
