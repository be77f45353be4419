//! Plans that share a model's experts out: groups of them on one device, all else on another, where
//! that is predicted to be faster.

use troika_device::SpaceId;
use troika_model::lower::{Segment, SegmentKind};
use troika_model::spec::Layer;
use troika_plan::{
    Dispatch, ExpertGroupPlan, ExpertPolicy, ExpertSettings, LengthRules, Phase, Plan, PlanDevice,
    PlanError, PlanRequest, Rule, Strategy, Tiers, WorthALaunch, make, own_space,
};
use troika_program::{
    EdgeTypes, ExpertStep, PlacedExperts, PlacedPiece, PlacedSegment, chunks_of_window,
    expected_pairs, graph_bytes, rows_to_fill,
};

use super::request::Alternative;
use super::search::{EXPERTS, Search, shares_experts};
use crate::cost::{Mover, PricedRun};
use crate::weights::expert_bytes;

/// Shorter chunks are not tried.
const LEAST_CHUNK: usize = 64;
/// The most chunks whose rows gather.
const MOST_GATHERED: usize = 16;
/// The fewest rows that an expert is loaded for.
const LEAST_ROWS: [usize; 2] = [0, 24];

/// How experts are shared out.
#[derive(Clone)]
struct Way {
    /// Indices of the device that shares them out, and of the one with groups.
    devices: [usize; 2],
    chunk: usize,
    in_flight: usize,
    settings: ExpertSettings,
    keep: Keep,
    policy: ExpertPolicy,
    /// The fewest rows that an expert is loaded for, if they come and go.
    least_rows: usize,
}

/// Which groups are on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// As many as make a chunk fastest that runs alone.
    ForOneChunk,
    /// As many as keep both devices busy with several chunks.
    ForSeveral,
    /// All.
    All,
}

/// A plan that shares experts out, with how it was made.
struct Tried {
    score: f64,
    way: Way,
    found: Alternative,
}

