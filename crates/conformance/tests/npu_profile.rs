//! What NPUs' own profilers add to a trace, on the emulator of QNN and on ONNX Runtime's own
//! kernels: a model is opened, run and closed, and its trace read again.

#![allow(clippy::unwrap_used)]

mod setup;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use conformance::golden::all_logits;
use serde_json::Value;
use setup::{golden, golden_dir, npu_settings, on};
use troika::npu::{Profiling, ProfilingLevel};
use troika::trace::{EXECUTION, TraceReport, Tracer, read_chrome};
use troika::weights::FloatType;
use troika::{DeviceOptions, Model, NpuSettings, OpenOptions};

/// A trace as its file has it, and what the logits were.
struct Traced {
    text: String,
    events: Vec<Value>,
    notes: Vec<String>,
    logits: Vec<f32>,
}

impl Traced {
    /// The lane of an event.
    fn lane(&self, event: &Value) -> String {
        let names = self.events.iter().filter(|e| e["ph"] == "M");
        let name = names.into_iter().find(|e| e["tid"] == event["tid"]).unwrap();
        name["args"]["name"].as_str().unwrap().to_string()
    }

    fn on(&self, lane: &str) -> Vec<&Value> {
        let lasting = self.events.iter().filter(|e| e["ph"] == "X");
        lasting.filter(|e| self.lane(e) == lane).collect()
    }
}

fn ends(event: &Value) -> [f64; 2] {
    let [start, took] = ["ts", "dur"].map(|name| event[name].as_f64().unwrap());
    [start, start + took]
}

fn within(inner: &Value, outer: &Value) -> bool {
    let ([a, b], [c, d]) = (ends(inner), ends(outer));
    // Each is rounded by itself.
    a >= c - 1e-3 && b <= d + 1e-3
}

/// Runs a small model with its products on an NPU.
fn traced(npu: &str, profiling: Option<Profiling>) -> Traced {
    // Qualcomm's library loses its device where one session ends while another one begins.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let npu_settings = NpuSettings { profiling, row_buckets: vec![16], ..npu_settings() };
    let tracer = Tracer::on();
    let options = OpenOptions {
        dtype: FloatType::F32,
        devices: DeviceOptions { npu: npu_settings, ..on(&[npu, "cpu"]) },
        chunk: Some(16),
        tracer: tracer.clone(),
        ..OpenOptions::default()
    };
    let model = Model::open(&golden_dir("qwen3"), &options).unwrap();
    let ids = golden("qwen3").input_ids;
    let logits = all_logits(&model, &ids).unwrap();
    drop(model);
    let mut json = Vec::new();
    tracer.write_chrome(&mut json).unwrap();
    let text = String::from_utf8(json).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    let events = file["traceEvents"].as_array().unwrap().clone();
    Traced { text, events, notes: tracer.notes(), logits }
}

fn profiling(level: ProfilingLevel, folder: Option<&Path>) -> Option<Profiling> {
    let folder = folder.map(Path::to_path_buf);
    Some(Profiling { level, folder, most_events: 1_000_000 })
}

/// Each event of a profiler lies in the host's span of the same run or stage, in order and side by
/// side, with its value, unit and stage.
fn holds(trace: &Traced, units: &[&str]) {
    let execute = trace.on("npu execute");
    assert!(!execute.is_empty());
    let opening: Vec<&Value> =
        trace.on("host").into_iter().filter(|e| e["args"]["graph"].is_string()).collect();
    let nodes = trace.on("npu node depth 1");
    for event in trace.on("npu device").into_iter().chain(nodes.iter().copied()) {
        let args = &event["args"];
        let is_run = args["stage"] == EXECUTION;
        let hosts = if is_run { &execute } else { &opening };
        let mut hosts = hosts.iter().filter(|host| host["args"]["graph"] == args["graph"]);
        assert!(hosts.any(|host| within(event, host)), "{event}");
        assert!(args["value"].is_u64() && args["placed"].is_string() && args["level"].is_string());
        assert!(units.contains(&args["unit"].as_str().unwrap()), "{event}");
    }
    let mut of_runs: Vec<[f64; 2]> =
        nodes.iter().filter(|e| e["args"]["stage"] == EXECUTION).map(|e| ends(e)).collect();
    of_runs.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    assert!(of_runs.windows(2).all(|pair| pair[0][1] <= pair[1][0] + 1e-3), "they overlap");
}

