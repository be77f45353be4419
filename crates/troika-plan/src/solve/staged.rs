//! Segments placed stage by stage: each product in its own fastest way, by the equation in
//! HeteroInfer's section 4.4, `max(T_a, T_b) + T_sync`. Everything else runs on one device.

use std::collections::HashMap;

use troika_graph::partition::{ColumnSplit, cut_at, split_columns};
use troika_graph::{Op, Subgraph};
use troika_model::lower::{Segment, SegmentKind};

use super::choice::{Scope, staged};
use super::options::{Placement, by_columns};
use super::search::Search;
use crate::cost::{CostModel, PricedRun, SolveDevice};
use crate::share::TILE;
use crate::{Phase, Share, Split, Stage, SyncMode, stage_borders};

impl Search<'_> {
    /// Placements of a kind of segment stage by stage.
    pub(super) fn staged(&self, kind: SegmentKind, scope: Scope) -> Vec<Placement> {
        let prefill = scope.phase == Phase::Prefill;
        // Attention is cut by heads only, and only one row of a prompt has logits.
        let whole = kind == SegmentKind::Attention || (kind == SegmentKind::Head && prefill);
        let mut segments = self.request.lowered.segments.iter();
        let segment = segments.find(|s| s.kind == kind && by_columns(kind) && !whole);
        let of = |s: &Segment| {
            let request = StagedRequest {
                kind,
                graph: &s.graph,
                rows: scope.rows[1],
                cached: scope.cached,
                prefill,
                devices: self.request.devices,
                cost: self.request.cost,
                sync: self.request.base.sync,
            };
            request.options()
        };
        segment.map_or_else(Vec::new, of)
    }
}

/// The input of [`StagedRequest::options`].
pub(super) struct StagedRequest<'a> {
    pub kind: SegmentKind,
    /// The segment's graph.
    pub graph: &'a Subgraph,
    pub rows: usize,
    pub cached: usize,
    /// Whether it is prefill: a decoded token has one row, which cannot be split.
    pub prefill: bool,
    pub devices: &'a [SolveDevice],
    pub cost: &'a dyn CostModel,
    pub sync: SyncMode,
}

/// The home device, which computes everything but products; another device; and the lengths to
/// compile for with static shapes.
#[derive(Clone, Copy)]
struct Pair<'a> {
    home: usize,
    other: usize,
    lengths: &'a [usize],
}

/// A stage, and its columns cut for each share of the home device.
struct CutStage {
    graph: Subgraph,
    is_product: bool,
    columns: Vec<(u32, Vec<HomePiece>)>,
}

/// A piece, and whether the home device computes it.
type HomePiece = (bool, Subgraph);

/// A way to compute a stage, and its time.
struct Way {
    ns: f64,
    device: usize,
    split: Option<Split>,
}

/// Number of fastest placements that are priced closely.
const SHOWN: usize = 4;

/// The unit of column shares.
const PARTS: u32 = 32;

impl StagedRequest<'_> {
    /// The placements worth pricing.
    pub fn options(&self) -> Vec<Placement> {
        let stages = self.stages();
        if !stages.iter().any(|s| s.is_product) {
            return Vec::new();
        }
        let mut prices = Prices { request: self, known: HashMap::new() };
        let mut all: Vec<(f64, Placement)> = Vec::new();
        let count = self.devices.len();
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        for (home, other) in pairs.filter(|(a, b)| a != b) {
            for lengths in self.length_sets((home, other)) {
                let pair = Pair { home, other, lengths: &lengths };
                let ways: Vec<Way> = stages.iter().map(|s| prices.best(s, pair)).collect();
                let ns = ways.iter().map(|w| w.ns).sum();
                let place = |way: Way| {
                    let device = self.devices[way.device].name.clone();
                    Stage { device, split: way.split }
                };
                let placed = staged(ways.into_iter().map(place).collect());
                let row_buckets = (!lengths.is_empty()).then_some(lengths);
                let placed = Placement { row_buckets, ..placed };
                if !all.iter().any(|(_, p)| *p == placed) {
                    all.push((ns, placed));
                }
            }
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.truncate(SHOWN);
        all.into_iter().map(|(_, placed)| placed).collect()
    }

    fn stages(&self) -> Vec<CutStage> {
        let pieces = cut_at(self.graph, &stage_borders(self.graph));
        let graphs: Vec<Subgraph> = match pieces {
            Ok(pieces) if !pieces.is_empty() => pieces.into_iter().map(|p| p.graph).collect(),
            _ => vec![self.graph.clone()],
        };
        let cut = |graph: Subgraph| {
            let is_product = graph.nodes.iter().all(|n| matches!(n.op, Op::Linear { .. }));
            let shares = if is_product { 1..PARTS } else { 0..0 };
            let columns = shares.filter_map(|share| Some((share, columns(&graph, share)?)));
            CutStage { columns: columns.collect(), is_product, graph }
        };
        graphs.into_iter().map(cut).collect()
    }

    /// Sets of standard lengths. Either all up to some length, which pads the last of several parts
    /// least, or a single length. One empty set if no shape is static.
    fn length_sets(&self, (home, other): (usize, usize)) -> Vec<Vec<usize>> {
        let mut both = [other, home].map(|d| &self.devices[d].caps).into_iter();
        let Some(caps) = both.find(|c| c.static_shapes) else { return vec![Vec::new()] };
        if !self.prefill {
            return vec![vec![1]];
        }
        let all = &caps.row_buckets;
        // Lengths above the first that takes all rows are never chosen.
        let enough = all.iter().position(|n| *n >= self.rows).map_or(all.len(), |i| i + 1);
        let mut sets: Vec<Vec<usize>> = (1..=enough).map(|n| all[..n].to_vec()).collect();
        sets.extend(all[..enough].iter().map(|n| vec![*n]));
        sets.dedup();
        sets
    }
}

