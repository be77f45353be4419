//! The search: improves several seeds, one kind of segment at a time, for full chunks, shorter
//! chunks and decode. Then tries chunk lengths and the named strategies.

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};

use troika_model::lower::{SegmentKind, segment_kinds};

use super::choice::{Choice, Placed, Scope, Sought, for_decode};
use super::forms::Forms;
use super::options::{Placement, rules};
use super::request::{Alternative, PredictRequest, SolveRequest, Solved};
use super::score::Predictor;
use crate::memory::{MadePlan, MakeRequest, make_within_memory};
use troika_plan::{
    Decode, Goal, LengthRules, Phase, Plan, PlanDevice, PlanError, PlanRequest, PlannedRules,
    Predicted, Prefill, Split, Strategy, assemble, chunk_of,
};

/// The most single changes of the best plan that are looked at as plans, in each phase.
const CHANGES: usize = 10;
/// The most alternatives that are reported, besides plans on one device.
const SHOWN: usize = 6;
/// Number of seeds to improve.
const SEEDS: usize = 4;
/// A change is made only if it reduces the time below this share.
const WORTH_A_CHANGE: f64 = 0.997;
/// Plans that share experts out are chosen only if they reduce the time of the best other plan below
/// this share: what groups take depends on the text, too.
const WORTH_GROUPS: f64 = 0.93;
/// Two plans count as equal if the ratio of their times is above this.
const AS_GOOD: f64 = 0.9995;
/// Rounds of improvement, each over all kinds of segments.
const ROUNDS: usize = 3;

/// Another placement of a kind of segment than the best one.
#[derive(Clone, Debug)]
struct Change {
    score: f64,
    /// The kind, by its place.
    at: usize,
    option: Placement,
}

/// A placement with its score.
#[derive(Clone)]
struct Scored {
    score: f64,
    placed: Placed,
}

/// What was found for chunks of a length.
struct Found {
    choice: Choice,
    /// The scopes that are placed.
    done: Vec<Option<usize>>,
    chunk: usize,
}

pub(super) struct Search<'a> {
    pub(super) request: &'a SolveRequest<'a>,
    pub(super) predictor: Predictor<'a>,
    forms: Forms<'a>,
    pub(super) kinds: Vec<SegmentKind>,
    /// What plans are made of; its chunk is the one that is looked at.
    pub(super) base: PlanRequest,
    /// The longest chunk.
    pub(super) chunk: usize,
    /// The most bytes of weights in total.
    pub(super) most_bytes: u64,
    /// The plans that were looked at, with what they take.
    known: Vec<(Prefill, Decode, Option<Predicted>)>,
    /// Those without a price, each with the reason.
    unpriced: Vec<String>,
}

