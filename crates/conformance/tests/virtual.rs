//! Models on virtual devices: results equal the CPU's, and times are equal in every run.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::time::Duration;

use conformance::golden::{REFERENCE_TOLERANCE, all_logits, check_with, open_changed};
use setup::{
    case, golden, golden_dir, odd_text, on, spec_without_numerics, virtual_spec, written_spec,
};
use troika::engine::{EngineError, SequenceInput, WantedLogits};
use troika::graph::ProductForm;
use troika::model::spec::WeightRole;
use troika::plan::{Plan, Policy, Strategy};
use troika::trace::{Arg, Span, Tracer};
use troika::weights::FloatType;
use troika::{Model, OpenOptions};

/// Gives a plan a policy, and as many chunks in flight as that has.
fn by(plan: &mut Plan, policy: Policy) {
    plan.prefill.policy = policy;
    plan.prefill.chunks_in_flight = if policy == Policy::ChunkAtATime { 1 } else { 3 };
}

/// A hybrid of the gated delta rule.
const DELTA: &str = "../golden-2026/qwen3.5";
/// Streams of AltUp, and layers that share keys and values.
const STREAMS: &str = "../golden-2026/gemma-3n";

#[test]
fn models_on_virtual_devices_agree_with_the_reference() {
    let a = virtual_spec("a", "odd/queue-depth-1.toml");
    // In virtual time, and beside a real device.
    for other in [&*virtual_spec("b", "odd/dense-rows.toml"), "c=cpu"] {
        for policy in Policy::ALL {
            let devices = OpenOptions {
                devices: on(&[&a, other]),
                strategy: Strategy::Alternate,
                ..OpenOptions::default()
            };
            for model in ["qwen3-moe", "gemma-2", "test-recurrent", DELTA, STREAMS] {
                let report = check_with(&case(model), &devices, Some(&|plan| by(plan, policy)));
                let report = report.unwrap();
                assert!(
                    report.holds(REFERENCE_TOLERANCE) && report.same_bits == Some(true),
                    "{model}: {report}"
                );
            }
        }
    }
}

/// Every odd device, beside the CPU in real time and beside a plain virtual device in virtual time:
/// ops that one refuses run on the other, and the bits are those of one device.
#[test]
fn odd_devices_run_models() {
    for name in [
        "static-shapes",
        "own-memory",
        "no-attention",
        "only-linear",
        "queue-depth-1",
        "small-bindings",
        "dense-rows",
    ] {
        let odd = virtual_spec("odd", &format!("odd/{name}.toml"));
        for other in ["cpu", &*virtual_spec("plain", "odd/queue-depth-1.toml")] {
            let devices = OpenOptions {
                devices: on(&[&odd, other]),
                strategy: Strategy::Alternate,
                ..OpenOptions::default()
            };
            for model in ["qwen3-moe", "gpt-oss"] {
                let two = |plan: &mut Plan| plan.prefill.chunks_in_flight = 2;
                let report = check_with(&case(model), &devices, Some(&two));
                let report = report.unwrap_or_else(|e| panic!("{name}, {model}: {e}"));
                assert!(report.holds(REFERENCE_TOLERANCE), "{name}, {model}: {report}");
                assert_eq!(report.same_bits, Some(true), "{name}, {model}");
            }
        }
    }
}

/// Spans of a prompt on two processors, and the final time.
fn timeline(policy: Policy) -> (Vec<Span>, Vec<f32>) {
    let tracer = Tracer::on();
    let (a, b) = (virtual_spec("a", "example.toml:gpu"), virtual_spec("b", "odd/dense-rows.toml"));
    let options = OpenOptions {
        dtype: FloatType::F32,
        chunk: Some(5),
        devices: on(&[&a, &b]),
        strategy: Strategy::Alternate,
        tracer: tracer.clone(),
        ..OpenOptions::default()
    };
    let golden = golden("qwen3-moe");
    let model = open_changed(&case("qwen3-moe").model, &options, &|plan| by(plan, policy));
    let model = model.unwrap();
    let logits = all_logits(&model, &golden.input_ids).unwrap();
    (tracer.spans(), logits)
}

