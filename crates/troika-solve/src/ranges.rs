//! Ranges of layers: a device that can hold only part of the model gets as many layers as fit, or
//! only their feed-forwards. Another device computes the rest.

use troika_model::lower::{ModelPart, SegmentKind};

use super::options::{Placement, rules};
use super::request::Alternative;
use super::search::Search;
use troika_plan::{Layers, Plan, PlanError, PlannedRules, Rule, assemble};

impl Search<'_> {
    /// Plans for devices with limited memory.
    pub(super) fn layer_ranges(&mut self) -> Result<Vec<Alternative>, PlanError> {
        let of = |want: &dyn Fn(SegmentKind) -> bool| -> Vec<SegmentKind> {
            self.kinds.iter().copied().filter(|k| want(*k)).collect()
        };
        let all = of(&SegmentKind::is_in_layers);
        let products = |k: SegmentKind| k.traits().by_columns && k.traits().part == ModelPart::Ffn;
        let ffn = of(&products);
        let mut found = Vec::new();
        for limited in 0..self.request.devices.len() {
            let Some(most) = self.request.devices[limited].caps.max_resident_bytes else {
                continue;
            };
            for other in (0..self.request.devices.len()).filter(|d| *d != limited) {
                for kinds in [&all, &ffn] {
                    found.extend(self.range(limited, other, kinds, most)?);
                }
            }
        }
        Ok(found)
    }

    /// Places as many first layers on a device as fit its memory, the rest on another one.
    fn range(
        &mut self,
        limited: usize,
        other: usize,
        kinds: &[SegmentKind],
        most: u64,
    ) -> Result<Option<Alternative>, PlanError> {
        let name = self.request.devices[limited].name.clone();
        let (mut fits, mut too_many) = (0, self.predictor.layers + 1);
        while fits + 1 < too_many {
            let count = fits.midpoint(too_many);
            let ranged = self.avoided(self.ranged(limited, other, kinds, count));
            let Ok(plan) = ranged else { return Ok(None) };
            let (by_device, _) = self.predictor.placements.weight_bytes(&plan)?;
            let held = by_device.get(&name).copied().unwrap_or(0);
            if held <= most { fits = count } else { too_many = count }
        }
        if fits == 0 || kinds.is_empty() {
            return Ok(None);
        }
        let what = if kinds.len() == 1 { kinds[0].name() } else { "all" };
        let title = format!("{what} of layers 0 to {} on {name}", fits - 1);
        let plan = self.ranged(limited, other, kinds, fits);
        self.in_flight(&title, &plan)
    }

    /// Some kinds of segments of the first `count` layers on one device, all else on another.
    fn ranged(&self, first: usize, other: usize, kinds: &[SegmentKind], count: usize) -> Plan {
        let [first, other] =
            [first, other].map(|d| Placement::whole(&self.request.devices[d].name));
        let of = |kinds: &[SegmentKind], p: &Placement| -> Vec<Rule> {
            let placed: Vec<(SegmentKind, Placement)> =
                kinds.iter().map(|k| (*k, p.clone())).collect();
            let named = |r: Rule| Rule { segments: Some(kinds.to_vec()), ..r };
            rules(&placed).into_iter().map(named).collect()
        };
        let within = |list: Vec<Rule>, range: (usize, usize)| -> Vec<Rule> {
            let layers = Some(Layers { first: range.0, last: range.1, step: 1 });
            list.into_iter().map(|r| Rule { layers, ..r }).collect()
        };
        let rest: Vec<SegmentKind> =
            self.kinds.iter().copied().filter(|k| !kinds.contains(k)).collect();
        let mut all = within(of(kinds, &first), (0, count.max(1) - 1));
        if count < self.predictor.layers {
            all.extend(within(of(kinds, &other), (count, self.predictor.layers - 1)));
        }
        all.extend(of(&rest, &other));
        let rules = PlannedRules { prefill: all.clone(), lengths: Vec::new(), decode: all };
        assemble(self.request.spec, self.request.devices, self.request.base, "solve".into(), rules)
    }
}
