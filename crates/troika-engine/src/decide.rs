//! Chooses where chunks run by the current load of devices.

use std::time::Duration;

use troika_plan::{Phase, Plan};

use crate::engine::Engine;
use crate::loads::{Decisions, Loads};
use crate::schedule::{JobId, Kept};
use crate::slot::BatchSlot;

impl Engine {
    /// How many chunks ran by which kind of rule: all by length unless the plan has `by_load`.
    pub fn decisions(&self) -> Decisions {
        self.loads.decisions
    }

    /// Whether the plan may place chunks by load.
    pub(crate) fn goes_by_load(&self) -> bool {
        !self.model.plan.by_load.is_empty()
    }

    /// Chooses one of the plan's placements for each planned batch of a prompt. Returns whether to
    /// measure how long they take.
    pub(crate) fn choose_ways(&mut self, place: usize) -> bool {
        if !self.goes_by_load() {
            return false;
        }
        let program = &self.model.program;
        let now = self.runner.now();
        let loads = self.loads.of_devices(now, |device| program.decodes_on(device));
        let plan = &self.model.plan;
        let mut prompts = false;
        for batch in self.slots[place].batches_mut() {
            if batch.phase == Phase::Prefill {
                prompts = true;
                let chunk = batch.chunk();
                let rules = plan.load_rules(chunk.0);
                batch.way = rules.map_or(0, |l| l.choose(chunk, &plan.devices, &loads));
                let count = match batch.way {
                    0 => &mut self.loads.decisions.by_length,
                    _ => &mut self.loads.decisions.otherwise,
                };
                *count += 1;
            }
        }
        if !prompts {
            self.loads.decoding_since = Some(now);
        }
        prompts
    }

    /// Updates the loads from batches that ran.
    pub(crate) fn learn_loads(&mut self, place: usize, job: JobId) {
        if !self.goes_by_load() {
            return;
        }
        let slot = &self.slots[place];
        if slot.batches().iter().all(|b| b.phase == Phase::Decode) {
            let since = self.loads.decoding_since.take();
            let took =
                since.map_or(Duration::ZERO, |since| self.runner.now().saturating_sub(since));
            let known = &mut self.loads.decoding;
            *known = if known.is_zero() { took } else { (*known + took) / 2 };
            return;
        }
        let kept = self.runner.kept(job);
        learn_from(&mut self.loads, &self.model.plan, (slot, kept));
    }
}

fn learn_from(loads: &mut Loads, plan: &Plan, (slot, kept): (&BatchSlot, &[Kept])) {
    for (number, batch) in slot.batches().iter().enumerate() {
        let chunk = batch.chunk();
        let Some(rules) = plan.load_rules(chunk.0) else { continue };
        let times = rules.times(batch.way);
        let all = times.done_us(chunk, &[], &[]).max(f64::MIN_POSITIVE);
        for (device, name) in plan.devices.iter().enumerate() {
            let own = |k: &&Kept| k.chunk as usize == number && k.device == device;
            let took = kept.iter().find(own).map_or(Duration::ZERO, |k| k.time);
            loads.learn(device, took.as_nanos() as f64 * 1e-3, (times.of_device(name, chunk), all));
        }
    }
}
