//! Segments placed stage by stage: each product in its own fastest way, by the equation in
//! HeteroInfer's section 4.4, `max(T_a, T_b) + T_sync + T_copy`. Everything else runs on one device.

use std::collections::HashMap;

use troika_device::SpaceId;
use troika_graph::partition::{ColumnSplit, cut_at, split_columns};
use troika_graph::{Op, Subgraph, ValueId};
use troika_model::lower::{ModelPart, Segment, SegmentKind};

use super::choice::{Scope, staged};
use super::options::Placement;
use super::search::Search;
use crate::cost::{CostModel, PricedRun};
use troika_plan::{
    Phase, PlanDevice, Share, Split, Stage, SyncMode, TILE, own_space, stage_borders,
};
use troika_program::ELEMENT;

impl Search<'_> {
    /// Placements of a kind of segment stage by stage.
    pub(super) fn staged(&self, kind: SegmentKind, scope: Scope) -> Vec<Placement> {
        let prefill = scope.phase == Phase::Prefill;
        let t = kind.traits();
        // Attention is cut by heads only, and only one row of a prompt has logits.
        let cut = t.by_columns && !t.keeps_state && !(t.part == ModelPart::Head && prefill);
        let segment = self.request.lowered.segments.iter().find(|s| s.kind == kind && cut);
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

/// A segment to be placed stage by stage.
#[derive(Clone, Copy)]
pub struct StagedRequest<'a> {
    /// Its kind.
    pub kind: SegmentKind,
    /// Its graph.
    pub graph: &'a Subgraph,
    /// Rows to place it for.
    pub rows: usize,
    /// Positions cached before them.
    pub cached: usize,
    /// Whether it is prefill: a decoded token has one row, which cannot be split.
    pub prefill: bool,
    /// All devices.
    pub devices: &'a [PlanDevice],
    /// Their costs.
    pub cost: &'a dyn CostModel,
    /// How devices wait for each other.
    pub sync: SyncMode,
}

/// Which ways to place a stage are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// All: on either device, by columns, by rows, or by both.
    All,
    /// Standard lengths of rows on the other device, the rest at home.
    Rows,
}

/// A segment placed stage by stage.
#[derive(Clone, Debug, PartialEq)]
pub struct InStages {
    /// The sum of its stages' times in nanoseconds.
    pub ns: f64,
    /// The device of the rule.
    pub device: String,
    /// How the stages are shared.
    pub split: Option<Split>,
    /// The numbers of rows to compile for, if a device has static shapes.
    pub row_buckets: Option<Vec<usize>>,
}

/// The home device, which computes everything but products; another device; and the lengths to
/// compile for with static shapes.
#[derive(Clone, Copy)]
struct Pair<'a> {
    home: usize,
    other: usize,
    lengths: &'a [usize],
}

/// Rows of a run, the rows of its shape, and the rows of the prompt before it.
#[derive(Clone, Copy)]
struct PaddedRows {
    count: usize,
    room: usize,
    before: usize,
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

/// The unit of column shares. "With an ideal partition ratio, the GPU and NPU complete their
/// respective workloads simultaneously" (HeteroInfer 4.2.1).
const PARTS: u32 = 32;

impl StagedRequest<'_> {
    /// The placements worth pricing.
    pub(super) fn options(&self) -> Vec<Placement> {
        let count = self.devices.len();
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        let pairs = pairs.filter(|(home, other)| home != other);
        let mut all: Vec<InStages> = Vec::new();
        for placed in pairs.flat_map(|(home, other)| self.of_pair(home, other, Ways::All)) {
            if !all.iter().any(|known| InStages { ns: placed.ns, ..known.clone() } == placed) {
                all.push(placed);
            }
        }
        all.sort_by(|a, b| a.ns.total_cmp(&b.ns));
        all.truncate(SHOWN);
        let placement =
            |InStages { device, split, row_buckets, .. }| Placement { device, split, row_buckets };
        all.into_iter().map(placement).collect()
    }

    /// The fastest placement on two devices. `home` computes all ops other than products.
    pub fn best(&self, home: usize, other: usize, ways: Ways) -> Option<InStages> {
        let all = self.of_pair(home, other, ways).into_iter();
        all.min_by(|a, b| a.ns.total_cmp(&b.ns))
    }

