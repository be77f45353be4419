//! Profiles: fits, their quality on shapes they did not see, and which profiles are refused.

#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use troika_graph::{ActivationFormat, ProductForm, Subgraph, form_products};
use troika_model::families;
use troika_model::lower::{Lowered, SegmentKind};
use troika_model::spec::{ModelSpec, WeightRole};
use troika_plan::{ModelId, PlanDevice, PlanRequest, SyncMode, make};
use troika_solve::{
    Apart, CostModel, Forms, PairSample, PricedRun, Profile, ProfileError, ProfileSubject,
    ProfiledCosts, ProfiledDevice, ProfiledGraph, RunSample, SegmentPart, Slowdown, Spread,
    profiled_graphs,
};
use troika_time::RunWork;

const PARTS: Apart<'_> = Apart { experts: true, products: false, forms: &[] };

fn spec() -> ModelSpec {
    common::spec("qwen3-0.6b", 2)
}

fn lowered(spec: &ModelSpec) -> Arc<Lowered> {
    common::lowered(spec, 512, 2048)
}

fn device(name: &str, row_buckets: &[usize]) -> PlanDevice {
    let mut device = common::device(name, row_buckets);
    device.caps.facts = vec![("cores".into(), "2".into())];
    device
}

fn subject(spec: &ModelSpec, devices: &[PlanDevice]) -> ProfileSubject {
    ProfileSubject {
        program: "1.0".into(),
        machine: "a machine".into(),
        model: ModelId::of(spec),
        types: vec!["matrices Q8_0".into()],
        devices: devices.iter().map(ProfiledDevice::of).collect(),
    }
}

/// The time of a run on a machine that reads weights up to a knee, then multiplies. Adds
/// reproducible noise of about a tenth.
fn truth(device: usize, work: &RunWork) -> f64 {
    let rate = [1.0, 3.0][device];
    let knee = [6.0, 2.0][device];
    let noise = 1.0 + ((work.weight_bytes as u64 / 7 + work.room as u64) % 11) as f64 / 110.0;
    let read = work.weight_bytes * 0.1 * rate;
    let multiply = work.products * (work.room - knee).max(0.0) * 0.02 * rate;
    let rest = work.room * work.columns * 0.05 * rate;
    let attention = work.attended * 0.03 * rate + work.cache_bytes * 0.1;
    (2000.0 + read + multiply + rest + attention) * noise
}

/// A run of a profiled graph's first layer behind no cached positions.
fn sample(device: usize, graph: &ProfiledGraph, rows: usize, ns: f64) -> RunSample {
    RunSample {
        device,
        graph: graph.name.clone(),
        segment: graph.kind,
        part: graph.part,
        share: graph.share,
        work: RunWork::of(&graph.layers[0], rows, 0),
        rows,
        cached: 0,
        held_out: graph.held_out(),
        ns: Spread::of(&[ns]),
        visits: 1,
    }
}

/// A profile of two devices; the second has static shapes if `buckets` is not empty.
fn measured(buckets: &[usize]) -> (Profile, Vec<PlanDevice>, Arc<Lowered>) {
    let spec = spec();
    let lowered = lowered(&spec);
    let devices = vec![device("a", &[]), device("b", buckets)];
    let mut profile = Profile::new(subject(&spec, &devices));
    for graph in profiled_graphs(&lowered, &[ActivationFormat::INT8], PARTS) {
        let one = &graph.layers[0];
        for (d, device) in devices.iter().enumerate() {
            for (rows, held_out) in [
                (1, false),
                (3, true),
                (4, false),
                (16, false),
                (24, true),
                (64, false),
                (100, true),
                (256, false),
                (384, true),
                (512, false),
            ] {
                let room = device.caps.row_buckets.iter().copied().find(|n| *n >= rows);
                let room = room.unwrap_or(rows);
                let cached: &[usize] = if one.states.is_empty() { &[0] } else { &[0, 600, 1024] };
                for &cached in cached {
                    let work = RunWork::of(one, room, cached);
                    let held_out = held_out || graph.held_out() || cached == 600;
                    let run = sample(d, &graph, rows, truth(d, &work));
                    profile.runs.push(RunSample { work, cached, held_out, ..run });
                }
            }
        }
    }
    let slow = |factor| vec![Slowdown { rows: 1, factor }, Slowdown { rows: 100, factor: 1.0 }];
    for (from, to, factor) in [(0, 1, 2.0), (1, 0, 1.5)] {
        profile.pairs.push(PairSample {
            from,
            to,
            predicted_ns: Spread::of(&[1000.0, 3000.0, 2000.0]),
            blocking_ns: Spread::of(&[50_000.0]),
            slowdowns: slow(factor),
        });
    }
    profile.fit();
    profile.complete = true;
    (profile, devices, lowered)
}

