//! Experts shared out over devices give the bits of one device, whatever groups, capacities and
//! chunks there are.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use conformance::golden::read_golden;
use troika::device::{Device, RealClock};
use troika::engine::{Engine, EngineError, EngineParts, SequenceInput, Sharing, WantedLogits};
use troika::graph::DType;
use troika::model::lower::{SegmentKind, segments};
use troika::plan::{
    DeviceFacts, Dispatch, ExpertGroupPlan, ExpertSplit, Overflow, Plan, PlanRequest, Rule, Split,
    Strategy, make,
};
use troika::trace::Tracer;
use troika::weights::FloatType;
use troika::{Described, describe};
use troika_cpu::{CpuDevice, CpuOptions};

fn model_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn cpus(names: &[&str]) -> Vec<Arc<dyn Device>> {
    let device = |name: &&str| {
        let options = CpuOptions { name: (*name).into(), threads: 1, ..CpuOptions::default() };
        Arc::new(CpuDevice::new(options).unwrap()) as Arc<dyn Device>
    };
    names.iter().map(device).collect()
}

fn engine(d: &Described, devices: &[Arc<dyn Device>], plan: Plan) -> Result<Engine, EngineError> {
    Engine::new(EngineParts {
        spec: &d.spec,
        shapes: &|key| d.store.shape(key),
        weights: &d.store,
        plan,
        devices,
        clock: Arc::new(RealClock::new()),
        tracer: Tracer::off(),
        sharing: Sharing::default(),
    })
}

/// A plan of the first device in chunks of `chunk` rows.
fn plain(d: &Described, devices: &[Arc<dyn Device>], chunk: usize) -> Plan {
    let facts: Vec<DeviceFacts> = devices[..1].iter().map(|d| DeviceFacts::of(&**d)).collect();
    let request = PlanRequest {
        strategy: Strategy::OneDevice,
        chunk,
        kv_dtype: Some(DType::F32),
        activations: Some(Vec::new()),
        ..PlanRequest::default()
    };
    make(&d.spec, &facts, &request).unwrap()
}

/// The same plan with the experts of prompts shared out.
fn shared(d: &Described, plan: &Plan, in_flight: usize, split: &ExpertSplit) -> Plan {
    let mut plan = plan.clone();
    let all = plan.prefill.rules[0].clone();
    let has = |kind: &SegmentKind| segments(&d.spec).iter().any(|(k, _)| k == kind);
    let others = SegmentKind::ALL.into_iter().filter(|k| has(k) && *k != SegmentKind::Experts);
    let segments = |kinds: Vec<SegmentKind>| Rule { segments: Some(kinds), ..all.clone() };
    let split_experts =
        Rule { split: Some(Split::Experts(split.clone())), ..segments(vec![SegmentKind::Experts]) };
    plan.prefill.rules = vec![segments(others.collect()), split_experts];
    plan.prefill.chunks_in_flight = in_flight;
    let used = split.groups.iter().map(|g| g.device.clone());
    let mut devices: Vec<String> = plan.devices.iter().cloned().chain(used).collect();
    devices.dedup();
    devices.sort_unstable();
    devices.dedup();
    plan.devices = devices;
    plan
}

fn logits(e: &mut Engine, ids: &[u32]) -> Vec<f32> {
    let seq = e.open();
    let mut out = Vec::new();
    let input = SequenceInput { seq, tokens: ids, logits: WantedLogits::All };
    e.run(&[input], &mut |_, _, row| out.extend_from_slice(row)).unwrap();
    e.close(seq);
    out
}

fn group(device: &str, experts: &[usize], capacity: usize) -> ExpertGroupPlan {
    ExpertGroupPlan { device: device.into(), experts: experts.to_vec(), capacity }
}

#[test]
fn experts_on_another_device_give_the_same_bits() {
    for name in ["mixtral", "qwen3-moe", "gpt-oss", "qwen2-moe"] {
        let d = describe(&model_dir(name), FloatType::F32).unwrap();
        let ids = read_golden(&model_dir(name).join("golden.safetensors")).unwrap().input_ids;
        let devices = cpus(&["a", "b"]);
        for values in [DType::F32, DType::BF16, DType::F16] {
            for chunk in [5, 64] {
                let mut one = plain(&d, &devices, chunk);
                one.prefill.rules.iter_mut().for_each(|r| r.values = values);
                let expected = logits(&mut engine(&d, &devices, one.clone()).unwrap(), &ids);
                for dispatch in Dispatch::ALL {
                    for (in_flight, capacity) in [(1, 1), (1, 3), (2, 3), (4, 64)] {
                        let groups =
                            vec![group("b", &[1, 0], capacity), group("b", &[3], capacity)];
                        let split = ExpertSplit { groups, overflow: Overflow::Cpu, dispatch };
                        let plan = shared(&d, &one, in_flight, &split);
                        let mut e = engine(&d, &devices, plan).unwrap();
                        // Twice, since the memory is not new the second time.
                        for _ in 0..2 {
                            let same = logits(&mut e, &ids) == expected;
                            let how = (values, chunk, dispatch, in_flight, capacity);
                            assert!(same, "{name}: other bits with {how:?}");
                        }
                    }
                }
            }
        }
    }
}
