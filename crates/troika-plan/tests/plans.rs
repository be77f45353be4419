//! Plans: the results of strategies, the contents of files, and what is refused.

#![allow(clippy::panic, clippy::unwrap_used)]

use troika_device::{Caps, CodeWeights};
use troika_graph::{ActivationFormat, DType, ProductForm, ScaleOrigin};
use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::{ModelSpec, WeightRole};
use troika_model::{families, presets};
use troika_plan::{
    CalibratedProducts, Calibration, Dispatch, Elsewhere, ExpertGroupPlan, ExpertSplit, Layers,
    LengthRules, Overflow, Phase, Plan, PlanDevice, PlanError, PlanRequest, Policy, Refusal,
    RefusedOps, Rule, Share, Split, Stage, Strategy, describe_refusals, make,
};

fn spec(preset: &str) -> ModelSpec {
    families::from_config(&presets::config(preset).unwrap()).unwrap().spec
}

fn devices(count: usize) -> Vec<PlanDevice> {
    let caps = Caps {
        numerics: "f32".into(),
        activation_formats: vec![ActivationFormat::INT8],
        queue_depth: 8,
        ..Caps::default()
    };
    let named = NAMES[..count].iter();
    named.map(|n| PlanDevice { name: (*n).into(), caps: caps.clone() }).collect()
}