impl Search<'_> {
    /// The best plans that share experts out, one for each pair of devices.
    pub(super) fn shared_experts(&mut self) -> Result<Vec<Alternative>, PlanError> {
        if !self.kinds.iter().any(|kind| kind.traits().by_experts) {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        let devices = self.request.devices;
        let shares = |device: &PlanDevice| {
            let caps = &device.caps;
            caps.host_tasks && !caps.static_shapes && own_space(caps) == SpaceId::HOST
        };
        for host in (0..devices.len()).filter(|host| shares(&devices[*host])) {
            for other in (0..devices.len()).filter(|other| *other != host) {
                let mut best: Option<Tried> = None;
                for way in self.ways(host, other) {
                    self.offer(way, &mut best)?;
                }
                let Some(first) = best.as_ref().map(|best| best.way.clone()) else { continue };
                for way in self.variants(&first).into_iter().chain(self.coming(&first)) {
                    self.offer(way, &mut best)?;
                }
                all.extend(best.map(|best| best.found));
            }
        }
        Ok(all)
    }

    /// Makes a plan, and keeps the better one.
    fn offer(&mut self, way: Way, best: &mut Option<Tried>) -> Result<(), PlanError> {
        let Some(plan) = self.with_groups(&way)? else { return Ok(()) };
        let name = self.name(&way);
        let Some(found) = self.alternative(name, plan)? else { return Ok(()) };
        let score = found.predicted.score(self.request.goal);
        if best.as_ref().is_none_or(|best| score < best.score) {
            *best = Some(Tried { score, way, found });
        }
        Ok(())
    }

    fn name(&self, way: &Way) -> String {
        let [host, other] = way.devices.map(|d| self.request.devices[d].name.as_str());
        let ExpertSettings { dispatch, group, attention, tiers, .. } = &way.settings;
        let size = group.map_or(String::new(), |n| format!(" of up to {n}"));
        let attention = if *attention { ", with attention" } else { "" };
        let coming = match way.policy {
            ExpertPolicy::Cache => ", that come and go",
            _ => "",
        };
        format!(
            "{EXPERTS} {host} in groups{size} on {other}{coming}{attention}, {}, capacities {}, \
             chunks of {}, {} in flight",
            dispatch.name(),
            tiers,
            way.chunk,
            way.in_flight
        )
    }

    /// What is looked at first: when groups run, and the length of chunks.
    fn ways(&self, host: usize, other: usize) -> Vec<Way> {
        let base = self.request.base;
        let settings = ExpertSettings {
            worth: WorthALaunch::ALWAYS,
            stored_bytes: base.experts.stored_bytes.or(expert_bytes(self.request.lowered)),
            ..base.experts.clone()
        };
        let mut all = Vec::new();
        // Groups are as large as their chunks need.
        let longest = self.chunk.min(self.request.prompt.max(LEAST_CHUNK));
        for shorter in [1, 2, 4, 8] {
            let chunk = longest.div_ceil(shorter);
            if shorter > 1 && (chunk < LEAST_CHUNK || self.request.prompt <= chunk) {
                continue;
            }
            let chunks = self.request.prompt.div_ceil(chunk);
            for dispatch in Dispatch::ALL {
                let in_flight = match dispatch {
                    Dispatch::PerChunk => chunks.min(4),
                    Dispatch::LayerMajor if chunks == 1 => continue,
                    Dispatch::LayerMajor => chunks.min(MOST_GATHERED),
                };
                let in_flight = base.chunks_in_flight.unwrap_or(in_flight).max(1);
                let settings = ExpertSettings { dispatch, ..settings.clone() };
                for keep in [Keep::ForOneChunk, Keep::ForSeveral, Keep::All] {
                    let settings = settings.clone();
                    let (devices, policy, least_rows) = ([host, other], ExpertPolicy::All, 0);
                    all.push(Way { devices, chunk, in_flight, settings, keep, policy, least_rows });
                }
            }
        }
        all
    }

    /// The same with groups of other sizes, other capacities, and attention beside groups.
    fn variants(&self, way: &Way) -> Vec<Way> {
        let own = &way.settings;
        let with = |settings: ExpertSettings| Way { settings, ..way.clone() };
        let mut all = Vec::new();
        for tiers in [own.tiers.clone(), Tiers::by_load(), Tiers::Multiples(vec![1.0])] {
            let sizes = if own.group.is_some() { vec![own.group] } else { SIZES.to_vec() };
            for (group, attention) in sizes.into_iter().flat_map(|s| [(s, false), (s, true)]) {
                let tiers = tiers.clone();
                all.push(with(ExpertSettings { tiers, group, attention, ..own.clone() }));
            }
        }
        all
    }

    /// The same with experts that come and go, where not all have room on the device and what a load
    /// takes is known. Where both devices compute the same numbers, few rows are left to the first
    /// one.
    fn coming(&self, way: &Way) -> Vec<Way> {
        let [host, other] = way.devices.map(|d| &self.request.devices[d]);
        let held = self.held_there(way);
        let all = expert_bytes(self.request.lowered).unwrap_or(0).saturating_mul(self.experts());
        let known = self.request.cost.moving(Mover::Load, way.devices[1], 1).ns < u64::MAX;
        if !known || held.is_none_or(|held| held >= all) {
            return Vec::new();
        }
        let same = host.caps.numerics == other.caps.numerics;
        let least: &[usize] = if same { &LEAST_ROWS } else { &LEAST_ROWS[..1] };
        let mut ways = Vec::new();
        for (dispatch, attention) in Dispatch::ALL.into_iter().flat_map(|d| [(d, false), (d, true)])
        {
            if dispatch == Dispatch::LayerMajor && self.request.prompt <= way.chunk {
                continue;
            }
            let in_flight = match dispatch {
                Dispatch::PerChunk => way.in_flight,
                Dispatch::LayerMajor => self.request.prompt.div_ceil(way.chunk).min(MOST_GATHERED),
            };
            let in_flight = self.request.base.chunks_in_flight.unwrap_or(in_flight).max(1);
            let group = Some(1);
            let settings = ExpertSettings { group, dispatch, attention, ..way.settings.clone() };
            for (keep, least_rows) in [Keep::ForOneChunk, Keep::ForSeveral, Keep::All]
                .into_iter()
                .flat_map(|keep| least.iter().map(move |rows| (keep, *rows)))
            {
                let (settings, policy) = (settings.clone(), ExpertPolicy::Cache);
                ways.push(Way { settings, keep, policy, least_rows, in_flight, ..way.clone() });
            }
        }
        ways
    }

    /// The most bytes of experts on the device with groups.
    fn held_there(&self, way: &Way) -> Option<u64> {
        let caps = &self.request.devices[way.devices[1]].caps;
        [way.settings.bytes, caps.max_resident_bytes].into_iter().flatten().min()
    }

    /// Bytes of a layer that stay on a device where experts come and go.
    fn staying(&self, way: &Way) -> Option<u64> {
        let held = self.held_there(way).filter(|_| way.policy == ExpertPolicy::Cache)?;
        let layers = self.request.spec.layers.iter().filter(|l| l.moe().is_some()).count();
        Some(held / layers.max(1) as u64)
    }

    /// Experts of all layers.
    fn experts(&self) -> u64 {
        let experts = |l: &Layer| l.moe().map_or(0, |moe| moe.experts as u64);
        self.request.spec.layers.iter().map(experts).sum()
    }

    /// The plan of a way. `None` if the device takes no groups, or none is worth it.
    fn with_groups(&mut self, way: &Way) -> Result<Option<Plan>, PlanError> {
        let most = way.settings.bytes.filter(|_| way.policy != ExpertPolicy::Cache);
        if most.is_some_and(|most| self.buffer_bytes(way) > most) {
            return Ok(None);
        }
        let devices = way.devices.map(|d| self.request.devices[d].clone());
        let base = PlanRequest {
            strategy: Strategy::Experts(way.policy),
            chunk: way.chunk,
            chunks_in_flight: Some(way.in_flight),
            experts: way.settings.clone(),
            ..self.request.base.clone()
        };
        let plan = match make(self.request.spec, &devices, &base) {
            // An expert or a group may be too large for the device.
            Err(PlanError::ExpertGroup { .. }) => return Ok(None),
            plan => self.avoided(plan?),
        };
        let name = self.name(way);
        let Some(mut plan) = self.noted(&name, plan)? else { return Ok(None) };
        let layers = self.layers(&plan, way);
        let Some(layers) = self.noted(&name, layers)? else { return Ok(None) };
        let others = self.others_ns(&plan, way, &layers)?;
        for layer in &layers {
            let kept = layer.kept(way.keep, others / layers.len() as f64);
            plan.prefill.rules[layer.rule].change_groups(|groups| groups.truncate(kept));
        }
        plan.expert_caches.iter_mut().for_each(|cache| cache.least_rows = way.least_rows);
        let used = plan.clone();
        plan.devices.retain(|d| used.all_rules().any(|r| r.devices().any(|name| name == d)));
        if !shares_experts(&plan) {
            return Ok(None);
        }
        self.leave_short(&mut plan, way)?;
        plan.strategy = "solve".into();
        Ok(Some(plan))
    }

    /// Bytes of rows on their way through experts, there and back.
    fn buffer_bytes(&self, way: &Way) -> u64 {
        let experts = |l: &Layer| l.moe().map_or(0, |moe| moe.top_k);
        let top_k = self.request.spec.layers.iter().map(experts).max().unwrap_or(0);
        let counts = [way.chunk, way.in_flight, top_k, self.request.spec.hidden, 2 * 4];
        counts.into_iter().fold(1, |all: u64, n| all.saturating_mul(n as u64))
    }

    /// Has chunks computed without groups that are too short for them.
    fn leave_short(&mut self, plan: &mut Plan, way: &Way) -> Result<(), PlanError> {
        plan.prefill.lengths.clear();
        let mut up_to = 0;
        for eighths in 1..=7 {
            let rows = way.chunk * eighths / 8;
            // Rows of a short prompt find no others to gather with.
            let short = Way { chunk: rows, in_flight: 1, ..way.clone() };
            let mut sums = [0.0; 2];
            for layer in self.layers(plan, &short)? {
                sums[0] += layer.ns(layer.groups.len());
                sums[1] += layer.whole_ns;
            }
            if sums[1] <= sums[0] {
                up_to = rows;
            }
        }
        if up_to == 0 {
            return Ok(());
        }
        let of_experts = |r: &&Rule| r.segments.as_deref() == Some(&[SegmentKind::Experts]);
        let whole = plan.prefill.rules.iter().find(of_experts).cloned();
        let mut rules: Vec<Rule> =
            plan.prefill.rules.iter().filter(|r| !of_experts(r)).cloned().collect();
        rules.extend(whole.map(|rule| Rule { split: None, layers: None, ..rule }));
        plan.prefill.lengths.push(LengthRules { up_to, rules });
        Ok(())
    }

    /// The prices of all layers that share experts out, by the first segment with experts that a
    /// rule of full chunks is for.
    fn layers(&mut self, plan: &Plan, way: &Way) -> Result<Vec<LayerPrices>, PlanError> {
        let mut all = Vec::new();
        let lowered = self.request.lowered;
        for (number, rule) in plan.prefill.rules.iter().enumerate() {
            let is_for = |s: &Segment| s.kind.traits().by_experts && rule.matches(s.kind, s.layer);
            let first = lowered.segments.iter().position(is_for);
            if let Some(segment) = first.filter(|_| rule.experts().is_some()) {
                all.push(self.layer(plan, number, segment, way)?);
            }
        }
        Ok(all)
    }

    /// What the sharing device computes of a chunk beside experts, in nanoseconds.
    fn others_ns(
        &mut self,
        plan: &Plan,
        way: &Way,
        layers: &[LayerPrices],
    ) -> Result<f64, PlanError> {
        let mut whole = plan.clone();
        whole.prefill.rules.iter_mut().for_each(|rule| rule.change_groups(Vec::clear));
        whole.prefill.lengths.clear();
        let all = self.predictor.prompt(&whole, way.chunk)?.ns;
        Ok((all - layers.iter().map(|layer| layer.whole_ns).sum::<f64>()).max(0.0))
    }

    /// The prices of a layer.
    fn layer(
        &mut self,
        plan: &Plan,
        number: usize,
        segment: usize,
        way: &Way,
    ) -> Result<LayerPrices, PlanError> {
        let rule = &plan.prefill.rules[number];
        let types = EdgeTypes::new(self.request.lowered, plan);
        let phase = Phase::Prefill;
        let placed = self.predictor.placements.of(segment, rule, phase, &types)?;
        let own = Rule { split: None, ..rule.clone() };
        let whole = self.predictor.placements.of(segment, &own, phase, &types)?;
        let rows = way.chunk;
        let whole_ns = self.predictor.segment_ns(SegmentKind::Experts, &whole, rows)?;
        let beside_ns = self.predictor.segment_ns(SegmentKind::Experts, &placed, rows)?;
        let mut prices = self.groups(&placed, way)?;
        (prices.rule, prices.whole_ns) = (number, whole_ns);
        prices.beside_ns += beside_ns;
        Ok(prices)
    }

    /// The prices of the experts of a chunk, by how many groups are on their device.
    fn groups(&self, placed: &PlacedSegment, way: &Way) -> Result<LayerPrices, PlanError> {
        let none = || PlanError::Unpriced("a segment shares no experts out".into());
        let experts = placed.experts.as_ref().ok_or_else(none)?;
        let (rest, groups) = experts.pieces.split_last().ok_or_else(none)?;
        let cost = self.request.cost;
        let window = match experts.split.dispatch {
            Dispatch::PerChunk => 1,
            Dispatch::LayerMajor => {
                let rows = rows_to_fill(&experts.split, experts.experts, experts.top_k);
                chunks_of_window(way.in_flight, rows.div_ceil(way.chunk.max(1)))
            }
        };
        let pairs = way.chunk * experts.top_k * window;
        let (mut device_ns, mut load_ns, mut bytes) = (0.0, 0.0, 0);
        let stay = self.staying(way);
        let mut prices = Vec::new();
        for (piece, load) in groups.iter().zip(group_loads(experts, pairs)) {
            let rows = piece.graph.max_rows();
            let mut ns = cost.run_ns(&expert_run(piece, rows));
            if own_space(&self.request.devices[piece.device].caps) != SpaceId::HOST {
                ns += 2.0 * cost.copy_ns(piece.device, (rows * experts.cols * 4) as u64);
            }
            if load.runs > 0 {
                device_ns += ns * load.runs as f64;
            }
            let rest_ns = match load.left {
                0 => 0.0,
                pairs => cost.run_ns(&expert_run(rest, pairs)),
            };
            // What has no room beside those before it is loaded while others are computed.
            let size = graph_bytes(&piece.graph, &self.request.devices[piece.device].caps);
            bytes += size;
            if stay.is_some_and(|stay| bytes > stay) {
                load_ns += cost.moving(Mover::Load, piece.device, size).ns as f64;
            }
            prices.push([load_ns.max(device_ns), rest_ns].map(|ns| ns / window as f64));
        }
        let [host, other] = way.devices;
        let sync = self.request.base.sync;
        let hand_over = cost.hand_over_ns(host, other, sync) + cost.hand_over_ns(other, host, sync);
        let slow = groups.first().map(|group| {
            let run = expert_run(group, group.graph.max_rows());
            cost.slowdowns(&[run, expert_run(rest, pairs.max(1))])
        });
        let slow = slow.unwrap_or_default();
        let host_ns = [ExpertStep::Route, ExpertStep::Combine]
            .map(|step| cost.moving(Mover::Host, host, experts.bytes(step, way.chunk)).ns as f64);
        Ok(LayerPrices {
            rule: 0,
            whole_ns: 0.0,
            beside_ns: host_ns.iter().sum(),
            hand_over_ns: hand_over / window as f64,
            groups: prices,
            slow: [0, 1].map(|at| slow.get(at).map_or(1.0, |s| s.max(1.0))),
        })
    }
}

