//! `troika profile`, and plans chosen by a profile, on virtual devices. Their times are exact, so
//! that predictions can be compared with runs.

#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use common::{
    command, ends, fails, holds, json, json_lines, read_json, refusal, said, stdout, troika,
};

/// Two processors: one fast at products of many rows, one at reading memory. `npu` adds lines to
/// the first one.
fn soc(dir: &Path, npu: &str) -> String {
    let text = format!(
        "name = \"test\"\nnumerics = \"off\"\n\
         [[processor]]\nname = \"npu\"\nkind = \"npu\"\npeak_gops = 4000.0\n\
         bandwidth_gb_s = 20.0\nlaunch_us = 5.0\n{npu}\n\
         [[processor]]\nname = \"gpu\"\nkind = \"gpu\"\npeak_gops = 1000.0\n\
         bandwidth_gb_s = 60.0\nlaunch_us = 5.0\n"
    );
    let file = dir.join("soc.toml");
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    format!("npu=virtual:{file}:npu,gpu=virtual:{file}:gpu")
}

const SHAPE: [&str; 2] = ["--synthetic", "qwen3-0.6b:Q8_0"];

struct Measured {
    dir: TempDir,
    devices: String,
    profile: String,
}

impl Measured {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn plan(&self, more: &[&str]) -> String {
        let at = ["--device", &self.devices, "--profile", &self.profile, "-c", "1024"];
        stdout(&troika(&[&["plan"][..], &SHAPE, &at, more].concat()))
    }
}

/// The time of a prompt, and of each of the seven tokens after the first one, in ms.
fn bench(devices: &str, prompt: &str, how: &[&str]) -> (f64, f64) {
    let ms = |test: &[&str]| {
        let at = ["bench", "--device", devices, "-r", "1", "-o", "jsonl"];
        let rows = json_lines(&troika(&[&at[..], &SHAPE, test, how].concat()));
        rows[0]["samples_ns"][0].as_f64().unwrap() / 1e6
    };
    (ms(&["-p", prompt, "-n", "0"]), ms(&["-p", "0", "-n", "7", "-d", prompt]) / 7.0)
}

fn measured(npu: &str) -> Measured {
    let dir = tempfile::tempdir().unwrap();
    let devices = soc(dir.path(), npu);
    let profile = dir.path().join("profile.json").to_str().unwrap().to_string();
    let at = ["profile", "--device", &devices, "-o", &profile, "--json"];
    let said = json(&troika(&[&at[..], &SHAPE].concat()));
    assert_eq!(said["devices"], serde_json::json!(["npu", "gpu"]));
    assert!(said["regret"].as_f64().unwrap() <= 0.10, "{said}");
    Measured { dir, devices, profile }
}

/// The chosen plan takes as long as predicted, and is faster than each device alone.
#[test]
fn chosen_plans_keep_what_they_promise() {
    for npu in ["", "static_shapes = true\nrow_buckets = [1, 32, 128, 512]"] {
        let m = measured(npu);
        for (goal, prompt) in [("ttft", "300"), ("tps", "128")] {
            let file = m.path("plan.json");
            let file = file.to_str().unwrap();
            let lengths = format!("{prompt},8");
            let wanted = ["--goal", goal, "--for", &lengths];
            let said = m.plan(&[&wanted[..], &["--explain", "-o", file]].concat());
            for expected in ["predicted by the model of", "| chosen |", "| one device, gpu |"] {
                assert!(said.contains(expected), "{expected}: {said}");
            }
            let plan = read_json(file);
            let predicted = |name: &str| plan["predicted"][name].as_f64().unwrap() / 1e3;
            let (ttft, tpot) = bench(&m.devices, prompt, &["--plan", file]);
            for (what, is, was) in
                [("ttft", ttft, predicted("ttft_us")), ("tpot", tpot, predicted("tpot_us"))]
            {
                let same = (is - was).abs() < 1e-6;
                assert!(same, "{npu:?} {goal} {what}: {was} ms predicted, {is} ms");
            }
            for device in ["npu", "gpu"] {
                let part = m.devices.split(',').find(|d| d.starts_with(device)).unwrap();
                let (first, next) = bench(part, prompt, &[]);
                let (mine, its) = if goal == "ttft" { (ttft, first) } else { (tpot, next) };
                assert!(mine <= its * 1.05, "{npu:?} {goal}: {mine} ms, {its} ms on {device}");
            }
        }
    }
}

