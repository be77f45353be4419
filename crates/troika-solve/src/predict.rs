//! Predicts a plan's costs: runs the tasks of a prompt and of a decoded token in modelled time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use troika_device::SpaceId;
use troika_graph::DType;
use troika_model::lower::Lowered;

use super::request::PredictRequest;
use super::score::{Predictor, too_large};
use super::timed::TimedPlan;
use super::weights::{WeightRows, in_code, stored};
use crate::cost::{CostModel, Mover, PricedRun, QueueCosts};
use troika_plan::own_space;
use troika_plan::{Phase, Plan, PlanError, Rule, SyncMode};
use troika_plan::{PlanDevice, Predicted, PredictedLength};
use troika_program::{EdgeTypes, PlacedSegment, UsedShares};
use troika_time::TaskCost;

/// Predicts a plan's costs. The time is infinite if a device cannot run its part.
///
/// # Errors
/// An unknown device, a split that a graph does not allow, or a segment without a rule.
pub fn predict(request: &PredictRequest<'_>, plan: &Plan) -> Result<Predicted, PlanError> {
    let mut predictor = Predictor::new(request);
    let predicted = predictor.plan(plan)?;
    Ok(Predicted { lengths: predictor.lengths(plan)?, ..predicted })
}

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
    let request = PredictRequest { lowered, devices, cost: &Free, prompt: 1, generate: 0 };
    let mut predictor = Predictor::new(&request);
    let alike = predictor.alike(plan)?;
    Ok(predictor.held(&alike))
}

/// A cost model without costs, to count bytes only.
struct Free;

impl CostModel for Free {
    fn source(&self) -> String {
        String::new()
    }

    fn run(&self, _: &PricedRun<'_>) -> TaskCost {
        TaskCost::default()
    }

    fn moving(&self, _: Mover, _: usize, _: u64) -> TaskCost {
        TaskCost::default()
    }

    fn queue(&self, _: usize, _: &[usize], _: SyncMode) -> QueueCosts {
        QueueCosts::default()
    }
}

/// Other lengths of prompts to predict.
const LENGTHS: [usize; 7] = [32, 64, 128, 256, 512, 1024, 2048];

