//! Where a plan computes in a format that needs a calibration.

use troika_graph::ActivationFormat;
use troika_model::lower::SegmentKind;
use troika_model::spec::ModelSpec;

use crate::device::PlanDevice;
use crate::divide::{SegmentAt, divide};
use crate::plan::{Rule, Split};

/// Products in a format that needs weights to be converted, and the segments whose outliers are
/// computed apart.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibratedProducts {
    /// The format.
    pub format: ActivationFormat,
    /// The calibration's digest ([`crate::Calibration::digest`]), if the format needs one.
    pub digest: Option<String>,
    /// The segments whose outliers another device computes; the others lose what is clipped, or
    /// have coarser scales.
    pub exact: Vec<SegmentAt>,
    /// The devices that can compute outliers, the first of which does.
    pub takers: Vec<String>,
}

impl CalibratedProducts {
    /// Whether products of a kind of segment take the format. Which experts and tokens are best
    /// must not depend on rounding.
    pub fn rounds(kind: SegmentKind) -> bool {
        kind.is_in_layers() && !kind.traits().chooses
    }

    /// Rules like these, with the format where a device has it. Devices of a split that lack it
    /// compute their parts in a format of their own, or in those that are allowed.
    pub(crate) fn applied(
        &self,
        rules: &[Rule],
        spec: &ModelSpec,
        devices: &[PlanDevice],
        allowed: Option<&[ActivationFormat]>,
    ) -> Vec<Rule> {
        let has = |name: &str| {
            devices
                .iter()
                .any(|d| d.name == name && d.caps.activation_formats.contains(&self.format))
        };
        let mut all = Vec::new();
        for rule in rules {
            let mut own = rule.devices().filter(|name| has(name)).peekable();
            if own.peek().is_none() {
                all.push(rule.clone());
                continue;
            }
            let mut others = devices.iter().filter(|d| !has(&d.name));
            let by = others.clone().find(|d| self.takers.contains(&d.name));
            let other = others.next();
            let by = by.or(other).filter(|_| rule.split.is_none());
            all.extend(self.divided(rule, other, by, spec, allowed));
        }
        all
    }

    /// A rule by segments: those in f32, which the other device computes if there is one, those
    /// with the format, and those with outliers apart, which the device `by` computes. Ops that are
    /// refused may take the other device's formats.
    fn divided(
        &self,
        rule: &Rule,
        other: Option<&PlanDevice>,
        by: Option<&PlanDevice>,
        spec: &ModelSpec,
        allowed: Option<&[ActivationFormat]>,
    ) -> Vec<Rule> {
        let own = other.filter(|_| rule.split.is_none());
        let way = |segment: &SegmentAt| match segment.0 {
            _ if !CalibratedProducts::rounds(segment.0) => Way::Float,
            _ if by.is_some() && self.exact.contains(segment) => Way::Exact,
            _ => Way::Rounded,
        };
        let parts = divide(rule, spec, way);
        let others = match allowed {
            Some(list) => list.iter(),
            None => other.map_or(&[][..], |d| &d.caps.activation_formats).iter(),
        };
        let others: Vec<ActivationFormat> =
            others.filter(|f| !f.converts_weights()).copied().collect();
        let placed = parts.iter().map(|part| {
            let split = by.filter(|_| part.way == Way::Exact);
            Rule {
                split: match split {
                    Some(by) => Some(Split::Residual { by: by.name.clone() }),
                    None => rule.split.clone(),
                },
                device: match own {
                    Some(own) if part.way == Way::Float => own.name.clone(),
                    _ => rule.device.clone(),
                },
                activations: match part.way {
                    Way::Float => Vec::new(),
                    _ => [self.format].into_iter().chain(others.iter().copied()).collect(),
                },
                ..part.of(rule)
            }
        });
        placed.collect()
    }
}

/// How a segment is computed.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Float,
    Rounded,
    Exact,
}
