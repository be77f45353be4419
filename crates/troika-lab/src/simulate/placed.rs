//! Plans for the processors of a SoC. Where a strategy leaves a choice, each kind of segment is
//! placed as the solver places it by the SoC's prices, with the partitions of HeteroInfer only.

use std::sync::Arc;

use troika::sim::{Board, Processor, ProcessorKind, Soc, VirtualDevice};
use troika_device::{Device, DeviceError};
use troika_graph::partition::cut_at;
use troika_graph::{DType, Op, Subgraph};
use troika_model::lower::{
    Lowered, ModelPart, Segment, SegmentKind, WeightShapes, segment_kinds, segments,
};
use troika_model::spec::ModelSpec;
use troika_plan::{
    Decode, Dispatch, EXPERT_GROUP, ExpertPolicy, ExpertSettings, Layers, ModelId, PLAN_VERSION,
    Phase, Plan, PlanDevice, PlanRequest, Policy, Prefill, Rule, Strategy, SyncMode, expert_chunk,
    make, page_len, stage_borders,
};
use troika_solve::{
    CostModel, InStages, PredictRequest, PricedRun, StagedRequest, Ways, attention_pays,
    expert_bytes,
};

use super::{Result, SimulateError, SocStrategy};
use troika::SocCosts;

/// The most rows of a chunk.
pub(super) const MOST_ROWS: usize = 1 << 16;

/// Rows of a chunk (llm.npu, section 3.2).
pub(crate) const CHUNK: usize = 256;

/// Devices, and the SoC they belong to.
type OnBoard = (Vec<Arc<dyn Device>>, Arc<Board>);

/// All processors of a SoC. They share its memory and a clock.
///
/// # Errors
/// The CPU kernels that compute their values cannot be set up.
pub(crate) fn on_board(soc: &Soc) -> Result<OnBoard, DeviceError> {
    let board = Board::new(soc, Arc::default());
    let open =
        |p: &Processor| Ok(Arc::new(VirtualDevice::on(&board, &p.name, p)?) as Arc<dyn Device>);
    let devices = soc.processors.iter().map(open).collect::<Result<_, DeviceError>>()?;
    Ok((devices, board))
}

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
    /// All processors.
    pub devices: &'a [PlanDevice],
}

/// The plan of a strategy.
///
/// # Errors
/// The SoC lacks a processor that it needs.
pub(super) fn plan(r: &Request<'_>) -> Result<Plan> {
    if let SocStrategy::Experts(policy, dispatch) = r.strategy {
        return experts(r, policy, dispatch, false);
    }
    let (prefill, decode) = rules(r)?;
    let mut devices: Vec<String> = Vec::new();
    for name in prefill.iter().chain(&decode).flat_map(Rule::devices) {
        if !devices.iter().any(|d| d == name) {
            devices.push(name.to_string());
        }
    }
    let widest = r.lowered.states.iter().map(|s| s.row_bytes()).max().unwrap_or(0);
    let limits = r.soc.processors.iter().filter_map(|p| p.max_binding_bytes);
    let in_chunks = r.strategy == SocStrategy::ChunkedPrefill;
    Ok(Plan {
        version: PLAN_VERSION,
        model: ModelId::of(r.spec),
        strategy: r.strategy.name().into(),
        context: r.context,
        page_len: page_len(widest, limits),
        kv_dtype: DType::F16,
        devices,
        sync: r.sync,
        npu_rewrites: Vec::new(),
        expert_caches: Vec::new(),
        prefill: Prefill {
            chunk: if in_chunks { r.prompt.min(CHUNK) } else { r.prompt },
            chunks_in_flight: 1,
            policy: Policy::InOrder,
            critical_device: None,
            rules: prefill,
            lengths: Vec::new(),
        },
        decode: Decode { rules: decode },
        calibration: None,
        predicted: None,
    })
}

/// The same, where experts in groups leave attention to the processor that is faster with it.
pub(super) fn fastest(
    r: &Request<'_>,
    shapes: WeightShapes<'_>,
    devices: &[Arc<dyn Device>],
) -> Result<Plan> {
    let here = plan(r)?;
    let SocStrategy::Experts(policy, dispatch) = r.strategy else { return Ok(here) };
    // It may have no room for attention.
    let Ok(there) = experts(r, policy, dispatch, true) else { return Ok(here) };
    let refusals = troika_engine::examine(r.spec, shapes, &there, devices)?;
    let cost = &SocCosts::of(r.soc, r.devices);
    let (lowered, devices, prompt, generate) = (r.lowered, r.devices, r.prompt, 0);
    let request = PredictRequest { lowered, devices, cost, prompt, generate };
    let pays = attention_pays(&request, &refusals, [&here, &there]).map_err(troika::Error::Plan)?;
    Ok(if pays { there } else { here })
}

