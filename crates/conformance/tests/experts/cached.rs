//! Experts that come and go on a device give what they give where all of them stay.

use troika::device::{ExpertForecast, ExpertStats};
use troika::plan::{ExpertCachePlan, KeptBy};

use troika::{GpuAdapter, gpu_adapters};

#[path = "../../../troika-gpu/tests/common/needed.rs"]
mod needed;

use super::*;

/// A model's weights as they outlive an engine's opening.
fn lasting(name: &str) -> LastingWeights {
    Arc::new(described(name).store)
}

/// Bytes of an expert of the model in floats.
fn expert_bytes(d: &Described) -> u64 {
    let moe = d.spec.layers.iter().find_map(|l| l.moe()).unwrap();
    (3 * d.spec.hidden * moe.inter * 4) as u64
}

/// A graph for each expert on device `b`, of which so many are loaded at once.
fn cached(d: &Described, one: &Plan, of: (Dispatch, usize, usize), cache: Cache) -> Plan {
    let (dispatch, in_flight, capacity) = of;
    let experts = d.spec.layers.iter().find_map(|l| l.moe()).unwrap().experts;
    let groups = (0..experts).map(|expert| group("b", &[expert], capacity)).collect();
    let split = ExpertSplit { groups, overflow: Overflow::Cpu, dispatch, expected: Vec::new() };
    let mut plan = shared(d, one, in_flight, &split);
    let Cache { slots, least_rows, kept_by } = cache;
    let bytes = slots * expert_bytes(d) + 1;
    plan.expert_caches = vec![ExpertCachePlan { device: "b".into(), bytes, least_rows, kept_by }];
    plan
}

#[derive(Clone, Copy, Debug)]
struct Cache {
    slots: u64,
    least_rows: usize,
    kept_by: KeptBy,
}

/// A cache of some experts.
const fn of(slots: u64) -> Cache {
    Cache { slots, least_rows: 0, kept_by: KeptBy::Frequency }
}

fn stats(e: &Engine) -> ExpertStats {
    e.expert_stats().remove(0).1
}

#[test]
fn experts_that_come_and_go_give_the_same_bits() {
    for name in ["mixtral", "qwen3-moe"] {
        let (set, source) = (Setting::new(name, cpus(), 5), lasting(name));
        let lru = Cache { kept_by: KeptBy::Lru, ..of(5) };
        for cache in [of(1), of(2), lru, Cache { least_rows: 3, ..of(4) }] {
            for dispatch in Dispatch::ALL {
                for (in_flight, capacity) in [(1, 1), (2, 3), (4, 64)] {
                    let how = (dispatch, in_flight, capacity);
                    let mut e = set.engine(cached(&set.d, &set.one, how, cache));
                    e.load_experts(&source, None);
                    for _ in 0..2 {
                        let same = logits(&mut e, &set.ids) == set.expected;
                        assert!(same, "{name}: other bits with {cache:?}, {how:?}");
                    }
                    let ExpertStats { held, budget, chosen, hits, evictions, bytes_read, .. } =
                        stats(&e);
                    assert!(held <= budget && hits <= chosen, "{held} {budget} {hits} {chosen}");
                    // Buffers that are never half full are left to the other device.
                    let fills = capacity < 64 || dispatch == Dispatch::PerChunk;
                    let fills = fills && capacity >= cache.least_rows;
                    assert!(!fills || (evictions > 0 && bytes_read > 0), "{cache:?}, {how:?}");
                }
            }
        }
    }
}

/// Names the first two experts of the next layer.
fn next_layer(layer: usize, _: &[f32], expect: &mut dyn FnMut(usize, &[u16])) {
    expect(layer + 1, &[0, 1]);
}

/// Single tokens choose experts that come and go, too, and a forecast loads some before.
#[test]
fn decoding_loads_what_a_forecast_names() {
    let (set, source) = (Setting::new("qwen3-moe", cpus(), 1), lasting("qwen3-moe"));
    let mut plan = cached(&set.d, &set.one, (Dispatch::PerChunk, 1, 1), of(9));
    plan.decode.rules.clone_from(&plan.prefill.rules);
    let mut e = set.engine(plan);
    let forecast = Arc::new(next_layer) as Arc<ExpertForecast>;
    e.load_experts(&source, Some(&forecast));
    assert!(logits(&mut e, &set.ids) == set.expected);
    let ExpertStats { expected, expected_used, .. } = stats(&e);
    assert!(expected > 0 && expected_used > 0 && expected_used <= expected);
}