#[test]
fn profiles_are_gone_on_with_and_foreign_ones_refused() {
    let m = measured("");
    let whole = std::fs::read_to_string(&m.profile).unwrap();
    let at = ["--device", &m.devices, "-o", &m.profile];
    let again = |text: &str| {
        std::fs::write(&m.profile, text).unwrap();
        let out = troika(&[&["profile"][..], &SHAPE, &at].concat());
        stdout(&out);
        said(&out)
    };
    let mut half: Value = serde_json::from_str(&whole).unwrap();
    half["complete"] = false.into();
    let runs = half["runs"].as_array_mut().unwrap();
    let count = runs.len();
    runs.truncate(count / 2);
    let said = again(&half.to_string());
    assert!(said.contains(&format!("gone on with: {} runs", count / 2)), "{said}");
    let now = read_json(&m.profile);
    assert_eq!((now["runs"].as_array().unwrap().len(), &now["complete"]), (count, &true.into()));

    let plan = ["plan", "--device", &m.devices, "--profile", &m.profile];
    let plan = [&plan[..], &SHAPE].concat();
    let mut other = now.clone();
    other["subject"]["machine"] = "a toaster".into();
    // A figure of the SoC's file that is not shown to people.
    let soc = m.path("soc.toml");
    let described = std::fs::read_to_string(&soc).unwrap();
    let slower = described.replace("launch_us = 5.0", "launch_us = 5.0\nsubmit_us = 700.0");
    std::fs::write(&soc, slower).unwrap();
    refusal(&troika(&plan), &["the profile is of another device"]);
    std::fs::write(&soc, described).unwrap();
    for (text, says) in [
        (other.to_string(), "profile.json: the profile is of another machine: a toaster"),
        (half.to_string(), "the profile is not complete; run troika profile again"),
        (whole[..whole.len() / 3].to_string(), "it is not a profile"),
        (whole.replacen("\"version\":5", "\"version\":1", 1), "version 1, this build reads 5"),
    ] {
        std::fs::write(&m.profile, text).unwrap();
        refusal(&troika(&plan), &[says]);
    }
    let said = again(&other.to_string());
    assert!(said.contains("is made again: the profile is of another machine"), "{said}");
    std::fs::remove_file(&m.profile).unwrap();
    refusal(&troika(&plan), &["the profile", "profile.json"]);
    let both = troika(&[&plan[..], &["--strategy", "alternate"]].concat());
    assert_eq!(both.status.code(), Some(2), "one of them decides");
}

/// A complete profile stays until a new one is complete, whatever its subject.
#[test]
fn a_complete_profile_stays_until_the_next_one_is() {
    let m = measured("");
    let alone = m.devices.split(',').next().unwrap();
    let at = ["profile", "--device", alone, "-o", &m.profile];
    let partial = format!("{}.partial", m.profile);
    let both = std::fs::read_to_string(&m.profile).unwrap();
    stdout(&troika(&[&at[..], &SHAPE].concat()));
    let whole = std::fs::read_to_string(&m.profile).unwrap();
    assert!(whole != both && !Path::new(&partial).exists());
    // As if measuring had been stopped half way.
    let mut half: Value = serde_json::from_str(&whole).unwrap();
    half["complete"] = false.into();
    let runs = half["runs"].as_array_mut().unwrap();
    runs.truncate(runs.len() / 2);
    let count = runs.len();
    std::fs::write(&partial, half.to_string()).unwrap();
    std::fs::write(&m.profile, &both).unwrap();
    let out = troika(&[&at[..], &SHAPE].concat());
    ends(&out, 0, &["another list of devices", &format!("gone on with: {count} runs")]);
    assert_eq!(read_json(&m.profile)["complete"], true);
    assert!(!Path::new(&partial).exists());
}

/// The measured costs of hand-overs and lists are those in the file, where queues do not wait.
#[test]
fn hand_overs_of_virtual_devices_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let costs = "submit_us = 20.0\nhand_over = { blocking_us = 361.0, predicted_us = 5.0 }";
    let devices = soc(dir.path(), costs);
    let file = dir.path().join("profile.json");
    let at = ["profile", "--device", &devices, "-o", file.to_str().unwrap()];
    stdout(&troika(&[&at[..], &SHAPE].concat()));
    let profile = read_json(&file);
    let pair = |from: u64| {
        let all = profile["pairs"].as_array().unwrap();
        let found = all.iter().find(|p| p["from"] == from).unwrap();
        ["predicted_ns", "blocking_ns"].map(|name| found[name]["median"].as_f64().unwrap())
    };
    // From the processor with these costs, and to it.
    assert_eq!(pair(0), [5e3, 361e3]);
    assert_eq!(pair(1), [20e3, 20e3]);
    let listed = |d: usize| profile["devices"][d]["submit_ns"]["median"].as_f64().unwrap();
    assert_eq!([listed(0), listed(1)], [25e3, 0.0]);
}