/// Chunks are as short as they can be without being slower; padded ones tell nothing.
#[test]
fn chunks_are_as_long_as_was_measured_to_be_fast() {
    let (profile, ..) = measured(&[32, 128, 512]);
    let rows =
        |device| -> Vec<usize> { profile.chunk_times(device).iter().map(|t| t.rows).collect() };
    assert_eq!([rows(0), rows(1)], [vec![64, 256, 512], vec![512]]);
    let with = |slower: f64| {
        let mut profile = profile.clone();
        for run in profile.runs.iter_mut().filter(|r| r.share == 64) {
            let each = if run.rows < 256 { slower } else { 1.0 };
            let ns = run.rows as f64 * each * (1.0 + run.device as f64);
            run.ns = Spread::of(&[ns]);
        }
        profile
    };
    // The second device is compiled for numbers of rows: it is the NPU, though the first is faster.
    assert_eq!([1.02, 1.04].map(|slower| with(slower).chunk_length()), [Some((1, 512)); 2]);
    let own = |slower: f64| {
        let mut profile = with(slower);
        profile.subject.devices[1].row_buckets.clear();
        (profile.chunk_length(), profile.own_chunk_length(0))
    };
    assert_eq!(own(1.02), (Some((0, 64)), Some(64)));
    assert_eq!(own(1.04), (Some((0, 256)), Some(256)));
    // Of an NPU that takes products only, these count.
    let mut only = profile.clone();
    only.runs.retain(|r| r.device == 0 || !r.is_whole());
    assert!(only.chunk_times(1).is_empty());
    for run in profile.runs.iter().filter(|r| r.device == 1 && r.is_whole()) {
        only.runs.push(RunSample { part: SegmentPart::Products, ..run.clone() });
    }
    assert_eq!(only.chunk_times(1), profile.chunk_times(1));
    assert_eq!(only.chunk_length(), Some((1, 512)));
    assert_eq!(Profile { runs: Vec::new(), ..profile.clone() }.chunk_length(), None);
}

#[test]
fn fits_serve_where_nothing_was_fitted() {
    for buckets in [&[][..], &[32, 128, 512]] {
        let (profile, ..) = measured(buckets);
        let regret = profile.regret.unwrap();
        assert!(regret.runs > 50 && regret.choices > 10, "{regret:?}");
        assert!(regret.error < 0.08 && regret.median < 0.05, "{buckets:?}: {regret:?}");
        for fit in &profile.fits.runs {
            assert!(fit.error < 0.08, "{fit:?}");
            assert_eq!(fit.time.stairs, fit.device == 1 && !buckets.is_empty());
        }
        let knee = |d| profile.fits.get(d, SegmentKind::Ffn, SegmentPart::Whole).unwrap().time.knee;
        assert!((3.0..=16.0).contains(&knee(0)), "{}", knee(0));
    }
}

/// A fit with a wrong speed of a device makes bad choices, and its regret shows it.
#[test]
fn regret_tells_when_choices_are_bad() {
    let (mut profile, ..) = measured(&[]);
    for run in profile.runs.iter_mut().filter(|r| r.device == 0 && r.held_out) {
        run.ns = Spread::of(&[run.ns.median * 20.0]);
    }
    profile.fit();
    let regret = profile.regret.unwrap();
    assert!(regret.median > 0.5 && regret.error > 0.3, "{regret:?}");
}

