//! A split by stages computes the same bits as one device does.

#![allow(clippy::expect_used, clippy::unwrap_used)]
#![allow(missing_docs)]

use troika::engine::{SequenceInput, WantedLogits};
use troika::graph::{ActivationFormat, DType};
use troika::model::lower::{SegmentKind, segments};
use troika::plan::{Plan, Rule, Share, Split, Stage};
use troika::{DeviceOptions, Model, OpenOptions, PlanSource, Source, make_plan};

fn options(devices: &[&str], plan: Option<Plan>) -> OpenOptions {
    let devices = devices.iter().map(|d| d.parse().unwrap()).collect();
    let devices = DeviceOptions { devices, ..DeviceOptions::default() };
    let plan = plan.map_or(PlanSource::Strategy, PlanSource::from);
    OpenOptions { devices, plan, context: Some(64), chunk: Some(16), ..OpenOptions::default() }
}

/// Bits of all logits of a prompt and of a token after it.
fn logits(options: &OpenOptions) -> Vec<u32> {
    let model = Model::open(Source::BuiltIn, options).unwrap();
    let seq = model.engine().unwrap().open();
    let mut bits = Vec::new();
    let tokens: Vec<u32> = (0..29).map(|i| i * 37 % 1000).collect();
    for tokens in [&tokens[..], &[7]] {
        let fed = if tokens.len() == 1 { SequenceInput::decode } else { SequenceInput::prompt };
        let input = [fed(seq, tokens, WantedLogits::All)];
        let mut take =
            |_: usize, _: usize, row: &[f32]| bits.extend(row.iter().map(|x| x.to_bits()));
        model.engine().unwrap().run(&input, &mut take).unwrap();
    }
    bits
}

fn share(device: &str, share: u32) -> Share {
    Share { device: device.into(), share }
}

fn stage(device: &str, split: Option<Split>) -> Stage {
    Stage { device: device.into(), split }
}

/// The plan of one device with the segments of products split by stages.
fn staged(qkv: Vec<Stage>, attn_out: Vec<Stage>) -> Plan {
    let mut plan = make_plan(Source::BuiltIn, &options(&["a=cpu", "b=cpu"], None)).unwrap().plan;
    plan.devices = vec!["a".into(), "b".into()];
    let model = Model::open(Source::BuiltIn, &options(&["a=cpu"], None)).unwrap();
    let all = segments(model.spec());
    let others = SegmentKind::ALL.into_iter().filter(|k| all.iter().any(|s| s.0 == *k));
    let others = others.filter(|k| !matches!(k, SegmentKind::Qkv | SegmentKind::AttnOut));
    let others: Vec<SegmentKind> = others.collect();
    for rules in [&mut plan.prefill.rules, &mut plan.decode.rules] {
        let plain = rules[0].clone();
        let with = |kind, stages: &[Stage]| Rule {
            segments: Some(vec![kind]),
            device: stages[0].device.clone(),
            split: Some(Split::Stages { stages: stages.to_vec() }),
            ..plain.clone()
        };
        *rules = vec![
            Rule { segments: Some(others.clone()), ..plain.clone() },
            with(SegmentKind::Qkv, &qkv),
            with(SegmentKind::AttnOut, &attn_out),
        ];
    }
    plan
}

#[test]
fn stages_on_other_devices_give_the_same_bits() {
    let alone = logits(&options(&["a=cpu"], None));
    let columns = Some(Split::Columns { parts: vec![share("a", 1), share("b", 2)] });
    let rows = Some(Split::Rows { lengths: vec![8], rest: "b".into() });
    for (products, sum) in [(stage("b", columns), "a"), (stage("a", rows), "b")] {
        let plan = staged(
            vec![stage("a", None), products.clone(), stage("b", None)],
            vec![products, stage(sum, None)],
        );
        let plan = Plan::from_json(&plan.to_json()).unwrap();
        assert!(alone == logits(&options(&["a=cpu", "b=cpu"], Some(plan))), "other bits");
    }
}

#[test]
fn stages_that_do_not_fit_are_refused_in_a_sentence() {
    let (a, b) = (|| stage("a", None), || stage("b", None));
    let refused = |qkv: Vec<Stage>, says: &str| {
        let plan = staged(qkv, vec![a(), b()]);
        let opened = Model::open(Source::BuiltIn, &options(&["a=cpu", "b=cpu"], Some(plan)));
        let e = opened.err().expect("refused").to_string();
        assert!(e.contains(says) && !e.contains('\n'), "{e}");
    };
    refused(vec![a(), b()], "layer 0 qkv has 3 stages, the plan's rule 2");
    refused(vec![a()], "has fewer than two stages");
    let nested = stage("a", Some(Split::Stages { stages: vec![a(), b()] }));
    refused(vec![a(), nested, b()], "has stages within a stage");
    let same = stage("b", Some(Split::Rows { lengths: vec![8], rest: "b".into() }));
    refused(vec![a(), same, b()], "leaves the rest of the rows to the same device");
}

/// Values between segments may have 16 bits: stages round and widen them where one device does.
#[test]
fn stages_hand_on_values_of_16_bits() {
    let columns = Some(Split::Columns { parts: vec![share("a", 1), share("b", 2)] });
    let staged = staged(
        vec![stage("a", None), stage("b", columns), stage("b", None)],
        vec![stage("b", None), stage("a", None)],
    );
    let devices = ["a=cpu", "b=cpu"];
    for values in [DType::F16, DType::BF16] {
        let of_type = |mut plan: Plan| {
            let rules = plan.prefill.rules.iter_mut().chain(&mut plan.decode.rules);
            rules.for_each(|rule| rule.values = values);
            logits(&options(&devices, Some(plan)))
        };
        let whole = make_plan(Source::BuiltIn, &options(&["a=cpu"], None)).unwrap().plan;
        assert!(of_type(whole) == of_type(staged.clone()), "{values}: other bits");
    }
}

/// A rule's formats are those that products may take: each part takes one that its device has.
#[test]
fn parts_take_the_formats_of_their_devices() {
    let soc = concat!(env!("CARGO_MANIFEST_DIR"), "/../../socs/odd/queue-depth-1.toml");
    let floats = format!("b=virtual:{soc}");
    let run = |b: &str, formats: &[ActivationFormat]| {
        let mut plan = staged(
            vec![stage("a", None), stage("b", None), stage("a", None)],
            vec![stage("b", None), stage("a", None)],
        );
        for rule in plan.prefill.rules.iter_mut().chain(&mut plan.decode.rules) {
            rule.activations = formats.to_vec();
        }
        logits(&options(&["a=cpu", b], Some(plan)))
    };
    let eight = &[ActivationFormat::INT8][..];
    let (whole, alike, unlike) = (run("b=cpu", &[]), run("b=cpu", eight), run(&floats, eight));
    assert!(run(&floats, &[]) == whole && whole != alike);
    assert!(unlike != whole && unlike != alike, "parts of b meet floats, those of a bytes");
}
