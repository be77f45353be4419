//! Plans that share experts out by how often they are chosen.

#![allow(clippy::panic, clippy::unwrap_used)]

use troika_device::{Caps, CodeWeights};
use troika_graph::{ActivationFormat, CalibrationTensor};
use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::ModelSpec;
use troika_model::{families, presets};
use troika_plan::{
    CalibratedProducts, Calibration, Dispatch, ExpertPolicy, ExpertSettings, ExpertSplit, Overflow,
    Phase, Plan, PlanDevice, PlanError, PlanRequest, Refusal, Split, Strategy, Tiers,
    describe_refusals, expert_chunk, experts_left_out, make,
};

fn spec() -> ModelSpec {
    families::from_config(&presets::config("qwen3-moe-tiny").unwrap()).unwrap().spec
}

fn device(name: &str, is_host: bool) -> PlanDevice {
    let caps = Caps {
        row_buckets: if is_host { Vec::new() } else { vec![1, 16, 64, 256, 512] },
        numerics: "f32".into(),
        activation_formats: if is_host { vec![ActivationFormat::INT8] } else { Vec::new() },
        queue_depth: 8,
        host_tasks: is_host,
        code_weights: if is_host { None } else { Some(CodeWeights::floats(4)) },
        ..Caps::default()
    };
    PlanDevice { name: name.into(), caps }
}

/// Layers and experts of the model.
fn experts(spec: &ModelSpec) -> (usize, usize, usize) {
    let moe = spec.layers[0].moe().unwrap();
    (spec.layers.len(), moe.experts, moe.top_k)
}

/// A calibration in which an expert of a layer is chosen the less, the further behind it is, and
/// the layers begin with another one each.
fn calibration(spec: &ModelSpec) -> Calibration {
    let (layers, experts, _) = experts(spec);
    let mut calibration = Calibration::new(spec);
    for layer in 0..layers {
        let rank = |e: usize| (e + experts - layer) % experts;
        let counts = (0..experts).map(|e| 1000.0 / ((1 + rank(e)) as f32).powi(2)).collect();
        let name = CalibrationTensor::Routed.of(&format!("layer {layer} router"));
        calibration.tensors.insert(name, counts);
    }
    calibration
}

fn request(policy: ExpertPolicy, spec: &ModelSpec) -> PlanRequest {
    PlanRequest {
        strategy: Strategy::Experts(policy),
        chunk: 256,
        experts: ExpertSettings { used: calibration(spec).routing(), ..ExpertSettings::default() },
        ..PlanRequest::default()
    }
}

/// How a plan shares a layer's experts out.
fn shared(plan: &Plan, layer: usize) -> Option<&ExpertSplit> {
    plan.rule(Phase::Prefill, SegmentKind::Experts, Some(layer)).unwrap().experts()
}

