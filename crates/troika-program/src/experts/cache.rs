//! Experts of a device that come and go: which of them its memory holds, which makes way for another
//! one, and which are loaded ahead. A state machine without bytes, time or threads; the engine and
//! predictions go by it.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{
    Caps, EXPECTED_SHARE, Eviction, ExpertStats, LayerChoices, PROMPT_TOKENS, Residents,
};
use troika_plan::{ExpertCachePlan, KeptBy};

use super::divided::{DividedExperts, graph_bytes};
use crate::error::ProgramError;
use crate::graphs::GraphList;

/// Groups by layer and expert.
type ByExpert = HashMap<(usize, usize), Vec<u32>>;

/// The groups of a device of which some are loaded at a time.
#[derive(Clone, Debug)]
pub struct ExpertCache {
    /// Index of the device.
    pub device: usize,
    /// The graphs of the groups, by index in the program's list, layer by layer.
    pub graphs: Vec<usize>,
    /// Bytes of each.
    pub bytes: Vec<u64>,
    /// The most bytes of all that are loaded.
    pub budget: u64,
    /// How many are loaded at once.
    pub slots: usize,
    /// Chunks whose runs perhaps still use their slots.
    pub in_flight: usize,
    /// Whether chunks have to wait for each other's runs: there is no room for what these still use.
    pub in_order: bool,
    /// A group that is not there is loaded for this many rows or more.
    pub least_rows: usize,
    kept_by: KeptBy,
    /// Layers, each with its first group.
    layers: Vec<(usize, usize)>,
    by_expert: ByExpert,
    /// How often each group is expected to be chosen, in millionths.
    expected: Vec<u32>,
}

/// Places through which pass what has no room.
const PASSING: usize = 2;

impl ExpertCache {
    /// The cache of a device. Groups that are divided by columns are no part of it.
    ///
    /// # Errors
    /// It has no room for one group.
    pub(crate) fn new(
        (plan, device, in_flight): (&ExpertCachePlan, usize, usize),
        caps: &Caps,
        experts: &[Arc<DividedExperts>],
        list: &GraphList,
    ) -> Result<ExpertCache, ProgramError> {
        let mut all: Vec<(usize, usize)> = Vec::new();
        for of in experts {
            for group in of.groups.iter().filter(|graphs| graphs.len() == 1) {
                let new = (of.layer, group[0].graph);
                if group[0].device == device && !all.contains(&new) {
                    all.push(new);
                }
            }
        }
        all.sort_by_key(|(layer, _)| *layer);
        let mut layers: Vec<(usize, usize)> = Vec::new();
        for (first, (layer, _)) in all.iter().enumerate() {
            if layers.last().is_none_or(|(known, _)| known != layer) {
                layers.push((*layer, first));
            }
        }
        let graphs: Vec<usize> = all.into_iter().map(|(_, graph)| graph).collect();
        let bytes: Vec<u64> =
            graphs.iter().map(|at| graph_bytes(&list.graphs()[*at].graph, caps)).collect();
        let largest = bytes.iter().copied().max().unwrap_or(1).max(1);
        let most = caps.max_graphs.unwrap_or(usize::MAX).min(graphs.len().max(1));
        let slots = usize::try_from(plan.bytes / largest).unwrap_or(usize::MAX).min(most);
        if slots == 0 {
            let ExpertCachePlan { device, bytes: holds, .. } = plan;
            return Err(ProgramError::Misfit(format!(
                "a group of experts has {largest} bytes of weights on device {device}, and its \
                 cache of experts holds {holds}; raise --expert-group-mib"
            )));
        }
        // What makes way for other chunks' groups stays until its last run: a device with a limit of
        // its own has to have room for that.
        let is_limited = caps.max_resident_bytes.is_some() || caps.max_graphs.is_some();
        let used = if is_limited { PASSING * in_flight.saturating_sub(1) } else { 0 };
        let in_order = slots < graphs.len() && used > 0 && slots <= 2 * used;
        let slots = if in_order || slots >= graphs.len() { slots } else { slots - used };
        let (by_expert, expected) = of_experts(experts, &graphs);
        let (least_rows, kept_by) = (plan.least_rows, plan.kept_by);
        Ok(ExpertCache {
            device,
            graphs,
            bytes,
            budget: plan.bytes,
            slots,
            in_flight: in_flight.max(1),
            in_order,
            least_rows,
            kept_by,
            layers,
            by_expert,
            expected,
        })
    }

