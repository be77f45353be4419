//! `troika calibrate`, `troika train-predictor` and `troika report`, and files that are none of theirs. What calibrations do
//! on NPUs is tested in conformance.

#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::path::Path;

use serde_json::{Value, json};

use common::{json, read_json, refusal, said, stdout, troika_in};

fn printed(dir: &Path, args: &[&str]) -> String {
    stdout(&troika_in(dir, args))
}

fn refused(dir: &Path, args: &[&str], words: &[&str]) {
    refusal(&troika_in(dir, args), words);
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
    let said = printed(dir, &calibrate);
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
    printed(
        dir,
        &["calibrate", "-f", "text.txt", "-o", "d.json", "-c", "64", "--outlier-share", "0.02"],
    );
    let more = read_json(dir.join("d.json"));
    let of = |name: &str| more["tensors"][name].as_array().unwrap().clone();
    let sum: f64 = of("layers.0.Q.outliers").iter().map(|n| n.as_f64().unwrap()).sum();
    let all = 192.0 * tokens;
    assert!(0.003 * all < sum && sum <= 0.02 * all, "at most 2 % of the inputs: {sum} of {all}");
    assert!(of("layers.0.Q.input_limit")[0].as_f64().unwrap() < limit[0]);
    // The same text gives the same file, whatever the number of threads.
    printed(dir, &[&calibrate[..], &["-t", "1"]].concat());
    assert_eq!(read_json(dir.join("c.json")), found);
    for (name, at, value) in [
        ("other.json", "/model/layers", json!(5)),
        ("short.json", "/tensors/layers.0.Q.input_max", json!([1.0])),
        ("negative.json", "/tensors/layers.0.Q.input_limit", json!([-1.0])),
        ("version.json", "/version", json!(1)),
    ] {
        let mut other = found.clone();
        *other.pointer_mut(at).unwrap() = value;
        std::fs::write(dir.join(name), other.to_string()).unwrap();
    }
    std::fs::write(dir.join("cut.json"), &first[..first.len() / 2]).unwrap();
    for (file, says) in [
        ("other.json", "calibrate this model"),
        ("short.json", "layers.0.Q.input_max has 1 columns, and the weight has 192"),
        ("negative.json", "layers.0.Q.input_limit has something else than magnitudes"),
        ("version.json", "it has version 1, and 2 is known"),
        ("cut.json", "the text ends"),
        ("none.json", "No such file"),
    ] {
        refused(dir, &["run", "-p", "hi", "-n", "1", "--calibration", file], &[file, says]);
    }
    let nowhere = ["calibrate", "-f", "text.txt", "-o", "nowhere/c.json"];
    refused(dir, &nowhere, &["cannot write the calibration nowhere/c.json"]);
    let alone = ["run", "-p", "hi", "--outliers", "kept"];
    refused(dir, &alone, &["--outliers has no effect without --calibration"]);
}

