//! `troika bench` as a user types it.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;

use serde_json::Value;

use common::{ends, example_with, json, json_lines, read_json, stdout, troika};

fn bench(args: &[&str]) -> Output {
    troika(&[&["bench"], args].concat())
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

#[test]
fn json_has_the_fields_of_llama_bench_and_the_limits() {
    let args = ["-p", "16", "-n", "4", "-d", "0,8", "-r", "2", "-o", "json", "-t", "2"];
    let rows = json(&bench(&args));
    let rows = rows.as_array().unwrap();
    let tests = rows.iter().map(|r| [&r["n_prompt"], &r["n_gen"], &r["n_depth"]]);
    let tests: Vec<[u64; 3]> = tests.map(|t| t.map(|n| n.as_u64().unwrap())).collect();
    assert_eq!(tests, [[16, 0, 0], [0, 4, 0], [16, 0, 8], [0, 4, 8]]);
    for r in rows {
        for name in ["model_filename", "model_type", "cpu_info", "backends", "limit"] {
            assert!(!r[name].as_str().unwrap().is_empty(), "{name}");
        }
        for name in ["avg_ns", "avg_ts", "model_size", "model_n_params", "gop_per_s"] {
            assert!(r[name].as_f64().unwrap() > 0.0, "{name}");
        }
        assert_eq!(r["n_threads"], 2);
        let (ns, ts) = (numbers(&r["samples_ns"]), numbers(&r["samples_ts"]));
        assert_eq!((ns.len(), ts.len()), (2, 2));
        let n = r["n_prompt"].as_f64().unwrap() + r["n_gen"].as_f64().unwrap();
        assert!((ts[0] * ns[0] / 1e9 - n).abs() < 1e-6);
        assert!(r["limits"]["read_bandwidth"].as_f64().unwrap() > 0.0);
        let decodes = r["n_gen"].as_u64().unwrap() > 0;
        assert_eq!(r["gb_per_s"].is_null(), !decodes);
        assert_eq!(r["ttft_ms"].is_null(), decodes);
        let cached = r["limit"] == "last_level_cache";
        assert_eq!(r["share_of_limit"].is_null(), cached);
        if decodes && !cached {
            assert_eq!(r["limit"], "read_bandwidth");
            let share = r["share_of_limit"].as_f64().unwrap();
            let of = r["gb_per_s"].as_f64().unwrap() / r["limit_gb_per_s"].as_f64().unwrap();
            assert!((share - of).abs() < 1e-9 && share <= 1.0);
        }
    }
}

#[test]
fn every_type_of_random_weights_runs() {
    for (dtype, name) in [("", "BF16"), (":q8_0", "Q8_0"), (":Q4_0", "Q4_0"), (":Q4_K", "Q4_K")] {
        let shape = format!("qwen3-moe-tiny{dtype}");
        let out = bench(&["--synthetic", &shape, "-p", "5", "-n", "2", "-r", "1", "-o", "jsonl"]);
        for row in json_lines(&out) {
            assert_eq!(row["model_type"], format!("qwen3_moe {name}"));
        }
    }
}

#[test]
fn tables_for_people_and_sheets() {
    let args = ["--synthetic", "qwen3-moe-tiny", "-p", "4", "-n", "0", "-r", "1", "-t", "1,2"];
    let md = stdout(&bench(&args));
    assert_eq!(md.matches("Limits of ").count(), 2, "{md}");
    assert!(!md.contains("maddubs") && !md.contains("_avx"), "{md}");
    assert_eq!(md.matches("| pp4 |").count(), 2, "{md}");
    let csv = stdout(&bench(&[&args[..], &["-o", "csv"]].concat()));
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3, "{csv}");
    assert!(lines[0].contains("avg_ts") && !lines[1].contains('['), "{csv}");
}

