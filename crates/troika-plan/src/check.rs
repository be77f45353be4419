//! Checks of a plan against the model and the devices at hand.

use troika_graph::DType;
use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::ModelSpec;

use crate::{ModelId, PLAN_VERSION, Phase, Plan, PlanError, Rule};

/// The longest context: ops are given positions in 32 bits.
pub(crate) const MAX_CONTEXT: usize = i32::MAX as usize;
/// Most rows of a chunk or positions of a page.
const MAX_LENGTH: usize = 1 << 16;
/// Most chunks under way: more than any pipeline of devices keeps busy.
const MAX_IN_FLIGHT: usize = 64;

type Segment = (SegmentKind, Option<usize>);

impl Plan {
    /// Checks the plan.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self, spec: &ModelSpec, devices: &[&str]) -> Result<(), PlanError> {
        if self.version != PLAN_VERSION {
            return Err(PlanError::Version { found: u64::from(self.version) });
        }
        let need = ModelId::of(spec);
        if self.model != need {
            let (found, need) = (Box::new(self.model.clone()), Box::new(need));
            return Err(PlanError::Model { found, need });
        }
        range("the context", self.context, 1, spec.context.clamp(1, MAX_CONTEXT))?;
        range("the chunk length", self.prefill.chunk, 1, MAX_LENGTH)?;
        range("chunks in flight", self.prefill.chunks_in_flight, 1, MAX_IN_FLIGHT)?;
        range("the page length", self.page_len, 1, MAX_LENGTH)?;
        if !self.page_len.is_power_of_two() {
            let next = self.page_len.next_power_of_two();
            return Err(PlanError::Range {
                what: "the page length (a power of two)",
                got: self.page_len,
                low: next,
                high: next,
            });
        }
        if !matches!(self.kv_dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(PlanError::KvType(self.kv_dtype));
        }
        self.check_devices(devices)?;
        let segments = segments(spec);
        for phase in [Phase::Prefill, Phase::Decode] {
            check_rules(phase, self.rules(phase), &self.devices, &segments)?;
        }
        Ok(())
    }

    fn check_devices(&self, at_hand: &[&str]) -> Result<(), PlanError> {
        for (i, name) in self.devices.iter().enumerate() {
            if !at_hand.contains(&name.as_str()) {
                let (name, known) = (name.clone(), at_hand.join(", "));
                return Err(PlanError::Device { name, known });
            }
            if self.devices[..i].contains(name) {
                return Err(PlanError::Devices(format!("{name} is listed twice")));
            }
            let mut rules = self.prefill.rules.iter().chain(&self.decode.rules);
            if !rules.any(|r| r.device == *name) {
                return Err(PlanError::Devices(format!("no rule uses {name}; remove it")));
            }
        }
        match &self.prefill.critical_device {
            Some(name) if !self.devices.contains(name) => {
                let why = format!("the critical device {name} is not among them");
                Err(PlanError::Devices(why))
            }
            _ => Ok(()),
        }
    }
}

/// Each segment has exactly one rule, and each rule a segment and a device.
fn check_rules(
    phase: Phase,
    rules: &[Rule],
    devices: &[String],
    segments: &[Segment],
) -> Result<(), PlanError> {
    let layers = segments.iter().filter_map(|s| s.1).max().map_or(0, |last| last + 1);
    for (i, rule) in rules.iter().enumerate() {
        let refuse = |why: String| Err(PlanError::Rule { phase: phase.name(), number: i + 1, why });
        if !devices.contains(&rule.device) {
            return refuse(format!("names device {}, which the plan does not list", rule.device));
        }
        if let Some(l) = rule.layers {
            if l.step == 0 || l.first > l.last {
                return refuse("has a range of no layers".into());
            }
            if l.last >= layers {
                let why = format!("names layer {}, the model's last is {}", l.last, layers - 1);
                return refuse(why);
            }
        }
        if !segments.iter().any(|&(kind, layer)| rule.matches(kind, layer)) {
            return refuse("matches no segment of the model".into());
        }
    }
    for &(kind, layer) in segments {
        let mut matching = rules.iter().enumerate().filter(|(_, r)| r.matches(kind, layer));
        let segment = match layer {
            Some(l) => format!("{} of layer {l}", kind.name()),
            None => kind.name().to_string(),
        };
        let phase = phase.name();
        let Some((first, _)) = matching.next() else {
            return Err(PlanError::Missing { phase, segment });
        };
        if let Some((second, _)) = matching.next() {
            let why = format!("places {segment}, as rule {} does", first + 1);
            return Err(PlanError::Rule { phase, number: second + 1, why });
        }
    }
    Ok(())
}

fn range(what: &'static str, got: usize, low: usize, high: usize) -> Result<(), PlanError> {
    if (low..=high).contains(&got) {
        Ok(())
    } else {
        Err(PlanError::Range { what, got, low, high })
    }
}