/// What may be pruned is measured on text that chose nothing, and taken where nothing else is asked.
#[test]
fn what_is_pruned_is_measured_on_text_held_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let sentence = |i: usize| format!("On day {i} the wind came from the sea, and it was cold. ");
    let write = |name: &str, days: std::ops::Range<usize>| {
        std::fs::write(dir.join(name), days.map(sentence).collect::<String>()).unwrap();
    };
    write("text.txt", 0..40);
    write("other.txt", 200..215);
    let calibrate = ["calibrate", "-f", "text.txt", "-o", "c.json", "-c", "64", "--json"];
    let read = |args: &[&str]| json(&troika_in(dir, args));
    let best_of = |found: &Value| found["measured"]["best"].as_str().unwrap().to_string();
    let found = read(&calibrate);
    let whole = read(&[&calibrate[..], &["--heldout", "other.txt"]].concat());
    assert!(found["tokens"].as_u64() < whole["tokens"].as_u64(), "a part of it chose only");
    let file = read_json(dir.join("c.json"));
    assert_eq!(file["measured"], whole["measured"], "with the way that is taken");
    for found in [&found, &whole] {
        let ways = found["measured"]["ways"].as_array().unwrap();
        let of = |name: &str| {
            let way =
                ways.iter().find(|w| w[0] == name).unwrap_or_else(|| panic!("{name}: {ways:?}"));
            way[1].as_f64().unwrap()
        };
        let best = best_of(found);
        assert!(of(&best) <= 1.01 * of("shadow=0"), "{best}: {ways:?}");
        assert!(of(&best) <= 1.0001 * of("smooth") || of("smooth") > 1.01 * of("shadow=0"));
        assert!(found["measured"]["tokens"].as_u64() > Some(30));
    }
    // llm.npu's importance stands beside what decides, and the costliest segments are kept.
    let tensors = file["tensors"].as_object().unwrap();
    let largest = |name: &str| {
        let all = tensors[name].as_array().unwrap().iter().map(|v| v.as_f64().unwrap());
        all.fold(0.0, f64::max)
    };
    let segments = whole["segments"].as_array().unwrap();
    let cost = |s: &Value| s["cost"].as_f64().unwrap();
    let pruned = |s: &Value| s["pruned"].as_bool().unwrap();
    assert!(segments.is_sorted_by(|a, b| cost(a) >= cost(b) && pruned(a) <= pruned(b)));
    let share = best_of(&whole).split_once('=').map_or(1.0, |(_, share)| share.parse().unwrap());
    let rest: f64 = share * segments.len() as f64;
    let all = segments.iter().filter(|s| pruned(s)).count() as f64;
    assert!(!segments.is_empty() && (all - rest).abs() <= 0.5, "{all} of {segments:?}");
    let qkv = segments.iter().find(|s| s["segment"] == "qkv").unwrap();
    let importance = ["Q", "K", "V"].map(|role| {
        let name = format!("layers.{}.{role}.input_", qkv["layer"]);
        largest(&format!("{name}max")) / largest(&format!("{name}limit"))
    });
    let importance = importance.into_iter().fold(0.0, f64::max);
    assert!((qkv["importance"].as_f64().unwrap() / importance - 1.0).abs() < 1e-6, "{qkv}");
    let table = printed(dir, &["calibrate", "-f", "other.txt", "-o", "t.json", "-c", "64"]);
    assert!(table.contains("| largest by limit | cost | pruned |"), "{table}");
    // Another rate overrides it, and what is none is refused.
    let run = ["run", "-p", "hi", "-n", "1", "--device", "cpu", "--calibration", "c.json"];
    printed(dir, &run);
    printed(dir, &[&run[..], &["--outliers", "smooth-shadow=0.85"]].concat());
    for wrong in ["kept=0.5", "shadow=2", "shade"] {
        let out = troika_in(dir, &[&run[..], &["--outliers", wrong]].concat());
        let said = said(&out);
        assert!(!out.status.success() && said.contains("is none of shadow and"), "{said}");
    }
    write("short.txt", 0..4);
    let said = printed(dir, &["calibrate", "-f", "short.txt", "-o", "d.json", "-c", "64"]);
    assert!(said.contains("too short to hold a part of it out"), "{said}");
}

/// A phone whose NPU multiplies bytes and which, as its GPU, leaves outliers to others.
const PHONE: &str = "name = \"phone\"\n\
    [[processor]]\nname = \"npu\"\nkind = \"npu\"\n\
    peak_gops = { f32 = 100, int8 = 8000 }\nbandwidth_gb_s = 40\nlaunch_us = 10\n\
    refuses = [\"outliers\"]\n\
    [[processor]]\nname = \"gpu\"\nkind = \"gpu\"\npeak_gops = { f32 = 1000 }\n\
    bandwidth_gb_s = 40\nlaunch_us = 20\nrefuses = [\"outliers\"]\n\
    [[processor]]\nname = \"cpu\"\nkind = \"cpu\"\npeak_gops = { f32 = 20 }\n\
    bandwidth_gb_s = 40\nlaunch_us = 1\n";

