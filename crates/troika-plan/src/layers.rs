//! Whole layers on each device: what a card of its own memory is given.

use std::fmt;

use troika_model::lower::SegmentKind;
use troika_model::spec::ModelSpec;

use crate::device::PlanDevice;
use crate::divide::{SegmentAt, divide};
use crate::plan::{Layers, Rule};

/// A rule whose activation formats are filled in later.
pub(crate) fn rule(
    segments: Option<Vec<SegmentKind>>,
    layers: Option<Layers>,
    device: &PlanDevice,
) -> Rule {
    Rule { segments, layers, ..Rule::on(&device.name) }
}

/// Layers that follow each other on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRun {
    /// The device.
    pub device: String,
    /// The device that computes the experts of these layers, if it is another one.
    pub experts: Option<String>,
    /// How many layers.
    pub layers: usize,
}

impl LayerRun {
    /// Reads `DEVICE:LAYERS+DEVICE/EXPERTS:LAYERS+...`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<LayerRun>, String> {
        let one = |part: &str| {
            let (devices, layers) = part.rsplit_once(':')?;
            let (device, experts) = match devices.split_once('/') {
                Some((device, experts)) => (device, Some(experts.to_string())),
                None => (devices, None),
            };
            let named = !device.is_empty() && experts.as_ref().is_none_or(|e| !e.is_empty());
            let device = device.to_string();
            named.then_some(LayerRun { device, experts, layers: layers.parse().ok()? })
        };
        let wrong =
            || format!("{text:?} is not devices with numbers of layers, as in cpu:8+gpu:28");
        text.split('+').map(|part| one(part).ok_or_else(wrong)).collect()
    }

    /// The devices that it names.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.device).chain(&self.experts)
    }

    /// The rules of runs, the first layers first. The embedding is on the first run's device and the
    /// head on the last one's, also where these have no layers. Layers beyond all runs have no rule.
    pub(crate) fn rules(runs: &[LayerRun], spec: &ModelSpec, devices: &[PlanDevice]) -> Vec<Rule> {
        let find = |name: &str| devices.iter().find(|d| d.name == name);
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Vec::new() };
        let ends = [(SegmentKind::Embed, first), (SegmentKind::Head, last)];
        let mut rules: Vec<Rule> = ends
            .into_iter()
            .filter_map(|(kind, run)| Some(rule(Some(vec![kind]), None, find(&run.device)?)))
            .collect();
        let mut at = 0usize;
        for run in runs.iter().filter(|run| run.layers > 0) {
            let next = at.saturating_add(run.layers);
            let layers = Layers { first: at, last: next - 1, step: 1 };
            at = next;
            let Some(own) = find(&run.device).map(|device| rule(None, Some(layers), device)) else {
                continue;
            };
            let Some(experts) = &run.experts else {
                rules.push(own);
                continue;
            };
            let routed = |segment: &SegmentAt| segment.0 == SegmentKind::Experts;
            rules.extend(divide(&own, spec, routed).iter().map(|part| match part.way {
                true => Rule { device: experts.clone(), ..part.of(&own) },
                false => part.of(&own),
            }));
        }
        rules
    }
}

impl fmt::Display for LayerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        self.experts.iter().try_for_each(|experts| write!(f, "/{experts}"))?;
        write!(f, ":{}", self.layers)
    }
}
