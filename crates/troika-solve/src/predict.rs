//! Predicts a plan's costs: runs the tasks of a prompt and of a decoded token in modelled time.

use std::collections::HashMap;
use std::sync::Arc;

use troika_plan::{Plan, PlanError, Predicted, PredictedLength};
use troika_program::schedule::TaskTimes;

use super::held::Alike;
use super::request::PredictRequest;
use super::score::{Predictor, too_large};
use super::timed::TimedPlan;

/// Predicts a plan's costs. The time is infinite if a device cannot run its part.
///
/// # Errors
/// An unknown device, a split that a graph does not allow, or a segment without a rule.
pub fn predict(request: &PredictRequest<'_>, plan: &Plan) -> Result<Predicted, PlanError> {
    let mut predictor = Predictor::new(request);
    let predicted = predictor.plan(plan)?;
    Ok(Predicted { lengths: predictor.lengths(plan)?, ..predicted })
}

/// What a plan's tasks take by the prices, by the number of their code, where its policy goes by it.
///
/// # Errors
/// As for [`predict`].
pub fn task_times(
    request: &PredictRequest<'_>,
    plan: &Plan,
) -> Result<TaskTimes<usize>, PlanError> {
    let of = &plan.prefill;
    TimedPlan::new(request, plan, of.lengths.is_empty())?.times(of.policy)
}

/// Other lengths of prompts to predict.
const LENGTHS: [usize; 7] = [32, 64, 128, 256, 512, 1024, 2048];

impl Predictor<'_> {
    /// What the plan's run in modelled time takes.
    pub fn plan(&mut self, plan: &Plan) -> Result<Predicted, PlanError> {
        let (prompt, generate) = (self.request.prompt.max(1), self.request.generate);
        let alike = self.placements.alike(plan)?;
        for piece in alike.iter().flat_map(|a| &a.placed).flat_map(|p| p.pieces()) {
            let device = &self.request.devices[piece.device];
            if let Some(bytes) = too_large(&piece.graph, device) {
                let (name, piece) = (&device.name, &piece.name);
                let why = format!("{piece}: {bytes} bytes of weights, more than {name} takes");
                return Err(PlanError::Unpriced(why));
            }
        }
        let needed = only_for(plan, prompt);
        let timed = TimedPlan::new(&self.request, &needed, plan.prefill.lengths.is_empty())?;
        let mut run = timed.start()?;
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
        let (weight_bytes, total_bytes) = self.placements.bytes(&alike, plan);
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
            let mut run = timed.start()?;
            run.tokens(tokens)?;
            Ok(PredictedLength { tokens, ttft_us: run.now_ns() * 1e-3 })
        };
        shorter.map(of).collect()
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
}

/// The plan for prompts of one length: without the rules that its chunks have no use for.
pub(super) fn only_for(plan: &Plan, prompt: usize) -> Plan {
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