/// What cannot be loaded ends the sequence with a sentence; the next one tries again.
#[test]
fn an_expert_that_cannot_be_loaded_is_an_error() {
    let set = Setting::new("mixtral", cpus(), 5);
    let mut e = set.engine(cached(&set.d, &set.one, (Dispatch::PerChunk, 2, 4), of(2)));
    for _ in 0..2 {
        let seq = e.open();
        let input = SequenceInput::prompt(seq, &set.ids, WantedLogits::Last);
        let error = e.run(&[input], &mut |_, _, _| {}).unwrap_err().to_string();
        assert!(error.contains("its weights were closed when the model was opened"), "{error}");
        e.close(seq);
        e.audit().unwrap();
    }
    let none = cached(&set.d, &set.one, (Dispatch::PerChunk, 1, 4), of(0));
    let error = engine(&set.d, &set.devices, none).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("raise --expert-group-mib"), "{error}");
}

/// On a virtual SoC the same, in the same time in each run. What loads takes time, also without
/// numbers.
#[test]
fn loads_take_modelled_time() {
    let (d, source, ids) = (described("olmoe"), lasting("olmoe"), golden("olmoe").input_ids);
    let run = |text: &str, slots: Option<u64>, dispatch| {
        run_virtual(&d, text, &ids, |one| match slots {
            Some(slots) => (cached(&d, one, (dispatch, 2, 4), of(slots)), Some(source.clone())),
            None => (one.clone(), None),
        })
    };
    let load = |gb_s: &str| format!("{SOC}load = {{ us = 5, gb_s = {gb_s} }}\n");
    let off = |text: &str| text.replacen("name = \"two\"", "name = \"two\"\nnumerics = \"off\"", 1);
    let (expected, _) = run(SOC, None, Dispatch::PerChunk);
    for dispatch in Dispatch::ALL {
        let (first, fast) = run(&load("10"), Some(3), dispatch);
        assert!(first == expected, "other bits with {dispatch:?}");
        assert_eq!(run(&load("10"), Some(3), dispatch).1, fast);
        let (_, slow) = run(&load("0.01"), Some(3), dispatch);
        assert!(slow > fast * 2, "{slow:?} and {fast:?}");
        let [fast, slow] = ["10", "0.01"].map(|gb_s| run(&off(&load(gb_s)), Some(3), dispatch).1);
        assert!(slow > fast * 2, "{slow:?} and {fast:?} without numbers");
    }
}

/// Compilers and cards that stand in for accelerators.
#[test]
fn accelerators_load_experts() {
    let adapter = needed::adapter();
    let named = |known: &GpuAdapter| known.facts.iter().any(|(_, value)| value.contains(&adapter));
    let gpu = gpu_adapters().iter().any(named).then(|| format!("b=gpu:{adapter}"));
    if gpu.is_none() {
        needed::not_run(&format!("there is no adapter {adapter}"));
    }
    let npus = ["b=npu:reference", "b=npu:openvino:cpu"].map(String::from);
    for spec in npus.into_iter().chain(gpu) {
        let (set, source) = (Setting::new("mixtral", beside_cpu(&spec), 8), lasting("mixtral"));
        for dispatch in Dispatch::ALL {
            let mut e = set.engine(cached(&set.d, &set.one, (dispatch, 2, 4), of(5)));
            e.load_experts(&source, None);
            for _ in 0..2 {
                let error = relative_error(&logits(&mut e, &set.ids), &set.expected);
                assert!(error <= 1e-5, "{spec}, {dispatch:?}: {error}");
            }
            let ExpertStats { hits, evictions, .. } = stats(&e);
            assert!(hits > 0 && evictions > 0, "{spec}, {dispatch:?}");
        }
    }
}
