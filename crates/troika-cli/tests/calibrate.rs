//! `troika calibrate`, `troika train-predictor` and `troika report`, and files that are none of theirs. What calibrations do
//! on NPUs is tested in conformance.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn troika(dir: &Path, args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_troika"));
    c.current_dir(dir).args(args).stdin(Stdio::null()).output().unwrap()
}

fn stdout(dir: &Path, args: &[&str]) -> String {
    let out = troika(dir, args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn refused(dir: &Path, args: &[&str]) -> String {
    let out = troika(dir, args);
    assert!(!out.status.success(), "{args:?}");
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    said
}

#[test]
fn a_calibration_has_the_ranges_of_a_text_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(
        dir.join("text.txt"),
        "The night was dark, and the wind came from the sea. ".repeat(9),
    )
    .unwrap();
    let calibrate = ["calibrate", "-f", "text.txt", "-o", "c.json", "-c", "64"];
    let said = stdout(dir, &calibrate);
    assert!(said.contains(" products. ") && !said.contains("-0.00"), "{said}");
    let first = std::fs::read_to_string(dir.join("c.json")).unwrap();
    let found: Value = serde_json::from_str(&first).unwrap();
    let tensors = found["tensors"].as_object().unwrap();
    let numbers = |name: &str| -> Vec<f64> {
        tensors[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let (columns, limit) = (numbers("layers.0.Q.input_max"), numbers("layers.0.Q.input_limit"));
    assert_eq!((columns.len(), limit.len()), (192, 1));
    let largest = columns.iter().copied().fold(0.0, f64::max);
    assert!(0.0 < limit[0] && limit[0] <= largest, "{limit:?} {largest}");
    let routed: f64 = tensors
        .keys()
        .filter(|k| k.ends_with(".routed"))
        .map(|k| numbers(k).iter().sum::<f64>())
        .sum();
    let tokens = found["tokens"].as_f64().unwrap();
    assert_eq!(routed, tokens * 4.0 * 2.0, "each row of 4 layers chose 2 experts");
    // With a share of outliers, the limit is lower and their columns are counted.
    stdout(
        dir,
        &["calibrate", "-f", "text.txt", "-o", "d.json", "-c", "64", "--outlier-share", "0.02"],
    );
    let more: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("d.json")).unwrap()).unwrap();
    let of = |name: &str| more["tensors"][name].as_array().unwrap().clone();
    let above = of("layers.0.Q.outliers").iter().filter(|n| n.as_f64() > Some(0.0)).count();
    assert_eq!(above, 4, "2 % of 192 columns, rounded up");
    // The same text gives the same file, whatever the number of threads.
    stdout(dir, &[&calibrate[..], &["-t", "1"]].concat());
    let again: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("c.json")).unwrap()).unwrap();
    assert_eq!(again, found);
    let write =
        |name: &str, value: &Value| std::fs::write(dir.join(name), value.to_string()).unwrap();
    let mut other = found.clone();
    other["model"]["layers"] = json!(5);
    write("other.json", &other);
    let mut short = found.clone();
    short["tensors"]["layers.0.Q.input_max"] = json!([1.0]);
    write("short.json", &short);
    let mut negative = found.clone();
    negative["tensors"]["layers.0.Q.input_limit"] = json!([-1.0]);
    write("negative.json", &negative);
    let mut version = found.clone();
    version["version"] = json!(2);
    write("version.json", &version);
    std::fs::write(dir.join("cut.json"), &first[..first.len() / 2]).unwrap();
    for (file, says) in [
        ("other.json", "calibrate this model"),
        ("short.json", "layers.0.Q.input_max has 1 columns, and the weight has 192"),
        ("negative.json", "layers.0.Q.input_limit has something else than magnitudes"),
        ("version.json", "it has version 2, and 1 is known"),
        ("cut.json", "the text ends"),
        ("none.json", "No such file"),
    ] {
        let said = refused(dir, &["run", "-p", "hi", "-n", "1", "--calibration", file]);
        assert!(said.contains(file) && said.contains(says), "{said}");
    }
    let said = refused(dir, &["calibrate", "-f", "text.txt", "-o", "nowhere/c.json"]);
    assert!(said.contains("cannot write the calibration nowhere/c.json"), "{said}");
    let said = refused(dir, &["run", "-p", "hi", "--outliers", "kept"]);
    assert!(said.contains("--outliers has no effect without --calibration"), "{said}");
}

#[test]
fn a_trace_becomes_tables() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    stdout(dir, &["run", "-p", "It was", "-n", "3", "-q", "--trace", "trace.json"]);
    let said = stdout(dir, &["report", "trace.json"]);
    assert!(said.contains("| cpu | ") && said.contains("; before them load of"), "{said}");
    std::fs::write(dir.join("none.json"), "{\"traceEvents\": []}").unwrap();
    assert!(
        refused(dir, &["report", "none.json"]).contains("none.json: it has no events that last")
    );
}

#[test]
fn routing_is_recorded_reported_and_predicted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    write("text.txt", &"The night was dark, and the wind came from the sea. ".repeat(30));
    write("other.txt", &"My lord, the king your father is at hand! ".repeat(12));
    let calibrate = ["calibrate", "-f", "text.txt", "-o", "c.json", "-c", "64"];
    let recording = ["--unseen", "other.txt", "--routing-trace", "r.trace", "--json"];
    let found: Value =
        serde_json::from_str(&stdout(dir, &[&calibrate[..], &recording].concat())).unwrap();
    let layers = found["routing"]["layers"].as_array().unwrap();
    assert_eq!((layers.len(), layers[0]["counts"].as_array().unwrap().len()), (4, 16));
    let overlap = &found["routing"]["overlap"][0];
    assert_eq!(
        (&overlap["text"], overlap["top"].as_array().unwrap().len()),
        (&json!("other.txt"), 3)
    );
    let said = stdout(dir, &calibrate);
    assert!(said.contains("| the last quarter, by the first three | "), "{said}");

    // The map is of the trace or of the calibration.
    let heat = |file: &str| {
        let said = stdout(dir, &["report", file]);
        said[..said.find("\n| layer").unwrap()].to_string()
    };
    assert_eq!(heat("r.trace"), heat("c.json"));
    assert!(heat("r.trace").contains("\nlayer 3 "));
    let bytes = std::fs::read(dir.join("r.trace")).unwrap();
    std::fs::write(dir.join("cut.trace"), &bytes[..bytes.len() - 9]).unwrap();
    let said = refused(dir, &["report", "cut.trace"]);
    assert!(said.contains("cut.trace: the routing trace is cut short: it has"), "{said}");

    let train = ["train-predictor", "-f", "text.txt", "-o", "p.routing", "-c", "64"];
    let said = stdout(dir, &train);
    assert!(said.contains("the last quarter, ") && said.contains("| all | 2.0 | "), "{said}");
    let found: Value =
        serde_json::from_str(&stdout(dir, &[&train[..], &["--json"]].concat())).unwrap();
    let recall = found["unseen"][0]["recall"].as_array().unwrap();
    let of = |rule: &str| recall.iter().map(|r| r[rule].as_f64().unwrap()).sum::<f64>();
    assert!(recall.len() == 12 && of("predictor") > of("popular"), "a text that repeats: {found}");
    let said = refused(dir, &["train-predictor", "-f", "text.txt", "-o", "nowhere/p"]);
    assert!(said.contains("cannot write the routing predictor nowhere/p"), "{said}");
}
