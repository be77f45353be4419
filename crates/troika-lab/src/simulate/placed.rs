//! Plans for the processors of a SoC. Where a strategy leaves a choice, each kind of segment is
//! placed in the way that is fastest by the SoC's prices: HeteroInfer's equation of section 4.4,
//! `max(T_GPU, T_NPU) + T_sync`, against either processor alone.

use std::sync::Arc;

use troika::sim::{PricedRows, Prices, Processor, ProcessorKind, Soc};
use troika_graph::partition::{ColumnSplit, cut_at, split_columns};
use troika_graph::{DType, Op, Subgraph};
use troika_model::lower::{Lowered, SegmentKind, segments};
use troika_model::spec::ModelSpec;
use troika_plan::{
    Decode, Layers, ModelId, PLAN_VERSION, Phase, Plan, Policy, Prefill, Rule, Share, Split, Stage,
    SyncMode, page_len, stage_borders,
};

use super::{SimulateError, SocStrategy};

/// The most rows of a chunk.
pub(super) const MOST_ROWS: usize = 1 << 16;

/// The input of a plan.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub soc: &'a Soc,
    pub spec: &'a ModelSpec,
    pub lowered: &'a Arc<Lowered>,
    pub strategy: SocStrategy,
    pub prompt: usize,
    pub context: usize,
    pub sync: SyncMode,
}

/// The plan of a strategy.
///
/// # Errors
/// The SoC lacks a processor that it needs.
pub(super) fn plan(r: &Request<'_>) -> Result<Plan, SimulateError> {
    let (prefill, decode) = rules(r)?;
    let mut devices: Vec<String> = Vec::new();
    for name in prefill.iter().chain(&decode).flat_map(Rule::devices) {
        if !devices.iter().any(|d| d == name) {
            devices.push(name.to_string());
        }
    }
    let widest = r.lowered.states.iter().map(|s| s.width * s.dtype.block_bytes()).max();
    let widest = widest.unwrap_or(0);
    let limits = r.soc.processors.iter().filter_map(|p| p.max_binding_bytes);
    Ok(Plan {
        version: PLAN_VERSION,
        model: ModelId::of(r.spec),
        strategy: r.strategy.name().into(),
        context: r.context,
        page_len: page_len(widest, limits),
        kv_dtype: DType::F16,
        devices,
        sync: r.sync,
        prefill: Prefill {
            chunk: r.prompt,
            chunks_in_flight: 1,
            policy: Policy::InOrder,
            critical_device: None,
            rules: prefill,
            lengths: Vec::new(),
        },
        decode: Decode { rules: decode },
        predicted: None,
    })
}

type Rules = (Vec<Rule>, Vec<Rule>);

fn rules(r: &Request<'_>) -> Result<Rules, SimulateError> {
    use SocStrategy as S;
    let of = |kind| r.strategy.processor(r.soc, kind);
    let all_on = |p: &Processor| vec![rule(None, &p.name)];
    if r.strategy == S::CpuOnly {
        let cpu = of(ProcessorKind::Cpu)?;
        return Ok((all_on(cpu), all_on(cpu)));
    }
    let gpu = of(ProcessorKind::Gpu)?;
    if r.strategy == S::GpuOnly {
        return Ok((all_on(gpu), all_on(gpu)));
    }
    let npu = of(ProcessorKind::Npu)?;
    let ways = if r.strategy == S::ActivationCentric { Ways::Rows } else { Ways::All };
    // Always placed for predicted waits, so that the way of waiting can be varied separately.
    let both = Both { soc: r.soc, prompt: r.prompt, sync: SyncMode::Predicted, ways, gpu, npu };
    let standard = &both.npu.row_buckets;
    Ok(match r.strategy {
        S::HeteroTensor => (both.shared(r, Phase::Prefill), both.shared(r, Phase::Decode)),
        S::ActivationCentric => (both.shared(r, Phase::Prefill), all_on(gpu)),
        S::OnlinePrepare => (both.layers(r, &[r.prompt]), all_on(gpu)),
        S::NpuPipe => (both.layers(r, &both.parts(r)), all_on(gpu)),
        S::NpuOnly => (both.layers(r, standard), both.layers(r, &[1])),
        _ => (both.layers(r, standard), all_on(gpu)),
    })
}

