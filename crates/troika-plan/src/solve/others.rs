//! Alternative placements of chunks for load: what the solver would choose if one device were
//! slower.

use troika_graph::Subgraph;
use troika_model::lower::SegmentKind;

use super::SolveRequest;
use super::events::Share;
use super::predict::{PredictRequest, Predictor};
use super::search::Search;
use crate::cost::{CostModel, PricedRun};
use crate::{
    ChunkTime, ChunkTimes, DeviceLoad, DeviceTime, LoadRules, OtherRules, Phase, Plan, PlanError,
    Rule, SyncMode, own_space,
};

/// Assumed slowdowns of a device: one that is busy with other work, and one so slow that it only
/// gets work that no other device takes.
const SLOWER: [f64; 2] = [2.0, NEXT_TO_NOTHING];

const NEXT_TO_NOTHING: f64 = 1000.0;

/// An alternative is kept if it is the best choice for one of these slowdowns of one device.
const LOADS: [f64; 6] = [1.25, 1.5, 2.0, 3.0, 4.0, 8.0];

/// A cost model in which one device is slower.
struct Slower<'a> {
    of: &'a dyn CostModel,
    device: usize,
    times: f64,
}

impl CostModel for Slower<'_> {
    fn source(&self) -> String {
        self.of.source()
    }

    fn run_ns(&self, run: &PricedRun<'_>) -> f64 {
        let times = if run.device == self.device { self.times } else { 1.0 };
        self.of.run_ns(run) * times
    }

    fn slowdowns(&self, runs: &[PricedRun<'_>]) -> Vec<f64> {
        self.of.slowdowns(runs)
    }

    fn hand_over_ns(&self, from: usize, to: usize, sync: SyncMode) -> f64 {
        self.of.hand_over_ns(from, to, sync)
    }

    fn submit_ns(&self, device: usize) -> f64 {
        self.of.submit_ns(device)
    }

    fn copy_ns(&self, device: usize, bytes: u64) -> f64 {
        self.of.copy_ns(device, bytes)
    }

    fn knows_stages(&self) -> bool {
        self.of.knows_stages()
    }

    fn compile_ns(&self, device: usize, graph: &Subgraph, room: usize) -> f64 {
        self.of.compile_ns(device, graph, room)
    }

    fn run_j(&self, run: &PricedRun<'_>) -> Option<f64> {
        self.of.run_j(run)
    }

    fn idle_w(&self) -> Option<f64> {
        self.of.idle_w()
    }
}

/// Adds alternatives for chunks to a plan. Each bucket gets those that are best for some load.
/// Excluded are those that need another form of weights, other activation formats or another place
/// for the cache.
///
/// # Errors
/// Those of the plan itself.
pub(super) fn add(request: &SolveRequest<'_>, plan: &mut Plan) -> Result<(), PlanError> {
    let mut pool: Vec<(String, Plan)> = Vec::new();
    for (device, d) in request.devices.iter().enumerate() {
        for times in SLOWER {
            let cost = Slower { of: request.cost, device, times };
            let lengths = [request.prompt.clamp(1, plan.prefill.chunk)];
            let wanted = SolveRequest { cost: &cost, lengths: &lengths, ..*request };
            // Without such a plan there is no alternative.
            if let Ok(found) = Search::new(&wanted).and_then(Search::solve) {
                let name = match times >= NEXT_TO_NOTHING {
                    true => format!("as little on {} as can be", d.name),
                    false => format!("{} {times} times slower", d.name),
                };
                pool.push((name, found.plan));
            }
        }
    }
    let mut predictor = Predictor::new(&PredictRequest {
        lowered: request.lowered,
        devices: request.devices,
        cost: request.cost,
        prompt: request.prompt,
        generate: request.generate,
    });
    let most_bytes = most_bytes(request, plan, &mut predictor)?;
    let mut best = plan.clone();
    let lists: Vec<(usize, Vec<Rule>)> =
        plan.rule_lists(Phase::Prefill).map(|(up_to, rules)| (up_to, rules.to_vec())).collect();
    let mut before = 0;
    for (up_to, own) in lists {
        let rows = [before + 1, up_to];
        before = up_to;
        let mut bucket = LoadRules {
            up_to,
            own: times(&mut predictor, (plan, &own), rows)?,
            others: Vec::new(),
        };
        for (name, other) in &pool {
            let known = |r: &Vec<Rule>| *r == own || bucket.others.iter().any(|o| o.rules == *r);
            let rules = rules_for(request, other, (up_to, &own));
            let Some(rules) = rules.filter(|r| !known(r)) else { continue };
            let times = times(&mut predictor, (plan, &rules), rows)?;
            if !times.longest.us.is_finite() || !times.behind.us.is_finite() {
                continue;
            }
            bucket.others.push(OtherRules { name: name.clone(), rules, times });
        }
        keep_useful(&mut bucket, request);
        for other in std::mem::take(&mut bucket.others) {
            let mut with = best.clone();
            push(&mut with, &bucket, other, request);
            if fits(request, &with, (&mut predictor, most_bytes))? {
                best = with;
            }
        }
    }
    *plan = best;
    Ok(())
}

