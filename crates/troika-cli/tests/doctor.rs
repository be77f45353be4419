//! `troika doctor` as a user types it.

#![allow(clippy::panic, clippy::unwrap_used)]
#![cfg(unix)]

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use common::{behind, command, json, limited, said, stdout};

/// The command with a home. Nothing of this machine's settings reaches it.
fn troika(home: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut c = command(args);
    c.env_clear().env("HOME", home).envs(variables.iter().copied()).output().unwrap()
}

fn examined(home: &Path, variables: &[(&str, &str)], args: &[&str]) -> Vec<Value> {
    let out = troika(home, variables, &[&["doctor", "--json"], args].concat());
    let json = json(&out);
    assert_eq!(json["runs"], true);
    json["findings"].as_array().unwrap().clone()
}

/// State, text and remedy of a topic.
fn of<'a>(findings: &'a [Value], topic: &str) -> (&'a str, &'a str, Option<&'a str>) {
    let found = findings.iter().find(|finding| finding["topic"] == topic);
    let found = found.unwrap_or_else(|| panic!("{topic}: {findings:?}"));
    (found["state"].as_str().unwrap(), found["says"].as_str().unwrap(), found["fix"].as_str())
}

#[test]
fn what_is_missing_comes_with_what_mends_it() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let found = examined(home.path(), &[("ORT_DYLIB_PATH", "/none.so")], &["--port", &port]);
    assert_eq!(of(&found, "model").0, "ok");
    assert!(of(&found, "model").1.contains("answers: 8 tokens"));
    let (state, says, fix) = of(&found, "ONNX Runtime");
    assert_eq!(state, "missing");
    assert!(says.starts_with("/none.so cannot be loaded") && !says.contains("install"), "{says}");
    assert!(fix.unwrap().contains("pip install onnxruntime=="), "{fix:?}");
    assert!(!found.iter().any(|f| f["topic"] == "QNN"), "nothing to say of it without the library");
    let (state, says, fix) = of(&found, "port");
    assert_eq!((state, says), ("can be better", &*format!("{port} is taken")));
    let other = fix.unwrap().strip_prefix("troika serve --port ").unwrap();
    assert_ne!(other.parse::<u16>().unwrap().to_string(), port);
    assert_eq!(of(&found, "Hub").2, Some("export HF_TOKEN=hf_..."));
    drop(taken);
    let free = examined(home.path(), &[("HF_TOKEN", "secret")], &["--port", &port]);
    assert_eq!((of(&free, "port").0, of(&free, "Hub").0), ("ok", "ok"));
    assert!(!format!("{free:?}").contains("secret"));
    // It leaves nothing behind.
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn text_has_a_line_for_each_and_a_summary() {
    let home = tempfile::tempdir().unwrap();
    let out = troika(home.path(), &[], &["doctor"]);
    assert!(out.stderr.is_empty());
    let text = stdout(&out);
    let lines: Vec<&str> = text.lines().collect();
    let (summary, lines) = lines.split_last().unwrap();
    let states = ["ok  ", "can be better  ", "missing  "];
    let is_fix = |line: &str| line.trim_start().starts_with("fix: ") && line.starts_with("   ");
    for line in lines {
        assert!(states.iter().any(|s| line.starts_with(s)) || is_fix(line), "{line}");
    }
    let count = |state: &str| lines.iter().filter(|line| line.starts_with(state)).count();
    let want = format!("{} can be better, {} missing", count(states[1]), count(states[2]));
    let want = format!("a model can run; {want}");
    assert_eq!(*summary, want);
    assert!(!text.contains("bandwidth"), "{text}");
    let measured = examined(home.path(), &[], &["--measure"]);
    assert!(of(&measured, "bandwidth").1.contains(" GB/s with "));
}