#[test]
fn prices_follow_the_profile() {
    let (profile, devices, lowered) = measured(&[32, 128, 512]);
    // The solver's order of devices may differ.
    let turned = vec![devices[1].clone(), devices[0].clone()];
    let costs: &dyn CostModel = &ProfiledCosts::new(&profile, &turned).unwrap();
    let ffn = lowered.segments.iter().find(|s| s.kind == SegmentKind::Ffn).unwrap();
    let run = |device, rows, room| PricedRun {
        device,
        kind: SegmentKind::Ffn,
        graph: &ffn.graph,
        rows,
        room,
        cached: 0,
    };
    for (device, rows, room, place) in [(1, 40, 40, 0), (0, 40, 128, 1), (0, 100, 128, 1)] {
        let expected = truth(place, &RunWork::of(&ffn.graph, room, 0));
        let got = costs.run_ns(&run(device, rows, room));
        assert!((got / expected - 1.0).abs() < 0.15, "{got} {expected}");
    }
    // Padding costs as much as rows.
    assert_eq!(costs.run_ns(&run(0, 40, 128)), costs.run_ns(&run(0, 128, 128)));
    assert_eq!(costs.hand_over_ns(0, 1, SyncMode::Predicted), 2000.0);
    assert_eq!(costs.hand_over_ns(0, 1, SyncMode::Blocking), 50_000.0);
    // In the solver's order: b is slowed twofold by a, and a by half by b.
    assert_eq!(costs.slowdowns(&[run(0, 1, 1), run(1, 1, 1)]), [2.0, 1.5]);
    assert_eq!(costs.slowdowns(&[run(0, 10, 10), run(1, 200, 200)]), [1.5, 1.0]);
    assert_eq!(costs.slowdowns(&[run(1, 1, 1)]), [1.0]);
    let other = [device("c", &[])];
    let Err(missing) = ProfiledCosts::new(&profile, &other) else { panic!() };
    assert!(missing.to_string().contains("another list of devices"), "{missing}");
}

#[test]
fn files_hold_what_was_measured() {
    let (profile, ..) = measured(&[]);
    let read = Profile::from_json(&profile.to_json()).unwrap();
    assert_eq!((&read.subject, read.complete), (&profile.subject, true));
    assert_eq!(read.runs.len(), profile.runs.len());
    for (a, b) in read.runs.iter().zip(&profile.runs) {
        assert_eq!((a.device, &a.graph, a.rows, a.cached), (b.device, &b.graph, b.rows, b.cached));
        // Reading decimal digits may be off by one in the last place.
        assert!((a.ns.low / b.ns.low - 1.0).abs() < 1e-12);
    }
}

#[test]
fn profiles_of_something_else_are_refused() {
    let (profile, ..) = measured(&[]);
    let here = &profile.subject;
    assert_eq!(profile.check(here), Ok(()));
    type Change = fn(&mut ProfileSubject);
    let cases: [(Change, &str); 8] = [
        (|s| s.program = "0.9".into(), "another version of Troika: 1.0, here it is 0.9"),
        (|s| s.machine = "another".into(), "another machine: a machine, here it is another"),
        (|s| s.model.layers = 3, "another model"),
        (|s| s.types = vec!["matrices F16".into()], "another kind of weights: matrices Q8_0"),
        (|s| s.devices.truncate(1), "another list of devices: a, b, here it is a"),
        (|s| s.devices[1].name = "x".into(), "another list of devices"),
        (|s| s.devices[1].numerics = "f16".into(), "another device: b with f32"),
        (|s| s.devices[0].facts[0].1 = "4".into(), "cores 2, here it is a with cores 4"),
    ];
    for (change, says) in cases {
        let mut other = here.clone();
        change(&mut other);
        let why = profile.check(&other).unwrap_err().to_string();
        assert!(why.contains(says) && why.contains("measure again"), "{why}");
        assert!(!why.contains('\n'), "{why}");
    }
    let half = Profile { complete: false, ..profile.clone() };
    assert_eq!(half.check(here), Err(ProfileError::Incomplete));
    assert_eq!(half.check_subject(here), Ok(()));
}