fn rule(segments: Option<Vec<SegmentKind>>, device: &str) -> Rule {
    Rule {
        segments,
        layers: None,
        device: device.into(),
        split: None,
        refused: Vec::new(),
        values: DType::F32,
        row_buckets: None,
        activations: Vec::new(),
    }
}

/// A stage of a segment, and its columns cut at each ratio.
struct CutStage {
    graph: Subgraph,
    columns: Vec<((u32, u32), Vec<CutPiece>)>,
}

/// A piece with its part: 0 is the GPU.
type CutPiece = (usize, Subgraph);

impl CutStage {
    /// `ways` says whether columns may be divided.
    fn of(graph: Subgraph, ways: Ways) -> CutStage {
        let none = ways == Ways::Rows || !is_product(&graph);
        let shares = if none { 0..0 } else { 1..PARTS };
        let ratios = shares.map(|share| (share, PARTS - share));
        let columns = ratios.filter_map(|ratio| {
            let split = ColumnSplit { shares: vec![ratio.0, ratio.1], tile: TILE, groups: None };
            let pieces = split_columns(&graph, &split).ok()?.stages;
            let pieces = pieces.into_iter().flat_map(|s| s.pieces);
            Some((ratio, pieces.map(|p| (p.part, p.graph)).collect()))
        });
        CutStage { columns: columns.collect(), graph }
    }

    fn all(graph: &Subgraph, ways: Ways) -> Vec<CutStage> {
        let cut = cut_at(graph, &stage_borders(graph));
        let graphs: Vec<Subgraph> = match cut {
            Ok(pieces) if !pieces.is_empty() => pieces.into_iter().map(|p| p.graph).collect(),
            _ => vec![graph.clone()],
        };
        graphs.into_iter().map(|graph| CutStage::of(graph, ways)).collect()
    }
}

fn is_product(graph: &Subgraph) -> bool {
    graph.nodes.iter().all(|n| matches!(n.op, Op::Linear { .. }))
}

/// Whether both processors compute products of this kind of segment.
fn is_shared(kind: SegmentKind) -> bool {
    matches!(kind, SegmentKind::Qkv | SegmentKind::AttnOut | SegmentKind::Ffn)
}

/// A GPU and an NPU that share products.
pub(super) struct Both<'a> {
    soc: &'a Soc,
    /// Tokens of the prompt.
    prompt: usize,
    sync: SyncMode,
    /// The ways to choose from.
    ways: Ways,
    pub gpu: &'a Processor,
    pub npu: &'a Processor,
}

/// Which ways to place a stage are considered.
#[derive(Clone, Copy, PartialEq)]
enum Ways {
    /// All.
    All,
    /// Standard lengths on the NPU, the rest on the GPU.
    Rows,
}

/// A placement of a stage.
pub(super) struct Placed {
    /// The time of its products in nanoseconds.
    ns: f64,
    pub device: String,
    pub split: Option<Split>,
}