#[test]
fn policies_take_one_technique_after_another() {
    let spec = spec();
    let devices = [device("npu", false), device("cpu", true)];
    let of = |policy| make(&spec, &devices, &request(policy, &spec)).unwrap();
    let (layers, experts, top_k) = experts(&spec);
    let base = of(ExpertPolicy::Base);
    let tiers = of(ExpertPolicy::Tiers);
    let groups = of(ExpertPolicy::Groups);
    let all = of(ExpertPolicy::All);
    assert_eq!(base.strategy, "experts=base");
    assert_eq!(all.strategy, "experts");
    for layer in 0..layers {
        let split = |plan| shared(plan, layer).unwrap();
        let one = |plan| split(plan).groups.iter().all(|g| g.experts.len() == 1);
        assert!(one(&base) && one(&tiers));
        assert!(split(&base).groups.iter().all(|g| g.capacity == 256 && g.device == "npu"));
        for plan in [&base, &tiers, &groups] {
            let covered: usize = split(plan).groups.iter().map(|g| g.experts.len()).sum();
            assert_eq!(covered, experts);
        }
        // The layer's own ranking: the hottest come first, with the most room.
        let first = &split(&groups).groups[0];
        assert_eq!(first.experts[0], layer % experts);
        let room = |plan| split(plan).groups.iter().map(|g| g.capacity * g.experts.len()).sum();
        let [base, tiers, all]: [usize; 3] = [room(&base), room(&tiers), room(&all)];
        assert!(base > tiers && tiers > all && all >= 256 * top_k / 2, "{base} {tiers} {all}");
        let hot = &split(&groups).groups;
        assert!(split(&of(ExpertPolicy::All)).groups.iter().all(|g| hot.contains(g)));
    }
    // All else, and all of decode, is on the device that runs functions of the host.
    for (kind, layer) in segments(&spec) {
        for phase in [Phase::Prefill, Phase::Decode] {
            assert_eq!(all.rule(phase, kind, layer).unwrap().device, "cpu");
        }
    }
    assert!(all.decode.rules.iter().all(|r| r.split.is_none()));
    // So are the experts of short chunks, for which graphs would compute mostly padding.
    let [short] = &all.prefill.lengths[..] else { panic!() };
    assert!(short.up_to == 128 && short.rules.iter().all(|r| r.split.is_none()));
    assert!(groups.prefill.lengths.is_empty());
    // The CPU's part has its formats, whatever the NPU has.
    assert!(all.all_rules().all(|r| r.activations == [ActivationFormat::INT8]));
    // Groups have rows of their own.
    assert!(all.prefill.rules.iter().all(|r| r.row_buckets.is_none()));
    assert_eq!(Plan::from_json(&all.to_json()).unwrap(), all);
}

#[test]
fn rows_that_gather_have_a_buffer_for_each_expert() {
    let spec = spec();
    let devices = [device("cpu", true), device("npu", false)];
    let with = |chunk, change: &dyn Fn(&mut PlanRequest)| {
        let mut request = PlanRequest { chunk, ..request(ExpertPolicy::All, &spec) };
        request.experts.dispatch = Dispatch::LayerMajor;
        change(&mut request);
        make(&spec, &devices, &request).unwrap()
    };
    for (chunk, chunks) in [(16, 64), (128, 16), (256, 8), (1024, 4)] {
        let plan = with(chunk, &|_| {});
        assert_eq!(plan.prefill.chunks_in_flight, chunks);
        let groups = &shared(&plan, 0).unwrap().groups;
        assert!(groups.iter().all(|g| g.experts.len() == 1 && g.capacity >= 64));
        // The hottest one runs while other chunks are routed.
        let most = (chunks * chunk / 4).min(chunk.max(64)).next_multiple_of(16);
        assert!((64..=most).contains(&groups[0].capacity), "{chunk}: {}", groups[0].capacity);
    }
    let asked = with(128, &|request| {
        request.chunks_in_flight = Some(2);
        request.experts.group = Some(4);
        request.experts.tiers = Tiers::Rows(48);
    });
    let groups = &shared(&asked, 0).unwrap().groups;
    assert_eq!((groups[0].experts.len(), groups[0].capacity), (4, 48));
    assert_eq!(asked.prefill.chunks_in_flight, 2);
}