#[test]
fn the_emulated_qnn_reports_stages_runs_and_nodes() {
    let npu = "npu:qnn:emulator";
    let plain = traced(npu, None);
    assert!(plain.on("npu device").is_empty() && plain.notes.is_empty());
    for lane in ["npu host", "npu execute"] {
        assert!(!plain.on(lane).is_empty(), "the host's spans need no profiler");
    }
    let kept = tempfile::tempdir().unwrap();
    let trace = traced(npu, profiling(ProfilingLevel::Detailed, Some(kept.path())));
    assert_eq!(trace.logits, plain.logits, "profiling changes no number");
    holds(&trace, &["us", "cycles", "count"]);
    let runs = trace.on("npu execute");
    let whole = |e: &&&Value| e["name"] == "QNN (execute) time";
    assert_eq!(trace.on("npu device").iter().filter(whole).count(), runs.len());
    let stages: Vec<&Value> = trace.on("npu device").iter().map(|e| &e["args"]["stage"]).collect();
    assert!(stages.iter().any(|stage| *stage == "graph finalization"));
    for name in ["marshal", "unmarshal"] {
        let spans = trace.on("npu host").iter().filter(|e| e["name"] == name).count();
        let probes = trace.on("host").iter().filter(|e| e["name"] == "probe").count();
        assert_eq!(spans + probes, runs.len(), "{name}: trial runs stage their inputs otherwise");
    }
    for name in ["compile", "probe"] {
        assert!(trace.on("host").iter().any(|e| e["name"] == name), "{name}");
    }
    // The report counts what the device counted.
    let report = TraceReport::of(read_chrome(&trace.text).unwrap());
    let ops: Vec<&str> = report.ops.iter().map(|op| op.name.as_str()).collect();
    for op in ["linear", "rms_norm", "rope", "embed", "add", "gate"] {
        assert!(ops.contains(&op), "{op}: {ops:?}");
    }
    assert!(report.ops.iter().all(|op| op.unit == "cycles" && op.device == "npu"));
    // The native files are kept: one table and one log of each session.
    let files = std::fs::read_dir(kept.path()).unwrap().map(|f| f.unwrap().file_name());
    let files: Vec<String> = files.map(|f| f.into_string().unwrap()).collect();
    let ends = |ending: &str| files.iter().filter(|f| f.ends_with(ending)).count();
    assert!(ends(".csv") > 2 && ends("_qnn.log") == ends(".csv"), "{files:?}");
}

#[test]
fn events_beyond_the_cap_are_counted() {
    let few = Profiling { level: ProfilingLevel::Detailed, folder: None, most_events: 40 };
    let trace = traced("npu:qnn:emulator", Some(few));
    assert!(trace.notes.iter().any(|n| n.contains("events are left out")), "{:?}", trace.notes);
    let mut graphs = std::collections::HashMap::new();
    for event in trace.on("npu device").into_iter().chain(trace.on("npu node depth 1")) {
        *graphs.entry(event["args"]["graph"].as_str().unwrap()).or_insert(0) += 1;
    }
    assert!(graphs.values().all(|n| *n <= 40) && !graphs.is_empty(), "{graphs:?}");
}

#[test]
fn the_runtime_reports_nodes_by_its_clock() {
    let trace = traced("npu:reference", profiling(ProfilingLevel::Detailed, None));
    holds(&trace, &["us"]);
    let nodes = trace.on("npu node depth 1");
    assert!(nodes.iter().all(|e| e["args"]["placed"] == "by the profiler's clock"));
    assert!(nodes.iter().any(|e| e["args"]["op"] == "linear"));
    let basic = traced("npu:reference", profiling(ProfilingLevel::Basic, None));
    assert!(basic.on("npu node depth 1").is_empty() && !basic.on("npu device").is_empty());
}

#[test]
fn compiled_graphs_of_openvino_are_timed_as_a_whole() {
    let trace = traced("npu:openvino:cpu", profiling(ProfilingLevel::Basic, None));
    holds(&trace, &["us"]);
    assert_eq!(trace.on("npu execute").len(), {
        let runs = trace.on("npu device");
        runs.into_iter().filter(|e| e["name"] == "model_run").count()
    });
}
