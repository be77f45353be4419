//! Which row of the packed buffers each pair of a row and one of its experts has, and which groups
//! run when. Pure: ids go in, places and runs come out.

use std::ops::Range;

use troika_plan::{Dispatch, ExpertGroupPlan, ExpertSplit, Overflow};

/// The place of a pair that is left out.
pub const LEFT_OUT: u32 = u32::MAX;

/// The shape of what is routed: chunks between two ends of a layer, and room for their pairs.
#[derive(Clone, Debug)]
pub struct RoutedShape {
    /// Experts of the layer.
    pub experts: usize,
    /// Experts that a row chooses.
    pub top_k: usize,
    /// Rows of the packed buffers.
    pub rows: usize,
    /// Slots of groups begin at multiples of this many rows.
    pub align: usize,
    /// The most pairs that are routed until buffers are empty again.
    pub pairs: usize,
    /// The most rows of a run of experts outside groups.
    pub most_rest: usize,
}

/// Rows of the packed buffers that are ready to be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRun {
    /// The group; `None` for experts on the rule's own device.
    pub group: Option<usize>,
    /// The rows.
    pub rows: Range<usize>,
    /// Those among them that no pair has.
    pub unfilled: Vec<Range<usize>>,
}

/// Counts of an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertCounts {
    /// Rows that chose it.
    pub rows: u64,
    /// Those of them that its group computed.
    pub grouped: u64,
    /// Those that the rule's device computed: beyond its capacity, or too few for a run.
    pub overflow: u64,
    /// Those beyond its capacity that were left out.
    pub dropped: u64,
    /// Rows of its group's runs that nobody needed.
    pub padding: u64,
}

/// Counts of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    /// Runs of groups.
    pub group_runs: u64,
    /// Runs of experts outside groups.
    pub rest_runs: u64,
    /// By expert.
    pub experts: Vec<ExpertCounts>,
}

impl PackedRun {
    /// Its rows that are in use.
    pub fn used(&self) -> usize {
        self.rows.len() - self.unfilled.iter().map(Range::len).sum::<usize>()
    }
}

impl LayerCounts {
    /// Takes note that the rule's device computes the rows of a group's run in so many runs.
    pub fn moved(&mut self, run: &PackedRun, split: &ExpertSplit, runs: usize) {
        let Some(ExpertGroupPlan { experts, capacity, .. }) =
            run.group.and_then(|group| split.groups.get(group))
        else {
            return;
        };
        self.group_runs -= 1;
        self.rest_runs += runs as u64;
        for (i, expert) in experts.iter().enumerate() {
            let first = run.rows.start + i * capacity;
            let gap =
                run.unfilled.iter().find(|gap| (first..first + capacity).contains(&gap.start));
            let (padding, of) = (gap.map_or(0, Range::len), &mut self.experts[*expert]);
            of.padding -= padding as u64;
            of.grouped -= (capacity - padding) as u64;
            of.overflow += (capacity - padding) as u64;
        }
    }

    /// Adds other counts of the layer.
    pub fn add(&mut self, other: &LayerCounts) {
        self.group_runs += other.group_runs;
        self.rest_runs += other.rest_runs;
        let most = self.experts.len().max(other.experts.len());
        self.experts.resize(most, ExpertCounts::default());
        for (sum, more) in self.experts.iter_mut().zip(&other.experts) {
            sum.rows += more.rows;
            sum.grouped += more.grouped;
            sum.overflow += more.overflow;
            sum.dropped += more.dropped;
            sum.padding += more.padding;
        }
    }
}

/// A group's slot that still has room.
#[derive(Clone, Debug)]
struct Open {
    start: usize,
    /// Rows of each expert.
    filled: Vec<usize>,
}

/// Places of pairs, from the first chunk after an end of a layer to the next one. Slots of groups
/// are taken from the start of the buffers, rows of other experts from their end.
#[derive(Clone, Debug)]
pub struct ExpertRows {
    shape: RoutedShape,
    split: ExpertSplit,
    /// The groups of each expert and its place there, in the order of the plan.
    at: Vec<Vec<(usize, usize)>>,
    /// Which of them gets each expert's next row.
    next_group: Vec<usize>,
    open: Vec<Option<Open>>,
    /// The first row behind the slots.
    low: usize,
    /// The first row of other experts, and the end of those that have not run.
    high: usize,
    rest_end: usize,
    /// Pairs that may still come.
    left: usize,
    /// Places of the pairs of each chunk.
    places: Vec<Vec<u32>>,
    /// Pairs by expert, reused.
    sorted: Vec<Vec<u32>>,
}