#[test]
fn spoilt_profiles_are_refused() {
    let (profile, ..) = measured(&[]);
    let text = profile.to_json();
    let changed = |change: &dyn Fn(&mut Profile)| {
        let mut profile = profile.clone();
        change(&mut profile);
        profile.to_json()
    };
    assert!(Profile::from_json(&text).is_ok());
    for (spoilt, says) in [
        (text[..text.len() / 2].to_string(), "it is not a profile"),
        (String::new(), "it is not a profile"),
        ("[]".into(), "it is not a profile"),
        (text.replacen("\"version\":5", "\"version\":7", 1), "version 7, this build reads 5"),
        (text.replacen("\"complete\"", "\"finished\"", 1), "it is not a profile"),
        (text.replacen("\"device\":0", "\"device\":9", 1), "without a device or a time"),
        (text.replacen("\"factor\":2.0", "\"factor\":0.5", 1), "a pair of devices without a time"),
        (text.replacen("\"terms\":[", "\"terms\":[-", 1), "a fit of"),
        (changed(&|p| p.fits.runs[0].time.terms = [0.0; 6]), "a fit of"),
        (changed(&|p| p.fits.runs[0].time.terms[0] = 1e18), "a fit of"),
        (changed(&|p| p.fits.runs[0].time.factors[0].1 = 0.0), "a fit of"),
        (changed(&|p| drop(p.fits.runs.remove(0))), "without a fit"),
        (changed(&|p| p.runs[0].rows = 0), "without a device or a time"),
        (changed(&|p| p.runs[0].share = 999), "without a device or a time"),
        (changed(&|p| p.pairs.clear()), "no time of a hand-over between two"),
        (changed(&|p| p.pairs[0].to = p.pairs[0].from), "a pair of devices without a time"),
        (changed(&|p| p.pairs[0].blocking_ns.median = -1.0), "a pair of devices without a time"),
        (changed(&|p| p.devices[0].submit_ns.median = -1.0), "without times of its lists"),
    ] {
        let why = Profile::from_json(&spoilt).map(drop).unwrap_err().to_string();
        assert!(why.contains(says) && !why.contains('\n'), "{says}: {why}");
    }
}

#[test]
fn parts_of_shared_experts_have_measurements_of_their_own() {
    let config = serde_json::json!({
        "model_type": "qwen3_moe", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 512,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "decoder_sparse_step": 1, "norm_topk_prob": true
    });
    let spec = families::from_config(&config).unwrap().spec;
    let lowered = lowered(&spec);
    let alone = profiled_graphs(&lowered, &[], Apart::default());
    assert!(alone.iter().all(|g| g.part == SegmentPart::Whole));
    let all = profiled_graphs(&lowered, &[], PARTS);
    for graph in all.iter().filter(|g| g.share == 64) {
        assert_eq!(SegmentPart::of(graph.kind, &graph.layers[0]), graph.part, "{}", graph.name);
    }
    let rows = |part| {
        let of = all.iter().filter(move |g| g.part == part);
        of.map(|g| (g.rows, g.layers.len())).collect::<Vec<_>>()
    };
    assert_eq!(rows(SegmentPart::Choices), [(None, 2)]);
    // Besides experts, and before they are chosen.
    assert_eq!(rows(SegmentPart::Beside), [(None, 2); 2]);
    // Eight experts are not enough for a group of sixteen.
    let groups: Vec<usize> =
        rows(SegmentPart::Group).iter().filter_map(|(rows, _)| *rows).collect();
    assert_eq!(groups, [16, 64, 256, 64, 256, 1024, 128, 512, 2048]);
    let devices = vec![device("a", &[]), device("b", &[])];
    let mut profile = Profile::new(subject(&spec, &devices));
    for graph in all.iter().filter(|g| g.kind == SegmentKind::Experts) {
        let rows = graph.rows.unwrap_or(64);
        let work = RunWork::of(&graph.layers[0], rows, 0);
        // The second device was not measured with groups.
        for device in 0..if graph.part == SegmentPart::Group { 1 } else { 2 } {
            let slower = if graph.part == SegmentPart::Group { 3.0 } else { 1.0 };
            let run = sample(device, graph, rows, slower * work.room * work.products * 1e-3);
            profile.runs.push(RunSample { held_out: false, ..run });
        }
    }
    profile.fit();
    let costs: &dyn CostModel = &ProfiledCosts::new(&profile, &devices).unwrap();
    let ns = |device, part| {
        let graph = all.iter().find(|g| g.part == part && g.rows.is_none_or(|n| n == 512)).unwrap();
        let (kind, rows) = (graph.kind, graph.rows.unwrap_or(64));
        let graph = &graph.layers[0];
        costs.run_ns(&PricedRun { device, kind, graph, rows, room: rows, cached: 0 })
            / (rows as f64 * RunWork::of(graph, rows, 0).products)
    };
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.05;
    assert!(near(ns(0, SegmentPart::Group), 3e-3), "{}", ns(0, SegmentPart::Group));
    assert!(near(ns(0, SegmentPart::Choices), 1e-3), "{}", ns(0, SegmentPart::Choices));
    assert!(near(ns(1, SegmentPart::Choices), 1e-3));
    assert_eq!(ns(1, SegmentPart::Group), f64::INFINITY);
}