impl<'a> Both<'a> {
    /// The GPU and NPU of a SoC.
    ///
    /// # Errors
    /// The SoC lacks one of them.
    pub fn of(soc: &'a Soc, (prompt, sync): (usize, SyncMode)) -> Result<Both<'a>, SimulateError> {
        let of = |kind| SocStrategy::HeteroTensor.processor(soc, kind);
        let (gpu, npu) = (of(ProcessorKind::Gpu)?, of(ProcessorKind::Npu)?);
        Ok(Both { soc, prompt, sync, ways: Ways::All, gpu, npu })
    }

    /// The fastest way to compute a single product.
    pub fn one(&self, graph: &Subgraph, phase: Phase) -> Placed {
        let stage = CutStage::of(graph.clone(), self.ways);
        let sets = self.length_sets(phase).into_iter();
        let all = sets.map(|lengths| self.best(&stage, &lengths, phase));
        all.fold(self.never(), |best, one| if one.ns < best.ns { one } else { best })
    }

    /// Sets of standard lengths to compile for: all up to some length, so that longer prompts take
    /// several parts with the last one padded; or one alone.
    fn length_sets(&self, phase: Phase) -> Vec<Vec<usize>> {
        if phase == Phase::Decode {
            return vec![vec![1]];
        }
        let all = &self.npu.row_buckets;
        let mut sets: Vec<Vec<usize>> = (1..=all.len()).rev().map(|n| all[..n].to_vec()).collect();
        sets.extend(all.iter().map(|n| vec![*n]));
        sets
    }

    /// The standard lengths that make a prompt's products fastest on the NPU alone.
    fn parts(&self, r: &Request<'_>) -> Vec<usize> {
        let products = SegmentKind::ALL.into_iter().filter(|k| is_shared(*k));
        let segment = |kind| r.lowered.segments.iter().find(|s| s.kind == kind);
        let stages = products.filter_map(segment).flat_map(|s| CutStage::all(&s.graph, Ways::Rows));
        let stages: Vec<CutStage> = stages.filter(|s| is_product(&s.graph)).collect();
        let ns = |lengths: &Vec<usize>| {
            let at = At { rows: self.prompt, cached: 0, lengths };
            stages.iter().map(|s| self.ns(self.npu, &s.graph, at)).sum::<f64>()
        };
        let sets = self.length_sets(Phase::Prefill).into_iter().map(|set| (ns(&set), set));
        let best = sets.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or_else(Vec::new, |(_, set)| set)
    }

    fn kinds(&self, r: &Request<'_>) -> Vec<SegmentKind> {
        let of_model = segments(r.spec);
        SegmentKind::ALL.into_iter().filter(|k| of_model.iter().any(|s| s.0 == *k)).collect()
    }

    /// Products on the NPU, in parts of some lengths; everything else on the GPU.
    fn layers(&self, r: &Request<'_>, lengths: &[usize]) -> Vec<Rule> {
        let (products, others): (Vec<_>, Vec<_>) =
            self.kinds(r).into_iter().partition(|k| is_shared(*k));
        let mut rules = vec![rule(Some(others), &self.gpu.name)];
        if !products.is_empty() {
            let row_buckets = (!lengths.is_empty()).then(|| lengths.to_vec());
            rules.push(Rule { row_buckets, ..rule(Some(products), &self.npu.name) });
        }
        rules
    }

    /// Each kind of segment where it is fastest.
    fn shared(&self, r: &Request<'_>, phase: Phase) -> Vec<Rule> {
        let place = |kind: SegmentKind| {
            if !is_shared(kind) && (kind != SegmentKind::Head || phase == Phase::Prefill) {
                return vec![rule(Some(vec![kind]), &self.gpu.name)];
            }
            self.by_stages(r, (kind, phase))
        };
        self.kinds(r).into_iter().flat_map(place).collect()
    }

    /// Rules for a kind of segment with shared products. Where layers have different numbers of
    /// stages, there is one rule for each run of equal layers.
    fn by_stages(&self, r: &Request<'_>, (kind, phase): (SegmentKind, Phase)) -> Vec<Rule> {
        let mut known: Vec<(usize, Rule)> = Vec::new();
        let mut rules: Vec<(usize, Rule)> = Vec::new();
        for segment in r.lowered.segments.iter().filter(|s| s.kind == kind) {
            let count = stage_borders(&segment.graph).len();
            let found = known.iter().find(|k| k.0 == count).map(|k| k.1.clone());
            let rule = found.unwrap_or_else(|| {
                let rule = self.staged(kind, &segment.graph, phase);
                known.push((count, rule.clone()));
                rule
            });
            let layers = segment.layer.map(|l| Layers { first: l, last: l, step: 1 });
            match (rules.last_mut(), segment.layer) {
                (Some((last, Rule { layers: Some(layers), .. })), Some(layer))
                    if *last == count && layers.last + 1 == layer =>
                {
                    layers.last = layer;
                }
                _ => rules.push((count, Rule { layers, ..rule })),
            }
        }
        match known.len() {
            0 => vec![rule(Some(vec![kind]), &self.gpu.name)],
            1 => known.into_iter().map(|k| k.1).collect(),
            _ => rules.into_iter().map(|r| r.1).collect(),
        }
    }

    /// A rule for a segment with shared products, with the standard lengths that make it fastest.
    fn staged(&self, kind: SegmentKind, graph: &Subgraph, phase: Phase) -> Rule {
        let stages = CutStage::all(graph, self.ways);
        let place = |lengths: Vec<usize>| {
            let best = |stage: &CutStage| self.best(stage, &lengths, phase);
            let placed: Vec<Placed> = stages.iter().map(best).collect();
            let ns: f64 = placed.iter().map(|p| p.ns).sum();
            (ns, lengths, placed)
        };
        let choices = self.length_sets(phase).into_iter().map(place);
        let best = choices.min_by(|a, b| a.0.total_cmp(&b.0));
        let on_gpu = rule(Some(vec![kind]), &self.gpu.name);
        let Some((_, lengths, placed)) = best else { return on_gpu };
        let stage = |p: Placed| Stage { device: p.device, split: p.split };
        let mut stages: Vec<Stage> = placed.into_iter().map(stage).collect();
        let mut placed = match stages.len() {
            0 => return on_gpu,
            1 => {
                let Stage { device, split } = stages.swap_remove(0);
                Rule { device, split, ..on_gpu }
            }
            _ => Rule { split: Some(Split::Stages { stages }), ..on_gpu },
        };
        let uses_npu = placed.devices().any(|d| d == self.npu.name);
        placed.row_buckets = (uses_npu && self.npu.static_shapes).then_some(lengths);
        placed
    }

    fn ns(&self, on: &Processor, graph: &Subgraph, at: At<'_>) -> f64 {
        let prices = Prices::new(self.soc, on);
        let run = |rows, room, before| {
            let cached = at.cached + before;
            prices.run(graph, PricedRows { rows, room, cached }).ns as f64
        };
        if !on.static_shapes {
            return run(at.rows, at.rows, 0);
        }
        let (mut left, mut sum) = (at.rows, 0.0);
        while left > 0 {
            let fits = at.lengths.iter().find(|n| **n >= left).or(at.lengths.last());
            let room = fits.copied().unwrap_or(left);
            sum += run(left.min(room), room, at.rows - left);
            left = left.saturating_sub(room);
        }
        sum
    }

    /// The fastest way to compute a stage.
    fn best(&self, stage: &CutStage, lengths: &[usize], phase: Phase) -> Placed {
        let graph = &stage.graph;
        let (rows, cached) = match phase {
            Phase::Prefill => (self.prompt, 0),
            Phase::Decode => (1, self.prompt),
        };
        let at = At { rows, cached, lengths };
        let whole = |ns, p: &Processor| Placed { ns, device: p.name.clone(), split: None };
        let gpu = whole(self.ns(self.gpu, graph, at), self.gpu);
        if !is_product(graph) {
            return gpu;
        }
        let npu = whole(self.ns(self.npu, graph, at) + self.sync_ns(), self.npu);
        let mut all = vec![gpu, npu];
        if self.ways == Ways::Rows {
            all.remove(0);
        }
        all.extend(stage.columns.iter().map(|cut| self.columns(cut, at)));
        if phase == Phase::Prefill {
            for i in 0..lengths.len() {
                all.extend(self.by_rows(stage, at, &lengths[i..]));
            }
        }
        all.into_iter().fold(self.never(), |best, one| if one.ns < best.ns { one } else { best })
    }

    fn never(&self) -> Placed {
        Placed { ns: f64::INFINITY, device: self.gpu.name.clone(), split: None }
    }

    /// The cost of two processors on one stage: each waits for the other.
    fn sync_ns(&self) -> f64 {
        let of = |p: &Processor| match self.sync {
            SyncMode::Predicted => p.hand_over.predicted_ns,
            SyncMode::Blocking => p.hand_over.blocking_ns,
        };
        (of(self.gpu) + of(self.npu) + self.gpu.submit_ns + self.npu.submit_ns) as f64
    }

    fn parts_of(&self, (gpu, npu): (u32, u32)) -> Vec<Share> {
        let share = |p: &Processor, share| Share { device: p.name.clone(), share };
        vec![share(self.gpu, gpu), share(self.npu, npu)]
    }

    /// The time of each processor for a stage split by columns.
    fn parts_ns(&self, parts: &[CutPiece], at: At<'_>) -> [f64; 2] {
        let mut sums = [0.0; 2];
        for (part, graph) in parts {
            let (on, sum) = match part {
                0 => (self.gpu, &mut sums[0]),
                _ => (self.npu, &mut sums[1]),
            };
            *sum += self.ns(on, graph, at);
        }
        sums
    }

    fn columns(&self, (ratio, parts): &((u32, u32), Vec<CutPiece>), at: At<'_>) -> Placed {
        let [gpu, npu] = self.parts_ns(parts, at);
        let device = if ratio.0 > ratio.1 { &self.gpu.name } else { &self.npu.name };
        let split = Some(Split::Columns { parts: self.parts_of(*ratio) });
        Placed { ns: gpu.max(npu) + self.sync_ns(), device: device.clone(), split }
    }

    /// Standard lengths on the NPU, the rest on the GPU or by columns.
    fn by_rows(&self, stage: &CutStage, at: At<'_>, lengths: &[usize]) -> Vec<Placed> {
        let graph = &stage.graph;
        let (mut left, mut standard) = (at.rows, 0.0);
        for length in lengths.iter().rev() {
            let count = left / length;
            let one = At { rows: *length, ..at };
            standard += count as f64 * self.ns(self.npu, graph, one);
            left -= count * length;
        }
        if left == 0 || (left == at.rows && self.ways == Ways::All) {
            return Vec::new();
        }
        let cached = at.cached + at.rows - left;
        let (sync, rest) = (self.sync_ns(), At { rows: left, cached, ..at });
        let placed = |ns: f64, split| Placed {
            ns: ns + sync,
            device: self.npu.name.clone(),
            split: Some(split),
        };
        let own = || lengths.to_vec();
        let gpu = self.ns(self.gpu, graph, rest);
        let split = Split::Rows { lengths: own(), rest: self.gpu.name.clone() };
        let mut all = vec![placed(standard.max(gpu), split)];
        for (ratio, parts) in stage.columns.iter().filter(|(ratio, _)| ratio.0 % 4 == 0) {
            let [gpu, npu] = self.parts_ns(parts, rest);
            let split = Split::Hybrid { lengths: own(), parts: self.parts_of(*ratio) };
            all.push(placed((standard + npu).max(gpu), split));
        }
        all
    }
}

/// A stage's rows, the cached positions before them, and the lengths to compile for.
#[derive(Clone, Copy)]
struct At<'a> {
    rows: usize,
    cached: usize,
    lengths: &'a [usize],
}

/// Columns are cut at multiples of this number.
const TILE: usize = 16;

/// The unit of column shares. "With an ideal partition ratio, the GPU and NPU complete their
/// respective workloads simultaneously" (HeteroInfer 4.2.1).
const PARTS: u32 = 32;