impl ExpertRows {
    /// Empty buffers for a layer whose experts are shared out like this.
    pub fn new(split: &ExpertSplit, shape: RoutedShape) -> ExpertRows {
        let mut at = vec![Vec::new(); shape.experts];
        for (g, group) in split.groups.iter().enumerate() {
            for (i, &expert) in group.experts.iter().enumerate() {
                if let Some(at) = at.get_mut(expert) {
                    at.push((g, i));
                }
            }
        }
        ExpertRows {
            split: split.clone(),
            at,
            next_group: vec![0; shape.experts],
            open: vec![None; split.groups.len()],
            low: 0,
            high: shape.rows,
            rest_end: shape.rows,
            left: shape.pairs,
            places: Vec::new(),
            sorted: vec![Vec::new(); shape.experts],
            shape,
        }
    }

    /// Rows of the packed buffers that a split needs for `pairs` pairs of a row and an expert: one
    /// row for each pair, and for each group one slot that is not full. Where a group of several
    /// experts fills up unevenly, the rule's device computes what has no room.
    pub fn room(split: &ExpertSplit, pairs: usize, align: usize) -> usize {
        let slots = split.groups.iter().map(|g| aligned(g.experts.len() * g.capacity, align));
        pairs.saturating_add(slots.sum())
    }

    /// Gives the pairs of a chunk their places, by the expert of each, and returns what can run now:
    /// with the last chunk, all that is left. The first chunk finds empty buffers. `saliency` has a
    /// value for each row; rows with the least are left out first, where any are.
    ///
    /// # Errors
    /// An expert that does not exist, or more pairs than there is room for.
    pub fn route(
        &mut self,
        (chunk, last): (usize, bool),
        ids: &[i32],
        saliency: Option<&[f32]>,
        counts: &mut LayerCounts,
    ) -> Result<Vec<PackedRun>, String> {
        if chunk == 0 {
            self.begin();
        }
        counts.experts.resize(self.shape.experts, ExpertCounts::default());
        if ids.len() > self.left {
            return Err(format!("{} pairs have room for {} only", ids.len(), self.left));
        }
        self.places.resize_with(self.places.len().max(chunk + 1), Vec::new);
        self.places[chunk].clear();
        self.places[chunk].resize(ids.len(), LEFT_OUT);
        self.sort(ids)?;
        let mut runs = Vec::new();
        for expert in 0..self.shape.experts {
            let mut pairs = std::mem::take(&mut self.sorted[expert]);
            let count = &mut counts.experts[expert];
            count.rows += pairs.len() as u64;
            if self.split.overflow == Overflow::Prune {
                self.keep_salient(expert, &mut pairs, saliency);
            }
            // They get rows of its groups, and the others of the rule's device.
            for &pair in &pairs {
                if let Some(row) = self.next_row(expert, &mut runs) {
                    self.place(chunk, pair, row);
                } else if self.at[expert].is_empty() {
                    self.take_rest(chunk, pair);
                } else if self.split.overflow == Overflow::Prune {
                    count.dropped += 1;
                    self.left -= 1;
                } else {
                    count.overflow += 1;
                    self.take_rest(chunk, pair);
                }
            }
            pairs.clear();
            self.sorted[expert] = pairs;
        }
        for group in (0..self.split.groups.len()).filter(|_| last) {
            self.end(group, counts, &mut runs);
        }
        self.run_rest(last, &mut runs);
        self.count(&runs, counts);
        Ok(runs)
    }

    /// The same for rows that choose experts as expected, where nothing is computed: each expert
    /// gets its share of the pairs, rounded.
    ///
    /// # Errors
    /// Those of [`ExpertRows::route`].
    pub fn assume(
        &mut self,
        (chunk, last): (usize, bool),
        rows: usize,
        counts: &mut LayerCounts,
    ) -> Result<Vec<PackedRun>, String> {
        let pairs = rows.saturating_mul(self.shape.top_k);
        let ids: Vec<i32> = (0..)
            .zip(expected_pairs(&self.split, self.shape.experts, pairs))
            .flat_map(|(id, n)| vec![id; n])
            .collect();
        let saliency = vec![0.0; rows];
        self.route((chunk, last), &ids, Some(&saliency), counts)
    }