    /// The fastest placement on two devices for each set of standard lengths.
    fn of_pair(&self, home: usize, other: usize, ways: Ways) -> Vec<InStages> {
        let stages = self.stages(ways);
        if !stages.iter().any(|s| s.is_product) {
            return Vec::new();
        }
        let mut prices = Prices { request: self, ways, known: HashMap::new() };
        let name = |device: usize| self.devices[device].name.clone();
        let place = |lengths: Vec<usize>| {
            let pair = Pair { home, other, lengths: &lengths };
            let all: Vec<Way> = stages.iter().map(|s| prices.best(s, pair)).collect();
            let ns = all.iter().map(|w| w.ns).sum();
            let stage = |way: Way| Stage { device: name(way.device), split: way.split };
            let Placement { device, split, .. } = staged(all.into_iter().map(stage).collect());
            let row_buckets = (!lengths.is_empty()).then_some(lengths);
            InStages { ns, device, split, row_buckets }
        };
        self.length_sets(home, other).into_iter().map(place).collect()
    }

    fn stages(&self, ways: Ways) -> Vec<CutStage> {
        let pieces = cut_at(self.graph, &stage_borders(self.graph));
        let graphs: Vec<Subgraph> = match pieces {
            Ok(pieces) if !pieces.is_empty() => pieces.into_iter().map(|p| p.graph).collect(),
            _ => vec![self.graph.clone()],
        };
        let cut = |graph: Subgraph| {
            let is_product = graph.nodes.iter().all(|n| matches!(n.op, Op::Linear { .. }));
            let divided = is_product && ways == Ways::All;
            let shares = if divided { 1..PARTS } else { 0..0 };
            let columns = shares.filter_map(|share| Some((share, columns(&graph, share)?)));
            CutStage { columns: columns.collect(), is_product, graph }
        };
        graphs.into_iter().map(cut).collect()
    }

    /// Sets of standard lengths. Either all up to some length, which pads the last of several parts
    /// least, or a single length; only the latter where each holds weights of its own. One empty set
    /// if no shape is static.
    fn length_sets(&self, home: usize, other: usize) -> Vec<Vec<usize>> {
        let mut both = [other, home].map(|d| &self.devices[d].caps).into_iter();
        let Some(caps) = both.find(|c| c.static_shapes) else { return vec![Vec::new()] };
        if !self.prefill {
            return vec![vec![1]];
        }
        let all = &caps.row_buckets;
        // Lengths above the first that takes all rows are never chosen.
        let enough = all.iter().position(|n| *n >= self.rows).map_or(all.len(), |i| i + 1);
        let several = if caps.code_weights.is_none() { enough } else { 0 };
        let mut sets: Vec<Vec<usize>> = (1..=several).map(|n| all[..n].to_vec()).collect();
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
    ways: Ways,
    /// By the graph's address, device, rows, rows of the shape, and whether other rows come before.
    known: HashMap<(usize, usize, usize, usize, bool), f64>,
}

impl Prices<'_> {
    /// The price of a run on some rows, padded to a shape, behind other rows of the prompt.
    fn run(&mut self, device: usize, graph: &Subgraph, rows: PaddedRows) -> f64 {
        let r = self.request;
        let PaddedRows { count, room, before } = rows;
        let key = (std::ptr::from_ref(graph) as usize, device, count, room, before > 0);
        let cached = r.cached + before;
        let price = || {
            let run = PricedRun { device, kind: r.kind, graph, rows: count, room, cached };
            let ns = r.cost.formed_ns(&run, &r.devices[device].caps.forms);
            if ns >= 0.0 { ns } else { f64::INFINITY }
        };
        *self.known.entry(key).or_insert_with(price)
    }

    /// The price of the last `rows` rows on a device, in as many parts as its shapes require.
    fn rows(&mut self, device: usize, graph: &Subgraph, rows: usize, p: Pair<'_>) -> f64 {
        let all = self.request.rows;
        if !self.request.devices[device].caps.static_shapes {
            let rows = PaddedRows { count: rows, room: rows, before: all - rows };
            return self.run(device, graph, rows);
        }
        let (mut left, mut sum) = (rows, 0.0);
        while left > 0 {
            let fits = p.lengths.iter().find(|n| **n >= left).or(p.lengths.last());
            let room = fits.copied().unwrap_or(left);
            let rows = PaddedRows { count: left.min(room), room, before: all - left };
            sum += self.run(device, graph, rows);
            left = left.saturating_sub(room);
        }
        sum
    }

