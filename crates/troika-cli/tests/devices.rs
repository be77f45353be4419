//! Virtual devices as a user types them.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ends, example_with, fails, holds, in_root, json, said, stdout, troika};

fn example() -> String {
    format!("virtual:{}", in_root("socs/example.toml"))
}

#[test]
fn virtual_devices_are_listed_with_what_their_file_says() {
    let (npu, gpu) = (format!("{}:npu", example()), format!("g={}:gpu", example()));
    let listed = stdout(&troika(&["devices", "--device", &npu, "--device", &gpu]));
    let lines =
        ["npu (virtual)", "static shapes: rows 32, 128, 512", "g (virtual)", "launch: 40 us"];
    holds(&listed, &lines);
    // This machine's bandwidth does not apply to them.
    assert!(!listed.contains("read bandwidth"), "{listed}");
    let json = json(&troika(&["devices", "--json", "--device", &gpu]));
    assert_eq!((&json[0]["name"], &json[0]["kind"]), (&"g".into(), &"virtual".into()));
    assert!(json[0]["read_gb_per_s"].is_null() && json[0]["facts"]["bandwidth"] == "50 GB/s");
}

#[test]
fn what_is_wrong_with_a_virtual_device_is_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, from: &str, to: &str| example_with(&dir.path().join(name), from, to);
    for (device, says) in [
        (example(), "say which one is meant"),
        (format!("{}:tpu", example()), "none of them is named \"tpu\""),
        ("virtual:none.toml".into(), "none.toml cannot be read"),
        ("virtual:none.json".into(), "[NAME=]virtual:FILE.toml[:PROCESSOR]"),
        (file("a.toml", "launch_us = 40.0\n", ""), "processor gpu: launch_us is missing"),
        (file("b.toml", "launch_us = 40.0", "launch_us = -1"), "processor gpu: launch_us is -1"),
        (file("c.toml", "launch_us", "lunch_us"), "processor gpu: launch_us is missing"),
        (file("d.toml", "tile =", "tyle ="), "processor gpu: tyle is not known here"),
        (file("e.toml", "[[processor]]", "only = [\n[[processor]]"), "e.toml, line"),
    ] {
        let out = troika(&["run", "-p", "Hi", "-n", "1", "--device", &device]);
        fails(&out, &[says]);
    }
}

#[test]
fn the_model_says_the_same_on_virtual_devices() {
    let say = |devices: &[&str]| {
        let args = ["run", "-p", "Once upon", "-n", "8", "--temp", "0", "--dtype", "f32"];
        let out = troika(&[&args[..], devices].concat());
        let modelled = said(&out).contains("times are modelled");
        (stdout(&out), modelled)
    };
    let (cpu, modelled) = say(&["--device", "cpu"]);
    assert!(!cpu.trim().is_empty() && !modelled);
    assert_eq!(say(&["--device", &format!("{}:gpu", example())]), (cpu.clone(), true));
    // Static shapes, and ops that the file refuses.
    let both = format!("{}:npu,cpu", example());
    assert_eq!(say(&["--device", &both, "--strategy", "alternate"]), (cpu, false));
}

/// With numerics off there are no logits: tokens come from a counter, and a note says so.
#[test]
fn devices_that_compute_nothing_count_tokens_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("off.toml");
    let off = example_with(&file, "numerics = \"on\"", "numerics = \"off\"");
    let off = format!("off={off}");
    let nothing = "device off computes nothing (its numerics are off)";
    let run = ["run", "-p", "Once upon", "-n", "4", "--json"];
    // Also beside a device that computes: logits are not used.
    for devices in [&["--device", &off][..], &["--device", &off, "--device", "cpu"]] {
        let strategy = if devices.len() > 2 { "alternate" } else { "one-device" };
        let out = troika(&[&run[..], devices, &["--strategy", strategy]].concat());
        ends(&out, 0, &[nothing, "tokens are counted up"]);
        let json = json(&out);
        let tokens: Vec<u64> =
            json["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
        assert_eq!(tokens.len(), 4, "{json}");
        assert!(tokens.windows(2).all(|t| t[0] < t[1]) && tokens[3] < 10, "{tokens:?}");
        assert_eq!(json["finish_reason"], "length", "{json}");
    }
    let text_file = dir.path().join("text");
    std::fs::write(&text_file, "It was a dark night. ".repeat(40)).unwrap();
    let args = ["perplexity", "-f", text_file.to_str().unwrap(), "-c", "16", "--device", &off];
    fails(&troika(&args), &[nothing, "no logits to read"]);
}

/// Compiling takes modelled time on a virtual device, as long as the file says.
#[test]
fn compiling_ends_when_its_time_is_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("slow.toml");
    let slow = example_with(&file, "compile_us = 2000.0", "compile_us = 1e6");
    let device = format!("slow={slow}");
    let run = ["run", "-p", "Hi", "-n", "1", "--device", &device, "--compile-timeout"];
    let out = troika(&[&run[..], &["3"]].concat());
    // The codes of the first four segments. Weights come after all codes.
    let words =
        ["longer than 3s", "at layer 0 ", "on device slow", "with 4 of ", "(--compile-timeout)"];
    assert_eq!(fails(&out, &words), 1);
    for enough in ["0", "100"] {
        assert!(!stdout(&troika(&[&run[..], &[enough]].concat())).is_empty());
    }
}