impl<'a> Search<'a> {
    pub fn new(request: &'a SolveRequest<'a>) -> Search<'a> {
        let predictor = Predictor::new(&PredictRequest {
            lowered: request.lowered,
            devices: request.devices,
            cost: request.cost,
            prompt: request.prompt,
            generate: request.generate,
        });
        Search {
            request,
            predictor,
            forms: Forms::new(request.lowered, request.devices, request.cost),
            kinds: segment_kinds(request.spec),
            base: request.base.clone(),
            chunk: chunk_of(request.spec, request.base),
            most_bytes: u64::MAX,
            known: Vec::new(),
            unpriced: Vec::new(),
        }
    }

    pub fn solve(mut self) -> Result<Solved, PlanError> {
        if self.request.devices.is_empty() {
            return Err(PlanError::Strategy { strategy: "solve", need: "a device", count: 0 });
        }
        let candidates = self.candidates()?;
        let mut alternatives = self.ranked(candidates);
        if alternatives.is_empty() {
            let why = "no device at hand runs the whole model within its limits, and no two do";
            return Err(PlanError::Unpriced(why.into()));
        }
        let chosen = chosen(&alternatives, self.request);
        let Alternative { mut plan, mut predicted, .. } = alternatives.remove(chosen);
        predicted.lengths = self.predictor.lengths(&plan)?;
        plan.predicted = Some(predicted.clone());
        Ok(Solved { plan, predicted, alternatives, unpriced: self.unpriced })
    }

    /// All plans that are looked at, with their predictions.
    fn candidates(&mut self) -> Result<Vec<Alternative>, PlanError> {
        let mut candidates = self.known_plans()?;
        // The bytes of the smallest plan on one device, plus rounding to tiles: each row of a weight
        // is held once.
        let one = candidates.iter().filter(|c| c.name.starts_with(ONE_DEVICE));
        let least = one.map(|c| c.predicted.total_bytes).min().unwrap_or(u64::MAX);
        self.most_bytes = least.saturating_add(least / 50);
        for (name, plan) in self.request.candidates {
            candidates.extend(self.alternative(name.clone(), plan.clone())?);
        }
        candidates.extend(self.layer_ranges()?);
        let shared = self.shared_experts()?;
        if self.request.devices.len() > 1 {
            let found = self.best_found(&mut candidates)?;
            for (name, plan) in self.request.candidates {
                // They are named after their prefill.
                candidates.extend(self.with_chunks(name, &with_decode(plan, &found))?);
            }
            for known in &shared {
                let name = format!("{}, decoding as found", known.name);
                let plan = with_decode(&known.plan, &found);
                candidates.extend(self.alternative(name, plan)?);
            }
        }
        candidates.extend(shared);
        Ok(candidates)
    }

    /// The plans worth reporting, the best first. Plans that share experts out and are not worth it
    /// come last.
    fn ranked(&self, mut plans: Vec<Alternative>) -> Vec<Alternative> {
        let score = |c: &Alternative| c.predicted.score(self.request.goal);
        plans.retain(|c| {
            // Groups of experts are held besides.
            let fits = c.predicted.total_bytes <= self.most_bytes || shares_experts(&c.plan);
            score(c).is_finite() && (fits || c.name.starts_with(ONE_DEVICE))
        });
        let mut seen: Vec<(Prefill, Decode)> = Vec::new();
        plans.retain(|Alternative { plan, .. }| {
            let is_new = !seen.iter().any(|(p, d)| (p, d) == (&plan.prefill, &plan.decode));
            seen.extend(is_new.then(|| (plan.prefill.clone(), plan.decode.clone())));
            is_new
        });
        plans.sort_by(|a, b| score(a).total_cmp(&score(b)));
        let mut others = 0;
        plans.retain(|c| {
            let shares = c.name.starts_with(EXPERTS);
            let shown = others < SHOWN || shares || c.name.starts_with(ONE_DEVICE);
            others += usize::from(shown && !shares);
            shown
        });
        if let Some(other) = plans.iter().find(|c| !shares_experts(&c.plan)).map(score) {
            plans.sort_by_key(|c| shares_experts(&c.plan) && score(c) > other * WORTH_GROUPS);
        }
        plans
    }

    /// All plans on one device, and the named strategies.
    fn known_plans(&mut self) -> Result<Vec<Alternative>, PlanError> {
        let mut all = Vec::new();
        for i in 0..self.request.devices.len() {
            let mut devices = self.request.devices.to_vec();
            devices[..=i].rotate_right(1);
            let known = [Strategy::OneDevice, Strategy::PrefillDecode, Strategy::Alternate];
            for strategy in known {
                if strategy.check(devices.len()).is_err() {
                    continue;
                }
                let base = PlanRequest { strategy: strategy.clone(), ..self.request.base.clone() };
                let MadePlan { plan, moved } = make_within_memory(&MakeRequest {
                    spec: self.request.spec,
                    lowered: self.request.lowered,
                    devices: &devices,
                    refusals: self.request.refusals,
                    base: &base,
                    attention_first: false,
                })?;
                let first = &devices[0].name;
                let name = match strategy {
                    Strategy::OneDevice if moved.is_empty() => format!("{ONE_DEVICE} {first}"),
                    _ => format!("{strategy} from {first}"),
                };
                if strategy == Strategy::OneDevice {
                    all.extend(self.alternative(name.clone(), plan.clone())?);
                }
                if devices.len() > 1 {
                    all.extend(self.in_flight(&name, &plan)?);
                }
            }
        }
        Ok(all)
    }

    /// A plan with its prediction. `None` if it has no price.
    pub(super) fn alternative(
        &mut self,
        name: String,
        plan: Plan,
    ) -> Result<Option<Alternative>, PlanError> {
        let avoided = self.avoided(plan);
        let Some(mut plan) = self.noted(&name, avoided)? else { return Ok(None) };
        self.forms.choose(&mut plan);
        let known = self.known.iter().find(|k| (&k.0, &k.1) == (&plan.prefill, &plan.decode));
        let predicted = match known {
            Some((_, _, predicted)) => predicted.clone(),
            None => {
                let predicted = self.price(&plan);
                let predicted = self.noted(&name, predicted)?;
                self.known.push((plan.prefill.clone(), plan.decode.clone(), predicted.clone()));
                predicted
            }
        };
        let Some(predicted) = predicted else { return Ok(None) };
        plan.predicted = Some(predicted.clone());
        Ok(Some(Alternative { name, plan, predicted }))
    }

    /// What a plan takes.
    fn price(&mut self, plan: &Plan) -> Result<Predicted, PlanError> {
        let predicted = self.predictor.plan(plan)?;
        if !predicted.ttft_us.is_finite() || !predicted.tpot_us.is_finite() {
            return Err(PlanError::Unpriced("a part of it has no price on its device".into()));
        }
        if let Some(device) = self.overfull(&predicted.weight_bytes) {
            let why = format!("its weights do not fit in the memory of {}", device.name);
            return Err(PlanError::Unpriced(why));
        }
        Ok(predicted)
    }

    /// A device that would hold more bytes of weights than it can.
    pub(super) fn overfull(&self, held: &BTreeMap<String, u64>) -> Option<&'a PlanDevice> {
        self.request.devices.iter().find(|d| {
            let bytes = held.get(&d.name).copied().unwrap_or(0);
            d.caps.max_resident_bytes.is_some_and(|most| bytes > most)
        })
    }

    /// Notes why a plan has no price.
    pub(super) fn noted<T>(
        &mut self,
        name: &str,
        found: Result<T, PlanError>,
    ) -> Result<Option<T>, PlanError> {
        let Err(PlanError::Unpriced(why)) = found else { return found.map(Some) };
        let line = format!("{name}: {why}");
        if !self.unpriced.contains(&line) {
            self.unpriced.push(line);
        }
        Ok(None)
    }

    /// The plan with refused ops elsewhere.
    ///
    /// # Errors
    /// [`PlanError::Unpriced`]: no device takes an op, or the plan does not fit the model.
    pub(super) fn avoided(&self, mut plan: Plan) -> Result<Plan, PlanError> {
        let names: Vec<&str> = self.request.devices.iter().map(|d| d.name.as_str()).collect();
        let avoided = plan.avoid(self.request.refusals, &names);
        let fits = avoided.and_then(|_| plan.check(self.request.spec, &names));
        fits.map_err(|e| PlanError::Unpriced(e.to_string()))?;
        Ok(plan)
    }

    /// The plan of a choice.
    pub(super) fn plan(&self, choice: &Choice, name: &str) -> Plan {
        let mut lists: Vec<LengthRules> = choice
            .prefill
            .iter()
            .map(|(up_to, placed)| LengthRules { up_to: *up_to, rules: rules(placed) })
            .collect();
        let prefill = lists.pop().map_or_else(Vec::new, |l| l.rules);
        // Joins neighbouring buckets with equal rules.
        let mut lengths: Vec<LengthRules> = Vec::new();
        for l in lists {
            match lengths.last_mut().filter(|last| last.rules == l.rules) {
                Some(last) => last.up_to = l.up_to,
                None => lengths.push(l),
            }
        }
        if lengths.last().is_some_and(|l| l.rules == prefill) {
            lengths.pop();
        }
        let rules = PlannedRules { prefill, lengths, decode: rules(&choice.decode) };
        let (base, spec) = (&self.base, self.request.spec);
        let mut plan = assemble(spec, self.request.devices, base, name.into(), rules);
        if base.chunks_in_flight.is_none() && self.request.prompt <= plan.prefill.chunk {
            // One chunk needs memory for one only.
            plan.prefill.chunks_in_flight = 1;
        }
        self.forms.choose(&mut plan);
        plan
    }

    /// The scopes of prefill with their longest chunks, and the scope of decode.
    fn scopes(&self) -> (Vec<(usize, Scope)>, Scope) {
        let mut ends: Vec<usize> = self.request.lengths.to_vec();
        if ends.is_empty() {
            let fixed = self.request.devices.iter().filter(|d| d.caps.static_shapes);
            let buckets: Vec<usize> = fixed.flat_map(|d| d.caps.row_buckets.clone()).collect();
            // Just above a shape the rest is small; further above, padding may be better.
            let above = |n: &usize| [*n, n + n / 16, n + n / 4, n + n / 2];
            ends.extend(buckets.iter().flat_map(above));
            ends.extend([32, 64, 128, 256, 512, 1024, 2048]);
        }
        ends.retain(|n| *n > 0 && *n < self.base.chunk);
        ends.push(self.base.chunk);
        ends.sort_unstable();
        ends.dedup();
        // Keeps the number within a plan's limit.
        while ends.len() > 32 {
            ends.remove(0);
        }
        // With padded shapes, lengths within a bucket differ.
        let padded = self.request.devices.iter().any(|d| d.caps.static_shapes);
        let mut before = 0;
        let mut scopes = Vec::new();
        for end in ends {
            let middle = if padded { (before + 1 + end).div_ceil(2) } else { end };
            let rows = [middle.max(before + 1), end];
            scopes.push((end, Scope { phase: Phase::Prefill, rows, cached: 0 }));
            before = end;
        }
        let cached = self.request.prompt + self.request.generate / 2;
        let cached = cached.clamp(1, self.predictor.request.lowered_context());
        (scopes, Scope { phase: Phase::Decode, rows: [1, 1], cached })
    }

    /// The best plan that is found, with others that were looked at. For chunks of each length a few
    /// placements are timed, the best of which is completed for prompts of all lengths.
    fn best_found(&mut self, all: &mut Vec<Alternative>) -> Result<Plan, PlanError> {
        let mut best: Option<(f64, Found)> = None;
        let mut last = Vec::new();
        for chunk in self.chunk_lengths() {
            self.base.chunk = chunk;
            for found in self.sketches(&mut last)? {
                let plan = self.plan(&found.choice, "solve");
                let timed = self.in_flight("a sketch", &plan)?;
                let score = timed.as_ref().map(|a| a.predicted.score(self.request.goal));
                let score = score.unwrap_or(f64::INFINITY);
                all.extend(timed);
                if best.as_ref().is_none_or(|b| score < b.0) {
                    best = Some((score, found));
                }
            }
        }
        let Some((_, mut best)) = best else {
            return Err(PlanError::Unpriced("there are no chunks".into()));
        };
        self.base.chunk = best.chunk;
        let lengths = (0..best.choice.prefill.len()).map(Some);
        let order: Vec<_> = [Some(self.main()), None].into_iter().chain(lengths).collect();
        self.place(&mut best, &order)?;
        let plan = self.plan(&best.choice, "solve");
        if let Some(found) = self.in_flight("the best found", &plan)? {
            all.extend(self.changes(best.choice, &found)?);
            all.push(found);
        }
        Ok(plan)
    }

    /// Placements for the prompt that is asked for, in chunks of the length at hand: on each device,
    /// and the best by score. Its search begins with the last one found, too.
    fn sketches(&mut self, last: &mut Placed) -> Result<Vec<Found>, PlanError> {
        let chunk = self.base.chunk;
        let (main, rest) = (Some(self.main()), self.rest());
        let mut all = Vec::new();
        for device in self.request.devices {
            let on = |kind: &SegmentKind| (*kind, Placement::whole(&device.name));
            let whole: Placed = self.kinds.iter().map(on).collect();
            if last.is_empty() {
                last.clone_from(&whole);
            }
            all.push(Found { choice: self.everywhere(&whole), done: vec![main], chunk });
        }
        all.push(Found { choice: self.everywhere(last), done: Vec::new(), chunk });
        let first = [None].into_iter().filter(|_| self.request.goal == Goal::Tps);
        let order: Vec<_> = first.chain([main]).chain(rest).collect();
        all.iter_mut().try_for_each(|found| self.place(found, &order))?;
        let found = all.last().map(|found| found.choice.get(main));
        found.into_iter().for_each(|placed| last.clone_from(placed));
        Ok(all)
    }

    /// One placement for all lengths and decoding.
    fn everywhere(&self, placed: &Placed) -> Choice {
        let prefill = self.scopes().0.into_iter().map(|(end, _)| (end, placed.clone())).collect();
        Choice { prefill, decode: for_decode(placed) }
    }

    /// The bucket of chunks of so many rows.
    fn bucket(&self, rows: usize) -> usize {
        self.scopes().0.iter().position(|(end, _)| rows <= *end).unwrap_or(0)
    }

    /// The bucket of the prompt that is asked for.
    fn main(&self) -> usize {
        self.bucket(self.request.prompt.min(self.base.chunk))
    }

    /// The bucket of its last chunk, where that is shorter than others.
    fn rest(&self) -> Option<Option<usize>> {
        let (prompt, chunk) = (self.request.prompt, self.base.chunk);
        let rest = (prompt > chunk).then_some(prompt % chunk).filter(|rest| *rest > 0)?;
        Some(Some(self.bucket(rest)))
    }

    /// A bucket's scope, or that of decoding. Chunks of the prompt that is asked for stand for their
    /// buckets.
    fn scope(&self, which: Option<usize>) -> Scope {
        let (scopes, decode) = self.scopes();
        let Some(at) = which else { return decode };
        let (prompt, chunk) = (self.request.prompt.max(1), self.base.chunk);
        let mut own = [prompt.min(chunk), prompt % chunk].into_iter().filter(|n| *n > 0);
        let own = own.find(|rows| self.bucket(*rows) == at);
        Scope { rows: own.map_or(scopes[at].1.rows, |n| [n, n]), ..scopes[at].1 }
    }

    /// Placements for some scopes, in this order: each uses the weights of those before.
    fn place(&mut self, found: &mut Found, order: &[Option<usize>]) -> Result<(), PlanError> {
        let main = Some(self.main());
        let Found { choice, done, .. } = found;
        for &which in order {
            if done.contains(&which) {
                continue;
            }
            let (scope, asked) = (self.scope(which), which.is_none() || which == main);
            let placed = self.best_placed(&Sought { scope, which, choice, done, asked })?;
            choice.set(which, placed.clone());
            if done.is_empty() {
                // The others start from this one.
                *choice = self.everywhere(&placed);
            }
            if let Some(main) = which.filter(|_| which == main) {
                choice.share_states(main);
            }
            done.push(which);
        }
        Ok(())
    }

    /// The best placement of all kinds in a scope.
    fn best_placed(&mut self, sought: &Sought<'_>) -> Result<Placed, PlanError> {
        let kinds = self.kinds.clone();
        let options: Vec<Vec<Placement>> =
            kinds.into_iter().map(|k| self.options(k, sought)).collect();
        let current = sought.choice.get(sought.which);
        let mut seeds: Vec<Scored> = Vec::new();
        for mut placed in self.seeds(sought.scope, current) {
            for (kind, p) in placed.iter_mut().filter(|(k, _)| sought.keeps(*k)) {
                let kept = current.iter().find(|(k, _)| k == kind);
                kept.into_iter().for_each(|k| p.clone_from(&k.1));
            }
            let score = self.score(sought, &placed, f64::INFINITY)?;
            seeds.push(Scored { score, placed });
        }
        seeds.sort_by(|a, b| a.score.total_cmp(&b.score));
        seeds.dedup_by(|a, b| a.placed == b.placed);
        let single = seeds.iter().find(|s| self.is_alone(s, sought.scope.phase)).cloned();
        seeds.truncate(if sought.asked { SEEDS } else { 1 });
        let mut best: Option<Scored> = None;
        for seed in seeds {
            let bettered = self.bettered(seed, sought, &options)?;
            if best.as_ref().is_none_or(|b| bettered.score < b.score) {
                best = Some(bettered);
            }
        }
        if let (Some(one), Some(found)) = (single, &best)
            && one.score * self.request.cost.worth_sharing() <= found.score
        {
            best = Some(one);
        }
        let best = best.ok_or_else(|| PlanError::Unpriced("there are no segments".into()))?;
        Ok(best.placed)
    }

    /// Whether one device computes all, refused ops included.
    fn is_alone(&self, seed: &Scored, phase: Phase) -> bool {
        let Scored { placed, .. } = seed;
        let full =
            Choice { prefill: vec![(self.base.chunk, placed.clone())], decode: placed.clone() };
        self.avoided_rules(&full, phase).is_some_and(|plan| plan.devices.len() == 1)
    }

    /// Improves a seed, one kind of segment at a time, until nothing helps.
    fn bettered(
        &mut self,
        seed: Scored,
        sought: &Sought<'_>,
        options: &[Vec<Placement>],
    ) -> Result<Scored, PlanError> {
        let Scored { mut score, mut placed } = seed;
        // Lengths nobody asked for get less effort.
        for _ in 0..if sought.asked { ROUNDS } else { 1 } {
            let before = score;
            for (at, list) in options.iter().enumerate() {
                if sought.keeps(placed[at].0) {
                    continue;
                }
                for option in list {
                    let kept = std::mem::replace(&mut placed[at].1, option.clone());
                    // Ignores tiny gains, which may be errors of the prices.
                    let least = score * WORTH_A_CHANGE;
                    let new = self.score(sought, &placed, least)?;
                    if new < least {
                        score = new;
                    } else {
                        placed[at].1 = kept;
                    }
                }
            }
            if score >= before * 0.999 {
                break;
            }
        }
        Ok(Scored { score, placed })
    }

    /// The best of the other ways for each kind in a scope: whole, by columns, by rows, by both.
    fn others(&mut self, sought: &Sought<'_>) -> Result<Vec<Change>, PlanError> {
        let placed = sought.choice.get(sought.which).clone();
        let mut all = Vec::new();
        for (at, (kind, chosen)) in placed.iter().enumerate() {
            let mut best: Vec<(Option<Discriminant<Split>>, Change)> = Vec::new();
            for option in self.options(*kind, sought).into_iter().filter(|o| o != chosen) {
                let mut other = placed.clone();
                other[at].1 = option.clone();
                let score = self.score(sought, &other, f64::INFINITY)?;
                let way = option.split.as_ref().map(discriminant);
                let change = Change { score, at, option };
                match best.iter_mut().find(|(w, _)| *w == way) {
                    Some((_, known)) if score < known.score => *known = change,
                    Some(_) => {}
                    None => best.push((way, change)),
                }
            }
            all.extend(best.into_iter().map(|b| b.1).filter(|c| c.score.is_finite()));
        }
        all.sort_by(|a, b| a.score.total_cmp(&b.score));
        all.truncate(CHANGES);
        Ok(all)
    }

    pub(super) fn avoided_rules(&self, choice: &Choice, phase: Phase) -> Option<Plan> {
        let mut plan = self.plan(choice, "solve");
        // Only one phase is of interest: the other one uses rules that are valid for both.
        match phase {
            Phase::Prefill => plan.decode.rules.clone_from(&plan.prefill.rules),
            Phase::Decode => plan.prefill.rules.clone_from(&plan.decode.rules),
        }
        let names: Vec<&str> = self.request.devices.iter().map(|d| d.name.as_str()).collect();
        plan.avoid(self.request.refusals, &names).ok()?;
        Some(plan)
    }

    /// The best single changes, as plans. Those that gain are kept for the next.
    fn changes(
        &mut self,
        mut best: Choice,
        found: &Alternative,
    ) -> Result<Vec<Alternative>, PlanError> {
        let goal = self.request.goal;
        let (mut least, mut all) = (found.predicted.score(goal), Vec::new());
        let scopes = [Some(self.main())].into_iter().chain(self.rest());
        // What gained in one may make others worth it.
        let scopes = scopes.clone().chain([None]).chain(scopes);
        for which in scopes.collect::<Vec<_>>() {
            let (scope, choice) = (self.scope(which), best.clone());
            // What comes after the prompt that is asked for has its weights.
            let main = Some(self.main());
            let before = if which == main { Vec::new() } else { vec![main] };
            let sought = Sought { scope, which, choice: &choice, done: &before, asked: true };
            for change in self.others(&sought)? {
                let mut choice = best.clone();
                let mut placed = choice.get(which).clone();
                let (kind, way) = (placed[change.at].0.name(), change.option.describe());
                placed[change.at].1 = change.option;
                choice.set(which, placed);
                which.into_iter().for_each(|i| choice.share_states(i));
                let mut plan = self.plan(&choice, "solve");
                plan.prefill.chunks_in_flight = found.plan.prefill.chunks_in_flight;
                plan.prefill.policy = found.plan.prefill.policy;
                let name = format!("{}: {kind} {way}", scope.phase.name());
                let Some(other) = self.alternative(name, plan)? else { continue };
                let score = other.predicted.score(goal);
                let fits = other.predicted.total_bytes <= self.most_bytes;
                if fits && score < least {
                    (best, least) = (choice, score);
                }
                all.push(other);
            }
        }
        Ok(all)
    }
}