/// A virtual NPU computes bytes by a calibration. Whatever the order of devices, outliers go to one
/// that takes them, and what is not pruned costs time.
#[test]
fn outliers_go_to_a_device_that_takes_them_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = "The night was dark, and the wind came from the sea. ".repeat(20);
    std::fs::write(dir.join("text.txt"), &text).unwrap();
    std::fs::write(dir.join("phone.toml"), PHONE).unwrap();
    let share = ["--outlier-share", "0.02"];
    let calibrate = ["calibrate", "-f", "text.txt", "-o", "c.json", "-c", "64"];
    printed(dir, &[&calibrate[..], &share].concat());
    let device = |order: &[&str]| {
        order.iter().map(|d| format!("{d}=virtual:phone.toml:{d}")).collect::<Vec<_>>().join(",")
    };
    let of = |verb: &[&str], order: &[&str], outliers: &str| {
        let device = device(order);
        let how = ["--strategy", "prefill-decode=npu:gpu", "--outliers", outliers];
        let at = ["--calibration", "c.json", "--device", &device];
        printed(dir, &[verb, &how, &at].concat())
    };
    let run = ["run", "-p", &text, "-n", "4", "--temp", "0", "-q"];
    let orders = [
        ["npu", "gpu", "cpu"],
        ["npu", "cpu", "gpu"],
        ["gpu", "npu", "cpu"],
        ["gpu", "cpu", "npu"],
        ["cpu", "npu", "gpu"],
        ["cpu", "gpu", "npu"],
    ];
    for way in ["shadow", "smooth-shadow"] {
        let texts = orders.map(|order| of(&run, &order, way));
        assert!(texts.iter().all(|text| *text == texts[0]), "{way}: {texts:?}");
        let plan = of(&["plan"], &orders[0], way);
        let plan: Value = serde_json::from_str(&plan).unwrap();
        assert!(plan.to_string().contains("{\"residual\":{\"by\":\"cpu\"}}"), "{plan}");
    }
    let bench = ["bench", "-p", "64", "-n", "0", "-r", "1", "-o", "jsonl"];
    let speed = |outliers: &str| {
        let found: Value = serde_json::from_str(&of(&bench, &orders[0], outliers)).unwrap();
        found["avg_ts"].as_f64().unwrap_or_else(|| panic!("{found}"))
    };
    let speeds = ["kept", "shadow=0.5", "shadow"].map(speed);
    assert!(speeds[0] > speeds[1] && speeds[1] > speeds[2], "{speeds:?}");
    // Nobody takes them: the refusal says so.
    let two = device(&["npu", "gpu"]);
    let at = ["--calibration", "c.json", "--outliers", "shadow", "--device", &two];
    refused(dir, &[&["run", "-p", "hi", "-n", "1"][..], &at].concat(), &["outliers"]);
}

#[test]
fn a_trace_becomes_tables() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    printed(dir, &["run", "-p", "It was", "-n", "3", "-q", "--trace", "trace.json"]);
    let said = printed(dir, &["report", "trace.json"]);
    assert!(said.contains("| cpu | ") && said.contains("; before them load of"), "{said}");
    assert!(said.contains("\nCPU ") && said.contains("\nprefill, "), "{said}");
    std::fs::write(dir.join("none.json"), "{\"traceEvents\": []}").unwrap();
    refused(dir, &["report", "none.json"], &["none.json: it has no events that last"]);
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
    let found = json(&troika_in(dir, &[&calibrate[..], &recording].concat()));
    let layers = found["routing"]["layers"].as_array().unwrap();
    assert_eq!((layers.len(), layers[0]["counts"].as_array().unwrap().len()), (4, 16));
    let overlap = &found["routing"]["overlap"][0];
    assert_eq!(
        (&overlap["text"], overlap["top"].as_array().unwrap().len()),
        (&json!("other.txt"), 3)
    );
    let said = printed(dir, &calibrate);
    assert!(said.contains("| the last quarter, by the first three | "), "{said}");

    // The map is of the trace or of the calibration.
    let heat = |file: &str| {
        let said = printed(dir, &["report", file]);
        said[..said.find("\n| layer").unwrap()].to_string()
    };
    assert_eq!(heat("r.trace"), heat("c.json"));
    assert!(heat("r.trace").contains("\nlayer 3 "));
    let bytes = std::fs::read(dir.join("r.trace")).unwrap();
    std::fs::write(dir.join("cut.trace"), &bytes[..bytes.len() - 9]).unwrap();
    let short = "cut.trace: the routing trace is cut short: it has";
    refused(dir, &["report", "cut.trace"], &[short]);

    let train = ["train-predictor", "-f", "text.txt", "-o", "p.routing", "-c", "64"];
    let said = printed(dir, &train);
    assert!(said.contains("the last quarter, ") && said.contains("| all | 2.0 | "), "{said}");
    let found = json(&troika_in(dir, &[&train[..], &["--json"]].concat()));
    let recall = found["unseen"][0]["recall"].as_array().unwrap();
    let of = |rule: &str| recall.iter().map(|r| r[rule].as_f64().unwrap()).sum::<f64>();
    assert!(recall.len() == 12 && of("predictor") > of("popular"), "a text that repeats: {found}");
    let nowhere = ["train-predictor", "-f", "text.txt", "-o", "nowhere/p"];
    refused(dir, &nowhere, &["cannot write the routing predictor nowhere/p"]);
}
