//! The solver: for any costs its plans are valid, and none is worse than one device.

#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{device, spec};
use proptest::prelude::*;
use troika_device::CodeWeights;
use troika_graph::{DType, Op, Subgraph, WeightDecl};
use troika_model::lower::{Lowered, SegmentKind};
use troika_model::spec::ModelSpec;
use troika_plan::{
    Goal, Phase, PlanDevice, PlanError, PlanRequest, Predicted, Refusal, Split, SyncMode,
};
use troika_solve::{
    CostModel, MakeRequest, Mover, PredictRequest, PricedRun, QueueCosts, SolveRequest, Solved,
    check_memory, held_weights, lasting, make_within_memory, predict, solve,
};
use troika_time::TaskCost;

fn lowered(spec: &ModelSpec, chunk: usize) -> Arc<Lowered> {
    common::lowered(spec, chunk, 1024)
}

/// A plan of full context in chunks of so many rows.
fn base(chunk: usize) -> PlanRequest {
    PlanRequest { context: Some(1024), chunk, ..PlanRequest::default() }
}

/// Multiplications per row of a graph.
fn products(graph: &Subgraph) -> f64 {
    let of = |op: &Op| match op {
        Op::Linear { weight, .. } => {
            let w = graph.weight(*weight);
            (w.rows * w.cols) as f64
        }
        Op::Experts(_) => 1e6,
        _ => 1000.0,
    };
    graph.nodes.iter().map(|n| of(&n.op)).sum()
}

/// A device by its time in ns for a multiplication, for reading a weight, and for starting.
#[derive(Clone, Copy, Debug)]
struct Speed {
    multiply: f64,
    read: f64,
    launch: f64,
}

struct Costs {
    speeds: Vec<Speed>,
    hand_over: f64,
    beside: f64,
    watts: Option<f64>,
}

impl CostModel for Costs {
    fn source(&self) -> String {
        "made up".into()
    }

    fn run(&self, run: &PricedRun<'_>) -> TaskCost {
        let Speed { multiply, read, launch } = self.speeds[run.device];
        let n = products(run.graph);
        lasting(launch + (n * multiply * run.room as f64).max(n * read))
    }

    fn shares(&self, running: &[(Option<PricedRun<'_>>, TaskCost)]) -> Vec<f64> {
        let runs = running.iter().filter(|(run, _)| run.is_some()).count();
        let share = if runs < 2 { 1.0 } else { 1.0 / self.beside };
        running.iter().map(|(run, _)| if run.is_some() { share } else { 1.0 }).collect()
    }

    fn queue(&self, _: usize, devices: &[usize], _: SyncMode) -> QueueCosts {
        let told = if devices.len() > 1 { self.hand_over } else { 0.0 };
        QueueCosts { told_ns: lasting(told).ns, ..QueueCosts::default() }
    }

    fn moving(&self, _: Mover, _: usize, bytes: u64) -> TaskCost {
        lasting(bytes as f64)
    }

    fn run_j(&self, run: &PricedRun<'_>) -> Option<f64> {
        self.watts.map(|w| w * (run.device + 1) as f64 * self.run(run).ns as f64 * 1e-9)
    }
}

fn solved(
    (spec, lowered): (&ModelSpec, &Arc<Lowered>),
    (devices, costs): (&[PlanDevice], &Costs),
    (goal, refusals): (Goal, &[Refusal]),
) -> Result<Solved, PlanError> {
    let base = base(256);
    let request = request((spec, lowered), (devices, costs), &base);
    solve(&SolveRequest { refusals, goal, ..request })
}

/// A request for the time to the first token of a prompt of 200.
fn request<'a>(
    (spec, lowered): (&'a ModelSpec, &'a Arc<Lowered>),
    (devices, cost): (&'a [PlanDevice], &'a dyn CostModel),
    base: &'a PlanRequest,
) -> SolveRequest<'a> {
    SolveRequest {
        spec,
        lowered,
        devices,
        cost,
        refusals: &[],
        goal: Goal::Ttft,
        base,
        prompt: 200,
        generate: 16,
        lengths: &[],
        candidates: &[],
    }
}