#[test]
fn groups_keep_to_a_devices_limits() {
    let spec = spec();
    let (_, experts, _) = experts(&spec);
    let moe = spec.layers[0].moe().unwrap();
    let expert_bytes = 3 * 4 * (spec.hidden * moe.inter) as u64;
    let cpu = device("cpu", true);
    let with = |limit: &dyn Fn(&mut PlanDevice), request: &PlanRequest| {
        let mut npu = device("npu", false);
        limit(&mut npu);
        make(&spec, &[cpu.clone(), npu], request)
    };
    let groups = |plan: &Plan| -> Vec<usize> {
        let splits = plan.prefill.rules.iter().filter_map(|r| r.experts());
        splits.flat_map(|s| s.groups.iter().map(|g| g.experts.len())).collect()
    };
    let request = request(ExpertPolicy::Groups, &spec);
    let free = with(&|_| {}, &request).unwrap();
    let small = with(&|npu| npu.caps.max_graph_bytes = Some(5 * expert_bytes), &request).unwrap();
    assert!(groups(&free).iter().max() > Some(&4));
    assert_eq!(groups(&small).iter().max(), Some(&4));
    let pair = with(&|npu| npu.caps.max_graph_bytes = Some(2 * expert_bytes), &request).unwrap();
    assert_eq!(groups(&pair).iter().max(), Some(&2));
    // As halves, twice as many fit.
    let halves = PlanRequest {
        calibrated: Some(CalibratedProducts {
            format: ActivationFormat::F16,
            digest: None,
            exact: Vec::new(),
            takers: Vec::new(),
        }),
        ..request.clone()
    };
    let pair = with(&|npu| npu.caps.max_graph_bytes = Some(2 * expert_bytes), &halves).unwrap();
    assert_eq!(groups(&pair).iter().max(), Some(&4));
    let few = with(&|npu| npu.caps.max_graphs = Some(3), &request).unwrap();
    assert_eq!(groups(&few).len(), 3);
    let held = with(&|npu| npu.caps.max_resident_bytes = Some(9 * expert_bytes), &request).unwrap();
    assert!((5..=9).contains(&groups(&held).iter().sum::<usize>()), "{:?}", groups(&held));
    let own = ExpertSettings { bytes: Some(4 * expert_bytes), ..request.experts.clone() };
    let own = with(&|_| {}, &PlanRequest { experts: own, ..request.clone() }).unwrap();
    assert_eq!(groups(&own).iter().sum::<usize>(), 4);
    // What was asked for and does not fit is an error with what fits.
    let asked = ExpertSettings { group: Some(experts), ..request.experts.clone() };
    let asked = PlanRequest { experts: asked, ..request.clone() };
    let refused = with(&|npu| npu.caps.max_graph_bytes = Some(2 * expert_bytes), &asked);
    let refused = refused.unwrap_err();
    assert!(matches!(refused, PlanError::ExpertGroup { .. }), "{refused}");
    assert!(refused.to_string().contains("put 2 into a group"), "{refused}");
    let none = with(&|npu| npu.caps.max_graph_bytes = Some(9), &request).unwrap_err();
    assert!(none.to_string().contains("device npu"), "{none}");
}

