//! Any valid plan computes bit-identical results to one device.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use setup::engines::{self, EngineOptions};
use setup::{cpu, described, golden, golden_dir, in_f32, plan_of};
use troika::device::{Device, Waiting};
use troika::engine::{Engine, EngineError, SeqId, SequenceInput, Sharing, WantedLogits};
use troika::graph::{ActivationFormat, DType};
use troika::model::lower::{SegmentKind, segments};
use troika::model::spec::WeightRole;
use troika::plan::{
    Dispatch, ExpertGroupPlan, ExpertSplit, Layers, Overflow, Phase, Plan, PlanRequest, Policy,
    RefusedOps, Rule, Share, Split, Strategy, SyncMode,
};
use troika::program::ProgramError;
use troika::weights::{BindOptions, FloatType, Quant};
use troika::{Described, describe};
use troika_check::{Doing, Hook, Hooked, Random};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn devices() -> Vec<Arc<dyn Device>> {
    NAMES.iter().enumerate().map(|(i, name)| cpu(name, 1 + i % 2)).collect()
}

fn engine(d: &Described, devices: &[Arc<dyn Device>], plan: Plan) -> Result<Engine, EngineError> {
    let sharing = Sharing { sequences: 2, ..Sharing::default() };
    engines::engine(d, devices, plan, EngineOptions { sharing, ..EngineOptions::default() })
}

/// Two prompts, fed together and then one token after another.
fn logits(e: &mut Engine, ids: &[u32]) -> Vec<[Vec<f32>; 2]> {
    let seqs = [e.open(), e.open()];
    let prompts = [&ids[..ids.len() - 3], &ids[3..ids.len() / 2]];
    let mut all = vec![run(e, &seqs, &prompts)];
    for i in 0..3 {
        let next = ids.len() - 3 + i;
        all.push(run(e, &seqs, &[&ids[next..=next], &ids[i..=i]]));
    }
    // Again from the middle on, as after an edited prompt: positions that a window dropped because
    // the plan's pages are small are computed again.
    e.truncate(seqs[0], ids.len() / 2).unwrap();
    all.push(run(e, &seqs, &[&ids[ids.len() / 2..], &ids[..2]]));
    e.audit().unwrap();
    seqs.into_iter().for_each(|s| e.close(s));
    all
}

fn run(e: &mut Engine, seqs: &[SeqId; 2], tokens: &[&[u32]; 2]) -> [Vec<f32>; 2] {
    let logits = WantedLogits::All;
    let single = tokens[0].len() == 1;
    let fed = if single { SequenceInput::decode } else { SequenceInput::prompt };
    let inputs = [0, 1].map(|i| fed(seqs[i], tokens[i], logits));
    let mut out = [Vec::new(), Vec::new()];
    e.run(&inputs, &mut |input, _, row| out[input].extend_from_slice(row)).unwrap();
    out
}

fn others(device: &str) -> Vec<&'static str> {
    NAMES.into_iter().filter(|n| *n != device).collect()
}

/// Random shares of a device and one or two others.
fn parts(r: &mut Random, device: &str, own: u32) -> Vec<Share> {
    let share = |device: &str, share| Share { device: device.into(), share };
    let others = others(device);
    let mut parts = vec![share(device, own), share(r.of::<&str>(&others), 1 + r.below(3) as u32)];
    if r.once_in(2) {
        let third = others.iter().find(|n| **n != parts[1].device).unwrap();
        parts.push(share(third, 1 + r.below(3) as u32));
    }
    if r.once_in(2) {
        parts.reverse();
    }
    parts
}

/// A random valid split for a kind of segment.
fn split(r: &mut Random, kind: SegmentKind, device: &str, chunk: usize) -> Option<Split> {
    let others = others(device);
    let lengths = |r: &mut Random| (0..1 + r.below(2)).map(|_| 1 + r.below(chunk)).collect();
    let ways = if kind == SegmentKind::Attention { 2 } else { 5 };
    match r.below(ways) {
        1 if kind == SegmentKind::Attention => None,
        0 | 1 => Some(Split::Columns { parts: parts(r, device, 3) }),
        2 => Some(Split::Rows { lengths: lengths(r), rest: (*r.of(&others)).into() }),
        3 => {
            let own = 1 + r.below(4) as u32;
            Some(Split::Hybrid { lengths: lengths(r), parts: parts(r, device, own) })
        }
        _ => None,
    }
}