    /// The time of each device for a stage with divided columns, home first.
    fn parts(&mut self, parts: &[HomePiece], rows: usize, p: Pair<'_>) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for (at_home, graph) in parts {
            let (device, sum) = match at_home {
                true => (p.home, &mut sums[0]),
                false => (p.other, &mut sums[1]),
            };
            *sum += self.rows(device, graph, rows, p);
        }
        sums
    }

    /// The fastest way to compute a stage.
    fn best(&mut self, stage: &CutStage, p: Pair<'_>) -> Way {
        let r = self.request;
        let ns = self.rows(p.home, &stage.graph, r.rows, p);
        let home = Way { ns, device: p.home, split: None };
        if !stage.is_product {
            return home;
        }
        let sync = self.exchange_ns(&stage.graph, p);
        let ns = self.rows(p.other, &stage.graph, r.rows, p) + sync;
        let never = Way { ns: f64::INFINITY, device: p.home, split: None };
        let mut best = if self.ways == Ways::All { home } else { never };
        let mut offer = |way: Way| {
            if way.ns < best.ns {
                best = way;
            }
        };
        offer(Way { ns, device: p.other, split: None });
        for (share, parts) in &stage.columns {
            let [a, b] = self.parts(parts, r.rows, p);
            let device = if share * 2 >= PARTS { p.home } else { p.other };
            let split = Some(Split::Columns { parts: self.shares(*share, p) });
            offer(Way { ns: a.max(b) + sync, device, split });
        }
        let fixed = r.devices[p.other].caps.static_shapes;
        let sets = if r.prefill && fixed { p.lengths.len() } else { 0 };
        for first in 0..sets {
            self.by_rows(stage, p, first, sync).into_iter().for_each(&mut offer);
        }
        best
    }

    /// `T_sync + T_copy`: each device waits for the other, and gets what it lacks of the other's
    /// memory.
    fn exchange_ns(&self, graph: &Subgraph, p: Pair<'_>) -> f64 {
        let r = self.request;
        let sync = r.cost.hand_over_ns(p.home, p.other, r.sync)
            + r.cost.hand_over_ns(p.other, p.home, r.sync);
        let [home, other] = [p.home, p.other].map(|d| own_space(&r.devices[d].caps));
        if home == other {
            return sync;
        }
        let copier = if other == SpaceId::HOST { p.home } else { p.other };
        let bytes = |values: &[ValueId]| {
            let cols: usize = values.iter().map(|v| graph.value(*v).shape.row_len()).sum();
            (r.rows * cols * ELEMENT) as u64
        };
        sync + r.cost.copy_ns(copier, bytes(&graph.inputs))
            + r.cost.copy_ns(copier, bytes(&graph.outputs))
    }

    fn shares(&self, home: u32, p: Pair<'_>) -> Vec<Share> {
        let name = |device: usize| self.request.devices[device].name.clone();
        vec![
            Share { device: name(p.home), share: home },
            Share { device: name(p.other), share: PARTS - home },
        ]
    }

    /// Standard lengths on the other device, and the rest at home or by columns on both.
    fn by_rows(&mut self, stage: &CutStage, p: Pair<'_>, first: usize, sync: f64) -> Vec<Way> {
        let lengths = &p.lengths[first..];
        let (mut left, mut standard) = (self.request.rows, 0.0);
        for length in lengths.iter().rev() {
            let count = left / length;
            let rows = PaddedRows { count: *length, room: *length, before: 0 };
            standard += count as f64 * self.run(p.other, &stage.graph, rows);
            left -= count * length;
        }
        if left == 0 || (left == self.request.rows && self.ways == Ways::All) {
            return Vec::new();
        }
        let own = || lengths.to_vec();
        let rest = self.rows(p.home, &stage.graph, left, p);
        let split = Split::Rows { lengths: own(), rest: self.request.devices[p.home].name.clone() };
        let way = |ns: f64, split| Way { ns: ns + sync, device: p.other, split: Some(split) };
        let mut all = vec![way(standard.max(rest), split)];
        for (share, parts) in stage.columns.iter().filter(|(share, _)| share % 4 == 0) {
            let [a, b] = self.parts(parts, left, p);
            let split = Split::Hybrid { lengths: own(), parts: self.shares(*share, p) };
            all.push(way((standard + b).max(a), split));
        }
        all
    }
}