/// Adds an alternative to a plan, with the devices that it uses.
fn push(plan: &mut Plan, bucket: &LoadRules, other: OtherRules, request: &SolveRequest<'_>) {
    let uses = |name: &String| other.rules.iter().any(|r| r.devices().any(|d| d == name));
    for d in &request.devices.iter().map(|d| d.name.clone()).collect::<Vec<_>>() {
        if uses(d) && !plan.devices.contains(d) {
            plan.devices.push(d.clone());
        }
    }
    match plan.by_load.iter_mut().find(|l| l.up_to == bucket.up_to) {
        Some(known) => known.others.push(other),
        None => plan.by_load.push(LoadRules { others: vec![other], ..bucket.clone() }),
    }
}

/// The most bytes of weights allowed: the plan's own, plus rounding to tiles.
fn most_bytes(
    request: &SolveRequest<'_>,
    plan: &Plan,
    predictor: &mut Predictor<'_>,
) -> Result<u64, PlanError> {
    let all = predictor.all();
    let (_, bytes) = predictor.weight_bytes(plan, &all)?;
    Ok(if request.several_copies { u64::MAX } else { bytes.saturating_add(bytes / 50) })
}

/// Whether a plan with an alternative is valid and its weights fit.
fn fits(
    request: &SolveRequest<'_>,
    plan: &Plan,
    (predictor, most): (&mut Predictor<'_>, u64),
) -> Result<bool, PlanError> {
    let names: Vec<&str> = request.devices.iter().map(|d| d.name.as_str()).collect();
    if plan.check(request.spec, &names).is_err() {
        return Ok(false);
    }
    let all = predictor.all();
    let (by_device, bytes) = predictor.weight_bytes(plan, &all)?;
    let over = |d: &crate::SolveDevice| {
        let held = by_device.get(&d.name).copied().unwrap_or(0);
        d.caps.max_resident_bytes.is_some_and(|most| held > most)
    };
    Ok(bytes <= most && !request.devices.iter().any(over))
}

/// The rules of another plan for chunks of a bucket. The cache stays where the bucket's own rules
/// place it.
fn rules_for(
    request: &SolveRequest<'_>,
    other: &Plan,
    (rows, own): (usize, &[Rule]),
) -> Option<Vec<Rule>> {
    let mut lists = other.rule_lists(Phase::Prefill);
    let list = lists.find(|(up_to, _)| rows <= *up_to).map(|(_, rules)| rules);
    let rules = list.unwrap_or(other.rules(Phase::Prefill)).to_vec();
    let of_attention =
        |r: &&Rule| r.segments.as_ref().is_none_or(|kinds| kinds.contains(&SegmentKind::Attention));
    let mut places = own.iter().chain(&rules).filter(of_attention).map(|r| place(request, r));
    let first = places.next()?;
    if first.is_some() && places.all(|p| p == first) {
        return Some(rules);
    }
    let attention = own.iter().filter(of_attention).map(|r| only(r, &[SegmentKind::Attention]));
    let attention: Vec<Rule> = attention.flatten().collect();
    let here = |k: &SegmentKind| request.lowered.segments.iter().any(|s| s.kind == *k);
    let kinds = SegmentKind::ALL.into_iter().filter(|k| here(k) && *k != SegmentKind::Attention);
    let kinds: Vec<SegmentKind> = kinds.collect();
    Some(rules.iter().filter_map(|r| only(r, &kinds)).chain(attention).collect())
}

/// A rule restricted to some kinds of segments, if it applies to any.
fn only(rule: &Rule, kinds: &[SegmentKind]) -> Option<Rule> {
    let of = |k: &SegmentKind| rule.segments.as_ref().is_none_or(|list| list.contains(k));
    let mut kinds: Vec<SegmentKind> = kinds.iter().copied().filter(of).collect();
    if rule.layers.is_some() {
        kinds.retain(|k| k.is_in_layers());
    }
    let mut rule = rule.clone();
    rule.refused.iter_mut().for_each(|r| r.segments.retain(|s| kinds.contains(s)));
    rule.refused.retain(|r| !r.segments.is_empty());
    rule.segments = Some(kinds);
    rule.segments.as_ref().is_some_and(|k| !k.is_empty()).then_some(rule)
}

/// The memory space of the cache, if a rule has all of it in one place.
fn place(request: &SolveRequest<'_>, rule: &Rule) -> Option<troika_device::SpaceId> {
    if rule.split.is_some() {
        return None;
    }
    let space = |name: &str| {
        let device = request.devices.iter().find(|d| d.name == name);
        device.map(|d| own_space(&d.caps))
    };
    let first = space(&rule.device)?;
    rule.devices().all(|d| space(d) == Some(first)).then_some(first)
}

/// The predicted times of a bucket's chunks under some rules.
fn times(
    predictor: &mut Predictor<'_>,
    (plan, rules): (&Plan, &[Rule]),
    [least, most]: [usize; 2],
) -> Result<ChunkTimes, PlanError> {
    let mut plan = Plan { by_load: Vec::new(), ..plan.clone() };
    (plan.prefill.chunk, plan.prefill.rules) = (most, rules.to_vec());
    plan.prefill.lengths.clear();
    let devices = predictor.request.devices;
    let can_be_cached = plan.context.min(predictor.request.lowered_context()).saturating_sub(most);
    let mut of = |rows: usize, cached: usize| {
        let (ns, shares) = predictor.chunk(&plan, (rows, cached))?;
        let us = |ns: f64| ns.round() / 1e3;
        let time = |s: Share| DeviceTime { busy_us: us(s.busy_ns), span_us: us(s.span_ns) };
        let used = devices.iter().zip(shares).filter(|(_, share)| share.busy_ns > 0.0);
        let devices = used.map(|(d, share)| (d.name.clone(), time(share))).collect();
        Ok::<_, PlanError>(ChunkTime { rows, cached, us: us(ns), devices })
    };
    let (shortest, longest) = (of(least, 0)?, of(most, 0)?);
    Ok(ChunkTimes { shortest, longest, behind: of(most, can_be_cached)? })
}

/// Keeps only alternatives that are chosen when some device is slower.
fn keep_useful(bucket: &mut LoadRules, request: &SolveRequest<'_>) {
    let names: Vec<String> = request.devices.iter().map(|d| d.name.clone()).collect();
    let mut chosen: Vec<usize> = Vec::new();
    for device in 0..names.len() {
        for slower in LOADS {
            let mut loads = vec![DeviceLoad::default(); names.len()];
            loads[device].slower = slower;
            chosen.push(bucket.choose((bucket.up_to, 0), &names, &loads));
        }
    }
    let mut at = 0;
    bucket.others.retain(|_| {
        at += 1;
        chosen.contains(&at)
    });
}