/// Random groups of a layer's experts, for chunks of up to so many rows.
fn experts(r: &mut Random, d: &Described, layer: usize, chunk: usize) -> Option<Split> {
    let moe = d.spec.layers[layer].moe()?;
    let overflow = *r.of(&[Overflow::Cpu, Overflow::Pad]);
    let dispatch = match overflow {
        Overflow::Cpu => *r.of(&Dispatch::ALL),
        _ => Dispatch::PerChunk,
    };
    let mut groups = Vec::new();
    // Experts may be in several groups, and single ones divided by columns.
    while groups.is_empty() || !r.once_in(4) {
        let mut left: Vec<usize> = (0..moe.experts).collect();
        let of_group = if r.once_in(2) { 1 } else { 1 + r.below(left.len()) };
        let experts: Vec<usize> =
            (0..of_group).map(|_| left.swap_remove(r.below(left.len()))).collect();
        let capacity = 1 + r.below(chunk + 2);
        let capacity = if overflow == Overflow::Pad { chunk.max(capacity) } else { capacity };
        let device = *r.of(&NAMES);
        let parts = if of_group == 1 && r.once_in(2) { parts(r, device, 3) } else { Vec::new() };
        groups.push(ExpertGroupPlan { device: device.into(), experts, capacity, parts });
    }
    Some(Split::Experts(ExpertSplit { groups, overflow, dispatch, expected: Vec::new() }))
}

/// Random ops that devices supposedly refuse.
fn refused(r: &mut Random, kind: SegmentKind) -> Vec<RefusedOps> {
    let ops = ["linear", "rms_norm", "add", "rope", "attention", "gate", "kv_append", "experts"];
    let from = r.below(NAMES.len());
    let mut refused: Vec<RefusedOps> = Vec::new();
    for _ in 0..r.below(3) {
        let op = (*r.of(&ops)).to_string();
        let (device, by) = (NAMES[from].to_string(), NAMES[(from + 1) % NAMES.len()].to_string());
        if !refused.iter().any(|o| o.ops.contains(&op)) {
            refused.push(RefusedOps { device, segments: vec![kind], ops: vec![op], by });
        }
    }
    refused
}

fn rules(
    r: &mut Random,
    d: &Described,
    (phase, chunk): (Phase, usize),
    activations: &[ActivationFormat],
) -> Vec<Rule> {
    let of_model = segments(&d.spec);
    let kinds = SegmentKind::ALL.into_iter().filter(|k| of_model.iter().any(|s| s.0 == *k));
    let mut rules = Vec::new();
    for kind in kinds {
        let layers = of_model.iter().filter(|s| s.0 == kind).filter_map(|s| s.1);
        let layers: Vec<usize> = layers.collect();
        let each = !layers.is_empty() && r.once_in(2);
        let ranges: Vec<Option<Layers>> = match each {
            true => {
                let one = |l: &usize| Some(Layers { first: *l, last: *l, step: 1 });
                layers.iter().map(one).collect()
            }
            false => vec![None],
        };
        for layers in ranges {
            let device = (*r.of(&NAMES)).to_string();
            let shared = match (kind, phase) {
                (SegmentKind::Experts, Phase::Prefill) if !r.once_in(3) => {
                    experts(r, d, layers.map_or(d.spec.layers.len() - 1, |l| l.first), chunk)
                }
                _ => None,
            };
            rules.push(Rule {
                segments: Some(vec![kind]),
                layers,
                split: shared.or_else(|| split(r, kind, &device, chunk)),
                refused: refused(r, kind),
                values: DType::F32,
                row_buckets: None,
                exchange: if r.once_in(2) { vec![WeightRole::Q, WeightRole::Down] } else { vec![] },
                group_rows: BTreeMap::from([(WeightRole::Up, 2)]),
                activations: activations.to_vec(),
                device,
            });
        }
    }
    rules
}

fn random_plan(r: &mut Random, d: &Described, like: &Plan) -> Plan {
    let mut plan = like.clone();
    plan.strategy = "by hand".into();
    plan.prefill.chunk = 1 + r.below(20);
    plan.prefill.chunks_in_flight = 1 + r.below(4);
    plan.prefill.policy = *r.of(&Policy::ALL);
    if plan.prefill.policy == Policy::ChunkAtATime {
        plan.prefill.chunks_in_flight = 1;
    }
    plan.page_len = 1 << r.below(6);
    let formats = like.activations();
    plan.prefill.rules = rules(r, d, (Phase::Prefill, plan.prefill.chunk), &formats);
    plan.decode.rules = rules(r, d, (Phase::Decode, 2), &formats);
    let mut plan = with_values(&plan, (like.prefill.rules[0].values, like.decode.rules[0].values));
    let rules = || plan.prefill.rules.iter().chain(&plan.decode.rules);
    let used = |n: &&str| rules().any(|rule| rule.devices().any(|d| d == *n));
    plan.devices = NAMES.into_iter().filter(used).map(String::from).collect();
    plan
}

