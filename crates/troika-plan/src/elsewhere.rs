//! Segments that a device has no room for.

use troika_device::size;
use troika_model::lower::SegmentKind;
use troika_model::spec::ModelSpec;

use crate::divide::{SegmentAt, divide};
use crate::plan::Rule;

/// Segments whose weights a device has no room for, and the device that computes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Elsewhere {
    /// The device.
    pub device: String,
    /// The most bytes of weights that it holds.
    pub holds: u64,
    /// The device that computes them.
    pub by: String,
    /// The segments.
    pub segments: Vec<SegmentAt>,
}

impl Elsewhere {
    /// Rules like these, with the segments on the other device.
    pub(crate) fn applied(&self, rules: &[Rule], spec: &ModelSpec) -> Vec<Rule> {
        let moved = |segment: &SegmentAt| self.segments.contains(segment);
        let mut all = Vec::new();
        for rule in rules {
            let ways = match rule.devices().any(|d| d == self.device) {
                true => divide(rule, spec, moved),
                false => Vec::new(),
            };
            if !ways.iter().any(|w| w.way) {
                all.push(rule.clone());
                continue;
            }
            all.extend(ways.iter().map(|part| match part.way {
                true => Rule { device: self.by.clone(), split: None, ..part.of(rule) },
                false => part.of(rule),
            }));
        }
        all
    }

    /// A sentence for people.
    pub fn describe(&self) -> String {
        let mut runs: Vec<(Vec<&str>, String)> = Vec::new();
        for kind in SegmentKind::ALL {
            let layers = self.segments.iter().filter(|s| s.0 == kind).map(|s| s.1);
            let (Some(first), Some(last)) = (layers.clone().min(), layers.max()) else { continue };
            let layers = match (first, last) {
                (Some(first), Some(last)) if first == last => format!(" of layer {first}"),
                (Some(first), Some(last)) => format!(" of layers {first} to {last}"),
                _ => String::new(),
            };
            match runs.iter_mut().find(|(_, known)| *known == layers) {
                Some((kinds, _)) => kinds.push(kind.name()),
                None => runs.push((vec![kind.name()], layers)),
            }
        }
        let runs = runs.iter().map(|(kinds, layers)| format!("{}{layers}", kinds.join(", ")));
        let (what, holds) = (runs.collect::<Vec<_>>().join("; "), size(self.holds));
        let (device, by) = (&self.device, &self.by);
        format!(
            "device {device} holds {holds} of weights, and {by} computes what does not fit: {what}"
        )
    }
}
