//! `troika doctor --report` and `--read` as a user types them.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]
#![cfg(unix)]

mod common;
#[cfg(feature = "gpu")]
#[allow(dead_code)]
#[path = "../../troika-gpu/tests/common/needed.rs"]
mod needed;

use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use common::{ctrl_c, ends, read_json, said, started, stdout, text};

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut c = common::command(&["doctor"]);
    c.args(args).current_dir(dir).env("HOME", dir).env("USER", "somebody");
    c
}

fn doctor(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

fn says(report: &Value, name: &str) -> String {
    let found = report["entries"].as_array().unwrap().iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {report:#}"))["says"].as_str().unwrap().to_string()
}

/// All words of a value's strings.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split_whitespace().map(str::to_string).collect(),
        Value::Array(all) => all.iter().flat_map(words).collect(),
        Value::Object(all) => all.values().flat_map(words).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn a_short_report_says_what_was_skipped_and_names_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let out = doctor(dir.path(), &["--report", "a.json", "--seconds", "6"]);
    let (printed, told) = (stdout(&out), said(&out));
    assert!(told.contains(": kernels of cpu ("), "{told}");
    // A step that has begun is ended.
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
    let report = read_json(dir.path().join("a.json"));
    assert_eq!((&report["version"], &report["report_of"]), (&1.into(), &"troika".into()));
    assert_eq!(report["state"], "out of time");
    assert!(!report["skipped"].as_array().unwrap().is_empty());
    assert!(says(&report, "system").starts_with(std::env::consts::OS));
    assert!(says(&report, "kernels of cpu").contains(" as the CPU's"));
    assert!(says(&report, "doctor on model").starts_with("ok: the built-in model answers"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    for word in words(&report) {
        let word = word.trim_start_matches(['(', '"', '\'']);
        assert!(!word.starts_with('/') && word != "somebody" && word != host.trim(), "{word}");
    }
    assert!(!report.to_string().contains(dir.path().to_str().unwrap()));
    // It prints what it wrote, and may be written again.
    assert_eq!(stdout(&doctor(dir.path(), &["--read", "a.json"])), printed);
    assert!(doctor(dir.path(), &["--report", "a.json", "--seconds", "1"]).status.success());
}

#[test]
fn reports_stand_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: Value| {
        std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    };
    let report = |entries: Value| {
        json!({ "version": 1, "report_of": "troika", "troika": "0.1.0", "state": "whole",
            "seconds": 9, "skipped": [], "entries": entries })
    };
    write("a", report(json!([{ "name": "x", "says": "1" }, { "name": "y", "says": "a|b\u{1b}" }])));
    write("b", report(json!([{ "name": "z", "says": "3" }, { "name": "x", "says": "2" }])));
    let out = doctor(dir.path(), &["--read", "a", "b"]);
    let table = "\
| report by troika | 0.1.0 | 0.1.0 |
| --- | --- | --- |
| state | whole after 9 s, 0 skipped | whole after 9 s, 0 skipped |
| x | 1 | 2 |
| y | a/b\\u{1b} | - |
| z | - | 3 |
";
    assert_eq!(stdout(&out), table);
    write("newer", json!({ "version": 2, "report_of": "troika", "troika": "0.9.0" }));
    write("other", json!({ "version": 1, "devices": [] }));
    write("hollow", json!({ "version": 1, "report_of": "troika" }));
    std::fs::write(dir.path().join("notes"), "buy milk\n").unwrap();
    for (file, why) in [
        ("newer", "newer: the report is of version 2, by troika 0.9.0, and this troika reads"),
        ("other", "other: it is no report of troika doctor --report"),
        ("hollow", "hollow: it is no report"),
        ("notes", "notes: it is no report"),
        ("none", "none: the report cannot be read: "),
    ] {
        let told = ends(&doctor(dir.path(), &["--read", "a", file]), 1, &[why]);
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_anything_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes"), "buy milk\n").unwrap();
    for (file, code, why) in [
        ("/dev/full", 1, "cannot write the report /dev/full"),
        ("none/a.json", 1, "cannot write the report none/a.json"),
        (".", 1, "cannot write the report ."),
        ("notes", 2, "--report notes would replace a file that troika did not write"),
    ] {
        let told = ends(&doctor(dir.path(), &["--report", file]), code, &[why]);
        assert!(!told.contains("kernels of"), "{told}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("notes")).unwrap(), "buy milk\n");
    ends(&doctor(dir.path(), &["--seconds", "5"]), 2, &["--report"]);
}

/// Waits until a first step is in the file.
fn begun(dir: &Path) -> Child {
    let child = started(&mut command(dir, &["--report", "a.json"]));
    let file = dir.join("a.json");
    let measured = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("kernels of"));
    while !measured() {
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

#[test]
fn what_was_measured_before_an_end_is_kept() {
    ctrl_c::ends_commands();
    let dir = tempfile::tempdir().unwrap();
    let child = begun(dir.path());
    ctrl_c::press(&child);
    let out = child.wait_with_output().unwrap();
    ends(&out, 130, &["what is done is kept in a.json"]);
    let report = read_json(dir.path().join("a.json"));
    assert_eq!(report["state"], "interrupted");
    assert!(text(&out.stdout).contains("| interrupted after "));
    // One that is killed leaves the last whole state, and nothing beside it that is read.
    std::fs::remove_file(dir.path().join("a.json")).unwrap();
    let mut child = begun(dir.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let report = read_json(dir.path().join("a.json"));
    assert_eq!(report["state"], "unfinished");
    assert!(says(&report, "kernels of cpu").contains(" as the CPU's"));
}

#[cfg(feature = "gpu")]
#[test]
fn a_software_gpu_is_compared_and_not_measured() {
    let dir = tempfile::tempdir().unwrap();
    stdout(&doctor(dir.path(), &["--report", "a.json", "--seconds", "60"]));
    let report = read_json(dir.path().join("a.json"));
    let names: Vec<&str> =
        report["entries"].as_array().unwrap().iter().filter_map(|e| e["name"].as_str()).collect();
    let Some(gpu) = names.iter().find(|name| name.starts_with("gpu:")) else {
        return needed::not_run("there is no adapter");
    };
    if says(&report, gpu).contains("(software)") {
        assert!(says(&report, &format!("kernels of {gpu}")).contains(" as the CPU's"));
        assert!(!names.contains(&&*format!("limits of {gpu}")), "{names:?}");
    }
}
