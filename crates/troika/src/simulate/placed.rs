//! Plans for the processors of a SoC. Where a strategy leaves a choice, each kind of segment is
//! placed in the way that the prices of the SoC's file make fastest, by itself: HeteroInfer's
//! equation of section 4.4, `max(T_GPU, T_NPU) + T_sync` against either alone.

use troika_graph::{DType, Subgraph};
use troika_model::lower::{Lowered, SegmentKind, segments};
use troika_model::spec::ModelSpec;
use troika_plan::{
    Decode, ModelId, PLAN_VERSION, Phase, Plan, Policy, Prefill, Rule, Share, Split, SyncMode,
};
use troika_sim::{PricedRows, Prices, Processor, ProcessorKind, Soc};

use super::{SimulateError, SocStrategy};

/// Most rows of a chunk.
pub(super) const MOST_ROWS: usize = 1 << 16;
/// Positions of a page.
const PAGE_LEN: usize = 32;

/// What a plan is made of.
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
    Ok(Plan {
        version: PLAN_VERSION,
        model: ModelId::of(r.spec),
        strategy: r.strategy.name().into(),
        context: r.context,
        page_len: PAGE_LEN,
        kv_dtype: DType::F16,
        devices,
        sync: r.sync,
        prefill: Prefill {
            chunk: r.prompt,
            chunks_in_flight: 1,
            policy: Policy::InOrder,
            critical_device: None,
            rules: prefill,
        },
        decode: Decode { rules: decode },
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
    let both = Both { r, gpu, npu: of(ProcessorKind::Npu)? };
    let standard = &both.npu.row_buckets;
    let shortest = standard.first().map_or(r.prompt, |n| *n);
    Ok(match r.strategy {
        S::HeteroTensor => (both.shared(Phase::Prefill), both.shared(Phase::Decode)),
        S::OnlinePrepare => (both.layers(&[r.prompt]), all_on(gpu)),
        S::NpuPipe => (both.layers(&[shortest]), all_on(gpu)),
        S::NpuOnly => (both.layers(standard), both.layers(&[1])),
        _ => (both.layers(standard), all_on(gpu)),
    })
}

fn rule(segments: Option<Vec<SegmentKind>>, device: &str) -> Rule {
    Rule {
        segments,
        layers: None,
        device: device.into(),
        split: None,
        refused: Vec::new(),
        values: DType::F16,
        row_buckets: None,
        activations: Vec::new(),
    }
}

/// Segments of products that both processors compute.
fn is_shared(kind: SegmentKind) -> bool {
    matches!(kind, SegmentKind::Qkv | SegmentKind::AttnOut | SegmentKind::Ffn)
}

struct Both<'a> {
    r: &'a Request<'a>,
    gpu: &'a Processor,
    npu: &'a Processor,
}

/// One way to place a segment.
struct Placed {
    /// Nanoseconds that its products take at most.
    ns: f64,
    device: String,
    split: Option<Split>,
}