#[test]
fn the_route_is_measured() {
    let run = |form: &str| {
        let args = ["--overhead", "--synthetic", "qwen3-moe-tiny", "-n", "3", "-r", "2"];
        stdout(&bench(&[&args[..], &["-t", "1,2", "-o", form]].concat()))
    };
    let json: Value = serde_json::from_str(&run("json")).unwrap();
    let lines = run("jsonl");
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap());
    let rows: Vec<Value> = json.as_array().unwrap().iter().cloned().chain(lines).collect();
    let threads: Vec<u64> = rows.iter().map(|r| r["n_threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 2, 1, 2]);
    for row in &rows {
        // The time of devices is a part of the same tokens' time.
        let us = |name: &str| row[name].as_f64().unwrap();
        assert!(us("kernels_us") > 0.0 && us("route_us") >= 0.0, "{row}");
        assert!((us("token_us") - us("kernels_us") - us("route_us")).abs() < 1e-6, "{row}");
    }
    let csv = run("csv");
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert!(lines.len() == 3 && lines[0].contains(&"route_us"), "{csv}");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
    let md = run("md");
    assert!(md.lines().count() == 4 && md.starts_with("| model | threads | token |"), "{md}");
}

/// Sequences that wait for others are not computed together with them.
#[test]
fn sequences_that_the_cache_does_not_hold_at_once_are_refused() {
    let args = ["-p", "0", "-n", "4", "-d", "300", "-r", "1", "--kv-size", "1", "-o", "jsonl"];
    let bench = |sequences: &str| bench(&[&args[..], &["--sequences", sequences]].concat());
    let err = ends(&bench("16"), 1, &[]);
    let said = err.split_once("the KV cache holds ").unwrap().1;
    let fit: usize =
        said.split_once(" sequences of 305 tokens at once").unwrap().0.parse().unwrap();
    assert!((1..16).contains(&fit) && said.contains("--kv-size"), "{err}");
    let row = json(&bench(&fit.to_string()));
    assert_eq!(row["n_sequences"], fit);
    assert_eq!(bench(&(fit + 1).to_string()).status.code(), Some(1));
}

#[test]
fn answers_are_measured_without_other_tests() {
    let args = ["-p", "0", "-n", "0", "--pg", "48,2", "-r", "1", "-o", "json"];
    let rows = json(&bench(&args));
    assert_eq!((rows.as_array().unwrap().len(), rows[0]["n_gen"].as_u64()), (1, Some(2)));
    assert!(rows[0]["end_to_end_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (args, code, words) in [
        (&["--synthetic", "gpt-9"][..], 2, "known: qwen3-0.6b"),
        (&["--synthetic", "qwen3-moe-tiny:q9"], 2, "they have F32"),
        (&["-p", "0", "-n", "0"], 2, "nothing to measure"),
        (&["-r", "0"], 2, "nothing to measure"),
        (&["-p", "3000"], 2, "the context is 3000; it must be between 1 and 2048"),
        (&["--device", "a=cpu,a=cpu"], 2, "two devices are named a"),
    ] {
        let err = ends(&bench(args), code, &[words]);
        // Two devices of all cores are warned of before.
        let lines = err.lines().filter(|line| !line.starts_with("warning: "));
        assert_eq!(lines.count(), 1, "{err}");
    }
}

/// A failure after some rows were printed: a MiB of KV cache is too small for the depth.
#[test]
fn json_is_whole_when_a_later_test_fails() {
    let args = ["-p", "4", "-n", "0", "-r", "1", "-d", "0,1500", "--kv-size", "1", "-o", "json"];
    let out = bench(&args);
    ends(&out, 1, &["--kv-size"]);
    let rows: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 1);
}

/// A model of 16 GB whose weights are not made: its time is modelled, and equal in each run.
#[test]
fn models_too_large_to_hold_are_measured_on_virtual_devices() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("soc.toml");
    let device = example_with(&file, "numerics = \"on\"", "numerics = \"off\"");
    let args = ["--synthetic", "qwen3-8b", "-p", "1024", "-n", "2", "-r", "2", "--device", &device];
    let json = text_of_json(&args);
    assert_eq!(json, text_of_json(&args));
    let rows: Value = serde_json::from_str(&json).unwrap();
    for r in rows.as_array().unwrap() {
        assert!(r["model_size"].as_u64().unwrap() > 15 << 30);
        assert!(r["limits"].is_null() && r["share_of_limit"].is_null() && r["limit"] == "");
        let ns = numbers(&r["samples_ns"]);
        assert_eq!(ns[0], ns[1]);
        // 16 GB at 50 GB/s for each chunk or token, and 1024 tokens of 14 GOP at 3 TOP/s.
        let least = if r["n_gen"] == 0 { 1024.0 * 13e9 / 3000.0 } else { 2.0 * 14e9 / 50.0 };
        assert!(ns[0] > least && ns[0] < 2.0 * least, "{} {least}", ns[0]);
    }
    let table = stdout(&bench(&args));
    assert!(table.contains("All devices are virtual: times are modelled."), "{table}");
}