    /// The rows of a group's run as runs of the rule's device, which computes only those in use.
    pub fn elsewhere(&self, run: &PackedRun) -> Vec<PackedRun> {
        let mut runs = Vec::new();
        let mut start = run.rows.start;
        let ends = run.unfilled.iter().map(|gap| (gap.start, gap.end));
        for (end, next) in ends.chain([(run.rows.end, run.rows.end)]) {
            self.split_rest(start..end, &mut runs);
            start = next;
        }
        runs
    }

    /// The places of a chunk's pairs.
    pub fn places(&self, chunk: usize) -> &[u32] {
        self.places.get(chunk).map_or(&[], Vec::as_slice)
    }

    fn begin(&mut self) {
        (self.low, self.high, self.rest_end) = (0, self.shape.rows, self.shape.rows);
        self.left = self.shape.pairs;
        self.open.fill(None);
        self.next_group.fill(0);
        self.places.iter_mut().for_each(Vec::clear);
    }

    fn sort(&mut self, ids: &[i32]) -> Result<(), String> {
        self.sorted.iter_mut().for_each(Vec::clear);
        for (pair, id) in ids.iter().enumerate() {
            let of_expert = usize::try_from(*id).ok().and_then(|id| self.sorted.get_mut(id));
            let of_expert = of_expert
                .ok_or_else(|| format!("expert {id} is not among {}", self.shape.experts))?;
            of_expert.push(pair as u32);
        }
        Ok(())
    }

    /// Puts the rows that count most first, if an expert has more than its groups have room for.
    fn keep_salient(&self, expert: usize, pairs: &mut [u32], saliency: Option<&[f32]>) {
        let room = self.at[expert].iter().map(|at| self.split.groups[at.0].capacity);
        if pairs.len() <= room.sum() {
            return;
        }
        let of = |pair: &u32| {
            let row = *pair as usize / self.shape.top_k.max(1);
            saliency.and_then(|s| s.get(row)).copied().unwrap_or(0.0)
        };
        pairs.sort_by(|a, b| of(b).total_cmp(&of(a)));
    }

    /// The next row of an expert's groups, which fill up in their order. Where full slots run at
    /// once, its groups take turns. `None` if none has room.
    fn next_row(&mut self, expert: usize, runs: &mut Vec<PackedRun>) -> Option<usize> {
        let (slots, turn) = (self.at[expert].len(), self.next_group[expert]);
        let (group, index) = *self.at[expert].get(turn)?;
        let capacity = self.split.groups[group].capacity;
        let open = self.opened(group)?;
        let row = open.start + index * capacity + open.filled[index];
        open.filled[index] += 1;
        let full = open.filled[index] == capacity;
        self.next_group[expert] = turn + usize::from(full);
        if full && self.split.dispatch == Dispatch::LayerMajor {
            self.next_group[expert] %= slots;
            runs.extend(self.close(group));
        }
        Some(row)
    }

    /// The open slot of a group; `None` if there is no room for another one.
    fn opened(&mut self, group: usize) -> Option<&mut Open> {
        if self.open[group].is_none() {
            let ExpertGroupPlan { experts, capacity, .. } = &self.split.groups[group];
            let (experts, start) = (experts.len(), self.low);
            let end = start + aligned(experts * capacity, self.shape.align);
            if end + self.left > self.high {
                return None;
            }
            self.low = end;
            self.open[group] = Some(Open { start, filled: vec![0; experts] });
        }
        self.open[group].as_mut()
    }

    fn take_rest(&mut self, chunk: usize, pair: u32) {
        // There is room: slots leave a row for each pair that may come.
        self.high -= 1;
        self.place(chunk, pair, self.high);
    }

    fn place(&mut self, chunk: usize, pair: u32, row: usize) {
        self.places[chunk][pair as usize] = row as u32;
        self.left -= 1;
    }

    /// Closes a group's slot, if it has one, so that it runs.
    fn close(&mut self, group: usize) -> Option<PackedRun> {
        let open = self.open[group].take()?;
        let capacity = self.split.groups[group].capacity;
        let rows = open.start..open.start + open.filled.len() * capacity;
        let unfilled = open.filled.iter().enumerate().map(|(i, filled)| {
            let first = open.start + i * capacity;
            first + filled..first + capacity
        });
        let unfilled = unfilled.filter(|rows| !rows.is_empty()).collect();
        Some(PackedRun { group: Some(group), rows, unfilled })
    }