/// A prompt's experts in groups on the NPU, and its attention if that is asked for; all else on the
/// CPU.
fn experts(
    r: &Request<'_>,
    policy: ExpertPolicy,
    dispatch: Dispatch,
    attention: bool,
) -> Result<Plan> {
    if !segments(r.spec).iter().any(|(kind, _)| kind.traits().by_experts) {
        let (strategy, model) = (r.strategy.name(), ModelId::of(r.spec));
        return Err(SimulateError::Impossible(format!(
            "strategy {strategy} shares experts out, and {model} has none; name another strategy"
        )));
    }
    let of = |kind| r.strategy.processor(r.soc, kind);
    let [cpu, npu] = [of(ProcessorKind::Cpu)?, of(ProcessorKind::Npu)?];
    if npu.refused.contains(&EXPERT_GROUP) {
        return Err(SimulateError::Impossible(format!(
            "strategy {} has groups of experts on {}, which takes none; let it take expert_group (in \
             its SoC's file: only, or refuses)",
            r.strategy.name(),
            npu.name
        )));
    }
    let devices = named(r.devices, [cpu, npu]);
    let chunk = expert_chunk(r.prompt).min(r.prompt);
    let request = PlanRequest {
        strategy: Strategy::Experts(policy),
        context: Some(r.context),
        chunk,
        // Buffers gather the rows of a whole prompt.
        chunks_in_flight: (dispatch == Dispatch::LayerMajor).then(|| r.prompt.div_ceil(chunk)),
        sync: r.sync,
        kv_dtype: Some(DType::F16),
        experts: ExpertSettings {
            dispatch,
            attention,
            stored_bytes: expert_bytes(r.lowered),
            ..ExpertSettings::default()
        },
        ..PlanRequest::default()
    };
    let plan = make(r.spec, &devices, &request).map_err(troika::Error::Plan)?;
    Ok(Plan { strategy: r.strategy.name().into(), ..plan })
}

/// Processors as plans see them.
fn named(all: &[PlanDevice], of: [&Processor; 2]) -> Vec<PlanDevice> {
    let find = |p: &Processor| all.iter().find(|d| d.name == p.name).cloned();
    of.into_iter().filter_map(find).collect()
}

type Rules = (Vec<Rule>, Vec<Rule>);

fn rules(r: &Request<'_>) -> Result<Rules> {
    use SocStrategy as S;
    let of = |kind| r.strategy.processor(r.soc, kind);
    let all_on = |p: &Processor| vec![rule(None, &p.name)];
    if r.strategy == S::CpuOnly {
        let cpu = of(ProcessorKind::Cpu)?;
        return Ok((all_on(cpu), all_on(cpu)));
    }
    if r.strategy == S::GpuOnly {
        let gpu = of(ProcessorKind::Gpu)?;
        return Ok((all_on(gpu), all_on(gpu)));
    }
    let ways = if r.strategy == S::ActivationCentric { Ways::Rows } else { Ways::All };
    let both = Both::of(r.soc, r.devices, r.prompt, ways)?;
    let gpu = both.gpu;
    let standard = &both.npu.row_buckets;
    Ok(match r.strategy {
        S::HeteroTensor => (both.shared(r, Phase::Prefill), both.shared(r, Phase::Decode)),
        S::ActivationCentric => (both.shared(r, Phase::Prefill), all_on(gpu)),
        S::OnlinePrepare => (both.layers(r, &[r.prompt]), all_on(gpu)),
        S::NpuPipe => (both.layers(r, &both.parts(r)), all_on(gpu)),
        S::ChunkedPrefill => (both.layers(r, &[CHUNK]), all_on(gpu)),
        S::NpuOnly => (both.layers(r, standard), both.layers(r, &[1])),
        _ => (both.layers(r, standard), all_on(gpu)),
    })
}

fn rule(segments: Option<Vec<SegmentKind>>, device: &str) -> Rule {
    Rule { segments, ..Rule::on(device) }
}

/// Whether both processors compute products of this kind of segment.
fn is_shared(kind: SegmentKind) -> bool {
    kind.traits().by_columns && kind.traits().by_rows
}

/// A GPU and an NPU that share products. A CPU stands in for the GPU where there is none.
pub(super) struct Both<'a> {
    soc: &'a Soc,
    /// Tokens of the prompt.
    prompt: usize,
    /// The ways to choose from.
    ways: Ways,
    /// The GPU, then the NPU.
    devices: Vec<PlanDevice>,
    pub gpu: &'a Processor,
    pub npu: &'a Processor,
}