/// The index of the plan to choose among ranked ones. Of equal plans it is the best by the figure
/// that the goal does not name. A plan on one device is preferred if it is nearly as good: prices
/// are inexact, and a small gain does not justify several devices.
fn chosen(plans: &[Alternative], request: &SolveRequest<'_>) -> usize {
    let (goal, worth) = (request.goal, request.cost.worth_sharing());
    let score = |c: &Alternative| c.predicted.score(goal);
    let least = plans.first().map_or(0.0, score);
    let besides = |c: &Alternative| match goal {
        Goal::Tps => c.predicted.ttft_us,
        Goal::Ttft | Goal::Energy => c.predicted.tpot_us,
    };
    let as_good = plans.iter().take_while(|c| score(c) * AS_GOOD <= least).enumerate();
    let first = as_good.min_by(|a, b| besides(a.1).total_cmp(&besides(b.1)));
    let first = first.map_or(0, |(at, _)| at);
    let best = &plans[first].predicted;
    let near = |a: f64, b: f64| a * worth <= b;
    let is_alone = |a: &&Alternative| a.plan.devices.len() == 1;
    let least_alone = plans.iter().find(is_alone).map_or(f64::INFINITY, score);
    let alone = |a: &Alternative| {
        is_alone(&a)
            && score(a) <= least_alone
            && near(score(a), best.score(goal))
            && near(a.predicted.ttft_us, best.ttft_us)
            && near(a.predicted.tpot_us, best.tpot_us)
    };
    plans.iter().position(alone).unwrap_or(first)
}

/// A plan with the decoding of another one.
fn with_decode(plan: &Plan, other: &Plan) -> Plan {
    let mut plan = Plan { decode: other.decode.clone(), ..plan.clone() };
    let more = other.devices.iter().filter(|d| !plan.devices.contains(d));
    plan.devices.extend(more.cloned().collect::<Vec<_>>());
    plan
}

/// Whether a plan shares experts out.
pub(super) fn shares_experts(plan: &Plan) -> bool {
    plan.all_rules().any(|rule| rule.experts().is_some())
}

/// The start of the names of plans that share experts out.
pub(super) const EXPERTS: &str = "experts of";

/// The prefix of the names of plans on one device.
pub(super) const ONE_DEVICE: &str = "one device,";