/// Products have measurements of their own in each form, and plans take the forms that gain more than
/// profiles know, product by product.
#[test]
fn products_have_the_form_that_was_measured_to_gain() {
    let spec = spec();
    let lowered = lowered(&spec);
    let mut devices = [device("npu", &[]), device("cpu", &[])];
    devices[0].caps.forms = vec![ProductForm::Exchanged, ProductForm::Groups(32)];
    let mut profile = Profile::new(subject(&spec, &devices));
    for (device, d) in devices.iter().enumerate() {
        let apart = Apart { forms: &d.caps.forms, ..Apart::default() };
        let all = profiled_graphs(&lowered, &[], apart);
        let form_of = |g: &ProfiledGraph| match g.part {
            SegmentPart::Form { of, form } => Some((of, form)),
            _ => None,
        };
        let formed: Vec<_> = all.iter().filter_map(form_of).collect();
        // Products of queries, of outputs and two of feed-forwards in three forms, of the head in two.
        assert_eq!(formed.len(), [14, 0][device], "{formed:?}");
        for graph in &all {
            let one = &graph.layers[0];
            for rows in [1, 16, 64, 256, 512] {
                let work = RunWork::of(one, rows, 0);
                let (exchanged, groups) = (ProductForm::Exchanged, ProductForm::Groups(32));
                let gain = match form_of(graph) {
                    Some((WeightRole::Up, Some(form))) if form == groups => 0.5,
                    Some((WeightRole::Up, Some(form))) if form == exchanged && rows > 1 => 0.7,
                    Some((WeightRole::Down, Some(form))) if form == exchanged && rows > 1 => 0.7,
                    Some((_, Some(_))) => 0.97,
                    _ => 1.0,
                };
                let ns = gain * work.room * work.products * 1e-3;
                profile.runs.push(sample(device, graph, rows, ns));
            }
        }
    }
    profile.fit();
    let cost: &dyn CostModel = &ProfiledCosts::new(&profile, &devices).unwrap();
    let base = PlanRequest { context: Some(2048), ..PlanRequest::default() };
    for first in [0, 1] {
        let mut plan = make(&spec, &devices[first..], &base).unwrap();
        plan.decode.rules[0].exchange = vec![WeightRole::Q];
        Forms::new(&lowered, &devices, cost).choose(&mut plan);
        let rule = &plan.prefill.rules[0];
        assert_eq!(rule.exchange, if first == 0 { vec![WeightRole::Down] } else { vec![] });
        let grouped: Vec<_> = rule.group_rows.iter().map(|(role, rows)| (*role, *rows)).collect();
        let expected = [(WeightRole::Gate, 32), (WeightRole::Up, 32)];
        assert_eq!(grouped, expected[..if first == 0 { 2 } else { 0 }]);
        assert!(!plan.decode.rules[0].has_forms());
    }
    // A segment takes less by what its products gain.
    let ffn = &lowered.segments.iter().find(|s| s.kind == SegmentKind::Ffn).unwrap().graph;
    fn run(graph: &Subgraph) -> PricedRun<'_> {
        PricedRun { device: 0, kind: SegmentKind::Ffn, graph, rows: 64, room: 64, cached: 0 }
    }
    let of = |form| cost.run_ns(&run(&form_products(ffn, |name| WeightRole::of(name).and(form))));
    let (plain, grouped) = (of(None), of(Some(ProductForm::Groups(32))));
    let gain = (0.5 * 2.0 + 0.03) / 3.0;
    assert!((grouped / plain - (1.0 - gain)).abs() < 0.01, "{grouped} of {plain}");
    assert_eq!(of(Some(ProductForm::Groups(8))), f64::INFINITY, "not measured");
    assert!(cost.formed_ns(&run(ffn), &devices[0].caps.forms) < grouped);
}