    /// The groups that are loaded when a model is opened, by slot: those that are expected to be
    /// chosen most often.
    pub fn first(&self) -> Vec<u32> {
        let mut all: Vec<u32> = (0..self.graphs.len() as u32).collect();
        all.sort_by_key(|group| std::cmp::Reverse(self.expected[*group as usize]));
        all.truncate(self.slots);
        all
    }

    /// The groups of a layer's expert.
    pub fn groups_of(&self, layer: usize, expert: usize) -> &[u32] {
        self.by_expert.get(&(layer, expert)).map_or(&[], Vec::as_slice)
    }

    /// The number of a graph's group.
    pub(crate) fn group(&self, graph: usize) -> Option<u32> {
        self.graphs.iter().position(|known| *known == graph).map(|at| at as u32)
    }
}

/// Groups by layer and expert, and how often each is expected to be chosen.
fn of_experts(experts: &[Arc<DividedExperts>], graphs: &[usize]) -> (ByExpert, Vec<u32>) {
    let mut by_expert: ByExpert = HashMap::new();
    let mut expected = vec![0; graphs.len()];
    for of in experts {
        for (shape, graph) in of.split.groups.iter().zip(&of.groups) {
            let at = graph.first().and_then(|of| graphs.iter().position(|g| *g == of.graph));
            let Some(at) = at.filter(|_| graph.len() == 1) else { continue };
            let known = |expert: &usize| of.split.expected.get(*expert).copied().unwrap_or(1);
            expected[at] = shape.experts.iter().map(known).sum();
            for expert in &shape.experts {
                let groups = by_expert.entry((of.layer, *expert)).or_default();
                if !groups.contains(&(at as u32)) {
                    groups.push(at as u32);
                }
            }
        }
    }
    (by_expert, expected)
}

/// Where the runs of a group find its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupAt {
    /// In a slot of the device's memory.
    Here(usize),
    /// In a slot when what is under way has come, and until another group takes the slot.
    Awaited(usize),
    /// They are to be loaded into a slot.
    Away(usize),
    /// The rule's device computes their rows.
    Elsewhere,
}

/// Where groups are, and which are loaded besides into which slots.
#[derive(Clone, Debug, Default)]
pub struct Placed {
    /// The groups that were chosen: in order, those that are there first. Loads into a slot come after
    /// runs that use what it holds.
    pub groups: Vec<(u32, GroupAt)>,
    /// Groups that may be chosen next.
    pub ahead: Vec<(u32, usize)>,
}

/// Which groups of a cache are where.
#[derive(Clone, Debug)]
pub struct ExpertSlots {
    residents: Residents,
    /// The group of each slot.
    held: Vec<Option<u32>>,
    /// For each slot, the number of the last call that used it.
    used: Vec<u64>,
    /// Calls so far, and how many of them perhaps still run.
    calls: u64,
    recent: u64,
    states: Vec<GroupState>,
    /// The first group of each layer, and what was chosen of it.
    layers: Vec<(u32, LayerChoices)>,
    least_rows: usize,
    /// Groups that are loaded since they may be chosen next.
    expected: usize,
    /// What became of groups.
    pub stats: ExpertStats,
}

#[derive(Clone, Copy, Debug, Default)]
struct GroupState {
    slot: Option<usize>,
    /// Whether it has come.
    here: bool,
    expected: bool,
}

impl ExpertSlots {
    /// A cache that holds what is loaded first.
    pub fn new(cache: &ExpertCache) -> ExpertSlots {
        let mut slots = ExpertSlots::empty(cache);
        for (slot, group) in cache.first().into_iter().enumerate() {
            // As after some thousand tokens.
            let uses = cache.expected[group as usize].div_ceil(1000) as usize;
            slots.residents.used(group, uses, 0.0);
            slots.take(group, slot);
            slots.arrived(group, slot);
        }
        slots
    }

    fn empty(cache: &ExpertCache) -> ExpertSlots {
        let eviction = match cache.kept_by {
            KeptBy::Frequency => Eviction::Frequency,
            KeptBy::Lru => Eviction::Lru,
        };
        let ends = cache.layers.iter().skip(1).map(|(_, first)| *first);
        let ends = ends.chain([cache.graphs.len()]);
        let layer = |((_, first), end): (&(usize, usize), usize)| {
            (*first as u32, LayerChoices::new(end - first))
        };
        let stats = ExpertStats {
            experts: cache.graphs.len(),
            bytes_of_all: cache.bytes.iter().sum(),
            budget: cache.budget,
            ..ExpertStats::default()
        };
        ExpertSlots {
            residents: Residents::new(eviction, cache.graphs.len()),
            held: vec![None; cache.slots],
            used: vec![0; cache.slots],
            calls: cache.in_flight as u64,
            // Of more than two chunks the first are done when the last begin, nearly always.
            recent: cache.in_flight.min(2) as u64,
            states: vec![GroupState::default(); cache.graphs.len()],
            layers: cache.layers.iter().zip(ends).map(layer).collect(),
            least_rows: cache.least_rows,
            expected: 0,
            stats,
        }
    }

