//! Divides a rule by segments.

use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::ModelSpec;

use crate::plan::{Layers, Rule};

/// A kind of segment, and its layer if it is in one.
pub type SegmentAt = (SegmentKind, Option<usize>);

/// Segments of a rule that go the same way.
pub(crate) struct OneWay<W> {
    pub way: W,
    pub kinds: Vec<SegmentKind>,
    pub layers: Option<Layers>,
}

impl<W> OneWay<W> {
    /// A rule for these segments alone.
    pub fn of(&self, rule: &Rule) -> Rule {
        Rule { segments: Some(self.kinds.clone()), layers: self.layers, ..rule.clone() }
    }
}

/// The segments that a rule matches, by the way that each of them goes.
pub(crate) fn divide<W: Copy + PartialEq>(
    rule: &Rule,
    spec: &ModelSpec,
    way: impl Fn(&SegmentAt) -> W,
) -> Vec<OneWay<W>> {
    let matched = segments(spec).into_iter().filter(|(kind, layer)| rule.matches(*kind, *layer));
    let matched: Vec<SegmentAt> = matched.collect();
    let mut runs: Vec<(SegmentKind, W, Option<Layers>)> = Vec::new();
    for kind in SegmentKind::ALL {
        let first_of_kind = runs.len();
        for segment in matched.iter().filter(|s| s.0 == kind) {
            let (way, layer) = (way(segment), segment.1);
            let last = runs.get_mut(first_of_kind..).and_then(|own| own.last_mut());
            match (last, layer) {
                (Some((_, same, Some(run))), Some(layer))
                    if *same == way && (run.first == run.last || run.last + run.step == layer) =>
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
    let mut merged: Vec<OneWay<W>> = Vec::new();
    for (kind, way, layers) in runs {
        match merged.iter_mut().find(|m| (m.way, m.layers) == (way, layers)) {
            Some(m) => m.kinds.push(kind),
            None => merged.push(OneWay { way, kinds: vec![kind], layers }),
        }
    }
    merged
}
