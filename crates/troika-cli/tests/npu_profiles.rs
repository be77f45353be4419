//! NPUs as a user types them: the command is its own helper for compiling.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use common::{command, ends, holds, npu_runtimes, read_json, said, stdout};

/// The command in a folder.
fn troika(folder: &Path, args: &[&str]) -> Output {
    let mut c = command(args);
    c.env_remove("ORT_DYLIB_PATH").env("VIRTUAL_ENV", npu_runtimes()).current_dir(folder);
    c.output().unwrap()
}

/// A run of the built-in model that is profiled.
fn profiled(folder: &Path, device: &str, level: &str) -> Output {
    let device = format!("{device},cpu");
    let run = ["run", "-p", "It was", "-n", "2", "--temp", "0", "--device", &device];
    let rows = ["--row-buckets", "16", "--ubatch-size", "16"];
    let level = format!("{level}=profiles");
    let kept = ["--cache-dir", "cache", "--trace", "trace.json", "--npu-profiling", &level];
    troika(folder, &[&run[..], &rows, &kept].concat())
}

fn stages(folder: &Path) -> Vec<String> {
    let trace = read_json(folder.join("trace.json"));
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let mut all: Vec<String> =
        events.filter_map(|e| Some(e["args"]["stage"].as_str()?.into())).collect();
    all.sort();
    all.dedup();
    all
}

/// Parts of nodes are told by QNN's own interface, within the host's spans of asking it. Gives the
/// number of these spans, and of loads of compiled graphs.
fn parts_of_nodes(folder: &Path) -> [usize; 2] {
    let trace = read_json(folder.join("trace.json"));
    let events = trace["traceEvents"].as_array().unwrap();
    let lane = |name: &str| {
        let named = events.iter().find(|e| e["ph"] == "M" && e["args"]["name"] == name);
        named.unwrap()["tid"].clone()
    };
    let on = |name: &str| {
        let tid = lane(name);
        events.iter().filter(move |e| e["ph"] == "X" && e["tid"] == tid).collect::<Vec<_>>()
    };
    let host = on("host");
    let spans = |name: &str| host.iter().filter(|e| e["name"] == name).collect::<Vec<_>>();
    let ends = |e: &Value| [0.0, e["dur"].as_f64().unwrap()].map(|d| e["ts"].as_f64().unwrap() + d);
    let asked: Vec<_> = spans("profile").iter().map(|e| (&e["args"]["graph"], ends(e))).collect();
    let mut units: Vec<&str> = Vec::new();
    for part in on("npu node depth 2") {
        let (graph, [start, end]) = (&part["args"]["graph"], ends(part));
        let within = |(of, [a, b]): &(&Value, [f64; 2])| {
            *of == graph && *a <= start + 1e-3 && end <= *b + 1e-3
        };
        assert!(asked.iter().any(within), "{part}");
        units.push(part["args"]["unit"].as_str().unwrap());
    }
    units.sort_unstable();
    units.dedup();
    assert_eq!(units, ["bits", "cycles"]);
    [asked.len(), spans("load").len()]
}

#[test]
fn compilers_and_kept_graphs_are_profiled() {
    let dir = tempfile::tempdir().unwrap();
    let first = profiled(dir.path(), "npu:qnn:emulator", "detailed");
    ends(&first, 0, &["profiles were read"]);
    assert_eq!(stages(dir.path()), ["context load", "execution", "graph finalization"]);
    let [asked, loaded] = parts_of_nodes(dir.path());
    assert!(0 < asked && asked <= loaded, "{asked} of {loaded}");
    let tables = stdout(&troika(dir.path(), &["report", "trace.json"]));
    holds(&tables, &["| compile | host |", "| Graph Optimizations |"]);
    holds(&tables, &["| rms_norm | npu | execution | cycles |"]);
    let second = profiled(dir.path(), "npu:qnn:emulator", "detailed");
    assert_eq!(first.stdout, second.stdout, "{}", said(&second));
    assert_eq!(stages(dir.path()), ["context load", "execution"]);
    let [asked, loaded] = parts_of_nodes(dir.path());
    assert!(0 < asked && asked <= loaded, "{asked} of {loaded} kept graphs");
    let tables = stdout(&troika(dir.path(), &["report", "trace.json"]));
    assert!(tables.contains("| read kept graph | host |"), "{tables}");
    assert!(!tables.contains("| compile |") && !tables.contains("| probe |"), "{tables}");
}

/// A plan has the times of ops where a profiler tells them, and elsewhere why there are none.
#[test]
fn a_plan_has_times_of_ops() {
    let dir = tempfile::tempdir().unwrap();
    let plan = ["plan", "--device", "npu:reference,cpu", "--row-buckets", "16", "--explain"];
    let told = |more: &[&str]| {
        let out = troika(dir.path(), &[&plan[..], &["--compile"], more].concat());
        stdout(&out)
    };
    let text = told(&["--npu-profiling", "detailed"]);
    let line = text.lines().find(|l| l.starts_with("| linear | npu | ")).unwrap();
    let cells: Vec<&str> = line.split(" | ").collect();
    assert!(cells[2].parse::<u64>().unwrap() > 0 && cells[4] == "us |", "{line}");
    let on_cpu = "| attention | cpu | - | - | no profiler tells its ops apart |";
    assert!(text.contains(on_cpu), "{text}");
    let unmeasured = "| linear | npu | - | - | --npu-profiling detailed measures it |";
    assert!(told(&[]).contains(unmeasured));
}

#[test]
fn levels_that_a_provider_lacks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (device, level, says) in [
        ("npu:reference", "optrace", "has no profiling level optrace; it has basic and detailed"),
        ("npu:openvino:cpu", "detailed", "has no profiling level detailed; it has basic"),
    ] {
        let out = profiled(dir.path(), device, level);
        assert!(!out.status.success() && said(&out).contains(says), "{}", said(&out));
    }
    std::fs::write(dir.path().join("profiles"), "a file").unwrap();
    let out = profiled(dir.path(), "npu:reference", "basic");
    assert!(said(&out).contains("profiles cannot be written to the folder"), "{}", said(&out));
}

/// A profile that is kept has its NPU take part where no device is named; without the NPU's runtime the
/// CPU computes, and a line says why.
#[test]
fn a_kept_profile_names_an_npu() {
    let dir = tempfile::tempdir().unwrap();
    let profile =
        ["profile", "--device", "npu:openvino:cpu,cpu", "-c", "64", "--cache-dir", "cache"];
    let run = ["run", "-p", "It was", "-n", "4", "--temp", "0", "-c", "64", "--cache-dir", "cache"];
    let before = troika(dir.path(), &run);
    ends(&troika(dir.path(), &profile), 0, &[]);
    let of = "a kept profile chooses among npu:openvino:cpu, cpu; --device cpu for the CPU alone";
    ends(&troika(dir.path(), &run), 0, &[of]);
    let plan = troika(dir.path(), &["plan", "-c", "64", "--cache-dir", "cache"]);
    assert!(said(&plan).contains(of), "{}", said(&plan));
    // Other devices were asked for.
    let cpu = troika(dir.path(), &[&run[..], &["--device", "cpu"]].concat());
    assert!(!said(&cpu).contains("profile") && cpu.stdout == before.stdout, "{}", said(&cpu));
    let mut c = command(&run);
    c.env_remove("ORT_DYLIB_PATH").env_remove("VIRTUAL_ENV").current_dir(dir.path());
    let alone = c.output().unwrap();
    assert!(said(&alone).contains("the CPU computes: "), "{}", said(&alone));
    assert!(alone.status.success() && alone.stdout == before.stdout);
}
