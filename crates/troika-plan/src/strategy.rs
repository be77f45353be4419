//! Strategies: known ways to divide a model over devices. One table for all commands.

use troika_graph::ActivationFormat;
use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::ModelSpec;

use crate::{Layers, Phase, PlanError, Rule};

/// What the planner knows of a device.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// The formats, besides f32, that its products gain from taking activations in.
    pub activations: Vec<ActivationFormat>,
}

/// A way to divide a model over devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// All on the first device.
    #[default]
    OneDevice,
    /// Layer `l` on device `l mod n`; the embedding on the first, the head on the next in turn.
    Alternate,
    /// The segment `s` of layer `l` on device `(l + s) mod n`.
    AlternateSegments,
    /// Prompts on the first device, decoding on the second.
    PrefillDecode,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Strategy; 4] = [
        Strategy::OneDevice,
        Strategy::Alternate,
        Strategy::AlternateSegments,
        Strategy::PrefillDecode,
    ];

    /// Stable name, as commands and plan files have it.
    pub const fn name(self) -> &'static str {
        match self {
            Strategy::OneDevice => "one-device",
            Strategy::Alternate => "alternate",
            Strategy::AlternateSegments => "alternate-segments",
            Strategy::PrefillDecode => "prefill-decode",
        }
    }

    /// The strategy of a name.
    pub fn parse(name: &str) -> Option<Strategy> {
        Strategy::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Whether there are enough devices.
    pub(crate) fn check(self, count: usize) -> Result<(), PlanError> {
        let (fits, need) = match self {
            Strategy::OneDevice => (count >= 1, "a device"),
            Strategy::Alternate | Strategy::AlternateSegments => {
                (count >= 2, "two devices or more")
            }
            Strategy::PrefillDecode => (count == 2, "two devices"),
        };
        if fits { Ok(()) } else { Err(PlanError::Strategy { strategy: self.name(), need, count }) }
    }

    /// The rules of a phase; their activation formats are filled in later. The devices were
    /// counted before.
    pub(crate) fn rules(
        self,
        spec: &ModelSpec,
        devices: &[DeviceFacts],
        phase: Phase,
    ) -> Vec<Rule> {
        let all_on = |at: usize| vec![rule(None, None, &devices[at])];
        match (self, phase) {
            (Strategy::OneDevice, _) | (Strategy::PrefillDecode, Phase::Prefill) => all_on(0),
            (Strategy::PrefillDecode, Phase::Decode) => all_on(1),
            (Strategy::Alternate, _) => {
                let mut rules = ends(spec, devices);
                rules.extend((0..devices.len()).filter_map(|d| {
                    let layers = every(spec.layers.len(), d, devices.len())?;
                    Some(rule(None, Some(layers), &devices[d]))
                }));
                rules
            }
            (Strategy::AlternateSegments, _) => {
                let mut rules = ends(spec, devices);
                for kind in SegmentKind::ALL.into_iter().filter(|k| k.is_in_layers()) {
                    rules.extend(in_turn(spec, devices, kind));
                }
                rules
            }
        }
    }
}

/// A rule whose activation formats are filled in later.
fn rule(segments: Option<Vec<SegmentKind>>, layers: Option<Layers>, device: &DeviceFacts) -> Rule {
    Rule { segments, layers, device: device.name.clone(), activations: Vec::new() }
}

/// The segments before and behind the layers.
fn ends(spec: &ModelSpec, devices: &[DeviceFacts]) -> Vec<Rule> {
    let head = &devices[spec.layers.len() % devices.len()];
    vec![
        rule(Some(vec![SegmentKind::Embed]), None, &devices[0]),
        rule(Some(vec![SegmentKind::Head]), None, head),
    ]
}

/// Every `step`-th layer from `first` on, if there is one.
fn every(layers: usize, first: usize, step: usize) -> Option<Layers> {
    let last = layers.checked_sub(1)?.checked_sub(first)? / step * step + first;
    Some(Layers { first, last, step })
}

/// A kind of segment, dealt to the devices layer by layer.
fn in_turn(spec: &ModelSpec, devices: &[DeviceFacts], kind: SegmentKind) -> Vec<Rule> {
    let n = devices.len();
    // Where a layer has a dense feed-forward, another has a router in its place.
    let place = match kind {
        SegmentKind::Experts => 4,
        SegmentKind::Router | SegmentKind::Ffn => 3,
        SegmentKind::AttnOut => 2,
        SegmentKind::Attention => 1,
        _ => 0,
    };
    let of_model = segments(spec);
    let rules = (0..n).filter_map(|first| {
        let layers = every(spec.layers.len(), first, n)?;
        let rule = rule(Some(vec![kind]), Some(layers), &devices[(first + place) % n]);
        of_model.iter().any(|&(kind, layer)| rule.matches(kind, layer)).then_some(rule)
    });
    rules.collect()
}