fn speed() -> impl Strategy<Value = Speed> {
    (1e-5..1e-1_f64, 1e-4..1e-1_f64, 1.0..1e5_f64).prop_map(|(multiply, read, launch)| Speed {
        multiply,
        read,
        launch,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn plans_are_plans_and_no_worse_than_one_device(
        speeds in proptest::collection::vec(speed(), 2..4),
        hand_over in 0.0..1e6_f64,
        beside in 1.0..2.5_f64,
        fixed in any::<bool>(),
        goal in 0..3_usize,
        moe in any::<bool>(),
        refuses in any::<bool>(),
    ) {
        let spec = spec(if moe { "qwen3-moe-tiny" } else { "qwen3-0.6b" }, 3);
        let lowered = lowered(&spec, 256);
        let names = ["a", "b", "c"];
        let devices: Vec<PlanDevice> = (0..speeds.len())
            .map(|i| device(names[i], if fixed && i == 0 { &[32, 128] } else { &[] }))
            .collect();
        let costs = Costs { speeds, hand_over, beside, watts: Some(2.0) };
        let refusal = Refusal {
            device: "a".into(),
            segment: SegmentKind::Attention,
            op: "attention".into(),
            why: "has no such unit".into(),
        };
        let refusals = if refuses { vec![refusal] } else { Vec::new() };
        let goal = Goal::ALL[goal];
        let solved =
            solved((&spec, &lowered), (&devices, &costs), (goal, &refusals)).unwrap();
        let at_hand: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
        let request = PredictRequest {
            lowered: &lowered, devices: &devices, cost: &costs, prompt: 200, generate: 16,
        };
        let all = solved.alternatives.iter().map(|a| &a.plan).chain([&solved.plan]);
        for plan in all {
            plan.check(&spec, &at_hand).unwrap();
            prop_assert!(plan.refused(&refusals).is_empty());
            // The plan's own prediction equals a new one, also after reading its file.
            let known = plan.predicted.clone().unwrap();
            let lengths = known.lengths.clone();
            let again = predict(&request, plan).unwrap();
            prop_assert!(lengths.is_empty() || lengths == again.lengths);
            prop_assert_eq!(Predicted { lengths, ..again }, known);
            let read = troika_plan::Plan::from_json(&plan.to_json()).unwrap();
            read.check(&spec, &at_hand).unwrap();
        }
        let score = solved.predicted.score(goal);
        for (i, d) in devices.iter().enumerate() {
            if refuses && i == 0 {
                continue;
            }
            let one = troika_plan::make(&spec, std::slice::from_ref(d), &base(256)).unwrap();
            let alone = predict(&request, &one).unwrap().score(goal);
            prop_assert!(score <= alone, "{score} on all, {alone} on {}", d.name);
            let most = predict(&request, &one).unwrap().total_bytes * 102 / 100;
            prop_assert!(solved.predicted.total_bytes <= most + 1);
        }
        for pair in solved.alternatives.windows(2) {
            prop_assert!(pair[0].predicted.score(goal) <= pair[1].predicted.score(goal));
        }
    }
}

fn equal(count: usize) -> Costs {
    let speed = Speed { multiply: 1e-3, read: 1e-2, launch: 1000.0 };
    Costs { speeds: vec![speed; count], hand_over: 1000.0, beside: 1.0, watts: None }
}

/// Two independent devices are nearly twice as fast as one. If hand-overs cost more than is gained,
/// one is used.
#[test]
fn work_is_shared_where_that_pays() {
    let spec = spec("qwen3-0.6b", 8);
    let lowered = lowered(&spec, 256);
    let devices = [device("a", &[]), device("b", &[])];
    let mut costs = equal(2);
    let wanted = (Goal::Ttft, &[][..]);
    let both = solved((&spec, &lowered), (&devices, &costs), wanted).unwrap();
    let one = both.alternatives.iter().find(|a| a.name == "one device, a").unwrap();
    for (shared, alone) in [
        (both.predicted.ttft_us, one.predicted.ttft_us),
        (both.predicted.tpot_us, one.predicted.tpot_us),
    ] {
        let gain = alone / shared;
        assert!((1.7..2.0).contains(&gain), "{gain}");
    }
    let split = |plan: &troika_plan::Plan| plan.all_rules().any(|r| r.split.is_some());
    assert!(split(&both.plan));
    costs.hand_over = 1e9;
    let single = solved((&spec, &lowered), (&devices, &costs), wanted).unwrap();
    assert!(!split(&single.plan) && single.plan.devices.len() == 1, "{:#?}", single.plan);
    // If both run at half speed together, nothing is gained either.
    let costs = Costs { beside: 2.0, ..equal(2) };
    let slowed = solved((&spec, &lowered), (&devices, &costs), wanted).unwrap();
    assert_eq!(slowed.plan.devices.len(), 1, "{:#?}", slowed.plan);
}

/// One device multiplies fast, the other one reads fast. Since weights are held once, and both use
/// different forms of them, one device does both.
#[test]
fn weights_are_held_in_one_form() {
    let spec = spec("qwen3-0.6b", 8);
    let lowered = lowered(&spec, 256);
    let mut devices = [device("a", &[]), device("b", &[])];
    devices[1].caps.weight_dtypes = vec![DType::F16];
    let fast = Speed { multiply: 1e-4, read: 2e-2, launch: 1000.0 };
    let wide = Speed { multiply: 1e-2, read: 1e-2, launch: 1000.0 };
    let costs = Costs { speeds: vec![fast, wide], hand_over: 1e9, beside: 1.0, watts: None };
    let once = solved((&spec, &lowered), (&devices, &costs), (Goal::Ttft, &[])).unwrap().plan;
    assert_eq!(once.devices, ["a"]);
}

/// A device with static shapes computes whole shapes, and leaves a small rest to another device
/// instead of padding it.
#[test]
fn rests_go_to_devices_without_static_shapes() {
    let spec = spec("qwen3-0.6b", 8);
    let lowered = lowered(&spec, 512);
    let devices = [device("npu", &[128, 256, 512]), device("gpu", &[])];
    let npu = Speed { multiply: 1e-4, read: 1e-3, launch: 1000.0 };
    let gpu = Speed { multiply: 1e-3, read: 1e-3, launch: 1000.0 };
    let costs = Costs { speeds: vec![npu, gpu], hand_over: 5000.0, beside: 1.0, watts: None };
    let base = base(512);
    let request = request((&spec, &lowered), (&devices, &costs), &base);
    let plan = solve(&SolveRequest { prompt: 262, ..request }).unwrap().plan;
    let ffn = plan.rule_for(Phase::Prefill, 262, SegmentKind::Ffn, Some(0)).unwrap();
    let Some(Split::Rows { .. } | Split::Hybrid { .. }) = &ffn.split else {
        panic!("{ffn:?}");
    };
    // At a standard length there is no rest.
    let ffn = plan.rule_for(Phase::Prefill, 256, SegmentKind::Ffn, Some(0)).unwrap();
    let rows = ffn.split.as_ref().map_or(&[][..], Split::lengths);
    assert!(rows.is_empty() || rows.contains(&128) || rows.contains(&256), "{ffn:?}");
}

#[test]
fn nothing_is_planned_where_nothing_can_run() {
    let spec = spec("qwen3-0.6b", 2);
    let lowered = lowered(&spec, 256);
    let mut costs = equal(1);
    costs.speeds[0].launch = f64::NAN;
    let wanted = (Goal::Ttft, &[][..]);
    let none = solved((&spec, &lowered), (&[device("a", &[])], &costs), wanted).unwrap_err();
    assert!(none.to_string().contains("no plan can be chosen"), "{none}");
    let none = solved((&spec, &lowered), (&[], &costs), wanted).unwrap_err();
    assert!(none.to_string().contains("needs a device"), "{none}");
    // Each memory holds half of the model: both devices are needed.
    let mut devices = [device("a", &[]), device("b", &[])];
    let whole = solved((&spec, &lowered), (&devices, &equal(2)), wanted).unwrap();
    let half = whole.predicted.total_bytes * 6 / 10;
    devices.iter_mut().for_each(|d| d.caps.max_resident_bytes = Some(half));
    let costs = Costs { hand_over: 1e9, ..equal(2) };
    let both = solved((&spec, &lowered), (&devices, &costs), (Goal::Ttft, &[])).unwrap();
    assert!(both.predicted.weight_bytes.values().all(|b| *b <= half), "{:?}", both.predicted);
    assert_eq!(both.plan.devices.len(), 2);
}

/// A graph that is too large for a device is split or computed elsewhere.
#[test]
fn graphs_keep_within_the_limits_of_devices() {
    let spec = spec("qwen3-0.6b", 2);
    let lowered = lowered(&spec, 256);
    let mut devices = [device("a", &[]), device("b", &[])];
    let fast = Speed { multiply: 1e-4, read: 1e-3, launch: 1000.0 };
    let slow = Speed { multiply: 1e-2, read: 1e-1, launch: 1000.0 };
    let costs = Costs { speeds: vec![fast, slow], hand_over: 1000.0, beside: 1.0, watts: None };
    let rule = |devices: &[PlanDevice]| {
        let found = solved((&spec, &lowered), (devices, &costs), (Goal::Tps, &[])).unwrap();
        found.plan.rule(Phase::Decode, SegmentKind::Head, None).unwrap().clone()
    };
    assert_eq!((rule(&devices).device.as_str(), rule(&devices).split), ("a", None));
    // Half of the head's 151936 rows of 1024 bytes.
    devices[0].caps.max_graph_bytes = Some(80 << 20);
    let limited = rule(&devices);
    let own: u32 = limited.split.iter().flat_map(Split::parts).map(|p| p.share).sum();
    let a = limited.split.iter().flat_map(Split::parts).find(|p| p.device == "a");
    assert!(a.is_some_and(|p| p.share * 2 <= own + 2), "{limited:?}");
}

/// Two equal devices, except that one is slow at products with long sums.
struct LongSums;

impl CostModel for LongSums {
    fn source(&self) -> String {
        "made up".into()
    }

    fn run(&self, run: &PricedRun<'_>) -> TaskCost {
        let of = |op: &Op| match op {
            Op::Linear { weight, .. } => {
                let w = run.graph.weight(*weight);
                let slow = if run.device == 1 && w.cols > w.rows { 200.0 } else { 1.0 };
                (w.rows * w.cols) as f64 * 1e-3 * slow
            }
            _ => 10.0,
        };
        lasting(run.room as f64 * run.graph.nodes.iter().map(|n| of(&n.op)).sum::<f64>())
    }

    fn queue(&self, _: usize, devices: &[usize], _: SyncMode) -> QueueCosts {
        let told_ns = if devices.len() > 1 { 100 } else { 0 };
        QueueCosts { told_ns, ..QueueCosts::default() }
    }

    fn moving(&self, _: Mover, _: usize, bytes: u64) -> TaskCost {
        lasting(bytes as f64)
    }
}

/// Both devices share the stages they are equally good at; the better device computes the rest.
#[test]
fn stages_of_a_segment_are_placed_apart() {
    let spec = spec("qwen3-0.6b", 8);
    let lowered = lowered(&spec, 256);
    let devices = [device("a", &[]), device("b", &[])];
    let base = base(256);
    let request = request((&spec, &lowered), (&devices, &LongSums), &base);
    let request = SolveRequest { prompt: 256, ..request };
    let found = solve(&request).unwrap();
    let ffn = found.plan.rule_for(Phase::Prefill, 256, SegmentKind::Ffn, Some(0)).unwrap();
    let Some(Split::Stages { stages }) = &ffn.split else { panic!("{ffn:?}") };
    let shared = |at: usize| stages[at].split.as_ref().map_or(0, |s| s.parts().len());
    // Norm, gate and up, their activation, down, and the sum.
    assert_eq!((stages.len(), shared(1)), (5, 2), "{stages:?}");
    assert_eq!((stages[3].device.as_str(), &stages[3].split), ("a", &None));

    // A plan made by hand is beaten, or it is the answer.
    let known = [("by hand".to_string(), found.plan.clone())];
    let again = solve(&SolveRequest { candidates: &known, ..request }).unwrap();
    assert!(again.predicted.ttft_us <= found.predicted.ttft_us);
    let one = |d: &str| {
        let mut plan = found.plan.clone();
        plan.devices = vec![d.into()];
        plan.prefill.lengths.clear();
        for rule in plan.all_rules_mut() {
            (rule.device, rule.split) = (d.into(), None);
        }
        plan
    };
    let slow = [("slow".to_string(), one("b"))];
    let beaten = solve(&SolveRequest { candidates: &slow, ..request }).unwrap();
    assert!(beaten.predicted.ttft_us < found.predicted.ttft_us * 1.001);
    let slow = beaten.alternatives.iter().any(|a| a.name == "slow" || a.name.ends_with(" b"));
    assert!(slow, "what was beaten is shown");
}

/// A device whose memory holds part of the model gets as many layers as fit.
#[test]
fn layers_are_divided_where_memory_is_limited() {
    let spec = spec("llama-3.2-1b", 16);
    let lowered = lowered(&spec, 256);
    let whole: u64 = {
        let costs = equal(1);
        let one = solved((&spec, &lowered), (&[device("a", &[])], &costs), (Goal::Ttft, &[]));
        one.unwrap().predicted.total_bytes
    };
    let limited = |name: &str, most: u64| {
        let mut d = device(name, &[]);
        d.caps.max_resident_bytes = Some(most);
        d
    };
    // Each holds part of the model, both together all of it. Sharing columns is too expensive.
    let most = whole * 6 / 10;
    let devices = [limited("a", most), limited("b", most)];
    let costs = Costs { hand_over: 1e12, ..equal(2) };
    let both = solved((&spec, &lowered), (&devices, &costs), (Goal::Ttft, &[])).unwrap();
    assert!(both.plan.all_rules().any(|r| r.layers.is_some()), "{:?}", both.plan.prefill.rules);
    assert!(both.predicted.weight_bytes.values().all(|b| *b <= most));
    check_memory(&both.plan, &lowered, &devices).unwrap();
    // Each device gets one range of layers: a token changes devices as rarely as possible.
    let at = |layer| {
        let rule = both.plan.rule_for(Phase::Decode, 1, SegmentKind::Ffn, Some(layer));
        rule.unwrap().device.clone()
    };
    let changes = (1..16).filter(|l| at(*l) != at(l - 1)).count();
    assert_eq!(changes, 1, "{:?}", both.plan.decode.rules);

    // A fast device with little memory computes what it can hold.
    let devices = [limited("a", whole / 3), device("b", &[])];
    let mut costs = Costs { hand_over: 1e4, ..equal(2) };
    costs.speeds[0].multiply /= 50.0;
    costs.speeds[0].read /= 50.0;
    let some = solved((&spec, &lowered), (&devices, &costs), (Goal::Ttft, &[])).unwrap();
    let alone = some.alternatives.iter().find(|a| a.name == "one device, b").unwrap();
    assert!(some.predicted.ttft_us < 0.9 * alone.predicted.ttft_us);
    assert!(some.predicted.weight_bytes["a"] <= whole / 3);
}

/// Rows of a weight that several rules place on a device count once, whichever layer was priced
/// first by each of them.
#[test]
fn weights_of_layers_in_ranges_are_counted_once() {
    let spec = spec("qwen3-0.6b", 8);
    let lowered = lowered(&spec, 256);
    let devices = [device("a", &[]), device("b", &[])];
    let one = troika_plan::make(&spec, &devices, &base(256)).unwrap();
    let whole = one.prefill.rules[0].clone();
    let layers = |first, last| Some(troika_plan::Layers { first, last, step: 1 });
    let share = |device: &str| troika_plan::Share { device: device.into(), share: 1 };
    let split = Some(Split::Columns { parts: vec![share("a"), share("b")] });
    let ends = vec![SegmentKind::Embed, SegmentKind::Head];
    // Attention stays where the cache is.
    let products = Some(vec![SegmentKind::Qkv, SegmentKind::AttnOut, SegmentKind::Ffn]);
    let mut plan = one.clone();
    plan.devices = vec!["a".into(), "b".into()];
    plan.prefill.lengths =
        vec![troika_plan::LengthRules { up_to: 64, rules: one.prefill.rules.clone() }];
    plan.prefill.rules = vec![
        troika_plan::Rule { segments: Some(ends), ..whole.clone() },
        troika_plan::Rule { segments: Some(vec![SegmentKind::Attention]), ..whole.clone() },
        troika_plan::Rule {
            segments: products.clone(),
            layers: layers(0, 3),
            device: "b".into(),
            ..whole.clone()
        },
        troika_plan::Rule { segments: products, layers: layers(4, 7), split, ..whole },
    ];
    plan.check(&spec, &["a", "b"]).unwrap();
    let speed = Speed { multiply: 1e-3, read: 1e-4, launch: 100.0 };
    let costs = Costs { speeds: vec![speed; 2], hand_over: 100.0, beside: 1.0, watts: None };
    let (lowered, devices, cost) = (&lowered, &devices[..], &costs);
    let request = PredictRequest { lowered, devices, cost, prompt: 256, generate: 1 };
    let bytes = |plan| predict(&request, plan).unwrap().weight_bytes["a"];
    assert_eq!(bytes(&plan), bytes(&one));
}

#[test]
fn no_split_leaves_a_device_nothing() {
    // The search likes to give b a quarter of the products, which of narrow ones is nothing.
    let spec = spec("qwen3-moe-tiny", 3);
    let lowered = lowered(&spec, 256);
    let devices = [device("a", &[32, 128]), device("b", &[])];
    let speed = |multiply| Speed { multiply, read: 1e-4, launch: 1.0 };
    let costs = Costs {
        speeds: vec![speed(0.034), speed(0.092)],
        hand_over: 9e5,
        beside: 1.37,
        watts: Some(2.0),
    };
    let solved = solved((&spec, &lowered), (&devices, &costs), (Goal::Ttft, &[])).unwrap();
    let plans = solved.alternatives.iter().map(|a| &a.plan).chain([&solved.plan]);
    for plan in plans {
        troika_program::Program::new(lowered.clone(), plan, &devices).unwrap();
    }
}

/// A device may hold a type in more bytes than a file has.
#[test]
fn weights_are_counted_as_a_device_holds_them() {
    let spec = spec("llama-3.2-1b", 2);
    let lowered = lowered(&spec, 256);
    let mut devices = [device("a", &[])];
    let plan = troika_plan::make(&spec, &devices, &base(256)).unwrap();
    let usual = held_weights(&plan, &lowered, &devices).unwrap()[0].clone();
    assert!(usual.held > 0 && usual.held == usual.stored);
    let twice = |d: &DType| (*d, 2 * d.row_bytes(256).unwrap() as u64);
    devices[0].caps.weight_bytes = DType::WEIGHTS.iter().map(twice).collect();
    let held = held_weights(&plan, &lowered, &devices).unwrap()[0].clone();
    assert_eq!((held.stored, held.held), (usual.stored, 2 * usual.stored));
    devices[0].caps.max_resident_bytes = Some(held.held - 1);
    assert!(check_memory(&plan, &lowered, &devices).is_err());
}

/// What a device has no room for is elsewhere, and feed-forwards stay longest.
#[test]
fn feed_forwards_stay_where_memory_is_short() {
    let spec = spec("llama-3.2-1b", 16);
    let lowered = lowered(&spec, 256);
    let strategy = troika_plan::Strategy::PrefillDecode;
    let base = PlanRequest { strategy, ..base(256) };
    let made = |limit: Option<u64>, attention_first: bool, code: Option<CodeWeights>| {
        let mut devices = [device("a", &[1, 64, 256]), device("b", &[])];
        devices[0].caps.max_resident_bytes = limit;
        devices[0].caps.code_weights = code;
        let made = make_within_memory(&MakeRequest {
            spec: &spec,
            lowered: &lowered,
            devices: &devices,
            refusals: &[],
            base: &base,
            attention_first,
        });
        let made = made.unwrap();
        check_memory(&made.plan, &lowered, &devices).unwrap();
        let held = held_weights(&made.plan, &lowered, &devices).unwrap()[0].clone();
        let on = |kind: SegmentKind| {
            let rule = |l: &usize| made.plan.rule(Phase::Prefill, kind, Some(*l)).unwrap();
            (0..16).filter(|l| rule(l).device == "a").count()
        };
        (on(SegmentKind::Ffn), on(SegmentKind::Qkv), held, made.moved)
    };
    let (ffn, qkv, all, moved) = made(None, false, None);
    assert!((ffn, qkv) == (16, 16) && moved.is_empty() && all.stored == all.held);
    let (ffn, qkv, held, moved) = made(Some(all.held / 3), false, None);
    // A layer's attention has a fifth of its feed-forward's bytes.
    assert!((1..16).contains(&ffn) && qkv < 5, "{ffn} {qkv}");
    assert!(held.held <= all.held / 3 && moved[0].by == "b" && moved[0].device == "a");
    // One more would not fit.
    assert!(held.held + held.held / ffn as u64 > all.held / 3);
    let (ffn, qkv, ..) = made(Some(all.held * 6 / 10), false, None);
    assert!(ffn == 16 && (1..16).contains(&qkv), "{ffn} {qkv}");
    let (ffn, qkv, ..) = made(Some(all.held / 3), true, None);
    assert!(qkv == 16 && (1..16).contains(&ffn), "{ffn} {qkv}");
    // Each number of rows holds floats of its own.
    let floats = CodeWeights::floats(4);
    let (_, _, each, _) = made(None, false, Some(floats));
    let weights: u64 = lowered
        .segments
        .iter()
        .flat_map(|s| &s.graph.weights)
        .map(|w| (w.rows * w.cols * 4) as u64)
        .sum();
    assert_eq!(each.rows.iter().copied().collect::<Vec<_>>(), [1, 64, 256]);
    // The head is compiled for two numbers of rows. It shares one of them with the others.
    assert!(each.held == 2 * weights, "{} {weights}", each.held);
    let (ffn, qkv, held, _) = made(Some(each.held / 4), false, Some(floats));
    assert!((1..16).contains(&ffn) && qkv < 5 && held.held <= each.held / 4);
    // All numbers of rows share blocks.
    let shared = CodeWeights { keeps_blocks: true, per_shape: false, ..floats };
    let (_, _, once, _) = made(None, false, Some(shared));
    let of = |w: &WeightDecl| w.rows as u64 * shared.row_bytes(w.dtype, w.cols);
    let blocks = lowered.segments.iter().flat_map(|s| &s.graph.weights).map(of).sum::<u64>();
    assert!(once.held == blocks && once.held < weights / 2 && once.rows.is_empty(), "{once:?}");
}

/// A device of any shape has attention, too, and keeps whole layers: values cross over once.
#[test]
fn whole_layers_stay_where_memory_is_short() {
    let spec = spec("llama-3.2-1b", 16);
    let lowered = lowered(&spec, 256);
    let base = base(256);
    let mut devices = [device("a", &[]), device("b", &[])];
    let made = |devices: &[PlanDevice]| {
        make_within_memory(&MakeRequest {
            spec: &spec,
            lowered: &lowered,
            devices,
            refusals: &[],
            base: &base,
            attention_first: false,
        })
        .unwrap()
        .plan
    };
    let held = |plan: &troika_plan::Plan| held_weights(plan, &lowered, &devices).unwrap()[0].held;
    let all = held(&made(&devices));
    for (limit, least) in [(all / 8, 1), (all / 2, 5), (all * 9 / 10, 10), (all - 1, 16)] {
        let mut limited = devices.clone();
        limited[0].caps.max_resident_bytes = Some(limit);
        let plan = made(&limited);
        let on = |(kind, layer): (SegmentKind, Option<usize>)| {
            plan.rule(Phase::Decode, kind, layer).unwrap().device.clone()
        };
        let at: Vec<String> = troika_model::lower::segments(&spec).into_iter().map(on).collect();
        // The embedding goes first, then the first layers.
        assert_eq!(at[0], "b");
        let first = at.iter().position(|d| d == "a").unwrap();
        assert!(troika_model::lower::segments(&spec)[first].0 == SegmentKind::Qkv, "{at:?}");
        let layers = 16 - troika_model::lower::segments(&spec)[first].1.unwrap();
        assert!(at[first..at.len() - 1].iter().all(|d| d == "a") && layers >= least, "{at:?}");
        assert!(held(&plan) <= limit && held(&plan) + all / 16 > limit.min(all / 2), "{limit}");
    }
    devices[0].caps.max_resident_bytes = Some(all);
    assert_eq!(made(&devices).devices, ["a"]);
}