/// What was measured of real devices is a virtual SoC: each figure has a source, a model runs on
/// it, and its times stand beside the times of the devices.
#[test]
fn real_devices_are_described_as_a_virtual_soc() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (file, soc) = (path("profile.json"), path("soc.toml"));
    let devices = "a=cpu,b=cpu@scalar";
    let at = ["profile", "--device", devices, "-c", "64", "-o", &file, "--soc-out", &soc];
    let said = stdout(&troika(&at));
    assert!(said.contains("| a | 64 |") && said.contains("plans by this profile take chunks of "));
    let taken = said.contains("take chunks of 64 tokens");
    let at = ["plan", "--device", devices, "-c", "64", "--profile", &file];
    let chunk = |more: &[&str]| {
        let plan = json(&troika(&[&at[..], more].concat()));
        plan["prefill"]["chunk"].as_u64().unwrap()
    };
    assert!(chunk(&[]) <= if taken { 64 } else { 32 });
    assert!(chunk(&["--ubatch-size", "16"]) <= 16);
    let text = std::fs::read_to_string(&soc).unwrap();
    let figures = troika::sim::figures(&text).unwrap();
    assert!(figures.len() > 40, "{text}");
    for f in figures.iter().filter(|f| !f.place.ends_with("queue_depth")) {
        let from = f.from.as_deref().unwrap_or("nothing");
        let stated = f.place.ends_with("offset_alignment") || f.place.contains("_bytes");
        assert!(stated || from.starts_with("measured: "), "{} is from {from}", f.place);
    }
    // Scalar kernels are slower, in virtual time too.
    let rate = |device: &str| {
        let at = format!("virtual:{soc}:{device}");
        let at = ["bench", "-p", "32", "-n", "0", "-r", "1", "-o", "jsonl", "--device", &at];
        json(&troika(&at))["avg_ts"].as_f64().unwrap()
    };
    assert!(rate("a") > rate("b"), "{} and {}", rate("a"), rate("b"));
    let at = ["simulate", "--soc", &soc, "-m", "qwen3-moe-tiny", "-p", "32", "-n", "2", "--json"];
    for strategy in ["cpu-only", "solved"] {
        let said = json(&troika(&[&at[..], &["--strategy", strategy]].concat()));
        assert!(said["ttft_ms"].as_f64().unwrap() > 0.0, "{said}");
    }
    let at = ["bench", "-p", "24", "-n", "3", "-d", "9", "-r", "2", "--device", devices];
    let at = [&at[..], &["--strategy", "one-device,alternate", "--soc", &soc]].concat();
    let rows = json_lines(&troika(&[&at[..], &["-o", "jsonl"]].concat()));
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in rows {
        let fastest = row["samples_ns"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap());
        let error = row["predicted_ns"].as_f64().unwrap() / fastest.fold(f64::MAX, f64::min) - 1.0;
        assert!((row["prediction_error"].as_f64().unwrap() - error).abs() < 1e-9, "{row}");
    }
    let said = stdout(&troika(&at));
    assert!(said.contains("4 predictions of ") && said.contains(" % at worst"), "{said}");

    let at = ["profile", "--device", &format!("virtual:{soc}:a"), "--soc-out", "x.toml"];
    refusal(&troika(&at), &["device a is virtual already"]);
    let at = ["bench", "--device", "cpu", "-p", "8", "-n", "0", "-r", "1", "--soc", &soc];
    refusal(&troika(&at), &["none of them is named \"cpu\""]);
}