    /// Closes a group's slot at the end of a layer. Where rows gathered over chunks, and most of the
    /// run would be padding, the rule's device computes its rows.
    fn end(&mut self, group: usize, counts: &mut LayerCounts, runs: &mut Vec<PackedRun>) {
        let capacity = self.split.groups[group].capacity;
        let is_few = |open: &mut Open| {
            let (rows, room) = (open.filled.iter().sum::<usize>(), open.filled.len() * capacity);
            self.split.dispatch == Dispatch::LayerMajor && 2 * rows < room
        };
        let Some(few) = self.open[group].take_if(is_few) else {
            runs.extend(self.close(group));
            return;
        };
        for (i, filled) in few.filled.iter().enumerate() {
            let first = few.start + i * capacity;
            let rows = first..first + filled;
            self.split_rest(rows, runs);
            counts.experts[self.split.groups[group].experts[i]].overflow += *filled as u64;
        }
    }

    /// Runs other experts: all that is left, or as many full runs as there are.
    fn run_rest(&mut self, last: bool, runs: &mut Vec<PackedRun>) {
        let most = self.shape.most_rest.max(1);
        let rows = self.rest_end - self.high;
        let rows = if last { rows } else { rows / most * most };
        self.split_rest(self.rest_end - rows..self.rest_end, runs);
        self.rest_end -= rows;
    }

    /// Runs of other experts on some rows, from the end of them.
    fn split_rest(&self, rows: Range<usize>, runs: &mut Vec<PackedRun>) {
        let (most, mut end) = (self.shape.most_rest.max(1), rows.end);
        while end > rows.start {
            let start = end.saturating_sub(most).max(rows.start);
            runs.push(PackedRun { group: None, rows: start..end, unfilled: Vec::new() });
            end = start;
        }
    }

    fn count(&self, runs: &[PackedRun], counts: &mut LayerCounts) {
        for run in runs {
            let Some(group) = run.group else {
                counts.rest_runs += 1;
                continue;
            };
            counts.group_runs += 1;
            let ExpertGroupPlan { experts, capacity, .. } = &self.split.groups[group];
            for expert in experts {
                counts.experts[*expert].grouped += *capacity as u64;
            }
            for rows in &run.unfilled {
                let expert = experts[(rows.start - run.rows.start) / capacity];
                let of_expert = &mut counts.experts[expert];
                of_expert.padding += rows.len() as u64;
                of_expert.grouped -= rows.len() as u64;
            }
        }
    }
}

/// How many rows fill the slots of a split's groups once, if they choose experts as expected.
pub fn rows_to_fill(split: &ExpertSplit, experts: usize, top_k: usize) -> usize {
    const ALL: usize = 1 << 20;
    let pairs = expected_pairs(split, experts, ALL).into_iter().enumerate();
    let in_groups = |(e, _): &(usize, usize)| split.groups.iter().any(|g| g.experts.contains(e));
    let pairs: usize = pairs.filter(in_groups).map(|(_, pairs)| pairs).sum();
    let room = split.groups.iter().map(|g| g.experts.len().saturating_mul(g.capacity));
    let room = room.fold(0, usize::saturating_add).saturating_mul(ALL);
    room.div_ceil(pairs.saturating_mul(top_k).max(1))
}

/// How many of some pairs each of a layer's experts is expected to get: shares by their weights, or
/// equal ones without any, rounded so that all are given.
pub fn expected_pairs(split: &ExpertSplit, experts: usize, pairs: usize) -> Vec<usize> {
    let expected = &split.expected;
    let weight = |expert| expected.get(expert).copied().map_or(0, u128::from);
    let weights: Vec<u128> = match expected.iter().take(experts).any(|part| *part > 0) {
        true => (0..experts).map(weight).collect(),
        false => vec![1; experts],
    };
    let all: u128 = weights.iter().sum();
    let (mut sum, mut given) = (0, 0);
    let share = |weight: u128| {
        sum += weight;
        let upto = (sum * pairs as u128).div_ceil(all.max(1)) as usize;
        upto - std::mem::replace(&mut given, upto)
    };
    weights.into_iter().map(share).collect()
}

/// The next multiple.
fn aligned(rows: usize, align: usize) -> usize {
    rows.next_multiple_of(align.max(1))
}