const PHONE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../socs/sd8gen3-fp16.toml");

/// The phone's NPU, which takes products only, and its GPU.
fn phone() -> String {
    format!("npu=virtual:{PHONE}:npu,gpu=virtual:{PHONE}:gpu")
}

/// Decoding takes as long with nothing before as after a few tokens: its first token is none of a
/// prompt.
#[test]
fn the_first_decoded_token_takes_as_long_as_others() {
    let devices = phone();
    let of = ["--synthetic", "llama-3-8b:Q4_0", "--device", &devices, "-p", "0", "-n", "4"];
    let json = text_of_json(&[&of[..], &["-d", "0,8", "-r", "1"]].concat());
    let rows: Value = serde_json::from_str(&json).unwrap();
    let [first, later] = [0, 1].map(|at| rows[at]["avg_ts"].as_f64().unwrap());
    assert!((first / later - 1.0).abs() < 0.02, "{first}, {later}");
}

/// An NPU that takes products only computes its part while the GPU, which computes what is around
/// them, computes its own: the GPU, which has the longer part, hardly waits.
#[test]
fn parts_of_a_split_run_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let [plan, trace] =
        ["plan", "trace"].map(|name| dir.path().join(name).to_str().unwrap().to_string());
    let devices = phone();
    for (strategy, least) in [("split-columns", 0.95), ("split-rows=128", 0.8)] {
        let of = ["--synthetic", "llama-3-8b:Q4_0", "--device", &devices, "--out", &plan];
        let args = [&["plan"], &of[..], &["--strategy", strategy]].concat();
        stdout(&troika(&args));
        let args = ["simulate", "-m", "llama-3-8b", "-p", "200", "-n", "1"];
        stdout(&troika(&[&args[..], &["--plan", &plan, "--trace", &trace]].concat()));
        let spans = read_json(&trace);
        let spans = spans["traceEvents"].as_array().unwrap();
        let lane = |name: &str| {
            let named =
                spans.iter().find(|s| s["name"] == "thread_name" && s["args"]["name"] == name);
            let own = spans.iter().filter(|s| s["ph"] == "X" && s["tid"] == named.unwrap()["tid"]);
            let of = |s: &Value| (s["ts"].as_f64().unwrap(), s["dur"].as_f64().unwrap());
            own.map(of).collect::<Vec<_>>()
        };
        let gpu = lane("gpu");
        let busy: f64 = gpu.iter().map(|span| span.1).sum();
        let took = gpu.last().unwrap().0 + gpu.last().unwrap().1 - gpu[0].0;
        let beside: f64 = lane("npu").iter().map(|span| span.1).sum();
        assert!(
            beside > 0.1 * took && busy > least * took,
            "{strategy}: {busy} and {beside} of {took}"
        );
    }
}

/// JSON without the time of day.
fn text_of_json(args: &[&str]) -> String {
    let json = stdout(&bench(&[args, &["-o", "json"]].concat()));
    let timeless = json.lines().filter(|l| !l.contains("\"test_time\""));
    timeless.collect::<Vec<_>>().join("\n")
}

#[test]
fn an_ablation_adds_a_technique_in_each_step() {
    let devices = phone();
    let of = ["--ablation", "heteroinfer", "--synthetic", "llama-3-8b:Q4_0", "-o", "json"];
    let args = [&of[..], &["--device", &devices, "-p", "320", "-r", "1"]].concat();
    let steps = json(&bench(&args));
    let ttft = |step: &str| {
        let found = steps.as_array().unwrap().iter().find(|s| s["step"] == step).unwrap();
        found["ttft_ms"].as_f64().unwrap()
    };
    // In the paper's order (HeteroInfer, section 5.6).
    let gpu = ttft("the other device alone");
    let naive = ttft("a graph for the prompt");
    let rows = ttft("standard lengths, other rows beside");
    let order = ttft("the faster order of operands");
    let columns = ttft("columns beside, too");
    let fast = ttft("fast synchronization");
    assert!(
        naive > gpu && naive > rows && rows > order && order > columns && columns > fast,
        "{steps}"
    );
    assert!(fast < gpu, "{steps}");
}
