//! The weights that devices hold by a plan.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use troika_graph::WeightDecl;
use troika_model::lower::Lowered;
use troika_plan::{ExpertCachePlan, Phase, Plan, PlanDevice, PlanError, Rule, own_space};
use troika_program::{EdgeTypes, PlacedPiece, PlacedSegment, UsedShares, graph_bytes};

use super::placements::Placements;
use super::weights::{WeightRows, in_code, stored};

/// The weights that a device holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldWeights {
    /// The device.
    pub device: String,
    /// Bytes of its weights, each once, as they are stored.
    pub stored: u64,
    /// Bytes that it holds of them, for all numbers of rows.
    pub held: u64,
    /// The numbers of rows that hold weights of their own.
    pub rows: BTreeSet<usize>,
}

/// The weights that devices hold by a plan.
///
/// # Errors
/// A rule that cannot be applied.
pub fn held_weights(
    plan: &Plan,
    lowered: &Arc<Lowered>,
    devices: &[PlanDevice],
) -> Result<Vec<HeldWeights>, PlanError> {
    let mut placements = Placements::new(lowered, devices);
    let alike = placements.alike(plan)?;
    Ok(placements.held(&alike, plan))
}

/// Segments that hold as many bytes each, and run the same code.
pub(super) struct Alike {
    pub count: u64,
    pub placed: Vec<Arc<PlacedSegment>>,
}