/// A device that takes nothing of a segment is not used by plans from a profile; a note says so. Of
/// one that only multiplies, products are measured, and what it costs to hand over to it.
#[test]
fn devices_that_only_multiply_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("profile.json");
    let profiled = |devices: &str| {
        let at = ["profile", "--device", devices, "-c", "1024", "-o", file.to_str().unwrap()];
        let out = troika(&[&at[..], &["--synthetic", "qwen3-0.6b:Q4_0"]].concat());
        (stdout(&out), said(&out))
    };
    let (_, said) = profiled(&soc(dir.path(), "only = [\"attention\"]"));
    assert!(said.contains("no segment runs as a whole on npu: plans"), "{said}");
    let phone = "virtual:../../socs/sd8gen3-fp16.toml";
    let (table, said) = profiled(&format!("{phone}:gpu,{phone}:npu"));
    assert!(!said.contains("no segment runs"), "{said}");
    for kind in ["qkv", "attn_out", "ffn", "head"] {
        assert!(table.contains(&format!("| npu | {kind}: products | ")), "{kind}: {table}");
        assert!(table.contains(&format!("| gpu | {kind}: other ops | ")), "{kind}: {table}");
        let of = [("qkv", "Q"), ("attn_out", "O"), ("ffn", "Up"), ("head", "Embed")];
        let (_, of) = of.iter().find(|(k, _)| *k == kind).unwrap();
        let exchanged = |device| format!("| {device} | {kind}: {of}, exchanged operands | ");
        assert!(table.contains(&exchanged("npu")) && !table.contains(&exchanged("gpu")), "{table}");
    }
    // As the file has it. What waits for a row is submitted before its wait is over.
    holds(&table, &["| gpu | npu | 5.0 | 361.", "| npu | gpu | 5.0 | 420."]);
}

/// A profile of a short context says little of long prompts. What virtual devices take is known.
#[test]
fn predictions_beyond_what_was_measured_are_said_to_be_extrapolated() {
    let dir = tempfile::tempdir().unwrap();
    let (real, modelled) = ("a=cpu,b=cpu@scalar".to_string(), soc(dir.path(), ""));
    let profile = |devices: &str| dir.path().join(format!("{}.json", devices.len()));
    for devices in [&real, &modelled] {
        let file = profile(devices);
        let at = ["profile", "-o", file.to_str().unwrap(), "-c", "32", "--device", devices];
        stdout(&troika(&at));
    }
    let said_of = |devices: &str, verb: &[&str], prompt: &str| {
        let file = profile(devices);
        let lengths = format!("{prompt},2");
        let wanted = ["--profile", file.to_str().unwrap(), "--for", &lengths];
        let out = troika(&[verb, &["--device", devices], &wanted].concat());
        stdout(&out);
        said(&out)
    };
    let said = |verb: &[&str], prompt: &str| said_of(&real, verb, prompt);
    assert_eq!(said_of(&modelled, &["plan", "--explain"], "31"), "");
    assert_eq!(said(&["plan", "--explain"], "30"), "");
    let warning = "json: the profile was measured with up to 32 tokens, and the plan is for \
        33, so its predictions are extrapolated; measure with a larger context (troika profile -c)";
    for verb in [&["plan", "--explain"][..], &["run", "-n", "2", "-p", "Hi"]] {
        assert!(said(verb, "31").contains(warning), "{}", said(verb, "31"));
    }
}

/// Lengths that a plan is to be best for are within the context.
#[test]
fn lengths_beyond_the_context_are_refused() {
    let m = measured("");
    let at = ["plan", "--device", &m.devices, "--profile", &m.profile, "-c", "1024"];
    for (lengths, says) in [
        ("1025", "the length of prompts is 1025; it must be between 1 and 1024"),
        ("0", "(--for)"),
        ("1000,25", "leaves 24 of the context of 1024 tokens, and 25 are"),
        ("512,18446744073709551615", "(--for, -c)"),
        (
            "1024,60",
            "leaves 0 of the context of 1024 tokens, and 60 are to be generated; take a shorter prompt",
        ),
    ] {
        refusal(&troika(&[&at[..], &SHAPE, &["--for", lengths]].concat()), &[says]);
    }
    fails(
        &troika(&[&at[..], &SHAPE, &["--for", "512,many"]].concat()),
        &["is no number of tokens"],
    );
    // Without them, as many as fit.
    let small = ["plan", "--device", &m.devices, "--profile", &m.profile, "-c", "300"];
    let plan = json(&troika(&[&small[..], &SHAPE].concat()));
    assert_eq!([&plan["predicted"]["prompt"], &plan["predicted"]["generate"]], [300, 0]);
}