/// Types of the values between segments, in prefill and in decode.
const VALUES: [(DType, DType); 4] = [
    (DType::F32, DType::F32),
    (DType::BF16, DType::BF16),
    (DType::F32, DType::F16),
    (DType::F16, DType::F32),
];

fn with_values(plan: &Plan, (prefill, decode): (DType, DType)) -> Plan {
    let mut plan = plan.clone();
    plan.prefill.rules.iter_mut().for_each(|r| r.values = prefill);
    plan.decode.rules.iter_mut().for_each(|r| r.values = decode);
    plan
}

/// Runs random plans of a model; returns how many ran.
fn plans_agree(name: &str, quant: Quant, seed: u64, count: usize) -> usize {
    let bind = BindOptions { float: FloatType::F32, quant };
    let d = describe(&golden_dir(name), bind).unwrap();
    let ids = golden(name).input_ids;
    let devices = devices();
    let mut request = in_f32(Strategy::OneDevice, 7);
    if quant != Quant::None {
        // Quantized weights use integer products.
        request.activations = Some(vec![ActivationFormat::INT8]);
    }
    let one = plan_of(&d, &devices, &request);
    let like: Vec<(Plan, Vec<[Vec<f32>; 2]>)> = VALUES
        .iter()
        .map(|values| {
            let plan = with_values(&one, *values);
            let logits = logits(&mut engine(&d, &devices, plan.clone()).unwrap(), &ids);
            (plan, logits)
        })
        .collect();
    let unlike = like.iter().skip(1).all(|l| l.1 != like[0].1);
    assert!(unlike, "{name}: values of 16 bits give the bits of f32");
    let mut r = Random(seed);
    let mut ran = 0;
    for i in 0..count {
        let (one, expected) = &like[i % like.len()];
        let plan = random_plan(&mut r, &d, one);
        plan.check(&d.spec, &NAMES).unwrap_or_else(|e| panic!("{e}\n{}", plan.to_json()));
        let mut e = match engine(&d, &devices, plan.clone()) {
            Ok(e) => e,
            // Small shares of narrow products may round to nothing.
            Err(EngineError::Program(ProgramError::NothingLeft { .. })) => continue,
            Err(e) => panic!("{name}, plan {i}: {e}\n{}", plan.to_json()),
        };
        // Twice, since the memory is not new the second time.
        for _ in 0..2 {
            let got = logits(&mut e, &ids);
            assert!(got == *expected, "{name}, plan {i} gives other bits:\n{}", plan.to_json());
        }
        ran += 1;
    }
    ran
}

#[test]
fn any_plan_computes_what_one_device_does() {
    let models = ["llama-2", "qwen3-moe", "gemma-3", "deepseek-v2", "phi-2", "gpt-oss", "olmoe"];
    let models = models.into_iter().chain(["qwen2-moe", "mixtral"]);
    let ran: usize =
        models.enumerate().map(|(i, m)| plans_agree(m, Quant::None, i as u64, 30)).sum();
    assert!(ran > 150, "only {ran} plans ran");
}

#[test]
fn any_plan_of_quantized_weights_computes_what_one_device_does() {
    let ran: usize = [(Quant::Q8, "qwen3"), (Quant::Q4, "llama-3.2"), (Quant::Q8, "mixtral")]
        .iter()
        .map(|(quant, model)| plans_agree(model, *quant, 77, 30))
        .sum();
    assert!(ran > 40, "only {ran} plans ran");
}

#[test]
fn devices_wait_as_the_plan_says() {
    let d = described("qwen3");
    for (sync, waiting) in
        [(SyncMode::Predicted, Waiting::Poll), (SyncMode::Blocking, Waiting::Block)]
    {
        let (seen, hook) = (Arc::new(Mutex::new(Vec::new())), Hook::default());
        let noted = seen.clone();
        hook.set(move |doing| {
            if let Doing::Submit(list) = doing {
                noted.lock().unwrap().push(list.waiting);
            }
            Ok(())
        });
        let watched = |device| Arc::new(Hooked::new(device, hook.clone())) as Arc<dyn Device>;
        let devices: Vec<Arc<dyn Device>> = devices().into_iter().map(watched).collect();
        let strategy = Strategy::Alternate;
        let request = PlanRequest { sync, strategy, ..PlanRequest::default() };
        let plan = plan_of(&d, &devices, &request);
        assert_eq!(plan.to_json().contains("\"sync\": \"blocking\""), sync == SyncMode::Blocking);
        let mut e = engine(&d, &devices, plan).unwrap();
        let seqs = [e.open(), e.open()];
        run(&mut e, &seqs, &[&[1, 2, 3], &[4]]);
        let seen = seen.lock().unwrap();
        assert!(seen.len() >= 2 && seen.iter().all(|w| *w == waiting), "{seen:?}");
    }
}
