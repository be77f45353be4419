//! Plans: what strategies make, what files hold, and what is refused.

use troika_graph::{ActivationFormat, DType};
use troika_model::lower::segments;
use troika_model::spec::ModelSpec;
use troika_model::{families, presets};
use troika_plan::{DeviceFacts, Layers, Phase, Plan, PlanError, PlanRequest, Strategy, make};

fn spec(preset: &str) -> ModelSpec {
    families::from_config(&presets::config(preset).unwrap()).unwrap().spec
}

fn devices(count: usize) -> Vec<DeviceFacts> {
    let named = ["a", "b", "c", "d"][..count].iter();
    named
        .map(|n| DeviceFacts {
            name: (*n).into(),
            activations: vec![ActivationFormat::Int8],
            row_buckets: Vec::new(),
        })
        .collect()
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
            let by_segment = planned(preset, Strategy::AlternateSegments, n);
            let mut at = 0;
            for (i, &(kind, layer)) in segments(&spec).iter().enumerate() {
                let device =
                    |plan: &Plan| plan.rule(Phase::Prefill, kind, layer).unwrap().device.clone();
                // The place of a segment in its layer.
                at = if i > 0 && segments(&spec)[i - 1].1 == layer { at + 1 } else { 0 };
                let l = layer.unwrap_or(if i == 0 { 0 } else { spec.layers.len() });
                assert_eq!(device(&by_layer), NAMES[l % n], "{preset} {kind:?} {layer:?}");
                assert_eq!(device(&by_segment), NAMES[(l + at) % n], "{preset} {kind:?} {layer:?}");
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
fn more_devices_than_layers_are_no_matter() {
    let mut spec = spec("qwen3-0.6b");
    spec.layers.truncate(2);
    for strategy in [Strategy::Alternate, Strategy::AlternateSegments] {
        let request = PlanRequest { strategy, ..PlanRequest::default() };
        let plan = make(&spec, &devices(4), &request).unwrap();
        plan.check(&spec, &NAMES).unwrap();
    }
}

#[test]
fn strategies_say_how_many_devices_they_need() {
    for (strategy, count) in [
        (Strategy::OneDevice, 0),
        (Strategy::Alternate, 1),
        (Strategy::AlternateSegments, 1),
        (Strategy::PrefillDecode, 1),
        (Strategy::PrefillDecode, 3),
    ] {
        let request = PlanRequest { strategy, ..PlanRequest::default() };
        let refused = make(&spec("qwen3-0.6b"), &devices(count), &request).unwrap_err();
        assert!(matches!(refused, PlanError::Strategy { .. }), "{refused}");
    }
}

#[test]
fn formats_and_cache_types_follow_the_devices() {
    let spec = spec("qwen3-0.6b");
    let mut both = devices(2);
    both[1].activations = vec![ActivationFormat::Int8, ActivationFormat::Bf16];
    let request = PlanRequest { strategy: Strategy::Alternate, ..PlanRequest::default() };
    let plan = make(&spec, &both, &request).unwrap();
    for rule in plan.rules(Phase::Decode) {
        let expected = &both.iter().find(|d| d.name == rule.device).unwrap().activations;
        assert_eq!(&rule.activations, expected);
    }
    // A cache in bf16 needs all devices.
    assert_eq!(plan.kv_dtype, DType::F16);
    both[0].activations = vec![ActivationFormat::Bf16];
    assert_eq!(make(&spec, &both, &request).unwrap().kv_dtype, DType::BF16);
    let single = PlanRequest { single_precision: true, ..request.clone() };
    assert_eq!(make(&spec, &both, &single).unwrap().kv_dtype, DType::F32);
    let none = PlanRequest { activations: Some(Vec::new()), ..request };
    assert_eq!(make(&spec, &both, &none).unwrap().activations(), []);
}

#[test]
fn files_hold_what_was_planned() {
    for strategy in Strategy::ALL {
        let plan = planned("qwen3-moe-tiny", strategy, 2);
        assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
        assert_eq!(Strategy::parse(strategy.name()), Some(strategy));
    }
    assert_eq!(Strategy::parse("random"), None);
}

/// Each way to spoil a plan is refused with a sentence that names what is wrong.
#[test]
fn spoilt_plans_are_refused() {
    let spec = spec("qwen3-moe-tiny");
    let good = planned("qwen3-moe-tiny", Strategy::Alternate, 2);
    let last = spec.layers.len() - 1;
    type Spoil = fn(&mut Plan);
    let cases: [(Spoil, &str); 20] = [
        (|p| p.prefill.critical_device = Some("c".into()), "critical device c"),
        (|p| p.version = 3, "version 3"),
        (|p| p.model.vocab += 1, "tokens"),
        (|p| p.model.family = "bloom".into(), "bloom"),
        (|p| p.context = 0, "the context is 0"),
        (|p| p.context = usize::MAX, "the context"),
        (|p| p.prefill.chunk = 0, "the chunk length is 0"),
        (|p| p.prefill.chunks_in_flight = 0, "chunks in flight is 0"),
        (|p| p.prefill.chunks_in_flight = 65, "between 1 and 64"),
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
        ("\"context\"", "\"contxt\"", "unknown field `contxt`"),
        ("\"step\": 2", "\"step\": -2", "invalid value"),
        ("\"embed\"", "\"embedding\"", "unknown variant `embedding`"),
        ("\"in-order\"", "\"fastest\"", "unknown variant `fastest`"),
        ("\"version\": 2", "\"version\": 1", "version 1"),
        ("\"version\": 2", "\"version\": 18446744073709551615", "version 18446744073709551615"),
        ("\"F16\"", "\"F17\"", "unknown variant `F17`"),
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