/// Without a file, profiles are stored for the model and the devices. Without a stored one, nothing
/// changes and there is no message.
#[test]
fn profiles_are_kept_for_a_model_and_its_devices() {
    let dir = tempfile::tempdir().unwrap();
    let devices = soc(dir.path(), "");
    let cache = dir.path().join("cache");
    let run = |verb: &str, more: &[&str]| {
        let mut c = command(&[&[verb][..], &SHAPE, &["--device", &devices], more].concat());
        c.env("XDG_CACHE_HOME", &cache).env("HOME", dir.path()).output().unwrap()
    };
    let plan = |more: &[&str]| {
        let out = run("plan", more);
        assert_eq!(said(&out), "", "{more:?}");
        json(&out)
    };
    assert_eq!(plan(&[])["strategy"], "one-device");
    fails(&run("plan", &["--profile"]), &["run troika profile first"]);

    let out = run("profile", &[]);
    stdout(&out);
    let folder = cache.join("troika/profiles");
    let files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert!(said(&out).contains(file.to_str().unwrap()), "{}", said(&out));
    let found = plan(&["--profile"]);
    assert!(found["predicted"]["ttft_us"].as_f64().unwrap() > 0.0, "{found}");
    assert_eq!(plan(&[]), found, "who plans uses what is there");
    assert_eq!(plan(&["--strategy", "alternate"])["strategy"], "alternate");
    // `run` does not use it unless told to.
    let rows = |more: &[&str]| {
        let out =
            run("bench", &[&["-p", "64", "-n", "0", "-r", "1", "-o", "jsonl"][..], more].concat());
        json_lines(&out)[0].clone()
    };
    assert_eq!(rows(&[])["strategy"], "one-device");
    assert_eq!(rows(&["--profile"])["strategy"], found["strategy"]);
    // The energy of virtual devices is not known where their file has no watts.
    assert!(rows(&[])["joules_per_token"].is_null());

    let text = std::fs::read_to_string(file).unwrap();
    let mut other: Value = serde_json::from_str(&text).unwrap();
    other["subject"]["machine"] = "a toaster".into();
    std::fs::write(file, other.to_string()).unwrap();
    fails(&run("plan", &["--profile"]), &["another machine: a toaster"]);
    // If it was not requested, the plan is made without it, with a note.
    for damaged in [other.to_string(), text[..text.len() / 2].to_string()] {
        std::fs::write(file, damaged).unwrap();
        let out = run("plan", &[]);
        assert!(said(&out).starts_with("warning: no profile is used: "), "{}", said(&out));
        assert_eq!(json(&out)["strategy"], "one-device");
    }
}

/// The file of a profile: links and devices stay, and text of other kinds is not replaced.
#[cfg(unix)]
#[test]
fn profiles_replace_nothing_but_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let devices = soc(dir.path(), "");
    let link = dir.path().join("link.json");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    let profile = |file: &Path| {
        let at = ["profile", "--device", &devices, "-o", file.to_str().unwrap()];
        troika(&[&at[..], &SHAPE].concat())
    };
    stdout(&profile(&link));
    assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("/dev/null"));
    let notes = dir.path().join("notes.txt");
    std::fs::write(&notes, "buy milk\n").unwrap();
    fails(&profile(&notes), &["notes.txt would replace a file that troika did not write"]);
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "buy milk\n");
}

/// Without a folder for profiles, nothing is written to the current folder.
#[test]
fn profiles_need_a_home() {
    let dir = tempfile::tempdir().unwrap();
    let devices = soc(dir.path(), "");
    for verb in [&["profile"][..], &["plan", "--profile"], &["plan"]] {
        let mut c = command(&[verb, &SHAPE, &["--device", &devices]].concat());
        for name in ["HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"] {
            c.env_remove(name);
        }
        let out = c.current_dir(dir.path()).output().unwrap();
        let said = said(&out);
        assert_eq!(out.status.success(), verb == ["plan"], "{said}");
        assert!(out.status.success() || said.contains("name a file"), "{said}");
        assert!(!dir.path().join("profiles").exists());
    }
}

/// A plan for more memory than the machine has.
#[test]
fn plans_over_the_limit_are_refused() {
    let m = measured("");
    let file = m.path("plan.json");
    let file = file.to_str().unwrap();
    let all = ["plan", "--device", &m.devices, "--strategy", "one-device", "-o", file];
    stdout(&troika(&[&all[..], &SHAPE].concat()));
    let small = tempfile::tempdir().unwrap();
    let devices = soc(small.path(), "max_resident_bytes = 1000000");
    let at = ["bench", "--device", &devices, "-p", "8", "-n", "1", "-r", "1", "--plan", file];
    let most = "of weights are resident, of at most 1000000";
    refusal(&troika(&[&at[..], &SHAPE].concat()), &[most]);
}