#[test]
fn virtual_time_is_the_same_in_every_run() {
    for policy in Policy::ALL {
        let (spans, logits) = timeline(policy);
        let (other, same) = timeline(policy);
        assert_eq!(spans, other);
        assert_eq!(logits, same);
        assert!(spans.len() > 50, "{}", spans.len());
        let lane = |name: &str| spans.iter().filter(|s| &*s.lane == name).collect::<Vec<_>>();
        let (a, b) = (lane("a"), lane("b"));
        for spans in [&a, &b] {
            // A processor does one thing at a time, for the modelled time.
            assert!(spans.windows(2).all(|w| w[0].end <= w[1].start));
            for s in spans {
                let took = s.end - s.start;
                let modelled = Arg::Int(took.as_micros() as u64);
                assert!(s.args.contains(&("modelled_us", modelled)), "{s:?}");
                assert!(took >= Duration::from_micros(40), "{s:?}");
            }
        }
        // Two processors work at the same time, on different chunks.
        let meets = |s: &&&Span| b.iter().any(|o| s.start < o.end && o.start < s.end);
        let met = a.iter().filter(meets).count();
        assert!(if policy == Policy::ChunkAtATime { met == 0 } else { met > 10 }, "{met}");
    }
}

/// New plans take the forms of products that a file's device is faster with. They change times and no
/// bit, and a device without forms takes such a plan, too.
#[test]
fn forms_of_products_change_times_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = |traits: &str| {
        let text = odd_text("queue-depth-1");
        written_spec(dir.path(), "a", &format!("{text}products = {{ {traits} }}\n"))
    };
    let ids: Vec<u32> = golden("qwen3").input_ids.into_iter().cycle().take(64).collect();
    let run = |device: &str, chunk: usize, change: &dyn Fn(&mut Plan)| {
        let options = OpenOptions {
            dtype: FloatType::F32,
            chunk: Some(chunk),
            devices: on(&[device]),
            ..OpenOptions::default()
        };
        let model = open_changed(&golden_dir("qwen3"), &options, change).unwrap();
        let start = model.clock().now();
        let logits = all_logits(&model, &ids).unwrap();
        let plan = model.engine().unwrap().plan().clone();
        (plan, logits, model.clock().now() - start)
    };
    // 64 rows are square in groups of 8, 32 of 8 and of 4.
    for (traits, chunk, form) in [
        ("tile_load_rows = 1400", 5, ProductForm::Exchanged),
        ("square_gain = 1.62", 64, ProductForm::Groups(8)),
        ("square_gain = 1.62", 32, ProductForm::Groups(8)),
    ] {
        let array = file(traits);
        let (plan, logits, took) = run(&array, chunk, &|_| ());
        let rule = plan.prefill.rules[0].clone();
        for role in [WeightRole::Down, WeightRole::Q] {
            assert_eq!(rule.form(role), Some(form), "{rule:?}");
        }
        assert!(plan.decode.rules.iter().all(|r| r.group_rows.is_empty()));
        let as_they_are = |plan: &mut Plan| plan.all_rules_mut().for_each(|r| r.set_forms([]));
        let (_, same, longer) = run(&array, chunk, &as_they_are);
        assert!(logits == same && longer > took, "{longer:?} {took:?}");
        let formed = |plan: &mut Plan| {
            for r in plan.all_rules_mut() {
                (r.exchange, r.group_rows) = (rule.exchange.clone(), rule.group_rows.clone());
            }
        };
        assert_eq!(run("a=cpu", chunk, &formed).1, run("a=cpu", chunk, &as_they_are).1);
    }
}

#[test]
fn logits_that_nobody_computes_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let devices = on(&[&spec_without_numerics(dir.path())]);
    let options = OpenOptions { devices, ..OpenOptions::default() };
    let model = Model::open(&golden_dir("qwen3"), &options).unwrap();
    assert!(!model.computes());
    let clock = model.clock().clone();
    let mut engine = model.engine().unwrap();
    let seq = engine.open();
    let tokens = &[1, 2, 3];
    for logits in [WantedLogits::Last, WantedLogits::All] {
        let refused = engine
            .run(&[SequenceInput::prompt(seq, tokens, logits)], &mut |_, _, _| panic!("read"))
            .unwrap_err();
        assert!(matches!(&refused, EngineError::NoNumerics(name) if name == "off"), "{refused}");
    }
    assert_eq!((engine.len(seq), clock.now().as_nanos()), (0, 0), "refused before any work");
    // Time passes where nobody reads.
    engine
        .run(&[SequenceInput::prompt(seq, tokens, WantedLogits::None)], &mut |_, _, _| {})
        .unwrap();
    let body = clock.now();
    engine.run_unread(&[SequenceInput::prompt(seq, tokens, WantedLogits::Last)]).unwrap();
    assert_eq!(engine.len(seq), 6);
    assert!(clock.now() - body > body, "the head takes its time, too");
}