#[test]
fn devices_that_cannot_share_experts_out_are_refused() {
    let spec = spec();
    let request = request(ExpertPolicy::All, &spec);
    for (devices, says) in [
        (vec![device("cpu", true)], "needs two devices or more, there are 1"),
        (vec![device("a", false), device("b", false)], "a CPU that shares experts out"),
    ] {
        let refused = make(&spec, &devices, &request).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    // The first CPU shares out, whatever stands before it.
    let plan = make(&spec, &[device("npu", false), device("cpu", true)], &request).unwrap();
    assert_eq!(plan.rule(Phase::Prefill, SegmentKind::Router, Some(0)).unwrap().device, "cpu");
    // What the NPU refuses of whole segments is none of its groups' concern.
    let refusal = |op: &str, segment| Refusal {
        device: "npu".into(),
        segment,
        op: op.into(),
        why: "its shapes are known late".into(),
    };
    let refusals =
        [refusal("experts", SegmentKind::Experts), refusal("router", SegmentKind::Router)];
    assert!(plan.refused(&refusals).is_empty());
    // What it refuses of groups leaves them to the CPU, and is said.
    let refusals = [refusal("expert_group", SegmentKind::Experts)];
    let mut without = plan;
    let met = without.avoid(&refusals, &["npu", "cpu"]).unwrap();
    let said = describe_refusals(&without, &met);
    assert!(said[0].contains("npu does not take expert_group") && said[0].contains("has cpu"));
    assert_eq!(without.devices, ["cpu"]);
    assert!(without.all_rules().all(|r| r.split.is_none()));
    without.check(&spec, &["npu", "cpu"]).unwrap();
}

#[test]
fn attention_goes_with_the_groups_where_asked() {
    let spec = spec();
    let mut request = request(ExpertPolicy::All, &spec);
    request.experts.attention = true;
    let plan = make(&spec, &[device("cpu", true), device("npu", false)], &request).unwrap();
    for (kind, layer) in segments(&spec) {
        use SegmentKind::{Attention, AttnOut, Qkv};
        let there = matches!(kind, Qkv | Attention | AttnOut);
        let expected = if there { "npu" } else { "cpu" };
        assert_eq!(plan.rule(Phase::Prefill, kind, layer).unwrap().device, expected);
        assert_eq!(plan.rule(Phase::Decode, kind, layer).unwrap().device, "cpu");
    }
}

#[test]
fn padding_has_room_for_all_rows_and_balanced_layers_one_tier() {
    let spec = spec();
    let devices = [device("cpu", true), device("npu", false)];
    let mut pads = request(ExpertPolicy::All, &spec);
    pads.experts.overflow = Overflow::Pad;
    let padded = make(&spec, &devices, &pads).unwrap();
    let split = shared(&padded, 0).unwrap();
    assert!(split.overflow == Overflow::Pad && split.groups.iter().all(|g| g.capacity == 256));
    let mut unknown = request(ExpertPolicy::All, &spec);
    unknown.experts.used = Vec::new();
    let plan = make(&spec, &devices, &unknown).unwrap();
    let split = shared(&plan, 0).unwrap();
    let (_, experts, top_k) = experts(&spec);
    let base = (256 * top_k / experts).next_multiple_of(16);
    assert!(split.groups.iter().all(|g| g.capacity == base), "{split:?}");
    // One capacity for all, as asked.
    let mut uniform = request(ExpertPolicy::Groups, &spec);
    uniform.experts.tiers = Tiers::Rows(48);
    let plan = make(&spec, &devices, &uniform).unwrap();
    assert!(shared(&plan, 0).unwrap().groups.iter().all(|g| g.capacity == 48));
}

#[test]
fn experts_that_their_device_has_no_room_for_are_said() {
    let (spec, mut devices) = (spec(), [device("npu", false), device("cpu", true)]);
    let mut request = request(ExpertPolicy::Base, &spec);
    assert_eq!(experts_left_out(&spec, &devices, &request).unwrap(), None);
    (devices[0].caps.max_graphs, request.experts.bytes) = (Some(3), Some(100 << 20));
    let all = experts(&spec).0 * experts(&spec).1;
    let says = format!(
        "device npu has room for groups of 3 of {all} experts (100 MiB, 3 graphs at most): cpu \
         computes the others"
    );
    assert_eq!(experts_left_out(&spec, &devices, &request).unwrap(), Some(says));
}

#[test]
fn strategies_are_read_as_they_are_written() {
    for policy in ExpertPolicy::ALL {
        let strategy = Strategy::Experts(policy);
        assert_eq!(Strategy::parse(&strategy.to_string()), Ok(strategy));
    }
    let refused = Strategy::parse("experts=some").unwrap_err();
    assert!(refused.contains("base, t, tg, all"), "{refused}");
    assert_eq!([1, 512, 1024, 2048, 4096].map(expert_chunk), [256, 256, 512, 512, 1024]);
}

#[test]
fn a_model_without_experts_stays_on_one_device() {
    let config = presets::config("qwen3-0.6b").unwrap();
    let spec = families::from_config(&config).unwrap().spec;
    let request =
        PlanRequest { strategy: Strategy::Experts(ExpertPolicy::All), ..PlanRequest::default() };
    let plan = make(&spec, &[device("cpu", true), device("npu", false)], &request).unwrap();
    assert_eq!(plan.devices, ["cpu"]);
    assert!(plan.all_rules().all(|r| !matches!(r.split, Some(Split::Experts(_)))));
}