    /// Places the groups that `tokens` rows of a layer chose, each with its rows, and those that will
    /// probably be chosen next: of the next layer those that prompts chose often, or those that are
    /// named.
    pub fn place(&mut self, chosen: &[(u32, u32)], tokens: usize, named: &[u32]) -> Placed {
        let groups = self.groups(chosen, tokens);
        Placed { groups, ahead: self.ahead(chosen, tokens, named) }
    }

    fn groups(&mut self, chosen: &[(u32, u32)], tokens: usize) -> Vec<(u32, GroupAt)> {
        self.calls += 1;
        let Some(layer) = chosen.first().and_then(|(group, _)| self.layer_of(*group)) else {
            return Vec::new();
        };
        self.note(layer, chosen, tokens);
        let (here, away): (Vec<_>, Vec<_>) =
            chosen.iter().partition(|(group, _)| self.states[*group as usize].slot.is_some());
        let mut placed = Vec::with_capacity(chosen.len());
        for (group, _) in here {
            let GroupState { slot, here, .. } = self.states[group as usize];
            let slot = slot.unwrap_or_default();
            self.used[slot] = self.calls;
            let at = if here { GroupAt::Here(slot) } else { GroupAt::Awaited(slot) };
            placed.push((group, at));
        }
        // Slots that groups of this call pass through, in turns.
        let mut passed: Vec<usize> = Vec::new();
        let mut turn = 0;
        for (group, rows) in away {
            if (rows as usize) < self.least_rows {
                placed.push((group, GroupAt::Elsewhere));
                continue;
            }
            let slot = self.slot_for(&passed, &mut turn);
            // Who is computed there now makes way afterwards.
            if let Some(old) = self.held[slot] {
                for (_, at) in placed.iter_mut().filter(|(group, _)| *group == old) {
                    if *at == GroupAt::Here(slot) {
                        *at = GroupAt::Awaited(slot);
                    }
                }
            }
            if !passed.contains(&slot) {
                passed.push(slot);
            }
            self.take(group, slot);
            self.used[slot] = self.calls;
            placed.push((group, GroupAt::Away(slot)));
        }
        placed
    }

    fn ahead(&mut self, after: &[(u32, u32)], tokens: usize, named: &[u32]) -> Vec<(u32, usize)> {
        let is_prompt = tokens >= PROMPT_TOKENS;
        let next: Vec<u32> = match after.first().and_then(|(group, _)| self.layer_of(*group)) {
            Some(layer) if is_prompt => {
                let (first, choices) = &self.layers[(layer + 1) % self.layers.len()];
                choices.popular().iter().map(|group| first + group).collect()
            }
            _ => named.to_vec(),
        };
        let most = self.held.len().div_ceil(EXPECTED_SHARE as usize);
        let mut loads = Vec::new();
        for group in next {
            if self.states[group as usize].slot.is_some() {
                continue;
            }
            if self.expected >= most {
                break;
            }
            let leaves = || {
                let slot = self.leaves(|idle, _| idle)?;
                // What a forecast names is chosen next, what is popular perhaps.
                let held = self.held[slot]?;
                let outranks = || {
                    self.layer_of(held) != self.layer_of(group)
                        && self.residents.outranks(group, held)
                };
                let stays = !is_prompt || outranks();
                stays.then_some(slot)
            };
            let Some(slot) = self.free().or_else(leaves) else { break };
            self.take(group, slot);
            self.states[group as usize].expected = true;
            self.expected += 1;
            self.stats.expected += 1;
            loads.push((group, slot));
        }
        loads
    }

    /// Whether a slot is a group's.
    pub fn serves(&self, group: u32, slot: usize) -> bool {
        self.held.get(slot) == Some(&Some(group))
    }

    /// Notes that a group has come.
    pub fn arrived(&mut self, group: u32, slot: usize) {
        let of = &mut self.states[group as usize];
        of.here |= of.slot == Some(slot);
    }