/// A run of experts on some rows.
fn expert_run(piece: &PlacedPiece, rows: usize) -> PricedRun<'_> {
    let (device, kind, graph) = (piece.device, SegmentKind::Experts, &*piece.graph);
    PricedRun { device, kind, graph, rows, room: rows, cached: 0 }
}

/// What a group does for the expected pairs of a row and an expert.
struct GroupLoad {
    runs: usize,
    /// Pairs that neither this group nor those before it compute.
    left: usize,
}

/// The loads of the groups of a segment, in order.
fn group_loads(experts: &PlacedExperts, pairs: usize) -> Vec<GroupLoad> {
    let most_runs = match experts.split.dispatch {
        Dispatch::PerChunk => 1,
        Dispatch::LayerMajor => usize::MAX,
    };
    let mut expected = expected_pairs(&experts.split, experts.experts, pairs);
    let mut left = pairs;
    let load = |group: &ExpertGroupPlan| {
        // In layer-major order, a group runs as soon as one of its experts has its rows.
        let most = group.experts.iter().filter_map(|e| expected.get(*e)).max();
        let runs = most.map_or(0, |pairs| most_runs.min(pairs.div_ceil(group.capacity)));
        for expert in &group.experts {
            let Some(pairs) = expected.get_mut(*expert) else { continue };
            let taken = (*pairs).min(group.capacity.saturating_mul(runs));
            (*pairs, left) = (*pairs - taken, left.saturating_sub(taken));
        }
        GroupLoad { runs, left }
    };
    experts.split.groups.iter().map(load).collect()
}

