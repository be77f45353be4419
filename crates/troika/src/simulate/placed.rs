//! Plans for the processors of a SoC. Where a strategy leaves a choice, each kind of segment is
//! placed in the way that the prices of the SoC's file make fastest, by itself: HeteroInfer's
//! equation of section 4.4, `max(T_GPU, T_NPU) + T_sync` against either alone.

use crate::devices::sim::{PricedRows, Prices, Processor, ProcessorKind, Soc};
use troika_graph::partition::{ColumnSplit, cut_at, split_columns};
use troika_graph::{DType, Op, Subgraph};
use troika_model::lower::{Lowered, SegmentKind, segments};
use troika_model::spec::ModelSpec;
use troika_plan::{
    Decode, ModelId, PLAN_VERSION, Phase, Plan, Policy, Prefill, Rule, Share, Split, Stage,
    SyncMode, page_len, stage_borders,
};

use super::{SimulateError, SocStrategy};

/// Most rows of a chunk.
pub(super) const MOST_ROWS: usize = 1 << 16;

/// What a plan is made of.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub soc: &'a Soc,
    pub spec: &'a ModelSpec,
    pub lowered: &'a Lowered,
    pub strategy: SocStrategy,
    pub prompt: usize,
    pub context: usize,
    pub sync: SyncMode,
}