impl Both<'_> {
    fn kinds(&self) -> Vec<SegmentKind> {
        let of_model = segments(self.r.spec);
        SegmentKind::ALL.into_iter().filter(|k| of_model.iter().any(|s| s.0 == *k)).collect()
    }

    /// Products on the NPU, in parts of some lengths; all else on the GPU.
    fn layers(&self, lengths: &[usize]) -> Vec<Rule> {
        let (products, others): (Vec<_>, Vec<_>) =
            self.kinds().into_iter().partition(|k| is_shared(*k));
        let mut rules = vec![rule(Some(others), &self.gpu.name)];
        if !products.is_empty() {
            let row_buckets = (!lengths.is_empty()).then(|| lengths.to_vec());
            rules.push(Rule { row_buckets, ..rule(Some(products), &self.npu.name) });
        }
        rules
    }

    /// Each kind of segment where it is fastest.
    fn shared(&self, phase: Phase) -> Vec<Rule> {
        let place = |kind: SegmentKind| {
            let splits = is_shared(kind) || (kind == SegmentKind::Head && phase == Phase::Decode);
            let graph = self.r.lowered.segments.iter().find(|s| s.kind == kind);
            let best = graph.filter(|_| splits).map(|s| self.best(&s.graph, phase));
            let Some(Placed { device, split, .. }) = best else {
                return rule(Some(vec![kind]), &self.gpu.name);
            };
            let mut placed = Rule { split, ..rule(Some(vec![kind]), &device) };
            let uses_npu = placed.devices().any(|d| d == self.npu.name);
            let lengths =
                if phase == Phase::Decode { vec![1] } else { self.npu.row_buckets.clone() };
            placed.row_buckets = (uses_npu && self.npu.static_shapes).then_some(lengths);
            placed
        };
        self.kinds().into_iter().map(place).collect()
    }

    fn ns(&self, on: &Processor, graph: &Subgraph, (rows, cached): (usize, usize)) -> f64 {
        let room = if on.static_shapes { self.room(rows, cached) } else { rows };
        let rows = PricedRows { rows, room, cached };
        Prices::new(self.r.soc, on).run(graph, rows).ns as f64
    }

    /// Rows of the code that computes some rows, in parts where they are more than the longest.
    fn room(&self, rows: usize, cached: usize) -> usize {
        let all = &self.npu.row_buckets;
        let fits = all.iter().copied().find(|n| *n >= rows);
        match fits.or(all.last().map(|n| rows.div_ceil(*n) * n)) {
            Some(room) if cached == 0 => room,
            _ => rows,
        }
    }

    /// The fastest way to compute a segment's products.
    fn best(&self, graph: &Subgraph, phase: Phase) -> Placed {
        let at = match phase {
            Phase::Prefill => (self.r.prompt, 0),
            Phase::Decode => (1, self.r.prompt),
        };
        let (gpu, npu) = (self.ns(self.gpu, graph, at), self.ns(self.npu, graph, at));
        let sync = self.sync_ns();
        let whole = |ns, p: &Processor| Placed { ns, device: p.name.clone(), split: None };
        let mut all = vec![whole(gpu, self.gpu), whole(npu + sync, self.npu)];
        all.extend(RATIOS.map(|parts| self.columns((gpu, npu), sync, parts)));
        if phase == Phase::Prefill {
            for (i, _) in self.npu.row_buckets.iter().enumerate() {
                all.extend(self.by_rows(graph, &self.npu.row_buckets[i..], sync));
            }
        }
        let first = whole(f64::INFINITY, self.gpu);
        all.into_iter().fold(first, |best, one| if one.ns < best.ns { one } else { best })
    }

    /// What it costs that two processors work on one segment: both wait for each other.
    fn sync_ns(&self) -> f64 {
        let of = |p: &Processor| match self.r.sync {
            SyncMode::Predicted => p.hand_over.predicted_ns,
            SyncMode::Blocking => p.hand_over.blocking_ns,
        };
        (of(self.gpu) + of(self.npu) + self.gpu.submit_ns + self.npu.submit_ns) as f64
    }

    fn parts(&self, (gpu, npu): (u32, u32)) -> Vec<Share> {
        let share = |p: &Processor, share| Share { device: p.name.clone(), share };
        vec![share(self.gpu, gpu), share(self.npu, npu)]
    }

    fn columns(&self, (gpu, npu): (f64, f64), sync: f64, ratio: (u32, u32)) -> Placed {
        let parts = self.parts(ratio);
        let all = f64::from(ratio.0 + ratio.1);
        let ns = (gpu * f64::from(ratio.0) / all).max(npu * f64::from(ratio.1) / all) + sync;
        let device = if ratio.0 > ratio.1 { &self.gpu.name } else { &self.npu.name };
        Placed { ns, device: device.clone(), split: Some(Split::Columns { parts }) }
    }

    /// Standard lengths on the NPU, the rest on the GPU or by columns.
    fn by_rows(&self, graph: &Subgraph, lengths: &[usize], sync: f64) -> Vec<Placed> {
        let mut left = self.r.prompt;
        let mut standard = 0.0;
        for length in lengths.iter().rev() {
            let count = left / length;
            standard += count as f64 * self.ns(self.npu, graph, (*length, 0));
            left -= count * length;
        }
        if left == 0 || left == self.r.prompt {
            return Vec::new();
        }
        let rest = (self.ns(self.gpu, graph, (left, 0)), self.ns(self.npu, graph, (left, 0)));
        let lengths = lengths.to_vec();
        let device = self.npu.name.clone();
        let split = Split::Rows { lengths: lengths.clone(), rest: self.gpu.name.clone() };
        let ns = standard.max(rest.0) + sync;
        let mut all = vec![Placed { ns, device: device.clone(), split: Some(split) }];
        for ratio in RATIOS {
            let (gpu, npu, whole) =
                (f64::from(ratio.0), f64::from(ratio.1), f64::from(ratio.0 + ratio.1));
            let npu = standard + rest.1 * npu / whole;
            let ns = npu.max(rest.0 * gpu / whole) + sync;
            let parts = self.parts(ratio);
            let split = Some(Split::Hybrid { lengths: lengths.clone(), parts });
            all.push(Placed { ns, device: device.clone(), split });
        }
        all
    }
}

/// Aligned ratios of columns, GPU to NPU.
const RATIOS: [(u32, u32); 9] =
    [(4, 1), (3, 1), (2, 1), (3, 2), (1, 1), (2, 3), (1, 2), (1, 3), (1, 4)];
