//! Where a plan computes in a format that needs a calibration.

use troika_graph::ActivationFormat;
use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::ModelSpec;

use crate::plan::{Layers, Rule, Split};
use crate::strategy::DeviceFacts;

/// Products in a format that needs weights to be converted, and the segments whose outliers are
/// computed apart.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibratedProducts {
    /// The format.
    pub format: ActivationFormat,
    /// The segments whose outliers another device computes; the others lose what is clipped, or
    /// have coarser scales.
    pub exact: Vec<(SegmentKind, Option<usize>)>,
}

impl CalibratedProducts {
    /// Whether products of a kind of segment take the format. Which experts and tokens are best
    /// must not depend on rounding.
    pub fn rounds(kind: SegmentKind) -> bool {
        !matches!(kind, SegmentKind::Router | SegmentKind::Embed | SegmentKind::Head)
    }

    /// Rules like these, with the format where a device has it. Devices of a split that lack it
    /// compute their parts in a format of their own, or in those that are allowed.
    pub(crate) fn applied(
        &self,
        rules: &[Rule],
        spec: &ModelSpec,
        devices: &[DeviceFacts],
        allowed: Option<&[ActivationFormat]>,
    ) -> Vec<Rule> {
        let has = |name: &str| {
            devices.iter().any(|d| d.name == name && d.activations.contains(&self.format))
        };
        let mut all = Vec::new();
        for rule in rules {
            let mut own = rule.devices().filter(|name| has(name)).peekable();
            if own.peek().is_none() {
                all.push(rule.clone());
                continue;
            }
            let by = devices.iter().find(|d| !has(&d.name));
            self.divide(rule, by, (spec, allowed), &mut all);
        }
        all
    }

    /// A rule by segments: those in f32, which the other device computes if there is one, those
    /// with the format, and those with outliers apart.
    fn divide(
        &self,
        rule: &Rule,
        by: Option<&DeviceFacts>,
        (spec, allowed): (&ModelSpec, Option<&[ActivationFormat]>),
        all: &mut Vec<Rule>,
    ) {
        let matched: Vec<(SegmentKind, Option<usize>)> = segments(spec)
            .into_iter()
            .filter(|(kind, layer)| rule.matches(*kind, *layer))
            .collect();
        // Ops that the device refuses may take the other's formats.
        let (other, by) = (by, by.filter(|_| rule.split.is_none()));
        let way = |segment: &(SegmentKind, Option<usize>)| match segment.0 {
            _ if !CalibratedProducts::rounds(segment.0) => Way::Float,
            _ if by.is_some() && self.exact.contains(segment) => Way::Exact,
            _ => Way::Rounded,
        };
        let mut runs: Vec<(SegmentKind, Way, Option<Layers>)> = Vec::new();
        for kind in SegmentKind::ALL {
            let first_of_kind = runs.len();
            for segment in matched.iter().filter(|s| s.0 == kind) {
                let (way, layer) = (way(segment), segment.1);
                let last = runs.get_mut(first_of_kind..).and_then(|own| own.last_mut());
                match (last, layer) {
                    (Some((_, same, Some(run))), Some(layer))
                        if *same == way
                            && (run.first == run.last || run.last + run.step == layer) =>
                    {
                        run.step = layer - run.last;
                        run.last = layer;
                    }
                    _ => {
                        let layers = layer.map(|l| Layers { first: l, last: l, step: 1 });
                        runs.push((kind, way, layers));
                    }
                }
            }
        }
        let mut merged: Vec<(Vec<SegmentKind>, Way, Option<Layers>)> = Vec::new();
        for (kind, way, layers) in runs {
            match merged.iter_mut().find(|(_, w, l)| (*w, *l) == (way, layers)) {
                Some((kinds, _, _)) => kinds.push(kind),
                None => merged.push((vec![kind], way, layers)),
            }
        }
        let others = match allowed {
            Some(list) => list.iter(),
            None => other.map_or(&[][..], |d| &d.activations).iter(),
        };
        let others: Vec<ActivationFormat> =
            others.filter(|f| !f.converts_weights()).copied().collect();
        all.extend(merged.into_iter().map(|(kinds, way, layers)| {
            let split = by.filter(|_| way == Way::Exact);
            Rule {
                segments: Some(kinds),
                layers,
                split: match split {
                    Some(by) => Some(Split::Residual { by: by.name.clone() }),
                    None => rule.split.clone(),
                },
                device: match by {
                    Some(by) if way == Way::Float => by.name.clone(),
                    _ => rule.device.clone(),
                },
                activations: match way {
                    Way::Float => Vec::new(),
                    _ => [self.format].into_iter().chain(others.iter().copied()).collect(),
                },
                ..rule.clone()
            }
        }));
    }
}

/// How a segment is computed.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Float,
    Rounded,
    Exact,
}
