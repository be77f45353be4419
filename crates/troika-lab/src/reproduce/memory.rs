//! Llm.npu's claim of an NPU that reaches a part of the memory only (section 3.5).

use std::sync::Arc;

use troika::SocCosts;
use troika::graph::{DType, WeightDecl};
use troika::model::lower::{LowerOptions, SegmentKind, lower};
use troika::plan::{Phase, Plan, PlanDevice, PlanRequest, Policy, Strategy, make};
use troika::sim::Soc;
use troika::solve::{Forms, MadePlan, MakeRequest, held_weights, make_within_memory};
use troika::weights::Quant;
use troika_device::Device;

use super::lab::{Lab, Phone};
use super::outcome::Outcome;
use super::presets;
use crate::simulate::on_board;
use crate::{Result, Shape, SimulateOptions, Simulation, SocStrategy};

/// What the NPU reaches, and the claim's prompt and chunk.
const HOLDS: u64 = 4 << 30;
const PROMPT: usize = 1024;
const CHUNK: usize = 256;

pub fn feed_forwards_first(lab: &mut Lab) -> Result<Outcome> {
    let shape = Shape::find(presets::B7, DType::Q8_0)?;
    let mut soc = lab.soc(Phone::Gen3);
    for processor in soc.processors.iter_mut().filter(|p| p.name == "npu") {
        processor.max_resident_bytes = Some(HOLDS);
    }
    let mut ours = Vec::new();
    let mut pass = true;
    // Llm.npu has its CPU compute the rest. The GPU's figure is for comparison.
    for other in ["cpu", "gpu"] {
        let [ffn, attention] = [false, true].map(|first| placed(&soc, &shape, other, first));
        let (ffn, attention) = (ffn?, attention?);
        // No other feed-forward fits, and attention has less than its room.
        let rest = ffn.attention as u64 * ffn.of_attention;
        let full = ffn.held + ffn.of_ffn > HOLDS && rest < ffn.of_ffn;
        let (set, changed) = (ffn.describe(), 100.0 * (ffn.ms / attention.ms - 1.0));
        let than = attention.describe();
        ours.push(format!("rest on {other}: {set}, {changed:+.1} % of the time of {than}"));
        pass &= full && (other != "cpu" || changed < 0.0);
    }
    let note = "On the phone of HeteroInfer: llm.npu's has no file yet. Bytes of weights and \
                operations are in proportion, so the rest takes as long whatever it is; here the CPU \
                has a little more of it feed-forwards first, since the last one that is whole leaves \
                room.";
    let ours = ours.join("; ");
    Ok(Outcome::words("feed-forwards only until full, and faster", ours, pass).noted(note))
}

/// A plan within the memory, and its time.
struct Placed {
    held: u64,
    /// Layers whose feed-forwards and whose attention products are on the NPU, and their bytes.
    ffn: usize,
    attention: usize,
    of_ffn: u64,
    of_attention: u64,
    ms: f64,
}

impl Placed {
    fn describe(&self) -> String {
        let Placed { ffn, attention, ms, .. } = self;
        let gb = self.held as f64 / 1e9;
        format!("{ffn} feed-forwards and {attention} attentions ({gb:.2} GB, {ms:.0} ms)")
    }
}

fn placed(soc: &Soc, shape: &Shape, other: &str, attention_first: bool) -> Result<Placed> {
    let (all, _) = on_board(soc)?;
    let named = |name| all.iter().filter(move |d| d.name() == name).cloned();
    let opened: Vec<Arc<dyn Device>> = ["npu", other].into_iter().flat_map(named).collect();
    let devices: Vec<PlanDevice> = opened.iter().map(PlanDevice::of).collect();
    let store = shape.lazy_weights(Quant::None);
    let bounds = LowerOptions { max_rows: CHUNK, max_kv: PROMPT + 1, kv_dtype: DType::F16 };
    let lowered = lower(&shape.spec, &|key| store.shape(key), bounds)?;
    let base = PlanRequest {
        strategy: Strategy::PrefillDecode,
        context: Some(PROMPT + 1),
        chunk: CHUNK,
        policy: Some(Policy::OutOfOrder),
        kv_dtype: Some(DType::F16),
        row_buckets: Some(vec![CHUNK]),
        ..PlanRequest::default()
    };
    let lowered = &lowered.into();
    let (spec, devices, base) = (&shape.spec, &devices, &base);
    let whole = make(spec, devices, base).map_err(troika::Error::from)?;
    let refusals = &troika_engine::examine(spec, &|key| store.shape(key), &whole, &opened)
        .map_err(troika::Error::from)?;
    let request = MakeRequest { spec, lowered, devices, refusals, base, attention_first };
    let MadePlan { mut plan, .. } = make_within_memory(&request).map_err(troika::Error::from)?;
    plan.avoid(refusals, &["npu", other]).map_err(troika::Error::from)?;
    Forms::new(lowered, devices, &SocCosts::of(soc, devices)).choose(&mut plan);
    let held = held_weights(&plan, lowered, devices).map_err(troika::Error::from)?[0].held;
    let on = |kind| layers(&plan, kind);
    let bytes = |kinds: &[SegmentKind]| -> u64 {
        let of_layer = lowered.segments.iter().filter(|s| s.layer == Some(0));
        let weights = of_layer.filter(|s| kinds.contains(&s.kind)).flat_map(|s| &s.graph.weights);
        weights.map(WeightDecl::bytes).sum()
    };
    let (ffn, attention) = (on(SegmentKind::Ffn), on(SegmentKind::Qkv));
    let of_ffn = bytes(&[SegmentKind::Ffn]);
    let of_attention = bytes(&[SegmentKind::Qkv, SegmentKind::AttnOut]);
    let options = SimulateOptions::new(soc.clone(), shape.clone(), SocStrategy::NpuOnly, PROMPT);
    let options = SimulateOptions { plan: Some(plan), ..options };
    let ms = Simulation::open(&options)?.run(&mut |_, _| ())?.ttft_ms();
    Ok(Placed { held, ffn, attention, of_ffn, of_attention, ms })
}

/// Layers whose segments of a kind the NPU computes for prompts.
fn layers(plan: &Plan, kind: SegmentKind) -> usize {
    let rule = |layer: &usize| plan.rule(Phase::Prefill, kind, Some(*layer));
    let on_npu = |layer: &usize| rule(layer).is_some_and(|r| r.device == "npu");
    (0..plan.model.layers).filter(on_npu).count()
}