impl Placements<'_> {
    /// Bytes of weights on each device, and in total with each form counted once per memory.
    /// Devices that share memory and hold the same types in as many bytes share a form.
    pub fn weight_bytes(&mut self, plan: &Plan) -> Result<(BTreeMap<String, u64>, u64), PlanError> {
        let alike = self.alike(plan)?;
        Ok(self.bytes(&alike, plan))
    }

    pub fn bytes(&self, alike: &[Alike], plan: &Plan) -> (BTreeMap<String, u64>, u64) {
        let devices = self.devices;
        let mut total = 0;
        for alike in alike {
            let mut forms: HashMap<_, WeightRows> = HashMap::new();
            for piece in alike.placed.iter().flat_map(|p| self.staying(p, plan)) {
                let caps = &devices[piece.device].caps;
                let form = (own_space(caps), &caps.weight_dtypes, &caps.weight_bytes);
                let form = forms.entry(form).or_default();
                let held = |w: &WeightDecl| caps.row_bytes(w.dtype, w.cols);
                piece.graph.weights.iter().for_each(|w| form.add(w, held(w)));
            }
            total += forms.values().map(WeightRows::bytes).sum::<u64>() * alike.count;
        }
        total += plan.expert_caches.iter().map(|c| self.cached(alike, c).1).sum::<u64>();
        let held = self.held(alike, plan).into_iter().filter(|h| h.held > 0);
        (held.map(|h| (h.device, h.held)).collect(), total)
    }

    /// What each device holds.
    fn held(&self, alike: &[Alike], plan: &Plan) -> Vec<HeldWeights> {
        let of = |(index, device): (usize, &PlanDevice)| {
            let mut all = HeldWeights { device: device.name.clone(), ..HeldWeights::default() };
            for alike in alike {
                let (mut once, mut own) = (WeightRows::default(), WeightRows::default());
                // Phases share graphs that take any number of rows.
                let graphs = alike.placed.iter().map(|placed| {
                    let pieces = self.staying(placed, plan).filter(|p| p.device == index);
                    pieces.filter(|p| !p.graph.weights.is_empty()).count() as u64
                });
                let graphs = graphs.max().unwrap_or(0);
                let mut by_rows: HashMap<usize, WeightRows> = HashMap::new();
                let pieces = alike.placed.iter().flat_map(|p| self.staying(p, plan));
                for piece in pieces.filter(|p| p.device == index) {
                    for w in &piece.graph.weights {
                        once.add(w, stored(w));
                        own.add(w, device.caps.row_bytes(w.dtype, w.cols));
                    }
                    let Some(code) = device.caps.code_weights else { continue };
                    let row_bytes = in_code(&piece.graph, code);
                    for rows in &piece.shapes {
                        let held = by_rows.entry(*rows).or_default();
                        let weights = piece.graph.weights.iter().zip(&row_bytes);
                        weights.for_each(|(w, bytes)| held.add(w, *bytes));
                    }
                }
                all.stored += once.bytes() * alike.count;
                all.held += alike.count
                    * match device.caps.code_weights {
                        None => own.bytes(),
                        Some(code) => {
                            let each = by_rows.values().map(WeightRows::bytes);
                            let once =
                                if code.per_shape { each.sum() } else { each.max().unwrap_or(0) };
                            once + graphs * code.graph_bytes
                        }
                    };
                if device.caps.code_weights.is_some_and(|code| code.per_shape) {
                    all.rows.extend(by_rows.into_keys());
                }
            }
            for cache in plan.expert_caches.iter().filter(|cache| cache.device == device.name) {
                let (all_bytes, held) = self.cached(alike, cache);
                all.stored += all_bytes;
                all.held += held;
            }
            all
        };
        self.devices.iter().enumerate().map(of).collect()
    }

    /// The pieces of a segment whose weights stay on their devices.
    fn staying<'a>(
        &'a self,
        placed: &'a PlacedSegment,
        plan: &'a Plan,
    ) -> impl Iterator<Item = &'a PlacedPiece> {
        let cached = |piece: &&PlacedPiece| {
            let device = &self.devices[piece.device].name;
            plan.expert_caches.iter().any(|cache| cache.device == *device)
                && placed.groups().any(|group| std::ptr::eq(group, *piece))
        };
        placed.pieces().filter(move |piece| !cached(piece))
    }

    /// Bytes of the groups of experts that a cache is for, and of those that it holds.
    fn cached(&self, alike: &[Alike], cache: &ExpertCachePlan) -> (u64, u64) {
        let of = |alike: &Alike| {
            let groups = alike.placed.iter().flat_map(|placed| placed.groups());
            let groups = groups.filter(|p| self.devices[p.device].name == cache.device);
            let bytes = groups.map(|p| graph_bytes(&p.graph, &self.devices[p.device].caps));
            bytes.sum::<u64>() * alike.count
        };
        let all: u64 = alike.iter().map(of).sum();
        (all, all.min(cache.bytes))
    }

    /// Segments with equal graphs and rules, with their placements in all phases and lengths.
    ///
    /// # Errors
    /// Those of [`Placements::of`], and [`PlanError::Unpriced`] if a split leaves a device nothing.
    pub fn alike(&mut self, plan: &Plan) -> Result<Vec<Alike>, PlanError> {
        let types = EdgeTypes::new(self.lowered, plan);
        let mut known: HashMap<(usize, Vec<Option<*const Rule>>), usize> = HashMap::new();
        let mut all: Vec<Alike> = Vec::new();
        let mut used = UsedShares::new(plan, self.devices);
        for (i, s) in self.lowered.segments.iter().enumerate() {
            let rules = plan.all_lists().map(|((phase, _), list)| {
                (phase, list.iter().find(|r| r.matches(s.kind, s.layer)))
            });
            let rules: Vec<(Phase, Option<&Rule>)> = rules.collect();
            let pointers = rules.iter().map(|(_, rule)| rule.map(std::ptr::from_ref)).collect();
            let at = *known.entry((self.class[i], pointers)).or_insert(all.len());
            if let Some(alike) = all.get_mut(at) {
                alike.count += 1;
                continue;
            }
            let mut placed: Vec<Arc<PlacedSegment>> = Vec::new();
            for (phase, rule) in rules {
                let Some(rule) = rule else { continue };
                let here = self.of(i, rule, phase, &types)?;
                used.see(rule, &here, &s.graph);
                if !placed.iter().any(|p| Arc::ptr_eq(p, &here)) {
                    placed.push(here);
                }
            }
            all.push(Alike { count: 1, placed });
        }
        used.check().map_err(|e| PlanError::Unpriced(e.to_string()))?;
        Ok(all)
    }
}
