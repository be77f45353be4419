//! Experts shared out over devices, as a user types it.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

fn troika(args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_troika"));
    c.args(args).stdin(Stdio::null()).output().unwrap()
}

fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).unwrap()
}

/// The message of a failing command.
fn refused(args: &[&str]) -> String {
    let out = troika(args);
    assert!(!out.status.success() && out.stdout.is_empty(), "{args:?}");
    String::from_utf8(out.stderr).unwrap()
}

/// A text, and a calibration by it.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let desk = Desk { folder: tempfile::tempdir().unwrap() };
        let text = "The sea was dark, and the night was long. In the city no one slept.\n";
        std::fs::write(desk.at("text.txt"), text.repeat(40)).unwrap();
        let args = ["calibrate", "-f", &desk.at("text.txt"), "-o", &desk.at("calibration.json")];
        stdout(&troika(&args));
        desk
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_string()
    }
}

#[test]
fn every_policy_writes_the_text_of_one_device() {
    let desk = Desk::new();
    let (text, calibration) = (desk.at("text.txt"), desk.at("calibration.json"));
    let run = ["run", "-f", &text, "-n", "12", "--temp", "0", "-q", "--dtype", "f32"];
    let run = [&run[..], &["--ubatch-size", "128"]].concat();
    let alone = stdout(&troika(&run));
    let counted = ["--calibration", &calibration];
    for (strategy, more) in [
        ("experts", &[][..]),
        ("experts=base", &counted),
        ("experts=t", &counted),
        ("experts=tg", &counted),
        ("experts", &counted),
        ("experts", &["--expert-tiers", "rows=16", "--expert-group", "3"]),
        ("experts", &["--expert-tiers", "0.5:1:2:4", "--expert-powers-of-two"]),
        ("experts", &["--expert-dispatch", "layer-major", "--expert-tiers", "rows=32"]),
        ("experts", &["--overflow", "pad", "--expert-group-mib", "1"]),
        ("experts", &["--expert-divide", "rows=0.7", "--expert-dispatch", "layer-major"]),
        ("experts=base", &["--expert-divide", "launches=4"]),
        ("experts=t", &["--expert-divide", "columns=0.6"]),
        ("experts=t", &["--expert-group-mib", "1", "--expert-residency", "adaptive"]),
    ] {
        let devices = ["--device", "a=cpu,b=cpu", "--strategy", strategy];
        let args = [&run[..], &devices, more].concat();
        assert_eq!(stdout(&troika(&args)), alone, "{strategy} {more:?}");
    }
}

#[test]
fn groups_that_come_and_go_are_reported() {
    let desk = Desk::new();
    let adaptive = ["--expert-group-mib", "1", "--expert-residency", "adaptive"];
    let shared = ["--device", "a=cpu,b=cpu", "--strategy", "experts=tg", "--expert-group", "4"];
    let shared = [&shared[..], &adaptive].concat();
    let plan = stdout(&troika(&[&["plan", "--explain"], &shared[..]].concat()));
    assert!(plan.contains("on standby"), "{plan}");
    let run = ["run", "-f", &desk.at("text.txt"), "-n", "2", "--json"];
    let out: serde_json::Value =
        serde_json::from_str(&stdout(&troika(&[&run[..], &shared].concat()))).unwrap();
    let moved = &out["expert_groups"]["residency"];
    let bytes = |name: &str| moved[name].as_u64().unwrap();
    assert_eq!(bytes("limit_bytes"), 1 << 20);
    assert!(bytes("most_bytes") <= 1 << 20 && bytes("held_bytes") <= bytes("most_bytes"));
    assert_eq!(moved["failures"], serde_json::json!([]));
    let bench = ["bench", "-p", "300", "-n", "0", "-r", "2"];
    let out = troika(&[&bench[..], &shared].concat());
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("residency: ") && text.contains("of 1.00 MiB"), "{text}");
}

#[test]
fn plans_say_which_experts_are_where() {
    let desk = Desk::new();
    let calibration = desk.at("calibration.json");
    let plan = ["plan", "--device", "a=cpu,b=cpu", "--strategy", "experts", "--explain"];
    let known = troika(&[&plan[..], &["--calibration", &calibration]].concat());
    assert!(stdout(&known).contains("experts per-chunk in groups: b 4 x 256"), "{known:?}");
    assert!(known.stderr.is_empty(), "{}", String::from_utf8_lossy(&known.stderr));
    let unknown = troika(&plan);
    let note = String::from_utf8_lossy(&unknown.stderr);
    assert!(note.contains("equally popular") && note.contains("--calibration FILE"), "{note}");
    let divided = |how| {
        let divided = ["--calibration", &calibration, "--expert-divide", how];
        stdout(&troika(&[&plan[..], &divided].concat()))
    };
    assert!(divided("columns=0.6").contains(" x 256 by columns (b 60.0 %, a 40.0 %)"));
    assert!(divided("rows=0.75").contains("b 4 x 192, a 4 x 64"));
    assert!(divided("launches=2").contains("b 4 x 128, b 4 x 128"));
    // The length of prompts decides that of chunks.
    let long = stdout(&troika(&[&plan[..], &["--for-prompt", "4096"]].concat()));
    assert!(long.contains("prefill in chunks of 1024"), "{long}");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_flag() {
    let desk = Desk::new();
    let plan = ["plan", "--device", "a=cpu,b=cpu", "--strategy"];
    for (args, says) in [
        (&["experts=some"][..], "base, t, tg, all"),
        (&["experts", "--expert-tiers", "4:2"], "ascending multiples"),
        (&["experts", "--expert-group", "0"], "--expert-group"),
        (&["experts", "--overflow", "lose"], "--overflow"),
        (&["experts", "--expert-divide", "rows=2"], "not one from 0.001 to 0.999"),
        (&["experts", "--expert-divide", "diagonals"], "none of rows=RATIO, columns=RATIO"),
        (
            &["experts", "--expert-divide", "columns=0.5", "--expert-group", "4"],
            "leave out --expert-group",
        ),
        (
            &["experts", "--expert-divide", "columns=0.001", "--explain"],
            "leaves device b nothing to compute",
        ),
        (&["experts", "--overflow", "prune", "--expert-dispatch", "layer-major"], "overflow"),
        (&["experts", "--calibration", "/nowhere.json"], "/nowhere.json"),
        (&["experts", "--npu-format", "w8a8"], "needs --calibration"),
        (&["alternate", "--for-prompt", "512"], "--for-prompt has no effect without --profile"),
    ] {
        let why = refused(&[&plan[..], args].concat());
        assert!(why.contains(says), "{args:?}: {why}");
    }
    let one = refused(&["plan", "--device", "a=cpu", "--strategy", "experts"]);
    assert!(one.contains("two devices or more"), "{one}");
    let idle = refused(&["plan", "--expert-group", "4"]);
    assert!(idle.contains("only --strategy experts groups experts"), "{idle}");
    // The calibration of another model.
    let foreign = ["--synthetic", "qwen3-moe-tiny", "--calibration", &desk.at("calibration.json")];
    let foreign = refused(&[&plan[..], &["experts"], &foreign].concat());
    assert!(foreign.contains("calibrate this model"), "{foreign}");
}