/// A stage's pieces where the home device computes a share of its columns.
fn columns(graph: &Subgraph, share: u32) -> Option<Vec<HomePiece>> {
    let split = ColumnSplit { shares: vec![share, PARTS - share], tile: TILE, groups: None };
    let pieces = split_columns(graph, &split).ok()?.stages.into_iter().flat_map(|s| s.pieces);
    Some(pieces.map(|p| (p.part == 0, p.graph)).collect())
}

/// Prices of stages, cached.
struct Prices<'a> {
    request: &'a StagedRequest<'a>,
    /// By the graph's address, device, rows, rows of the shape, and whether other rows come before.
    known: HashMap<(usize, usize, usize, usize, bool), f64>,
}

impl Prices<'_> {
    /// The price of a run on some rows, padded to a shape, behind other rows of the prompt.
    fn run(
        &mut self,
        device: usize,
        graph: &Subgraph,
        (rows, room, before): (usize, usize, usize),
    ) -> f64 {
        let r = self.request;
        let key = (std::ptr::from_ref(graph) as usize, device, rows, room, before > 0);
        let cached = r.cached + before;
        let price = || {
            let run = PricedRun { device, kind: r.kind, graph, rows, room, cached };
            let ns = r.cost.run_ns(&run);
            if ns >= 0.0 { ns } else { f64::INFINITY }
        };
        *self.known.entry(key).or_insert_with(price)
    }

    /// The price of the last `rows` rows on a device, in as many parts as its shapes require.
    fn rows(&mut self, device: usize, graph: &Subgraph, (rows, p): (usize, Pair<'_>)) -> f64 {
        let all = self.request.rows;
        if !self.request.devices[device].caps.static_shapes {
            return self.run(device, graph, (rows, rows, all - rows));
        }
        let (mut left, mut sum) = (rows, 0.0);
        while left > 0 {
            let fits = p.lengths.iter().find(|n| **n >= left).or(p.lengths.last());
            let room = fits.copied().unwrap_or(left);
            sum += self.run(device, graph, (left.min(room), room, all - left));
            left = left.saturating_sub(room);
        }
        sum
    }

    /// The time of each device for a stage with divided columns, home first.
    fn parts(&mut self, parts: &[HomePiece], at: (usize, Pair<'_>)) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for (at_home, graph) in parts {
            let (device, sum) = match at_home {
                true => (at.1.home, &mut sums[0]),
                false => (at.1.other, &mut sums[1]),
            };
            *sum += self.rows(device, graph, at);
        }
        sums
    }

    /// The fastest way to compute a stage.
    fn best(&mut self, stage: &CutStage, p: Pair<'_>) -> Way {
        let r = self.request;
        let home =
            Way { ns: self.rows(p.home, &stage.graph, (r.rows, p)), device: p.home, split: None };
        if !stage.is_product {
            return home;
        }
        let cost = r.cost;
        let sync =
            cost.hand_over_ns(p.home, p.other, r.sync) + cost.hand_over_ns(p.other, p.home, r.sync);
        let ns = self.rows(p.other, &stage.graph, (r.rows, p)) + sync;
        let mut best = home;
        let mut offer = |way: Way| {
            if way.ns < best.ns {
                best = way;
            }
        };
        offer(Way { ns, device: p.other, split: None });
        for (share, parts) in &stage.columns {
            let [a, b] = self.parts(parts, (r.rows, p));
            let device = if share * 2 >= PARTS { p.home } else { p.other };
            let split = Some(Split::Columns { parts: self.shares(*share, p) });
            offer(Way { ns: a.max(b) + sync, device, split });
        }
        let fixed = r.devices[p.other].caps.static_shapes;
        let sets = if r.prefill && fixed { p.lengths.len() } else { 0 };
        for first in 0..sets {
            self.by_rows(stage, (p, &p.lengths[first..]), sync).into_iter().for_each(&mut offer);
        }
        best
    }

    fn shares(&self, home: u32, p: Pair<'_>) -> Vec<Share> {
        let name = |device: usize| self.request.devices[device].name.clone();
        vec![
            Share { device: name(p.home), share: home },
            Share { device: name(p.other), share: PARTS - home },
        ]
    }

    /// Standard lengths on the other device, and the rest at home or by columns on both.
    fn by_rows(
        &mut self,
        stage: &CutStage,
        (p, lengths): (Pair<'_>, &[usize]),
        sync: f64,
    ) -> Vec<Way> {
        let (mut left, mut standard) = (self.request.rows, 0.0);
        for length in lengths.iter().rev() {
            let count = left / length;
            standard += count as f64 * self.run(p.other, &stage.graph, (*length, *length, 0));
            left -= count * length;
        }
        if left == 0 || left == self.request.rows {
            return Vec::new();
        }
        let own = || lengths.to_vec();
        let rest = self.rows(p.home, &stage.graph, (left, p));
        let split = Split::Rows { lengths: own(), rest: self.request.devices[p.home].name.clone() };
        let way = |ns: f64, split| Way { ns: ns + sync, device: p.other, split: Some(split) };
        let mut all = vec![way(standard.max(rest), split)];
        for (share, parts) in stage.columns.iter().filter(|(share, _)| share % 4 == 0) {
            let [a, b] = self.parts(parts, (left, p));
            let split = Split::Hybrid { lengths: own(), parts: self.shares(*share, p) };
            all.push(way((standard + b).max(a), split));
        }
        all
    }
}