fn planned(preset: &str, strategy: Strategy, count: usize) -> Plan {
    make(&spec(preset), &devices(count), &PlanRequest { strategy, ..PlanRequest::default() })
        .unwrap()
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn strategies_place_segments_as_their_names_say() {
    for preset in ["qwen3-0.6b", "qwen3-moe-tiny"] {
        let spec = spec(preset);
        for n in 2..=4 {
            let by_layer = planned(preset, Strategy::Alternate, n);
            for (i, &(kind, layer)) in segments(&spec).iter().enumerate() {
                let device =
                    |plan: &Plan| plan.rule(Phase::Prefill, kind, layer).unwrap().device.clone();
                let l = layer.unwrap_or(if i == 0 { 0 } else { spec.layers.len() });
                assert_eq!(device(&by_layer), NAMES[l % n], "{preset} {kind:?} {layer:?}");
            }
            assert_eq!(by_layer.prefill.rules, by_layer.decode.rules);
            assert_eq!(by_layer.prefill.chunks_in_flight, 4);
        }
        let plan = planned(preset, Strategy::PrefillDecode, 2);
        assert_eq!((&*plan.prefill.rules[0].device, &*plan.decode.rules[0].device), ("a", "b"));
        let plan = planned(preset, Strategy::OneDevice, 3);
        assert_eq!(
            (plan.devices.as_slice(), plan.prefill.chunks_in_flight),
            (&["a".into()][..], 1)
        );
    }
}

#[test]
fn whole_layers_follow_each_other() {
    let strategy = |text: &str| Strategy::parse(text).unwrap();
    let text = "layers=a:20+b/a:4+c:4";
    assert_eq!(strategy(text).to_string(), text);
    for (preset, experts) in [("qwen3-0.6b", false), ("qwen3-30b-a3b", true)] {
        let spec = spec(preset);
        let all = spec.layers.len();
        let text = format!("layers=a:{}+b/a:4+c:4", all - 8);
        let plan = planned(preset, strategy(&text), 4);
        assert_eq!((plan.devices.len(), &plan.strategy), (3, &text));
        for (kind, layer) in segments(&spec) {
            let wanted = match (kind, layer) {
                (SegmentKind::Embed, _) => "a",
                (SegmentKind::Head, _) => "c",
                (_, Some(l)) if l < all - 8 => "a",
                (SegmentKind::Experts, Some(l)) if experts && l < all - 4 => "a",
                (_, Some(l)) if l < all - 4 => "b",
                _ => "c",
            };
            let rule = plan.rule(Phase::Decode, kind, layer).unwrap();
            assert_eq!(rule.device, wanted, "{preset} {kind:?} {layer:?}");
        }
        // Runs without layers have the embedding and the head.
        let ends = planned(preset, strategy(&format!("layers=a:0+b:{all}+c:0")), 4);
        assert_eq!(ends.devices, ["a", "b", "c"]);
        for (text, says) in [
            (format!("layers=a:{}", all - 1), "no rule"),
            (format!("layers=a:{}", usize::MAX), "layer"),
            (format!("layers=a:1+z:{}", all - 1), "the plan uses device z"),
        ] {
            let (spec, devices, strategy) = (&spec, devices(4), strategy(&text));
            let request = PlanRequest { strategy, ..PlanRequest::default() };
            let why = make(spec, &devices, &request).unwrap_err().to_string();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
    for wrong in ["layers", "layers=", "layers=a", "layers=:3", "layers=a/:3", "layers=a:x"] {
        assert!(Strategy::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn more_devices_than_layers_are_no_matter() {
    let mut spec = spec("qwen3-0.6b");
    spec.layers.truncate(2);
    let request = PlanRequest { strategy: Strategy::Alternate, ..PlanRequest::default() };
    let plan = make(&spec, &devices(4), &request).unwrap();
    plan.check(&spec, &NAMES).unwrap();
}

#[test]
fn strategies_say_how_many_devices_they_need() {
    for (strategy, count) in [
        (Strategy::OneDevice, 0),
        (Strategy::Alternate, 1),
        (Strategy::PrefillDecode, 1),
        (Strategy::SplitHybrid, 1),
    ] {
        let request = PlanRequest { strategy, ..PlanRequest::default() };
        let refused = make(&spec("qwen3-0.6b"), &devices(count), &request).unwrap_err();
        assert!(matches!(refused, PlanError::Strategy { .. }), "{refused}");
    }
}

/// The CPU as the control plane of a GPU and an NPU, in one list of devices.
#[test]
fn a_third_device_computes_only_what_two_refuse() {
    let third = NAMES[2];
    for strategy in [
        Strategy::parse("split-columns").unwrap(),
        Strategy::SplitRows(None),
        Strategy::SplitHybrid,
        Strategy::PrefillDecode,
    ] {
        let mut plan = planned("qwen3-0.6b", strategy.clone(), 3);
        plan.check(&spec("qwen3-0.6b"), &NAMES).unwrap();
        assert_eq!(plan.devices, NAMES[..2], "{strategy}");
        let refusals = [0, 1].map(|at| refusal(NAMES[at], SegmentKind::Attention, "attention"));
        plan.avoid(&refusals, &NAMES[..3]).unwrap();
        assert_eq!(plan.devices, NAMES[..3], "{strategy}");
        let passed: Vec<_> = plan.all_rules().flat_map(|rule| &rule.refused).collect();
        assert!(!passed.is_empty() && passed.iter().all(|r| r.by == third), "{passed:?}");
        // One that takes it goes before.
        let mut plan = planned("qwen3-0.6b", strategy.clone(), 3);
        plan.avoid(&refusals[..1], &NAMES[..3]).unwrap();
        assert_eq!(plan.devices, NAMES[..2], "{strategy}");
    }
}

#[test]
fn formats_and_cache_types_follow_the_devices() {
    let spec = spec("qwen3-0.6b");
    let mut both = devices(2);
    both[1].caps.activation_formats = vec![ActivationFormat::INT8, ActivationFormat::Bf16];
    let request = PlanRequest { strategy: Strategy::Alternate, ..PlanRequest::default() };
    let plan = make(&spec, &both, &request).unwrap();
    for rule in plan.rules(Phase::Decode) {
        let expected =
            &both.iter().find(|d| d.name == rule.device).unwrap().caps.activation_formats;
        assert_eq!(&rule.activations, expected);
    }
    // A cache in bf16 needs all devices.
    assert_eq!(plan.kv_dtype, DType::F16);
    both[0].caps.activation_formats = vec![ActivationFormat::Bf16];
    assert_eq!(make(&spec, &both, &request).unwrap().kv_dtype, DType::BF16);
    let single = PlanRequest { single_precision: true, ..request.clone() };
    assert_eq!(make(&spec, &both, &single).unwrap().kv_dtype, DType::F32);
    let none = PlanRequest { activations: Some(Vec::new()), ..request };
    assert_eq!(make(&spec, &both, &none).unwrap().activations(), []);
}

#[test]
fn files_hold_what_was_planned() {
    for strategy in Strategy::ALL {
        let plan = planned("qwen3-moe-tiny", strategy.clone(), 2);
        let text = plan.to_json();
        assert_eq!(Plan::from_json(&text).unwrap(), plan);
        let older = text.replace("\"int8\"", "\"Int8\"");
        assert!(older != text && Plan::from_json(&older).unwrap() == plan);
        let e = Plan::from_json(&text.replace("\"int8\"", "\"int0\"")).unwrap_err().to_string();
        assert!(
            e.contains("`int0` is no activation format: f32, bf16, f16, f16:int4 (weights of 4 bits), or whole"),
            "{e}"
        );
        assert_eq!(Strategy::parse(strategy.name()), Ok(strategy.clone()));
        assert_eq!(Strategy::parse(&plan.strategy), Ok(strategy));
    }
}

#[test]
fn strategies_are_read_as_they_are_written() {
    for text in ["split-columns=0.7", "split-columns=0.125", "split-rows=384", "split-hybrid"] {
        assert_eq!(Strategy::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(Strategy::parse("split-columns=0.5").unwrap().to_string(), "split-columns");
    for (text, expected) in [
        ("random", "the strategies are one-device, alternate"),
        ("", "no strategy \"\""),
        ("split-columns=", "a ratio of \"\""),
        ("split-columns=0", "from 0.001 to 0.999"),
        ("split-columns=1", "from 0.001 to 0.999"),
        ("split-columns=NaN", "from 0.001 to 0.999"),
        ("split-columns=-0.5", "from 0.001 to 0.999"),
        ("split-rows=0", "no number of rows"),
        ("split-rows=1.5", "no number of rows"),
        ("alternate=2", "takes no value"),
    ] {
        let why = Strategy::parse(text).unwrap_err();
        assert!(why.contains(expected), "{text}: {why}");
    }
}

#[test]
fn splits_share_out_what_can_be_split() {
    let (preset, spec) = ("qwen3-moe-tiny", spec("qwen3-moe-tiny"));
    let kinds = |plan: &Plan, phase| {
        let split = plan.rules(phase).iter().find(|r| r.split.is_some())?;
        Some((split.device.clone(), split.split.clone()?, split.segments.clone()?))
    };
    let share = |device: &str, share| Share { device: device.into(), share };
    let columns = planned(preset, Strategy::parse("split-columns=0.3").unwrap(), 2);
    let parts = vec![share("a", 300), share("b", 700)];
    let products =
        vec![SegmentKind::Qkv, SegmentKind::Attention, SegmentKind::AttnOut, SegmentKind::Head];
    // Ops that cannot be split run on the device with the largest share.
    let expected = Some(("b".into(), Split::Columns { parts }, products));
    assert_eq!(kinds(&columns, Phase::Prefill), expected);
    assert_eq!(kinds(&columns, Phase::Decode), expected);

    let rows = planned(preset, Strategy::SplitRows(None), 2);
    let (device, split, kinds_of_rows) = kinds(&rows, Phase::Prefill).unwrap();
    assert_eq!((&*device, split.lengths()), ("a", &[257][..]));
    assert!(!kinds_of_rows.contains(&SegmentKind::Attention));
    assert!(kinds_of_rows.contains(&SegmentKind::Experts));
    assert_eq!(kinds(&rows, Phase::Decode), None);
    assert!(rows.decode.rules.iter().all(|r| r.device == "a"));

    // With compiled row counts, the standard length is one of them.
    let mut facts = devices(2);
    facts[0].caps.row_buckets = vec![64, 128, 512];
    let request = PlanRequest { strategy: Strategy::SplitHybrid, ..PlanRequest::default() };
    let hybrid = make(&spec, &facts, &request).unwrap();
    let (_, split, _) = kinds(&hybrid, Phase::Prefill).unwrap();
    assert_eq!((split.lengths(), split.parts().len()), (&[128][..], 2));
    let (_, split, kinds_of_columns) = kinds(&hybrid, Phase::Decode).unwrap();
    assert!(matches!(split, Split::Columns { .. }));
    assert!(!kinds_of_columns.contains(&SegmentKind::Attention), "the cache stays where it is");
    facts[1].caps.row_buckets = vec![64, 256];
    let (_, split, _) = kinds(&make(&spec, &facts, &request).unwrap(), Phase::Prefill).unwrap();
    assert_eq!(split.lengths(), [64], "both are compiled for it");
    // A split computes the same numbers everywhere.
    facts[1].caps.activation_formats = vec![ActivationFormat::Bf16];
    let hybrid = make(&spec, &facts, &request).unwrap();
    let split = hybrid.decode.rules.iter().find(|r| r.split.is_some()).unwrap();
    assert_eq!(split.activations, []);
}

fn refusal(device: &str, segment: SegmentKind, op: &str) -> Refusal {
    Refusal { device: device.into(), segment, op: op.into(), why: "has no such unit".into() }
}

#[test]
fn refused_ops_go_to_the_first_device_that_takes_them() {
    let spec = spec("qwen3-moe-tiny");
    let mut plan = planned("qwen3-moe-tiny", Strategy::Alternate, 3);
    let refusals = [
        refusal("b", SegmentKind::Attention, "attention"),
        refusal("b", SegmentKind::Attention, "kv_append"),
        refusal("b", SegmentKind::Qkv, "rope"),
        refusal("a", SegmentKind::Qkv, "rope"),
        refusal("d", SegmentKind::Qkv, "linear"),
    ];
    let met: Vec<Refusal> = plan.refused(&refusals).into_iter().cloned().collect();
    assert_eq!(met, refusals[..4], "d is not used");
    let changed: Vec<&Refusal> = plan.avoid(&refusals, &NAMES).unwrap();
    let text = describe_refusals(&plan, &changed).join("\n");
    let expected = "device b does not take attention, kv_append, rope (has no such unit): the \
        plan has a, c compute them";
    assert!(text.contains(expected), "{text}");
    plan.check(&spec, &NAMES).unwrap();
    assert_eq!(plan.refused(&refusals), Vec::<&Refusal>::new(), "nothing is left to avoid");
    for phase in [Phase::Prefill, Phase::Decode] {
        for &(kind, layer) in &segments(&spec) {
            let rule = plan.rule(phase, kind, layer).unwrap();
            let by = |op| rule.device_of(&rule.device, kind, op);
            match (kind, rule.device.as_str()) {
                (SegmentKind::Attention, "b") => {
                    assert_eq!((by("attention"), by("add")), ("a", "b"))
                }
                (SegmentKind::Qkv, "a" | "b") => assert_eq!(by("rope"), "c"),
                _ => assert_eq!(by("rope"), rule.device),
            }
        }
    }
    // A device that takes over ops is listed.
    let mut plan = planned("qwen3-moe-tiny", Strategy::OneDevice, 2);
    plan.avoid(&[refusal("a", SegmentKind::Head, "linear")], &NAMES[..2]).unwrap();
    assert_eq!(plan.devices, ["a", "b"]);
    plan.check(&spec, &NAMES).unwrap();
    let mut plan = planned("qwen3-moe-tiny", Strategy::OneDevice, 1);
    let nobody = plan.avoid(&[refusal("a", SegmentKind::Head, "linear")], &["a"]).unwrap_err();
    let text = nobody.to_string();
    assert!(text.contains("no device takes linear of segment head; a: has no such unit"), "{text}");
}

/// Splits and refusals that contradict themselves.
#[test]
fn spoilt_splits_are_refused() {
    let spec = spec("qwen3-moe-tiny");
    let good = planned("qwen3-moe-tiny", Strategy::SplitHybrid, 2);
    let hybrid = |change: fn(&mut Vec<usize>, &mut Vec<Share>)| {
        let mut plan = good.clone();
        let Some(Split::Hybrid { lengths, parts }) = &mut plan.prefill.rules[0].split else {
            panic!("{}", plan.to_json())
        };
        change(lengths, parts);
        plan.check(&spec, &["a", "b"]).unwrap_err().to_string()
    };
    let rule = |change: fn(&mut Rule)| {
        let mut plan = good.clone();
        change(&mut plan.prefill.rules[0]);
        plan.check(&spec, &["a", "b"]).unwrap_err().to_string()
    };
    fn refused(device: &str, by: &str) -> RefusedOps {
        let (device, by) = (device.into(), by.into());
        RefusedOps { device, segments: vec![SegmentKind::Qkv], ops: vec!["add".into()], by }
    }
    for (why, expected) in [
        (hybrid(|l, _| l.clear()), "has standard lengths []"),
        (hybrid(|l, _| l.push(0)), "0]; give some from 1 to 65536"),
        (hybrid(|_, p| p.truncate(1)), "among fewer than two devices"),
        (hybrid(|_, p| p[1].share = 0), "gives device b a share of 0"),
        (hybrid(|_, p| p[1].device = "a".into()), "gives device a two shares"),
        (hybrid(|_, p| p[1].device = "c".into()), "names device c, which the plan does not list"),
        (rule(|r| r.values = DType::I32), "has values of type"),
        (rule(|r| r.segments = None), "splits the rows of attention"),
        (
            rule(|r| r.split = Some(Split::Rows { lengths: vec![8], rest: r.device.clone() })),
            "leaves the rest of the rows to the same device",
        ),
        (
            rule(|r| {
                let mut parts = r.split.as_ref().unwrap().parts().to_vec();
                parts[1].share = 1000;
                r.split = Some(Split::Columns { parts });
            }),
            "on device a, which has not the largest share",
        ),
        (rule(|r| r.refused.push(refused("a", "a"))), "compute what it is said to refuse"),
        (
            rule(|r| r.refused = vec![refused("a", "b"), refused("b", "a")]),
            "compute what it is said to refuse",
        ),
        (
            rule(|r| r.refused = vec![refused("a", "b"), refused("a", "b")]),
            "says twice who computes what device a refuses",
        ),
        (
            rule(|r| r.refused = vec![RefusedOps { ops: vec![], ..refused("a", "b") }]),
            "names no ops that device a refuses",
        ),
        (
            rule(|r| {
                let ops = vec!["add".into(), "Linear".into()];
                r.refused = vec![RefusedOps { ops, ..refused("a", "b") }];
            }),
            "says that device a refuses op \"Linear\", which does not exist; the ops are embed, ",
        ),
        (rule(|r| r.refused.push(refused("a", "z"))), "names device z"),
        (rule(|r| r.row_buckets = Some(vec![])), "has row buckets []; give some from 1 to 65536"),
        (rule(|r| r.row_buckets = Some(vec![0, 8])), "has row buckets [0, 8]"),
        (
            rule(|r| r.row_buckets = Some(vec![8, 8])),
            "[8, 8]; give some from 1 to 65536, ascending",
        ),
        (rule(|r| r.row_buckets = Some(vec![32, 8])), "has row buckets [32, 8]"),
        (rule(|r| r.row_buckets = Some(vec![8, 65537])), "has row buckets [8, 65537]"),
    ] {
        assert!(why.starts_with("rule 1 of prefill ") && why.contains(expected), "{why}");
    }
}

#[test]
fn row_buckets_are_for_static_shapes() {
    let mut plan = planned("qwen3-moe-tiny", Strategy::SplitHybrid, 2);
    plan.check_shapes(&|_| false).unwrap();
    plan.decode.rules[1].row_buckets = Some(vec![1, 65536]);
    plan.check(&spec("qwen3-moe-tiny"), &["a", "b"]).unwrap();
    assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
    // The rule concerns `a` only.
    plan.check_shapes(&|name| name == "a").unwrap();
    let why = plan.check_shapes(&|name| name == "b").unwrap_err().to_string();
    assert_eq!(
        why,
        "rule 2 of decode has row buckets, but a takes any number of rows; leave them out"
    );
    // A phase with other shapes has other executables.
    let rules = (&plan.decode.rules[1], &planned("qwen3-moe-tiny", Strategy::SplitHybrid, 2));
    assert!(!rules.0.places_as(&rules.1.decode.rules[1]));
}

#[test]
fn forms_of_products_are_written_and_told() {
    let plan = planned("qwen3-moe-tiny", Strategy::SplitHybrid, 2);
    assert!(!plan.to_json().contains("exchange") && !plan.explain().contains("exchanged"));
    assert!(!plan.to_json().contains("group_rows") && !plan.explain().contains("in groups"));
    let mut other = plan.clone();
    other.decode.rules[1].exchange = vec![WeightRole::Q, WeightRole::Head];
    other.check(&spec("qwen3-moe-tiny"), &["a", "b"]).unwrap();
    let text = other.to_json();
    assert_eq!(Plan::from_json(&text).unwrap(), other);
    assert!(other.explain().contains("; operands exchanged of Q, Head |"), "{}", other.explain());
    assert!(!plan.decode.rules[1].places_as(&other.decode.rules[1]));
    let roles = [(WeightRole::Up, 32), (WeightRole::V, 8)];
    other.decode.rules[1].group_rows = roles.into_iter().collect();
    other.check(&spec("qwen3-moe-tiny"), &["a", "b"]).unwrap();
    assert_eq!(Plan::from_json(&other.to_json()).unwrap(), other);
    let told =
        "; operands exchanged of Q, Head; rows of V in groups of 8; rows of Up in groups of 32 |";
    assert!(other.explain().contains(told), "{}", other.explain());
    assert_eq!(other.decode.rules[1].form(WeightRole::Up), Some(ProductForm::Groups(32)));
    for (role, rows, says) in [
        (WeightRole::Q, 8, "names Q in \"exchange\" and in \"group_rows\"; a product has one form"),
        (WeightRole::K, 1, "has rows of K in groups of 1; name 2 rows or more"),
    ] {
        let mut wrong = other.clone();
        wrong.decode.rules[1].group_rows.insert(role, rows);
        let why = wrong.check(&spec("qwen3-moe-tiny"), &["a", "b"]).unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
    }
    let why = Plan::from_json(&text.replace("\"Head\"", "\"Haed\"")).unwrap_err().to_string();
    assert!(why.contains("\"Haed\" is not known here; known: Embed, "), "{why}");
}

/// Every spoilt plan is refused with a sentence that names the fault.
#[test]
fn spoilt_plans_are_refused() {
    let spec = spec("qwen3-moe-tiny");
    let good = planned("qwen3-moe-tiny", Strategy::Alternate, 2);
    let last = spec.layers.len() - 1;
    type Spoil = fn(&mut Plan);
    let cases: [(Spoil, &str); 21] = [
        (|p| p.prefill.critical_device = Some("c".into()), "critical device c"),
        (|p| p.version = 3, "version 3"),
        (|p| p.model.vocab += 1, "tokens"),
        (|p| p.model.family = "bloom".into(), "bloom"),
        (|p| p.context = 0, "the context is 0"),
        (|p| p.context = usize::MAX, "the context"),
        (|p| p.prefill.chunk = 0, "the chunk length is 0"),
        (|p| p.prefill.chunks_in_flight = 0, "chunks in flight is 0"),
        (|p| p.prefill.chunks_in_flight = 65, "between 1 and 64"),
        (
            |p| (p.prefill.policy, p.prefill.chunks_in_flight) = (Policy::ChunkAtATime, 2),
            "of the policy chunk-at-a-time is 2",
        ),
        (|p| p.page_len = 33, "a power of two"),
        (|p| p.kv_dtype = DType::Q8_0, "KV cache cannot be"),
        (|p| p.devices.push("gpu".into()), "device gpu, which is not among those at hand (a, b)"),
        (|p| p.devices.push("a".into()), "a is listed twice"),
        (|p| p.devices = vec!["a".into()], "names device b, which the plan does not list"),
        (|p| drop(p.decode.rules.remove(0)), "no rule of decode places embed"),
        (|p| p.prefill.rules.clear(), "no rule of prefill places embed"),
        (|p| p.prefill.rules.push(p.prefill.rules[0].clone()), "places embed, as rule 1 does"),
        (
            |p| p.decode.rules[2].layers = Some(Layers { first: 0, last: 99, step: 1 }),
            "rule 3 of decode names layer 99",
        ),
        (
            |p| p.decode.rules[2].layers = Some(Layers { first: 1, last: 0, step: 1 }),
            "a range of no layers",
        ),
        (
            |p| {
                for rule in p.prefill.rules.iter_mut().chain(&mut p.decode.rules) {
                    rule.device = "a".into();
                }
            },
            "no rule uses b",
        ),
    ];
    good.check(&spec, &["a", "b"]).unwrap();
    for (i, (spoil, expected)) in cases.iter().enumerate() {
        let mut plan = good.clone();
        spoil(&mut plan);
        let why = plan.check(&spec, &["a", "b"]).unwrap_err().to_string();
        assert!(why.contains(expected), "case {i}: {why}");
    }
    let mut holes = good.clone();
    let rule = holes.prefill.rules.iter_mut().find(|r| r.layers.is_some()).unwrap();
    rule.layers = Some(Layers { first: 0, last, step: 3 });
    let why = holes.check(&spec, &["a", "b"]).unwrap_err().to_string();
    assert!(why.contains("places qkv of layer") || why.contains("no rule"), "{why}");
}

#[test]
fn spoilt_files_are_refused() {
    let text = planned("qwen3-moe-tiny", Strategy::Alternate, 2).to_json();
    let change = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Plan::from_json(&text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    for (from, to, expected) in [
        ("\"context\"", "\"contxt\"", "there is no field \"contxt\"; known: version"),
        ("\"step\": 2", "\"step\": -2", "-2 where a whole number from 0 on belongs"),
        ("\"embed\"", "\"embedding\"", "\"embedding\" is not known here; known: embed, "),
        ("\"in-order\"", "\"fastest\"", "\"fastest\" is not known here; known: chunk-at-a-time, "),
        ("\"version\": 2", "\"version\": 1", "version 1"),
        ("\"version\": 2", "\"version\": 18446744073709551615", "version 18446744073709551615"),
        ("\"F16\"", "\"F17\"", "\"F17\" is not known here; known: "),
        ("\"devices\"", "\"prefill\": 1, \"devices\"", "line"),
    ] {
        let why = change(from, to);
        assert!(why.contains(expected), "{to}: {why}");
    }
    for cut in (0..text.len() - 3).step_by(7) {
        assert!(Plan::from_json(&text[..cut]).is_err(), "cut at {cut}");
    }
    for text in ["", "null", "[]", "{}", "7", "{\"version\": 2}"] {
        assert!(Plan::from_json(text).is_err(), "{text}");
    }
}

/// Rules by chunk length: the shortest bucket that fits decides.
#[test]
fn short_chunks_have_rules_of_their_own() {
    let spec = spec("qwen3-moe-tiny");
    let mut plan = planned("qwen3-moe-tiny", Strategy::OneDevice, 1);
    let on = |device: &str| {
        let mut rules = plan.prefill.rules.clone();
        rules.iter_mut().for_each(|r| r.device = device.into());
        rules
    };
    let lengths =
        vec![LengthRules { up_to: 16, rules: on("b") }, LengthRules { up_to: 64, rules: on("c") }];
    plan.prefill.lengths = lengths;
    plan.devices = vec!["a".into(), "b".into(), "c".into()];
    plan.check(&spec, &NAMES).unwrap();
    assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
    let device = |phase, rows| {
        let rule = plan.rule_for(phase, rows, SegmentKind::Qkv, Some(1)).unwrap();
        rule.device.clone()
    };
    for (rows, expected) in [(1, "b"), (16, "b"), (17, "c"), (64, "c"), (65, "a"), (512, "a")] {
        assert_eq!(device(Phase::Prefill, rows), expected, "{rows} rows");
    }
    assert_eq!(device(Phase::Decode, 1), "a");
    type Change = fn(&mut Plan);
    let cases: [(Change, &str); 6] = [
        (|p| p.prefill.lengths[1].up_to = 16, "a bucket of up to 16 rows follows one of up to 16"),
        (|p| p.prefill.lengths[0].up_to = 0, "let them ascend"),
        (|p| p.prefill.lengths[1].up_to = 512, "leaves nothing to the rules of chunks of 512"),
        (
            |p| p.prefill.lengths[1].rules[0].segments = Some(vec![SegmentKind::Qkv]),
            "no rule of prefill up to 64 rows places embed",
        ),
        (
            |p| p.prefill.lengths[0].rules[0].row_buckets = Some(vec![0]),
            "rule 1 of prefill up to 16 rows has row buckets",
        ),
        (|p| p.prefill.lengths[0].rules[0].values = DType::F16, "have another type"),
    ];
    for (change, says) in cases {
        let mut spoilt = plan.clone();
        change(&mut spoilt);
        let why = spoilt.check(&spec, &NAMES).unwrap_err().to_string();
        assert!(why.contains(says) && !why.contains('\n'), "{says}: {why}");
    }
}

/// Segments whose outliers count, those whose do not, and floats have rules of their own, whatever
/// the strategy; each device keeps to the formats it has.
#[test]
fn calibrated_products_are_placed_by_segments() {
    let format = ActivationFormat::of_tensor(8, ScaleOrigin::Static);
    for preset in ["qwen3-0.6b", "qwen3-moe-tiny"] {
        let spec = spec(preset);
        let mut devices = devices(2);
        devices[0].caps.activation_formats = vec![format];
        let important = [(SegmentKind::Qkv, Some(1)), (SegmentKind::AttnOut, Some(0))];
        let calibrated = Some(CalibratedProducts {
            format,
            digest: Some("d".into()),
            exact: important.to_vec(),
            takers: vec!["b".into()],
        });
        for strategy in Strategy::ALL {
            let request =
                PlanRequest { strategy, calibrated: calibrated.clone(), ..PlanRequest::default() };
            // It checks that exactly one rule matches each segment.
            let plan = make(&spec, &devices, &request).unwrap();
            assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
            assert_eq!(plan.calibration.as_deref(), Some("d"), "{}", plan.strategy);
            for (kind, layer) in segments(&spec) {
                let rule = plan.rule(Phase::Prefill, kind, layer).unwrap();
                let computes = rule.activations.contains(&format);
                let on_npu = rule.device == "a";
                let what = format!("{preset} {} {} {layer:?}", plan.strategy, kind.name());
                let own = |s: &Option<Split>| matches!(s, None | Some(Split::Residual { .. }));
                if own(&rule.split) {
                    assert_eq!(computes, on_npu, "{what}");
                    assert_eq!(
                        rule.split == Some(Split::Residual { by: "b".into() }),
                        on_npu && important.contains(&(kind, layer)),
                        "{what}"
                    );
                }
                if !CalibratedProducts::rounds(kind) {
                    assert!(!computes && (!own(&rule.split) || !on_npu), "{what}");
                } else if on_npu {
                    assert!(rule.activations.contains(&ActivationFormat::INT8), "{what}");
                }
            }
        }
        let request =
            PlanRequest { calibrated, activations: Some(Vec::new()), ..PlanRequest::default() };
        let plan = make(&spec, &devices, &request).unwrap();
        let formats: Vec<_> = plan.all_rules().flat_map(|r| &r.activations).collect();
        assert!(!formats.is_empty() && formats.iter().all(|f| **f == format), "f32 elsewhere");
    }
}

#[test]
fn strategies_may_name_their_devices() {
    for text in ["one-device=b", "prefill-decode=b:a", "prefill-decode=a:a"] {
        let strategy = Strategy::parse(text).unwrap();
        assert_eq!(strategy.to_string(), text);
        let plan = planned("qwen3-0.6b", strategy, 2);
        let of = |phase| plan.rules(phase)[0].device.as_str();
        let (prefill, decode) = (of(Phase::Prefill), of(Phase::Decode));
        let expected = match text {
            "one-device=b" => ("b", "b"),
            "prefill-decode=b:a" => ("b", "a"),
            _ => ("a", "a"),
        };
        assert_eq!((prefill, decode), expected, "{text}");
    }
    for wrong in ["one-device=", "prefill-decode=a", "prefill-decode=:a", "alternate=a"] {
        assert!(Strategy::parse(wrong).is_err(), "{wrong}");
    }
    let strategy = Strategy::parse("prefill-decode=a:x").unwrap();
    let request = PlanRequest { strategy, ..PlanRequest::default() };
    let refused = make(&spec("qwen3-0.6b"), &devices(2), &request).unwrap_err();
    assert!(refused.to_string().contains('x'), "{refused}");
}

/// A plan that computes by a calibration is used with that one only.
#[test]
fn plans_keep_to_their_calibration() {
    let spec = spec("qwen3-0.6b");
    let mut devices = devices(1);
    let mut calibration = Calibration::new(&spec);
    let format = ActivationFormat::of_tensor(8, ScaleOrigin::Static);
    let calibrated = Some(CalibratedProducts {
        format,
        digest: Some(calibration.digest()),
        exact: Vec::new(),
        takers: Vec::new(),
    });
    let request = PlanRequest { calibrated, ..PlanRequest::default() };
    let of_others = make(&spec, &devices, &request).unwrap();
    assert_eq!(of_others.calibration, None, "its device computes without");
    of_others.check_calibration(None).unwrap();
    devices[0].caps.activation_formats = vec![format];
    let mut plan = make(&spec, &devices, &request).unwrap();
    plan.check_calibration(Some(&calibration)).unwrap();
    let none = plan.check_calibration(None).unwrap_err().to_string();
    assert!(none.starts_with("the plan computes by a calibration; give its file"), "{none}");
    calibration.tokens += 1;
    let other = plan.check_calibration(Some(&calibration)).unwrap_err().to_string();
    assert!(other.contains(&calibration.digest()) && !other.contains('\n'), "{other}");
    // A plan written by hand takes any.
    plan.calibration = None;
    plan.check_calibration(Some(&calibration)).unwrap();
}

/// Where each number of rows has weights of its own, a plan names few of them.
#[test]
fn rows_are_few_where_each_holds_weights() {
    let spec = spec("qwen3-0.6b");
    let mut devices = devices(2);
    devices[0].caps.row_buckets = vec![1, 16, 32, 64, 128, 256, 512];
    let rows = |devices: &[PlanDevice], strategy, chunk| {
        let request = PlanRequest { strategy, chunk, ..PlanRequest::default() };
        let plan = make(&spec, devices, &request).unwrap();
        let of = |phase, kind| plan.rule(phase, kind, Some(0)).unwrap().row_buckets.clone();
        let head = plan.rule(Phase::Prefill, SegmentKind::Head, None).unwrap().row_buckets.clone();
        let ffn = of(Phase::Prefill, SegmentKind::Ffn);
        (ffn, head, of(Phase::Decode, SegmentKind::Ffn), plan)
    };
    let (ffn, ..) = rows(&devices, Strategy::OneDevice, 512);
    assert_eq!(ffn, None, "weights are held once: all of the device's");
    devices[0].caps.code_weights = Some(CodeWeights::floats(4));
    let some = |rows: &[usize]| Some(rows.to_vec());
    let (ffn, head, decode, plan) = rows(&devices, Strategy::OneDevice, 512);
    assert_eq!((ffn, head), (some(&[1, 128, 512]), some(&[1, 128])));
    assert_eq!(decode, some(&[1, 128, 512]), "both phases share their code");
    let shorter = plan.with_chunk(64, &devices);
    assert_eq!(
        shorter.rule(Phase::Prefill, SegmentKind::Ffn, Some(0)).unwrap().row_buckets,
        some(&[1, 16, 64])
    );
    let (ffn, head, decode, _) = rows(&devices, Strategy::PrefillDecode, 200);
    assert_eq!((ffn, head, decode), (some(&[64, 256]), some(&[1, 64]), None));
    // The lengths of parts are among them.
    let (ffn, ..) = rows(&devices, Strategy::SplitRows(Some(32)), 512);
    assert_eq!(ffn, some(&[1, 32, 128, 512]));
    // The user's own come first.
    let row_buckets = Some(vec![7]);
    let request = PlanRequest { row_buckets, ..PlanRequest::default() };
    let plan = make(&spec, &devices, &request).unwrap();
    assert!(plan.all_rules().all(|r| r.row_buckets == some(&[7])));
}

/// Segments that a device has no room for are computed by another one, in its own formats.
#[test]
fn what_has_no_room_is_elsewhere() {
    let spec = spec("qwen3-0.6b");
    let mut devices = devices(2);
    devices[0].caps.activation_formats.clear();
    let last = spec.layers.len() - 1;
    let segments = vec![(SegmentKind::Ffn, Some(last)), (SegmentKind::Head, None)];
    let moved = Elsewhere {
        device: "a".into(),
        holds: 5 << 20,
        by: "b".into(),
        segments: segments.clone(),
    };
    let said = moved.describe();
    for says in ["holds 5 MiB", "head", &format!("ffn of layer {last}")] {
        assert!(said.contains(says), "{said}");
    }
    for strategy in Strategy::ALL {
        let request =
            PlanRequest { strategy, elsewhere: vec![moved.clone()], ..PlanRequest::default() };
        let plan = make(&spec, &devices, &request).unwrap();
        for (kind, layer) in &segments {
            for phase in [Phase::Prefill, Phase::Decode] {
                let rule = plan.rule(phase, *kind, *layer).unwrap();
                assert!(rule.devices().eq(["b"]), "{} {}: {rule:?}", plan.strategy, kind.name());
                assert_eq!(rule.activations, [ActivationFormat::INT8]);
            }
        }
    }
}

/// A plan of device `a` that shares out the experts of a layer.
fn with_groups(groups: &[(&str, &[usize], usize)]) -> (ModelSpec, Plan) {
    let spec = spec("qwen3-moe-tiny");
    let mut plan = planned("qwen3-moe-tiny", Strategy::OneDevice, 1);
    plan.devices = vec!["a".into(), "b".into()];
    let group = |(device, experts, capacity): &(&str, &[usize], usize)| {
        ExpertGroupPlan::new(device, experts.to_vec(), *capacity)
    };
    let groups = groups.iter().map(group).collect();
    let split = ExpertSplit {
        groups,
        overflow: Overflow::Cpu,
        dispatch: Dispatch::PerChunk,
        expected: Vec::new(),
    };
    let all = plan.prefill.rules[0].clone();
    let kinds = SegmentKind::ALL.into_iter().filter(|k| *k != SegmentKind::Experts);
    let rule = |kinds: Vec<SegmentKind>| Rule { segments: Some(kinds), ..all.clone() };
    let shares = Rule { split: Some(Split::Experts(split)), ..rule(vec![SegmentKind::Experts]) };
    let has = |k: &SegmentKind| segments(&spec).iter().any(|(kind, _)| kind == k);
    plan.prefill.rules = vec![rule(kinds.filter(has).collect()), shares];
    (spec, plan)
}

#[test]
fn experts_are_shared_out_in_groups() {
    let (spec, mut plan) = with_groups(&[("b", &[3, 0], 8), ("a", &[1], 4)]);
    plan.check(&spec, &NAMES).unwrap();
    let text = plan.to_json();
    assert!(!text.contains("overflow") && !text.contains("dispatch"), "{text}");
    assert_eq!(Plan::from_json(&text).unwrap(), plan);
    plan.check_hosts(&|name| name == "a").unwrap();
    let why = plan.check_hosts(&|name| name == "b").unwrap_err().to_string();
    assert!(why.contains("rule 2 of prefill has device a share experts out"), "{why}");
    let Some(Split::Experts(split)) = &mut plan.prefill.rules[1].split else { panic!("no groups") };
    split.dispatch = Dispatch::LayerMajor;
    plan.check(&spec, &NAMES).unwrap();
    assert!(plan.to_json().contains("\"dispatch\": \"layer-major\""));
    assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
    // Experts in several groups, and one whose products are divided.
    let (_, mut plan) = with_groups(&[("b", &[3, 0], 8), ("a", &[3], 4)]);
    assert!(!plan.to_json().contains("parts"));
    let Some(Split::Experts(split)) = &mut plan.prefill.rules[1].split else { panic!("no groups") };
    split.groups[1].parts = ["a", "b"].map(|d| Share { device: d.into(), share: 1 }).to_vec();
    plan.check(&spec, &NAMES).unwrap();
    assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
    for o in Overflow::ALL {
        assert_eq!(Overflow::parse(o.name()), Some(o));
    }
    for d in Dispatch::ALL {
        assert_eq!(Dispatch::parse(d.name()), Some(d));
    }
}

#[test]
fn spoilt_groups_of_experts_are_refused() {
    let experts = |e: &mut Plan| -> ExpertSplit { e.prefill.rules[1].experts().unwrap().clone() };
    type Spoil<'a> = (&'a dyn Fn(&mut ExpertSplit), &'a str);
    let parts = |s: &mut ExpertSplit, shares: &[(&str, u32)]| {
        let share =
            |(device, share): &(&str, u32)| Share { device: (*device).into(), share: *share };
        s.groups[1].parts = shares.iter().map(share).collect();
    };
    let spoils: [Spoil<'_>; 15] = [
        (&|s| s.groups.clear(), "has no groups of experts"),
        (&|s| s.groups[0].experts.clear(), "has no experts in group 1"),
        (&|s| s.groups[0].capacity = 0, "has a capacity of 0 in group 1"),
        (&|s| s.groups[0].experts.push(99), "names expert 99, and layer 0 has experts 0 to"),
        (&|s| parts(s, &[("a", 3), ("b", 0)]), "in group 2 gives device b a share of 0"),
        (&|s| parts(s, &[("a", 3), ("a", 1)]), "in group 2 gives device a two shares"),
        (&|s| parts(s, &[("a", 3)]), "in group 2 shares columns out among fewer than two devices"),
        (&|s| parts(s, &[("a", 1), ("b", 2)]), "on device a, which has not the largest share"),
        (&|s| parts(s, &[("a", 2), ("x", 1)]), "names device x"),
        (
            &|s| {
                parts(s, &[("a", 2), ("b", 1)]);
                s.groups[1].experts.push(2);
            },
            "divides group 2 of 2 experts by columns; give each of them a group",
        ),
        (&|s| s.groups[0].experts.push(3), "has expert 3 twice in group 1; give it a second group"),
        (&|s| s.groups[0].device = "x".into(), "names device x"),
        (
            &|s| s.expected = vec![1; 3],
            "says how often 3 experts are expected to be chosen, and layer 0",
        ),
        (&|s| s.overflow = Overflow::Pad, "pads, and its groups have a capacity of 8 for expert 3"),
        (
            &|s| (s.overflow, s.dispatch) = (Overflow::Prune, Dispatch::LayerMajor),
            "where full rows run at once and none overflow",
        ),
    ];
    for (spoil, told) in spoils {
        let (spec, mut plan) = with_groups(&[("b", &[3, 0], 8), ("a", &[1], 4)]);
        let mut split = experts(&mut plan);
        spoil(&mut split);
        plan.prefill.rules[1].split = Some(Split::Experts(split));
        // Without its groups device b has nothing to do, which would be told first.
        let used: Vec<String> = plan.all_rules().flat_map(Rule::devices).map(Into::into).collect();
        plan.devices.retain(|d| used.contains(d));
        let why = plan.check(&spec, &NAMES).unwrap_err().to_string();
        assert!(why.contains(told), "{why}");
    }
    let (spec, plan) = with_groups(&[("b", &[0], 8)]);
    let mut decoded = plan.clone();
    decoded.decode.rules = plan.prefill.rules.clone();
    let mut wide = plan.clone();
    wide.prefill.rules = vec![Rule { segments: None, ..plan.prefill.rules[1].clone() }];
    let mut staged = plan.clone();
    let split = plan.prefill.rules[1].split.clone();
    let stages =
        vec![Stage { device: "a".into(), split }, Stage { device: "b".into(), split: None }];
    staged.prefill.rules[1].split = Some(Split::Stages { stages });
    for (plan, told) in [
        (decoded, "for a single token"),
        (wide, "is about other segments, too"),
        (staged, "shares experts out within a stage"),
    ] {
        let why = plan.check(&spec, &NAMES).unwrap_err().to_string();
        assert!(why.contains(told), "{why}");
    }
}