/// The plan of a strategy.
///
/// # Errors
/// A processor that the SoC has not.
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
    // Placed for predicted waits in any case, so that the way of waiting can be switched by itself.
    let both = Both { soc: r.soc, prompt: r.prompt, sync: SyncMode::Predicted, ways, gpu, npu };
    let standard = &both.npu.row_buckets;
    let shortest = standard.first().map_or(r.prompt, |n| *n);
    Ok(match r.strategy {
        S::HeteroTensor => (both.shared(r, Phase::Prefill), both.shared(r, Phase::Decode)),
        S::ActivationCentric => (both.shared(r, Phase::Prefill), all_on(gpu)),
        S::OnlinePrepare => (both.layers(r, &[r.prompt]), all_on(gpu)),
        S::NpuPipe => (both.layers(r, &[shortest]), all_on(gpu)),
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

/// The graph of each stage.
fn stages_of(graph: &Subgraph) -> Vec<Subgraph> {
    let cut = stage_borders(graph);
    let pieces = cut_at(graph, &cut).map(|pieces| pieces.into_iter().map(|p| p.graph).collect());
    pieces.unwrap_or_else(|_| vec![graph.clone()])
}

/// Segments of products that both processors compute.
fn is_shared(kind: SegmentKind) -> bool {
    matches!(kind, SegmentKind::Qkv | SegmentKind::AttnOut | SegmentKind::Ffn)
}

/// A GPU and an NPU that share products.
pub(super) struct Both<'a> {
    soc: &'a Soc,
    /// Tokens of the prompt.
    prompt: usize,
    sync: SyncMode,
    /// Ways of which one is chosen.
    ways: Ways,
    pub gpu: &'a Processor,
    pub npu: &'a Processor,
}

/// Which ways to place a stage there are.
#[derive(Clone, Copy, PartialEq)]
enum Ways {
    /// All.
    All,
    /// Standard lengths on the NPU, and the rest on the GPU.
    Rows,
}

/// One way to place a stage.
pub(super) struct Placed {
    /// Nanoseconds that its products take at most.
    ns: f64,
    pub device: String,
    pub split: Option<Split>,
}

impl<'a> Both<'a> {
    /// The GPU and NPU of a SoC.
    ///
    /// # Errors
    /// There are none.
    pub fn of(soc: &'a Soc, (prompt, sync): (usize, SyncMode)) -> Result<Both<'a>, SimulateError> {
        let of = |kind| SocStrategy::HeteroTensor.processor(soc, kind);
        let (gpu, npu) = (of(ProcessorKind::Gpu)?, of(ProcessorKind::Npu)?);
        Ok(Both { soc, prompt, sync, ways: Ways::All, gpu, npu })
    }

    /// The fastest way to compute a product by itself.
    pub fn one(&self, graph: &Subgraph, phase: Phase) -> Placed {
        let lengths = if phase == Phase::Decode { vec![1] } else { self.npu.row_buckets.clone() };
        self.best(graph, &lengths, phase)
    }

    fn kinds(&self, r: &Request<'_>) -> Vec<SegmentKind> {
        let of_model = segments(r.spec);
        SegmentKind::ALL.into_iter().filter(|k| of_model.iter().any(|s| s.0 == *k)).collect()
    }

    /// Products on the NPU, in parts of some lengths; all else on the GPU.
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
            let splits = is_shared(kind) || (kind == SegmentKind::Head && phase == Phase::Decode);
            let segment = r.lowered.segments.iter().find(|s| s.kind == kind);
            let segment = segment.filter(|_| splits);
            let on_gpu = || rule(Some(vec![kind]), &self.gpu.name);
            segment.map_or_else(on_gpu, |s| self.staged(kind, &s.graph, phase))
        };
        self.kinds(r).into_iter().map(place).collect()
    }

    /// A segment whose products are shared out, for the standard lengths that make it fastest.
    fn staged(&self, kind: SegmentKind, graph: &Subgraph, phase: Phase) -> Rule {
        let stages = stages_of(graph);
        let all = self.npu.row_buckets.clone();
        let mut choices = vec![if phase == Phase::Decode { vec![1] } else { all.clone() }];
        if phase == Phase::Prefill {
            choices.extend(all.into_iter().map(|one| vec![one]));
        }
        let place = |lengths: Vec<usize>| {
            let best = |graph: &Subgraph| self.best(graph, &lengths, phase);
            let placed: Vec<Placed> = stages.iter().map(best).collect();
            let ns: f64 = placed.iter().map(|p| p.ns).sum();
            (ns, lengths, placed)
        };
        let choices = choices.into_iter().map(place);
        let best = choices.min_by(|a, b| a.0.total_cmp(&b.0));
        let on_gpu = rule(Some(vec![kind]), &self.gpu.name);
        let Some((_, lengths, placed)) = best else { return on_gpu };
        let stage = |p: Placed| Stage { device: p.device, split: p.split };
        let mut stages: Vec<Stage> = placed.into_iter().map(stage).collect();
        let split = if stages.len() > 1 {
            Some(Split::Stages { stages })
        } else {
            stages.pop().and_then(|s| s.split)
        };
        let mut placed = Rule { split, ..on_gpu };
        let uses_npu = placed.devices().any(|d| d == self.npu.name);
        placed.row_buckets = (uses_npu && self.npu.static_shapes).then_some(lengths);
        placed
    }

    fn ns(&self, on: &Processor, graph: &Subgraph, at: At<'_>) -> f64 {
        let prices = Prices::new(self.soc, on);
        let run =
            |rows, room| prices.run(graph, PricedRows { rows, room, cached: at.cached }).ns as f64;
        if !on.static_shapes {
            return run(at.rows, at.rows);
        }
        let (mut left, mut sum) = (at.rows, 0.0);
        while left > 0 {
            let fits = at.lengths.iter().find(|n| **n >= left).or(at.lengths.last());
            let room = fits.copied().unwrap_or(left);
            sum += run(left.min(room), room);
            left = left.saturating_sub(room);
        }
        sum
    }

    /// The fastest way to compute a stage.
    fn best(&self, graph: &Subgraph, lengths: &[usize], phase: Phase) -> Placed {
        let (rows, cached) = match phase {
            Phase::Prefill => (self.prompt, 0),
            Phase::Decode => (1, self.prompt),
        };
        let at = At { rows, cached, lengths };
        let whole = |ns, p: &Processor| Placed { ns, device: p.name.clone(), split: None };
        let gpu = whole(self.ns(self.gpu, graph, at), self.gpu);
        if !graph.nodes.iter().all(|n| matches!(n.op, Op::Linear { .. })) {
            return gpu;
        }
        let npu = whole(self.ns(self.npu, graph, at) + self.sync_ns(), self.npu);
        let mut all = vec![gpu, npu];
        if self.ways == Ways::Rows {
            all.remove(0);
        } else {
            all.extend(RATIOS.iter().filter_map(|ratio| self.columns(graph, at, *ratio)));
        }
        if phase == Phase::Prefill {
            for i in 0..lengths.len() {
                all.extend(self.by_rows(graph, at, &lengths[i..]));
            }
        }
        let none = whole(f64::INFINITY, self.gpu);
        all.into_iter().fold(none, |best, one| if one.ns < best.ns { one } else { best })
    }

    /// What it costs that two processors work on one stage: both wait for each other.
    fn sync_ns(&self) -> f64 {
        let of = |p: &Processor| match self.sync {
            SyncMode::Predicted => p.hand_over.predicted_ns,
            SyncMode::Blocking => p.hand_over.blocking_ns,
        };
        (of(self.gpu) + of(self.npu) + self.gpu.submit_ns + self.npu.submit_ns) as f64
    }

    fn parts(&self, (gpu, npu): (u32, u32)) -> Vec<Share> {
        let share = |p: &Processor, share| Share { device: p.name.clone(), share };
        vec![share(self.gpu, gpu), share(self.npu, npu)]
    }

    /// What each of both processors computes of a stage that is split by columns.
    fn parts_ns(&self, graph: &Subgraph, at: At<'_>, (gpu, npu): (u32, u32)) -> Option<[f64; 2]> {
        let split = ColumnSplit { shares: vec![gpu, npu], tile: TILE, groups: None };
        let partitioned = split_columns(graph, &split).ok()?;
        let mut sums = [0.0; 2];
        for piece in partitioned.stages.iter().flat_map(|s| &s.pieces) {
            let on = if piece.part == 0 { self.gpu } else { self.npu };
            *sums.get_mut(piece.part)? += self.ns(on, &piece.graph, at);
        }
        Some(sums)
    }

    fn columns(&self, graph: &Subgraph, at: At<'_>, ratio: (u32, u32)) -> Option<Placed> {
        let [gpu, npu] = self.parts_ns(graph, at, ratio)?;
        let device = if ratio.0 > ratio.1 { &self.gpu.name } else { &self.npu.name };
        let split = Some(Split::Columns { parts: self.parts(ratio) });
        Some(Placed { ns: gpu.max(npu) + self.sync_ns(), device: device.clone(), split })
    }

    /// Standard lengths on the NPU, the rest on the GPU or by columns.
    fn by_rows(&self, graph: &Subgraph, at: At<'_>, lengths: &[usize]) -> Vec<Placed> {
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
        let (sync, rest) = (self.sync_ns(), At { rows: left, ..at });
        let placed = |ns: f64, split| Placed {
            ns: ns + sync,
            device: self.npu.name.clone(),
            split: Some(split),
        };
        let own = || lengths.to_vec();
        let gpu = self.ns(self.gpu, graph, rest);
        let split = Split::Rows { lengths: own(), rest: self.gpu.name.clone() };
        let mut all = vec![placed(standard.max(gpu), split)];
        let ratios = if self.ways == Ways::Rows { &[][..] } else { &RATIOS };
        for &ratio in ratios {
            let Some([gpu, npu]) = self.parts_ns(graph, rest, ratio) else { continue };
            let split = Split::Hybrid { lengths: own(), parts: self.parts(ratio) };
            all.push(placed((standard + npu).max(gpu), split));
        }
        all
    }
}

/// Rows of a stage, cached positions before them, and the lengths that code is made for.
#[derive(Clone, Copy)]
struct At<'a> {
    rows: usize,
    cached: usize,
    lengths: &'a [usize],
}

/// Columns are cut at multiples of so many.
const TILE: usize = 16;

/// Aligned ratios of columns, GPU to NPU.
const RATIOS: [(u32, u32); 9] =
    [(4, 1), (3, 1), (2, 1), (3, 2), (1, 1), (2, 3), (1, 2), (1, 3), (1, 4)];