#[test]
fn folders_that_cannot_be_used_are_missing() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("below").display().to_string();
    let file = file.display().to_string();
    let found =
        examined(home.path(), &[("HF_HUB_CACHE", &below), ("TROIKA_CACHE_DIR", &file)], &[]);
    for (topic, variable) in [("model cache", "HF_HUB_CACHE"), ("cache", "TROIKA_CACHE_DIR")] {
        let (state, says, fix) = of(&found, topic);
        assert_eq!((state, fix.unwrap()), ("missing", &*format!("export {variable}=FOLDER")));
        assert!(says.ends_with("file is no folder"), "{says}");
    }
    // One that is not there yet will be made.
    let fresh = home.path().join("a/b/c").display().to_string();
    let found = examined(home.path(), &[("HF_HUB_CACHE", &fresh), ("HF_HUB_OFFLINE", "1")], &[]);
    assert_ne!(of(&found, "model cache").0, "missing");
    assert_eq!(of(&found, "Hub").2, Some("unset HF_HUB_OFFLINE"));
    assert!(!Path::new(&fresh).exists());
}

#[test]
fn the_hub_is_asked_only_on_request() {
    let home = tempfile::tempdir().unwrap();
    let hub = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", hub.local_addr().unwrap());
    drop(hub);
    let found = examined(home.path(), &[("HF_ENDPOINT", &address)], &[]);
    assert!(!format!("{found:?}").contains("cannot be reached"));
    let found = examined(home.path(), &[("HF_ENDPOINT", &address)], &["--online"]);
    assert!(format!("{found:?}").contains("cannot be reached"), "{found:?}");
}

/// Where not even the built-in model runs, the exit code says so.
#[cfg(target_os = "linux")]
#[test]
fn without_memory_no_model_runs() {
    let home = tempfile::tempdir().unwrap();
    let doctor = |kib| {
        let mut c = limited(kib, &["doctor", "--json"]);
        c.env_clear().env("HOME", home.path()).output().unwrap()
    };
    assert!(doctor(4_000_000).status.success());
    let failed = (40_000..400_000).step_by(20_000).map(doctor).find(|out| {
        let text = String::from_utf8_lossy(&out.stderr);
        out.status.code() == Some(1) && text.contains("no model can run here (model)")
    });
    let json: Value = serde_json::from_slice(&failed.unwrap().stdout).unwrap();
    assert_eq!(json["runs"], false);
    let findings = json["findings"].as_array().unwrap().clone();
    assert!(of(&findings, "model").1.starts_with("the built-in model does not run: "));
}

/// A quota of one core and a half is one core. Where control groups of version 1 can be written.
#[cfg(target_os = "linux")]
#[test]
fn a_quota_is_rounded_down() {
    let group = Path::new("/sys/fs/cgroup/cpu").join(format!("troika-{}", std::process::id()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let write = |file: &str, text: &str| std::fs::write(group.join(file), text);
    if cores < 2
        || std::fs::create_dir(&group).is_err()
        || write("cpu.cfs_period_us", "100000").is_err()
        || write("cpu.cfs_quota_us", "150000").is_err()
    {
        let _ = std::fs::remove_dir(&group);
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let enter = format!("echo $$ > {}/cgroup.procs", group.display());
    let mut c = behind(&enter, &["run", "-p", "x", "-n", "1", "-t", "2"]);
    let said = said(&c.env("HOME", home.path()).output().unwrap());
    std::fs::remove_dir(&group).unwrap();
    assert!(said.contains("warning: 2 threads share 1 core and wait for each other"), "{said}");
}

/// Threads beyond the cores are slower than fewer.
#[test]
fn more_threads_than_cores_are_warned_of() {
    let home = tempfile::tempdir().unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let warned = |threads: usize| {
        let out =
            troika(home.path(), &[], &["run", "-p", "x", "-n", "1", "-t", &threads.to_string()]);
        stdout(&out);
        said(&out)
    };
    let warning = format!("warning: {} threads share {cores} core", cores + 1);
    assert_eq!(warned(cores + 1).matches(&warning).count(), 1);
    assert!(!warned(cores).contains("warning"));
}