    fn layer_of(&self, group: u32) -> Option<usize> {
        self.layers.iter().rposition(|(first, _)| *first <= group)
    }

    fn note(&mut self, layer: usize, chosen: &[(u32, u32)], tokens: usize) {
        let (first, choices) = &mut self.layers[layer];
        let (first, end) = (*first, *first + choices.experts() as u32);
        let of_layer: Vec<_> = chosen.iter().map(|(group, rows)| (group - first, *rows)).collect();
        let now = choices.chosen(&of_layer, tokens);
        for (group, rows) in chosen {
            self.residents.used(*group, *rows as usize, now);
            let of = self.states[*group as usize];
            self.stats.chosen += 1;
            self.stats.hits += u64::from(of.here);
            self.stats.coming += u64::from(of.slot.is_some() && !of.here);
            self.stats.expected_used += u64::from(of.expected);
        }
        // Those of this layer that were expected in vain make way.
        (first..end).for_each(|group| self.unexpect(group));
    }

    /// The slot for a group that is not there: an empty one, or that of the group that leaves next. Of
    /// those that this call has loaded, the first ones leave next, so that one is computed while another
    /// one is loaded.
    fn slot_for(&self, passed: &[usize], turn: &mut usize) -> usize {
        let unused = || self.leaves(|idle, _| idle);
        let few = passed.len() < PASSING.min(self.held.len());
        let next = self.free().or_else(|| if few { unused() } else { None });
        let next = next.or_else(|| {
            let slot = self.leaves(|idle, slot| idle || passed.contains(&slot))?;
            Some(slot).filter(|slot| !passed.contains(slot))
        });
        let any = || self.leaves(|_, slot| few && !passed.contains(&slot));
        next.or_else(any).unwrap_or_else(|| {
            *turn += 1;
            passed.get((*turn - 1) % passed.len().max(1)).copied().unwrap_or(0)
        })
    }

    fn unexpect(&mut self, group: u32) {
        if std::mem::take(&mut self.states[group as usize].expected) {
            self.expected -= 1;
        }
    }

    fn free(&self) -> Option<usize> {
        self.held.iter().position(Option::is_none)
    }

    /// The slot of the group that leaves next, of those for which `may` holds: whether the group is
    /// neither in use nor expected, and its slot.
    fn leaves(&self, may: impl Fn(bool, usize) -> bool) -> Option<usize> {
        let slot = |group: u32| {
            let of = self.states[group as usize];
            let slot = of.slot?;
            let used = self.calls - self.used[slot] < self.recent;
            may(!used && !of.expected, slot).then_some(slot)
        };
        slot(self.residents.next_to_leave(|group| slot(group).is_some())?)
    }