impl Predictor<'_> {
    /// What the plan's run in modelled time takes.
    pub fn plan(&mut self, plan: &Plan) -> Result<Predicted, PlanError> {
        let (prompt, generate) = (self.request.prompt.max(1), self.request.generate);
        let alike = self.alike(plan)?;
        for piece in alike.iter().flat_map(|a| &a.placed).flat_map(|p| p.pieces()) {
            let device = &self.request.devices[piece.device];
            if let Some(bytes) = too_large(&piece.graph, device) {
                let (name, piece) = (&device.name, &piece.name);
                let why = format!("{piece}: {bytes} bytes of weights, more than {name} takes");
                return Err(PlanError::Unpriced(why));
            }
        }
        let needed = only_for(plan, prompt);
        let mut run =
            TimedPlan::new(&self.request, &needed, plan.prefill.lengths.is_empty())?.start();
        run.tokens(prompt)?;
        let first_ns = run.now_ns();
        let later = generate.saturating_sub(1).max(1);
        for _ in 0..later {
            run.tokens(1)?;
        }
        let end_ns = run.now_ns();
        let token_ns = if end_ns.is_finite() { (end_ns - first_ns) / later as f64 } else { end_ns };
        let energy_j = match self.request.cost.machine_j(&run.usage()) {
            Some(joules) => Some(joules),
            None => self.energy_j(plan, (first_ns + token_ns * generate as f64) * 1e-9)?,
        };
        let (weight_bytes, total_bytes) = self.bytes(&alike);
        Ok(Predicted {
            source: self.request.cost.source(),
            prompt,
            generate,
            ttft_us: first_ns * 1e-3,
            tpot_us: token_ns * 1e-3,
            energy_j: energy_j.filter(|j| j.is_finite()),
            // JSON cannot hold infinity.
            compile_us: (self.compile_ns(&alike) * 1e-3).min(f64::MAX),
            weight_bytes,
            total_bytes,
            lengths: Vec::new(),
        })
    }

    /// Joules of a prompt and an answer that take `seconds`, by the energy of each run.
    fn energy_j(&mut self, plan: &Plan, seconds: f64) -> Result<Option<f64>, PlanError> {
        let (prompt, generate) = (self.request.prompt.max(1), self.request.generate);
        let first = self.prompt(plan, prompt)?;
        let token = self.token(plan, prompt + generate / 2)?;
        let run_j = first.joules.zip(token.joules).map(|(f, t)| f + t * generate as f64);
        let idle = self.request.cost.idle_w().unwrap_or(0.0);
        Ok(run_j.map(|j| j + idle * seconds))
    }

    /// Predictions for prompts of other lengths.
    pub fn lengths(&mut self, plan: &Plan) -> Result<Vec<PredictedLength>, PlanError> {
        let shorter = LENGTHS.into_iter().filter(|n| *n < self.request.prompt);
        let timed = TimedPlan::new(&self.request, plan, plan.prefill.lengths.is_empty())?;
        let of = |tokens| {
            let mut run = timed.start();
            run.tokens(tokens)?;
            Ok(PredictedLength { tokens, ttft_us: run.now_ns() * 1e-3 })
        };
        shorter.map(of).collect()
    }

    /// Bytes of weights on each device, and in total with each form counted once per memory.
    /// Devices that share memory and read the same types share a form.
    pub fn weight_bytes(&mut self, plan: &Plan) -> Result<(BTreeMap<String, u64>, u64), PlanError> {
        let alike = self.alike(plan)?;
        Ok(self.bytes(&alike))
    }

    fn bytes(&self, alike: &[Alike]) -> (BTreeMap<String, u64>, u64) {
        let devices = self.request.devices;
        let mut total = 0;
        for alike in alike {
            let mut forms: HashMap<(SpaceId, &[DType]), WeightRows> = HashMap::new();
            for piece in alike.placed.iter().flat_map(|p| p.pieces()) {
                let caps = &devices[piece.device].caps;
                let form = (own_space(caps), caps.weight_dtypes.as_slice());
                let form = forms.entry(form).or_default();
                piece.graph.weights.iter().for_each(|w| form.add(w, stored(w)));
            }
            total += forms.values().map(WeightRows::bytes).sum::<u64>() * alike.count;
        }
        let held = self.held(alike).into_iter().filter(|h| h.held > 0);
        (held.map(|h| (h.device, h.held)).collect(), total)
    }

    /// What each device holds.
    fn held(&self, alike: &[Alike]) -> Vec<HeldWeights> {
        let of = |(index, device): (usize, &PlanDevice)| {
            let mut all = HeldWeights { device: device.name.clone(), ..HeldWeights::default() };
            for alike in alike {
                let mut once = WeightRows::default();
                let mut by_rows: HashMap<usize, WeightRows> = HashMap::new();
                let pieces = alike.placed.iter().flat_map(|p| p.pieces());
                for piece in pieces.filter(|p| p.device == index) {
                    piece.graph.weights.iter().for_each(|w| once.add(w, stored(w)));
                    let Some(float_bytes) = device.caps.weights_per_shape else { continue };
                    let row_bytes = in_code(&piece.graph, float_bytes);
                    for rows in &piece.shapes {
                        let held = by_rows.entry(*rows).or_default();
                        let weights = piece.graph.weights.iter().zip(&row_bytes);
                        weights.for_each(|(w, bytes)| held.add(w, *bytes));
                    }
                }
                all.stored += once.bytes() * alike.count;
                all.held += alike.count
                    * match device.caps.weights_per_shape {
                        None => once.bytes(),
                        Some(_) => by_rows.values().map(WeightRows::bytes).sum(),
                    };
                all.rows.extend(by_rows.into_keys());
            }
            all
        };
        self.request.devices.iter().enumerate().map(of).collect()
    }

    fn compile_ns(&self, alike: &[Alike]) -> f64 {
        let mut seen: HashMap<(usize, usize, usize), f64> = HashMap::new();
        for (number, alike) in alike.iter().enumerate() {
            let placed = alike.placed.iter().flat_map(|p| p.pieces());
            for p in placed {
                let shares = self.request.devices[p.device].caps.shares_code(&p.graph);
                let (which, count) = if shares { (0, 1) } else { (number + 1, alike.count) };
                for &room in &p.shapes {
                    let key = (Arc::as_ptr(&p.graph) as usize, room, which);
                    let cost = || self.request.cost.compile_ns(p.device, &p.graph, room);
                    seen.entry(key).or_insert_with(|| cost() * count as f64);
                }
            }
        }
        seen.values().sum()
    }

    /// Segments with equal graphs and rules, with their placements in all phases and lengths.
    ///
    /// # Errors
    /// Those of [`Placements::of`](super::placements::Placements::of), and
    /// [`PlanError::Unpriced`] if a split leaves a device nothing.
    fn alike(&mut self, plan: &Plan) -> Result<Vec<Alike>, PlanError> {
        let types = EdgeTypes::new(self.request.lowered, plan);
        let mut known: HashMap<(usize, Vec<Option<*const Rule>>), usize> = HashMap::new();
        let mut all: Vec<Alike> = Vec::new();
        let mut used = UsedShares::new(plan, self.request.devices);
        for (i, s) in self.request.lowered.segments.iter().enumerate() {
            let rules = plan.all_lists().map(|((phase, _), list)| {
                (phase, list.iter().find(|r| r.matches(s.kind, s.layer)))
            });
            let rules: Vec<(Phase, Option<&Rule>)> = rules.collect();
            let pointers = rules.iter().map(|(_, rule)| rule.map(std::ptr::from_ref)).collect();
            let at = *known.entry((self.placements.class(i), pointers)).or_insert(all.len());
            if let Some(alike) = all.get_mut(at) {
                alike.count += 1;
                continue;
            }
            let mut placed: Vec<Arc<PlacedSegment>> = Vec::new();
            for (phase, rule) in rules {
                let Some(rule) = rule else { continue };
                let here = self.placements.of(i, rule, phase, &types)?;
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

/// The plan for prompts of one length: without the rules that its chunks have no use for.
fn only_for(plan: &Plan, prompt: usize) -> Plan {
    let mut needed = plan.clone();
    let (chunk, lengths) = (plan.prefill.chunk, &mut needed.prefill.lengths);
    let rest = prompt % chunk;
    let rows = [rest, if prompt < chunk { rest } else { chunk }];
    let used = |up_to: usize, before: usize| rows.iter().any(|n| (before + 1..=up_to).contains(n));
    let mut before = 0;
    lengths.retain(|l| used(l.up_to, std::mem::replace(&mut before, l.up_to)));
    if !used(chunk, before)
        && let Some(longest) = lengths.pop()
    {
        needed.prefill.rules = longest.rules;
    }
    needed
}

/// Segments that hold as many bytes each, and run the same code.
struct Alike {
    count: u64,
    placed: Vec<Arc<PlacedSegment>>,
}