/// Sizes of groups; `None`: what the device takes.
const SIZES: [Option<usize>; 5] = [None, Some(8), Some(4), Some(2), Some(1)];

/// What the experts of a chunk take in a layer.
struct LayerPrices {
    /// Index of the rule.
    rule: usize,
    /// All on the sharing device.
    whole_ns: f64,
    /// What is there beside groups and other experts: routing, adding up, the segment's other ops.
    beside_ns: f64,
    /// There and back.
    hand_over_ns: f64,
    /// By how many groups are on their device: what it takes, and the sharing device for the rest.
    groups: Vec<[f64; 2]>,
    /// How much they slow each other down.
    slow: [f64; 2],
}

impl LayerPrices {
    /// The time of a chunk that runs alone, with `groups` groups.
    fn ns(&self, groups: usize) -> f64 {
        let Some(&[device, host]) = groups.checked_sub(1).and_then(|at| self.groups.get(at)) else {
            return self.whole_ns;
        };
        self.beside_ns + self.hand_over_ns + side_by_side([device, host], self.slow)
    }

    /// How many of the groups are on the device, where the other device is busy for `others_ns`
    /// besides.
    fn kept(&self, keep: Keep, others_ns: f64) -> usize {
        let score = |groups: usize| match keep {
            Keep::All => -(groups as f64),
            Keep::ForOneChunk => self.ns(groups),
            Keep::ForSeveral => match groups.checked_sub(1).and_then(|at| self.groups.get(at)) {
                None => self.whole_ns + others_ns,
                Some([device, host]) => {
                    side_by_side([*device, host + others_ns + self.beside_ns], self.slow)
                }
            },
        };
        let all = (0..=self.groups.len()).min_by(|a, b| score(*a).total_cmp(&score(*b)));
        all.unwrap_or(0)
    }
}

/// When both of two devices have done their work, which they begin at once.
fn side_by_side(work: [f64; 2], slow: [f64; 2]) -> f64 {
    let ends = [0, 1].map(|at| work[at] * slow[at]);
    let first = usize::from(ends[1] < ends[0]);
    let done = ends[first];
    // The other one goes on at its own speed.
    done + (work[1 - first] - done / slow[1 - first]).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::side_by_side;

    #[test]
    fn two_devices_slow_each_other_down_while_both_work() {
        assert_eq!(side_by_side([100.0, 40.0], [1.0, 1.0]), 100.0);
        // For 80 ns both work at half their speed.
        assert_eq!(side_by_side([100.0, 40.0], [2.0, 2.0]), 80.0 + 60.0);
        assert_eq!(side_by_side([40.0, 100.0], [2.0, 2.0]), 140.0);
        assert_eq!(side_by_side([0.0, 7.0], [2.0, 2.0]), 7.0);
    }
}