    fn take(&mut self, group: u32, slot: usize) {
        if let Some(old) = self.held[slot].replace(group) {
            self.unexpect(old);
            self.residents.left(old);
            self.states[old as usize] = GroupState::default();
            self.stats.evictions += 1;
        }
        self.residents.entered(group);
        self.states[group as usize] = GroupState { slot: Some(slot), here: false, expected: false };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use troika_device::ExpertStats;
    use troika_plan::KeptBy;

    use super::{ExpertCache, ExpertSlots, GroupAt};

    fn cache(layers: usize, experts: usize, slots: usize) -> ExpertCache {
        ExpertCache {
            device: 1,
            graphs: (0..layers * experts).collect(),
            bytes: vec![10; layers * experts],
            budget: 10 * slots as u64,
            slots,
            in_flight: 2,
            in_order: true,
            least_rows: 1,
            kept_by: KeptBy::Frequency,
            layers: (0..layers).map(|layer| (layer, layer * experts)).collect(),
            by_expert: HashMap::default(),
            expected: vec![1; layers * experts],
        }
    }

    /// Places, and lets all that is loaded come.
    fn run(slots: &mut ExpertSlots, chosen: &[(u32, u32)], tokens: usize) -> Vec<(u32, GroupAt)> {
        let placed = slots.groups(chosen, tokens);
        for (group, at) in &placed {
            if let GroupAt::Away(slot) | GroupAt::Awaited(slot) = at {
                slots.arrived(*group, *slot);
            }
        }
        placed
    }

    #[test]
    fn what_is_there_is_found_and_what_is_not_takes_the_least_used_place() {
        let mut slots = ExpertSlots::empty(&cache(1, 4, 2));
        let loads = |at: &[(u32, GroupAt)]| {
            at.iter().filter(|(_, at)| matches!(at, GroupAt::Away(_))).count()
        };
        assert_eq!(
            run(&mut slots, &[(0, 9), (1, 2)], 8),
            [(0, GroupAt::Away(0)), (1, GroupAt::Away(1))]
        );
        assert_eq!(run(&mut slots, &[(0, 9)], 8), [(0, GroupAt::Here(0))]);
        // Group 1 was chosen less.
        assert_eq!(run(&mut slots, &[(2, 3)], 8), [(2, GroupAt::Away(1))]);
        // More than there is room for pass through: who is there is computed first.
        let placed = run(&mut slots, &[(0, 4), (1, 4), (2, 4), (3, 4)], 16);
        assert_eq!(placed[0].0, 0);
        assert_eq!(loads(&placed), 2);
        let ExpertStats { chosen, hits, evictions, .. } = slots.stats;
        assert_eq!((chosen, hits, evictions), (8, 3, 3));
    }

    #[test]
    fn what_is_expected_most_is_there_from_the_start() {
        let slots = ExpertSlots::new(&ExpertCache { expected: vec![1, 9, 3, 5], ..cache(1, 4, 2) });
        assert_eq!(slots.held, [Some(1), Some(3)]);
        let mut slots = slots;
        assert_eq!(
            slots.groups(&[(1, 1), (2, 9)], 8),
            [(1, GroupAt::Here(0)), (2, GroupAt::Away(1))]
        );
    }

    #[test]
    fn few_rows_are_not_worth_a_load() {
        let mut slots = ExpertSlots::empty(&ExpertCache { least_rows: 4, ..cache(1, 3, 2) });
        assert_eq!(
            run(&mut slots, &[(0, 4), (1, 3)], 8),
            [(0, GroupAt::Away(0)), (1, GroupAt::Elsewhere)]
        );
        assert_eq!(run(&mut slots, &[(0, 1)], 1), [(0, GroupAt::Here(0))]);
    }

    #[test]
    fn prompts_load_the_popular_experts_of_the_next_layer_and_forecasts_those_they_name() {
        let mut slots = ExpertSlots::empty(&cache(2, 4, 8));
        run(&mut slots, &[(4, 30), (5, 2)], 32);
        let mut fresh = ExpertSlots::empty(&cache(2, 4, 8));
        fresh.layers.clone_from(&slots.layers);
        run(&mut fresh, &[(0, 30)], 32);
        // An eighth of the slots, the most popular first.
        assert_eq!(fresh.ahead(&[(0, 30)], 32, &[]), [(4, 1)]);
        assert_eq!(fresh.groups(&[(4, 8)], 8), [(4, GroupAt::Awaited(1))]);
        assert_eq!(
            (fresh.stats.expected, fresh.stats.expected_used, fresh.stats.coming),
            (1, 1, 1)
        );
        assert_eq!(fresh.ahead(&[(4, 8)], 1, &[3, 2]), [(3, 2)]);
    }

    proptest! {
        /// Whatever is chosen: no two groups have a slot at once, runs that use a slot as it is come
        /// before those that load into it, and no more is held than there is room for.
        #[test]
        fn slots_are_never_shared(
            steps in proptest::collection::vec((0..3u32, proptest::collection::vec(1..40u32, 5)), 1..30),
            room in 1..12usize,
        ) {
            let mut slots = ExpertSlots::empty(&cache(3, 5, room));
            for (layer, rows) in steps {
                let chosen: Vec<(u32, u32)> =
                    (0..).map(|e| layer * 5 + e).zip(rows).filter(|(_, rows)| *rows > 10).collect();
                let placed = run(&mut slots, &chosen, 64);
                prop_assert_eq!(placed.len(), chosen.len());
                let mut loaded = vec![false; room];
                for (_, at) in &placed {
                    match at {
                        GroupAt::Here(slot) => prop_assert!(!loaded[*slot]),
                        GroupAt::Away(slot) => loaded[*slot] = true,
                        GroupAt::Awaited(_) | GroupAt::Elsewhere => {}
                    }
                }
                for (group, slot) in slots.ahead(&chosen, 64, &[]) {
                    slots.arrived(group, slot);
                }
                for (slot, group) in slots.held.iter().enumerate() {
                    if let Some(group) = group {
                        prop_assert_eq!(slots.states[*group as usize].slot, Some(slot));
                    }
                }
                let held = slots.states.iter().filter(|g| g.slot.is_some()).count();
                prop_assert_eq!(held, slots.held.iter().flatten().count());
                prop_assert!(slots.stats.hits <= slots.stats.chosen);
            }
        }
    }
}