impl<'a> Both<'a> {
    /// The GPU, or else the CPU, and the NPU of a SoC.
    ///
    /// # Errors
    /// The SoC lacks one of them.
    pub fn of(soc: &'a Soc, devices: &[PlanDevice], prompt: usize, ways: Ways) -> Result<Both<'a>> {
        let of = |kind| SocStrategy::HeteroTensor.processor(soc, kind);
        let gpu = of(ProcessorKind::Gpu).or_else(|e| of(ProcessorKind::Cpu).map_err(|_| e))?;
        let npu = of(ProcessorKind::Npu)?;
        Ok(Both { soc, prompt, ways, devices: named(devices, [gpu, npu]), gpu, npu })
    }

    /// The fastest placement of a graph's stages.
    pub fn best(&self, kind: SegmentKind, graph: &Subgraph, phase: Phase) -> Option<InStages> {
        let prefill = phase == Phase::Prefill;
        let (rows, cached) = if prefill { (self.prompt, 0) } else { (1, self.prompt) };
        let request = StagedRequest {
            kind,
            graph,
            rows,
            cached,
            prefill,
            devices: &self.devices,
            cost: &SocCosts::of(self.soc, &self.devices),
            // Always placed for predicted waits, so that the way of waiting can be varied apart.
            sync: SyncMode::Predicted,
        };
        request.best(0, 1, self.ways)
    }

    /// The standard lengths that make a prompt's products fastest on the NPU alone.
    fn parts(&self, r: &Request<'_>) -> Vec<usize> {
        let all = &self.npu.row_buckets;
        let products = SegmentKind::ALL.into_iter().filter(|k| is_shared(*k));
        let segment = |kind| r.lowered.segments.iter().find(|s| s.kind == kind);
        let cut = |s: &Segment| cut_at(&s.graph, &stage_borders(&s.graph)).unwrap_or_default();
        let stages = products.filter_map(segment).flat_map(cut).map(|piece| piece.graph);
        let is_product = |g: &Subgraph| g.nodes.iter().all(|n| matches!(n.op, Op::Linear { .. }));
        let stages: Vec<Subgraph> = stages.filter(is_product).collect();
        let cost: &dyn CostModel = &SocCosts::new(self.soc, vec![self.npu]);
        let mut forms = self.devices.iter().map(|d| &d.caps.forms[..]);
        let forms = forms.find(|forms| !forms.is_empty()).unwrap_or_default();
        let ns = |lengths: &[usize]| {
            let (mut left, mut sum) = (self.prompt, 0.0);
            while left > 0 {
                let fits = lengths.iter().find(|n| **n >= left).or(lengths.last());
                let room = fits.copied().unwrap_or(left);
                let (kind, rows, cached) = (SegmentKind::Ffn, left.min(room), self.prompt - left);
                for graph in &stages {
                    let run = PricedRun { device: 0, kind, graph, rows, room, cached };
                    sum += cost.formed_ns(&run, forms);
                }
                left = left.saturating_sub(room);
            }
            sum
        };
        let sets = (1..=all.len()).rev().map(|n| &all[..n]);
        let best =
            sets.chain(all.iter().map(std::slice::from_ref)).min_by(|a, b| ns(a).total_cmp(&ns(b)));
        best.map_or_else(Vec::new, <[usize]>::to_vec)
    }

    /// Products on the NPU, in parts of some lengths; everything else on the GPU.
    fn layers(&self, r: &Request<'_>, lengths: &[usize]) -> Vec<Rule> {
        let (products, others): (Vec<_>, Vec<_>) =
            segment_kinds(r.spec).into_iter().partition(|k| is_shared(*k));
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
            if !is_shared(kind)
                && (kind.traits().part != ModelPart::Head || phase == Phase::Prefill)
            {
                return vec![rule(Some(vec![kind]), &self.gpu.name)];
            }
            self.by_stages(r, kind, phase)
        };
        segment_kinds(r.spec).into_iter().flat_map(place).collect()
    }

    /// Rules for a kind of segment with shared products. Where layers have different numbers of
    /// stages, there is one rule for each run of equal layers.
    fn by_stages(&self, r: &Request<'_>, kind: SegmentKind, phase: Phase) -> Vec<Rule> {
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

    /// A rule for a segment with shared products.
    fn staged(&self, kind: SegmentKind, graph: &Subgraph, phase: Phase) -> Rule {
        let on_gpu = rule(Some(vec![kind]), &self.gpu.name);
        let Some(best) = self.best(kind, graph, phase) else { return on_gpu };
        let InStages { device, split, row_buckets, .. } = best;
        let placed = Rule { device, split, ..on_gpu };
        let uses_npu = placed.devices().any(|d| d == self.npu.name);
        Rule { row_buckets: row_buckets.filter(|_| uses_npu), ..placed }
    }
}
