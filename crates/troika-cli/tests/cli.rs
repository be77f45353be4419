//! The command as a user types it.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

use common::{
    command, edit_json, ends, fails, golden_copy, in_root, json, json_lines, read_json, refused,
    root, said, started, stdout, text, troika,
};

fn golden(name: &str) -> String {
    in_root(&format!("tests/golden/{name}"))
}

/// The source of the built-in model; its matrices are floats.
fn tiny_moe() -> String {
    in_root("models/tiny-moe")
}

fn with_stdin(args: &[&str], input: &[u8]) -> Output {
    let mut child = started(command(args).stdin(Stdio::piped()));
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn the_built_in_model_writes_text_and_figures_go_to_stderr() {
    let args = ["run", "-p", "It was a dark night", "-n", "12", "--temp", "0"];
    let (a, b) = (troika(&args), troika(&args));
    ends(&a, 0, &["tokenizer", "TTFT", "prefill", "TPOT", "decode", "peak memory"]);
    assert!(a.stdout.len() > 20 && a.stdout == b.stdout);
    let piped = with_stdin(&["run", "-n", "12", "--temp", "0", "-q"], b"It was a dark night\n");
    assert_eq!(piped.stdout, a.stdout);
    assert!(piped.stderr.is_empty());
}

#[test]
fn ids_in_ids_out_without_a_tokenizer() {
    let (model, ids) = (golden("qwen3-moe"), ["--prompt-ids", "5,6,7"]);
    let run = ["run", &model, "-n", "16", "--temp", "0", "--json"];
    let json = json(&troika(&[&run[..], &ids].concat()));
    assert_eq!(json["tokens"].as_array().unwrap().len(), 16);
    assert_eq!(json["prompt_tokens"], 3);
    assert_eq!(json["finish_reason"], "length");
    assert!(json["timings"]["ttft_ms"].as_f64().unwrap() > 0.0);
}

#[test]
fn sampling_is_fixed_by_the_seed() {
    let run = |seed: &str| troika(&["run", "-p", "The", "-n", "24", "-s", seed, "-q"]).stdout;
    assert_eq!(run("3"), run("3"));
    assert_ne!(run("3"), run("4"));
}

#[test]
fn stop_texts_and_environment_twins() {
    let out = troika(&["run", "-p", "It was a dark night", "-n", "40", "--temp", "0", "-q"]);
    let full = text(&out.stdout);
    let stop = full.split_whitespace().nth(3).unwrap().to_string();
    let mut c = command(&["run", "-p", "It was a dark night", "--temp", "0", "-q", "-r", &stop]);
    let cut = text(&c.env("TROIKA_N_PREDICT", "40").output().unwrap().stdout);
    assert_eq!(cut.trim_end(), full[..full.find(&stop).unwrap()].trim_end());
}

#[test]
fn show_tokenize_devices_completions() {
    let show = text(&troika(&["show"]).stdout);
    assert!(show.contains("qwen3_moe") && show.contains("16 experts of 128, top 2"), "{show}");
    assert_eq!(json(&troika(&["show", "--json"]))["context"], 2048);
    let ids = text(&troika(&["tokenize", "-p", "Hello there", "--ids"]).stdout);
    assert!(ids.trim().split(',').all(|i| i.parse::<u32>().is_ok()), "{ids}");
    let devices = text(&troika(&["devices"]).stdout);
    assert!(devices.contains("cpu") && devices.contains("GB/s"), "{devices}");
    assert!(text(&troika(&["completions", "bash"]).stdout).contains("troika"));
}

#[test]
fn a_version_names_commit_features_and_target() {
    let said = text(&troika(&["--version"]).stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], concat!("troika ", env!("CARGO_PKG_VERSION")));
    let commit = lines[1].strip_prefix("commit: ").unwrap();
    let is_hash = commit.len() >= 12 && commit[..12].bytes().all(|b| b.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{said}");
    let gpu = if cfg!(feature = "gpu") { "features: gpu" } else { "features: none" };
    assert_eq!(lines[2], gpu);
    assert!(lines[3].starts_with("target: ") && lines[3].contains(std::env::consts::ARCH));
    assert_eq!(text(&troika(&["-V"]).stdout).trim_end(), lines[0]);
}

#[test]
fn the_manual_has_a_page_for_each_verb() {
    let dir = tempfile::tempdir().unwrap();
    let to = |dir: &Path| troika(&["man", dir.to_str().unwrap()]);
    assert!(to(dir.path()).status.success());
    let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(page("troika.1").contains("troika\\-run"), "{}", page("troika.1"));
    assert!(page("troika-run.1").contains("prompt"));
    assert!(!dir.path().join("troika-find-gpu.1").exists());
    let nowhere = dir.path().join("nowhere");
    refused(&to(&nowhere), 1, &["cannot write manual pages", nowhere.to_str().unwrap()]);
}

/// Files of packed weights, with numbers that change when they are rewritten.
fn packed(cache: &Path) -> Vec<(PathBuf, u64, u64)> {
    let entries = std::fs::read_dir(cache.join("packed")).into_iter().flatten().flatten();
    let one = |e: std::fs::DirEntry| {
        let meta = e.metadata().unwrap();
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&meta);
        #[cfg(not(unix))]
        let inode = 0;
        (e.path(), meta.len(), inode)
    };
    entries.map(one).collect()
}

#[test]
fn quantized_weights_are_kept_where_the_user_says() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let folder = cache.display().to_string();
    let model = tiny_moe();
    let run = |extra: &[&str]| {
        let args = ["run", &model, "-p", "Once", "-n", "8", "--seed", "1", "--quant", "q4", "-v"];
        let out = troika(&[&args, extra].concat());
        (stdout(&out), said(&out))
    };
    let plain = run(&["--no-cache"]);
    assert!(plain.1.contains("Q4_G32 by") && plain.1.contains("head (Q8_0"), "{}", plain.1);
    assert_eq!(run(&["--cache-dir", &folder]).0, plain.0);
    let [first] = packed(&cache).try_into().unwrap();
    // The second start uses the first one's file without rewriting it.
    assert_eq!(run(&["--cache-dir", &folder]).0, plain.0);
    assert_eq!(packed(&cache), [first]);
    // Uses the system's folder for caches by default.
    let home = dir.path().join("home");
    let mut c = command(&["run", &model, "-p", "Once", "-n", "2", "--quant", "q8"]);
    c.env("XDG_CACHE_HOME", &home).env("HOME", &home).env("LOCALAPPDATA", &home);
    assert!(c.output().unwrap().status.success());
    let places = [home.join("troika"), home.join("Library/Caches/troika")];
    assert_eq!(places.iter().flat_map(|p| packed(p)).count(), 1);
    let both = troika(&["run", "-p", "x", "--no-cache", "--cache-dir", &folder]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn the_cache_is_listed_checked_and_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cache").display().to_string();
    let cache = |args: &[&str]| troika(&[&["cache"], args, &["--cache-dir", &folder]].concat());
    let listed = |args: &[&str]| json(&cache(&[args, &["--json"]].concat()));
    let model = tiny_moe();
    let run = |extra: &[&str]| {
        let args = ["run", &model, "-p", "Once", "-n", "2", "-q", "--quant", "q4"];
        let args = [&args[..], &["--cache-dir", &folder]].concat();
        ends(&troika(&[&args, extra].concat()), 0, &[])
    };
    assert_eq!(listed(&["ls"])["bytes"], 0);
    assert!(run(&["--cache-mib", "1"]).contains("more than the 1 MiB allowed"));
    assert_eq!(run(&[]), "");
    let list = listed(&["ls"]);
    let files: Vec<&Value> =
        list["files"].as_array().unwrap().iter().filter(|f| f["kind"] == "packed").collect();
    assert_eq!((files.len(), &files[0]["types"]), (1, &Value::from("Q4_G32, Q8_0")));
    assert!(files[0]["of"].as_str().unwrap().ends_with("model.safetensors"));
    let table = text(&cache(&["ls"]).stdout);
    assert!(table.contains("Q4_G32, Q8_0") && table.contains("s ago"), "{table}");
    assert!(cache(&["verify"]).status.success());
    // Flips one bit of a weight.
    let path = PathBuf::from(files[0]["file"].as_str().unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 77] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let found = cache(&["verify"]);
    assert!(text(&found.stdout).contains("damaged: weight "), "{}", text(&found.stdout));
    ends(&found, 1, &["damaged in the cache", ": 1 file;"]);
    assert!(run(&[]).contains("is damaged"));
    assert_eq!(listed(&["verify"])["damaged"], 0);
    // Keeps what fits, and removes the rest and files that hold no packed weights.
    assert_eq!(listed(&["prune"])["removed"], serde_json::json!([]));
    std::fs::write(path.with_file_name(format!("{}.packed", "0".repeat(32))), "junk").unwrap();
    assert_eq!(listed(&["prune"])["removed"].as_array().unwrap().len(), 1);
    assert!(listed(&["prune", "--cache-mib", "1"])["bytes"].as_u64().unwrap() > 1 << 20);
    run(&[]);
    assert!(text(&cache(&["clear"]).stdout).contains("removed"));
    assert_eq!(listed(&["ls"])["files"], serde_json::json!([]));
    std::fs::write(dir.path().join("file"), "x").unwrap();
    let file = dir.path().join("file").display().to_string();
    refused(&troika(&["cache", "ls", "--cache-dir", &file]), 1, &["cannot use the cache", &file]);
}

/// A limit on the size of files has writes fail as a full disk has: the text is the same, a warning
/// says that nothing is kept, and nothing is left behind.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_of_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, model) = (dir.path().join("cache"), tiny_moe());
    let cache = folder.display().to_string();
    let run = ["run", &model, "-p", "Once", "-n", "4", "--temp", "0", "--quant", "q4"];
    let want = troika(&[&run[..], &["--no-cache"]].concat()).stdout;
    let (mut kept, mut told) = (0, 0);
    for kib in (0..8).map(|power| (1 << (2 * power)) - 1) {
        let _ = std::fs::remove_dir_all(&folder);
        let limited = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
        // The second start finds what the first has left.
        for _ in 0..2 {
            let mut c = std::process::Command::new("bash");
            c.args(["-c", &limited, env!("CARGO_BIN_EXE_troika")]).args(run);
            let out = c.args(["--cache-dir", &cache]).output().unwrap();
            let says = text(&out.stderr).contains("cannot be kept");
            assert!(out.status.success() && out.stdout == want, "{kib}: {}", text(&out.stderr));
            let files = packed(&folder);
            assert!(files.iter().all(|p| p.0.extension().unwrap() == "packed"), "{kib}: {files:?}");
            assert_eq!(says, files.is_empty(), "{kib}: {}", text(&out.stderr));
            (kept, told) = (kept + files.len(), told + usize::from(says));
        }
    }
    assert!(kept >= 2 && told >= 4, "{kept} {told}");
}

#[test]
fn processes_that_are_killed_while_they_write_the_cache_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cache");
    let cache = folder.display().to_string();
    let model = tiny_moe();
    let run = ["run", &model, "-p", "Once", "-n", "4", "--temp", "0", "-q", "--quant", "q4"];
    let with = [&run[..], &["--cache-dir", &cache]].concat();
    let want = troika(&[&run[..], &["--no-cache"]].concat()).stdout;
    let partial = || packed(&folder).iter().any(|p| p.0.extension().unwrap() == "partial");
    let mut left = 0;
    for wait in [0, 10, 30, 90] {
        let _ = std::fs::remove_dir_all(&folder);
        let mut child = command(&with).stdout(Stdio::null()).spawn().unwrap();
        while !partial() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        left += usize::from(partial());
        let out = troika(&with);
        assert!(out.status.success() && out.stdout == want, "{}", text(&out.stderr));
        // Immediately, not after some time.
        assert!(!partial() && packed(&folder).len() == 1);
    }
    assert!(left > 0, "no process was killed while it wrote");
}

#[cfg(unix)]
#[test]
fn a_mapped_file_that_is_shortened_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (model, cache) = (dir.path().join("model"), dir.path().join("cache"));
    common::copy_files(&root().join("models/tiny-moe"), &model);
    let names = [&model, &cache].map(|p| p.display().to_string());
    let common = ["run", &names[0], "-p", "Once", "--ignore-eos", "-t", "1", "--cache-dir"];
    let args = [&common[..], &[&names[1], "--quant", "q8"]].concat();
    assert!(troika(&[&args[..], &["-n", "1"]].concat()).status.success());
    let [(packed, ..)] = packed(&cache).try_into().unwrap();
    for (args, file) in
        [(&args[..], packed), (&args[..args.len() - 2], model.join("model.safetensors"))]
    {
        let child = common::begun(&mut command(args));
        std::fs::File::options().write(true).open(&file).unwrap().set_len(4096).unwrap();
        let err = ends(&child.wait_with_output().unwrap(), 1, &[]);
        let shortened = format!("troika: {} was shortened while it was in use", file.display());
        assert!(err.starts_with(&shortened) && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn quantization_that_changes_nothing_says_so() {
    let file = in_root("tests/gguf/llama-q4_0.gguf");
    let run = ["run", &file, "--quant", "q8", "--no-cache", "--prompt-ids", "5", "-n", "1"];
    ends(&troika(&run), 0, &["changes nothing"]);
}

#[test]
fn a_number_of_threads_that_makes_no_sense_is_refused() {
    for threads in ["0", "100000000"] {
        ends(&troika(&["run", "-p", "x", "-t", threads]), 2, &["is not in 1..=4096"]);
    }
}

#[test]
fn show_tells_the_error_of_quantization() {
    let json = json(&troika(&["show", &tiny_moe(), "--quant", "q4", "--json"]));
    assert!(json["quantization"].as_array().unwrap().len() >= 3, "{json}");
    for class in json["quantization"].as_array().unwrap() {
        let most = if class["dtype"] == "Q8_0" { 0.006 } else { 0.085 };
        let error = class["relative_rms"].as_f64().unwrap();
        assert!(error > 0.001 && error < most, "{class}");
    }
    assert!(text(&troika(&["show", &tiny_moe(), "--quant", "q8"]).stdout).contains("relative RMS"));
}

#[test]
fn a_trace_holds_spans_of_all_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json").display().to_string();
    assert!(troika(&["run", "-p", "Hi", "-n", "4", "--trace", &path]).status.success());
    let json = read_json(&path);
    let names: Vec<&str> =
        json["traceEvents"].as_array().unwrap().iter().filter_map(|e| e["name"].as_str()).collect();
    for name in ["load", "tokenize", "sample", "layer 0 qkv", "layer 3 experts", "head"] {
        assert!(names.contains(&name), "no span {name}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a file was left beside it");
    let out = troika(&["run", "-p", "Hi", "-n", "2", "-q", "--trace", "/dev/full"]);
    ends(&out, 1, &["cannot write the trace /dev/full"]);
}

/// Viewers show slices of a track as a stack: two of them that overlap in part would be shown wrongly.
#[test]
fn slices_of_prompts_at_once_are_on_tracks_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let line = "Once upon a time there was a king who had three daughters. ".repeat(20);
    std::fs::write(path("prompts"), format!("{line}\n").repeat(24)).unwrap();
    let args = ["run", "-f", &path("prompts"), "--parallel", "8", "-n", "2", "-q"];
    assert!(troika(&[&args[..], &["--trace", &path("t.json")]].concat()).status.success());
    let json = read_json(path("t.json"));
    let mut slices: Vec<[u64; 4]> = Vec::new();
    for e in json["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X") {
        let ns = |us: &Value| (us.as_f64().unwrap() * 1e3).round() as u64;
        let (start, length) = (ns(&e["ts"]), ns(&e["dur"]));
        let track = [&e["pid"], &e["tid"]].map(|id| id.as_u64().unwrap());
        slices.push([track[0], track[1], start, start + length]);
    }
    for (i, [pid, tid, start, end]) in slices.iter().enumerate() {
        for [pid2, tid2, start2, end2] in &slices[i + 1..] {
            let meet = (pid, tid) == (pid2, tid2) && start < end2 && start2 < end;
            let within = (start <= start2 && end2 <= end) || (start2 <= start && end <= end2);
            assert!(!meet || within, "{start} to {end} and {start2} to {end2} on track {tid}");
        }
    }
}

#[test]
fn wrong_usage_is_refused_with_code_2() {
    refused(&troika(&["run", "-p", ""]), 2, &["prompt is empty"]);
    refused(&with_stdin(&["run"], b""), 2, &["prompt is empty"]);
    refused(&troika(&["run", "-p", "x", "--top-p", "3"]), 2, &["--top-p", "between 0 and 1"]);
    refused(&troika(&["run", "-p", "x", "--temp", "inf"]), 2, &["--temp", "finite number of 0 or"]);
    refused(&troika(&["run", "-p", "x", "-c", "99999"]), 2, &["-c", "99999", "2048"]);
    refused(&troika(&["run", "-p", "x", "--ubatch-size", "0"]), 2, &["--ubatch-size"]);
    refused(&troika(&["run", "-p", "x", "-l", "7"]), 2, &["--logit-bias"]);
    assert_eq!(troika(&["run", "--no-such-flag"]).status.code(), Some(2));
    assert_eq!(troika(&["run", "--prompt-ids", "1,x"]).status.code(), Some(2));
}

#[test]
fn prompts_that_cannot_be_run() {
    let q = golden("qwen3");
    refused(&troika(&["run", &q, "-p", "hello"]), 1, &["no tokenizer", "--prompt-ids"]);
    refused(&troika(&["run", &q, "--prompt-ids", "1,99999"]), 1, &["99999", "257"]);
    let long = ["5"; 300].join(",");
    refused(&troika(&["run", &q, "--prompt-ids", &long]), 1, &["300", "256"]);
    let eleven = ["5"; 11].join(",");
    refused(&troika(&["run", &q, "-c", "10", "--prompt-ids", &eleven]), 1, &["11", "10", "-c"]);
    refused(&with_stdin(&["run"], b"ab\xff"), 1, &["not UTF-8", "byte 2"]);
    refused(&troika(&["run", "no/such/model", "-p", "x"]), 1, &["no/such/model"]);
}

#[test]
fn a_context_that_fills_up_ends_the_generation() {
    let (model, ids) = (golden("qwen3"), ["--prompt-ids", "1,2,3,4,5,6,7,8,9,10"]);
    let run = ["run", &model, "-c", "12", "--ignore-eos", "--json", "--temp", "0"];
    let json = json(&troika(&[&run[..], &ids].concat()));
    assert_eq!(json["finish_reason"], "context");
    assert_eq!(json["generated_tokens"], 3);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = started(&mut command(&["run", "-p", "Hi", "-n", "400", "--ignore-eos"]));
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(ends(&out, 0, &[]), "");
}

/// The parser of flags would take them for one letter and its value, and `-hf` for help.
#[test]
fn flags_of_llama_cpp_mean_what_they_mean_there() {
    let say = |args: &[&str]| {
        let fixed = ["run", "-p", "-ngl", "-n", "4", "--temp", "0", "-t", "1", "-v", "-q"];
        let out = troika(&[&fixed[..], args].concat());
        let err = text(&out.stderr);
        assert!(out.status.success(), "{args:?}: {err}");
        let plan = err.lines().find(|line| line.starts_with("plan: ")).unwrap();
        assert!(plan.ends_with("on cpu, chunk 2, context 64, KV cache F32"), "{plan}");
        out.stdout
    };
    let own = ["--raw", "--cache-type", "f32", "--ubatch-size", "2", "-c", "64"];
    let theirs = ["-no-cnv", "-ctk", "f32", "-ctv", "f32", "-ub", "2", "-c", "64", "-ngl", "0"];
    assert_eq!(say(&[&theirs[..], &["-fa", "on", "-st"]].concat()), say(&own));
    for (args, says) in [
        (
            &["run", "-md", "x", "-p", "a"][..],
            "-md is no flag of Troika: there is no speculative decoding",
        ),
        (&["serve", "-nocb"], "-nocb is no flag of Troika: answers are always computed together"),
        (&["bench", "-fa", "0"], "-fa is no flag of Troika: it cannot be off"),
        (&["-hf", "a/b"], "name a command first, such as troika run -hf"),
    ] {
        refused(&troika(args), 2, &[says]);
    }
    let home = tempfile::tempdir().unwrap();
    let hub = command(&["run", "-hf", "a/b:Q8_0", "--offline", "-p", "a"])
        .env_remove("HF_HUB_CACHE")
        .env("HF_HOME", home.path())
        .output();
    refused(&hub.unwrap(), 1, &["a/b:Q8_0: the model is not in the cache"]);
    for (args, says) in [(["-ngl", "many"], "--n-gpu-layers"), (["-ctk", "q9"], "--cache-type")] {
        ends(&troika(&[&["run", "-p", "a"][..], &args].concat()), 2, &[says]);
    }
    // Two ways to name devices.
    let out = troika(&["run", "-p", "a", "-ngl", "9", "--device", "cpu"]);
    assert_eq!(out.status.code(), Some(2));
}

#[cfg(unix)]
#[test]
fn ctrl_c_that_is_ignored_from_the_start_stays_so() {
    let run = ["run", "-p", "Once", "-n", "40", "--ignore-eos", "-q"];
    let child = common::begun(&mut common::behind("trap '' INT", &run));
    common::ctrl_c::press(&child);
    assert_eq!(ends(&child.wait_with_output().unwrap(), 0, &[]), "");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_the_figures_so_far() {
    common::ctrl_c::ends_commands();
    // Once text flows, the handler is installed.
    let child = common::begun(&mut command(&["run", "-p", "Once", "--ignore-eos", "-t", "1"]));
    common::ctrl_c::press(&child);
    let err = ends(&child.wait_with_output().unwrap(), 130, &["TTFT", "ended by Ctrl-C"]);
    // The line is missing if the signal came right after the first token.
    if let Some(decode) = err.lines().find(|l| l.contains("decode:")) {
        let tokens: usize =
            decode.split_once('(').unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
        assert!(tokens < 2047, "it ran to the end: {decode}");
    }
}

/// Readers of the answers can see that some are missing.
#[cfg(unix)]
#[test]
fn ctrl_c_among_many_prompts_is_said() {
    common::ctrl_c::ends_commands();
    let dir = tempfile::tempdir().unwrap();
    let prompts = dir.path().join("prompts.txt");
    std::fs::write(&prompts, "Once\n".repeat(400)).unwrap();
    let at = ["run", "--parallel", "2", "-f", prompts.to_str().unwrap(), "-n", "40", "--json"];
    let child = common::begun(&mut command(&at));
    common::ctrl_c::press(&child);
    let out = child.wait_with_output().unwrap();
    let answers = text(&out.stdout).lines().count();
    assert!((1..400).contains(&answers), "{answers}");
    ends(&out, 130, &["ended by Ctrl-C"]);
}

/// Variables of flags without a value accept the same values as variables of other programs.
#[test]
fn variables_may_say_one_or_yes() {
    for (value, quiet) in [("1", true), ("yes", true), ("true", true), ("0", false)] {
        let out = command(&["run", "-p", "Hi", "-n", "1"]).env("TROIKA_QUIET", value).output();
        assert_eq!(ends(&out.unwrap(), 0, &[]).is_empty(), quiet, "{value}");
    }
}

/// Copies a golden checkpoint and damages it.
fn damaged(name: &str, change: impl FnOnce(&Path)) -> Output {
    damaged_with(name, change, &[])
}

fn damaged_with(name: &str, change: impl FnOnce(&Path), more: &[&str]) -> Output {
    let dir = golden_copy(name);
    change(dir.path());
    let args = ["run", &dir.path().display().to_string(), "--prompt-ids", "1,2"];
    troika(&[&args, more].concat())
}

fn edit_config(dir: &Path, edit: impl FnOnce(&mut Value)) {
    edit_json(&dir.join("config.json"), edit);
}

fn edit_weights(dir: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let path = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    edit(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_models_get_one_clear_sentence() {
    let config = |edit: &dyn Fn(&mut Value)| damaged("qwen3", |d| edit_config(d, edit));
    let weights = |edit: &dyn Fn(&mut Vec<u8>)| damaged("qwen3", |d| edit_weights(d, edit));
    let huge = (1u64 << 63).to_le_bytes();
    for (out, words) in [
        (weights(&|b| b.truncate(100_000)), &["model.safetensors", "past the end"][..]),
        (weights(&|b| b[..8].copy_from_slice(&huge)), &["header length", "model.safetensors"]),
        (weights(&|b| b.clear()), &["model.safetensors"]),
        (
            config(&|c| {
                c["num_hidden_layers"] = 4.into();
                c["layer_types"] = Value::Null;
            }),
            &["no tensor", "layers.3", "do not belong together"],
        ),
        (config(&|c| c["intermediate_size"] = 161.into()), &["mlp.", "shape", "161"]),
        (config(&|c| c["model_type"] = "bloom".into()), &["bloom", "llama"]),
        (config(&|c| drop(c.as_object_mut().unwrap().remove("model_type"))), &["model_type"]),
        (config(&|c| c["hidden_act"] = "quick".into()), &["hidden_act", "quick", "silu"]),
        (config(&|c| c["rope_parameters"]["rope_type"] = "spiral".into()), &["rope type spiral"]),
        (
            damaged("qwen3", |d| std::fs::write(d.join("config.json"), "{").unwrap()),
            &["config.json", "JSON"],
        ),
        (
            damaged("qwen3", |d| std::fs::remove_file(d.join("config.json")).unwrap()),
            &["config.json"],
        ),
    ] {
        refused(&out, 1, words);
    }
}

/// Whatever size is requested, the command ends with a sentence and not with a signal.
#[cfg(target_os = "linux")]
#[test]
fn memory_that_the_system_refuses_is_one_clear_sentence() {
    let dir = golden_copy("llama-3.2");
    edit_config(dir.path(), |c| c["max_position_embeddings"] = 2_000_000_000.into());
    let model = dir.path().display().to_string();
    let run = |kib: u32, args: &[&str]| {
        let mut c = common::limited(kib, &["run", &model, "--prompt-ids", "1,2"]);
        let threads: &[&str] = if args.contains(&"-t") { &[] } else { &["-t", "2"] };
        c.args(["-n", "1"]).args(threads).args(args).output().unwrap()
    };
    ends(&run(2_000_000, &["-c", "100"]), 0, &[]);
    let kv = ["no memory for the KV cache", "bytes were asked for"];
    for (args, words) in [
        (&["-c", "100000000"][..], &kv[..]),
        (&["-c", "2000000000"], &kv),
        (&["-c", "2000000000", "--cache-type", "f32"], &kv),
        (
            &["-c", "4000000", "--ubatch-size", "65536", "--cache-type", "f32"],
            &["no memory for", "bytes were asked for"],
        ),
    ] {
        refused(&run(2_000_000, args), 1, words);
    }
    let many = run(2_000_000, &["-c", "100", "-t", "4000"]);
    let lines: Vec<String> = text(&many.stderr).lines().map(String::from).collect();
    assert_eq!((many.status.code(), lines.len()), (Some(1), 2), "{lines:?}");
    assert!(lines[0].starts_with("warning: 4000 threads") && lines[1].contains("thread"));
}

#[test]
fn a_tokenizer_that_cannot_be_read_leaves_ids_in_ids_out() {
    for content in ["{", "", "[]", r#"{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}"#] {
        let dir = golden_copy("qwen3");
        std::fs::write(dir.path().join("tokenizer.json"), content).unwrap();
        let path = dir.path().display().to_string();
        let out = troika(&["run", &path, "--prompt-ids", "1,2", "-n", "3", "--json"]);
        ends(&out, 0, &["tokenizer.json", "only token ids can be used"]);
        assert_eq!(json(&out)["tokens"].as_array().unwrap().len(), 3);
        let none = "has no tokenizer that can be used";
        ends(&troika(&["run", &path, "-p", "a"]), 1, &["give token ids", none]);
        refused(&troika(&["tokenize", &path, "-p", "a"]), 1, &["tokenizer.json"]);
        let words =
            ["warning: ", "tokenizer.json", "no tokenizer that can be used; take a model with one"];
        let told = ends(&with_stdin(&["perplexity", &path], b"a text"), 1, &words);
        assert!(!told.contains("give token ids"), "{told}");
    }
}

#[test]
fn nan_weights_are_a_warning_with_the_tensor_name() {
    let nan = |d: &Path| {
        edit_weights(d, |b| {
            let n = b.len();
            b[n - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        });
    };
    let warned = |more: &[&str]| {
        let err = text(&damaged_with("qwen3", nan, &[more, &["-n", "1"]].concat()).stderr);
        err.contains("warning: tensor ") && err.contains(" holds NaN")
    };
    // The check reads all weights, so it needs --verbose.
    assert!(warned(&["-v"]) && !warned(&[]));
}

/// Text as some editors write it.
#[test]
fn a_byte_order_mark_is_no_part_of_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let count = |mark: &str, piped: bool, more: &[&str]| -> Value {
        let file = dir.path().join("prompt");
        std::fs::write(&file, format!("{mark}Hello there")).unwrap();
        let mut run = command(&["run", "-n", "1", "--json"]);
        run.args(more);
        match piped {
            true => run.stdin(std::fs::File::open(&file).unwrap()),
            false => run.arg("-f").arg(&file),
        };
        json(&run.output().unwrap())["prompt_tokens"].clone()
    };
    let plain = count("", false, &[]);
    for (piped, more) in
        [(false, &[][..]), (true, &[]), (true, &["-f", "-"]), (false, &["--parallel", "2"])]
    {
        assert_eq!(count("\u{feff}", piped, more), plain, "{piped} {more:?}");
        assert_ne!(count("\u{feff}\u{feff}", piped, more), plain, "{piped} {more:?}");
    }
}

#[test]
fn perplexity_of_a_text() {
    let file = in_root("LICENSE-APACHE");
    let json =
        |args: &[&str]| json(&troika(&[&["perplexity", "-f", &file, "--json"], args].concat()));
    let half = json(&["-c", "128"]);
    let windows = half["text_tokens"].as_u64().unwrap() / 128;
    assert_eq!(half["windows"], windows);
    assert_eq!(half["scored_tokens"], windows * 63);
    let ppl = half["perplexity"].as_f64().unwrap();
    assert!(ppl > 20.0 && ppl < 4096.0, "{ppl}");
    assert!(half["standard_error"].as_f64().unwrap() > 0.0);
    // How a prompt is cut does not change the result.
    assert_eq!(json(&["-c", "128", "--ubatch-size", "48"])["perplexity"], half["perplexity"]);
    let all = json(&["-c", "128", "--all"]);
    assert_eq!(all["scored_tokens"], windows * 127);
    // Tokens with less context are harder to predict.
    assert!(all["perplexity"].as_f64().unwrap() > ppl);
    let words = with_stdin(&["perplexity"], b"Too short.");
    refused(&words, 1, &["tokens, a window 512", "smaller windows (-c)"]);
    let silent = troika(&["perplexity", &golden("qwen3-moe"), "-f", &file]);
    refused(&silent, 1, &["has no tokenizer that can be used; take a model with one"]);
    let silent = troika(&["tokenize", &golden("qwen3-moe"), "-p", "x"]);
    refused(&silent, 1, &["has no tokenizer that can be used; take a model with one"]);
}

/// Invalid numbers are refused with the flag's name, whatever their size.
#[test]
fn numbers_that_make_no_sense_are_refused_by_flag() {
    let most = usize::MAX.to_string();
    for (args, flag) in [
        (&["run", "-p", "x", "-n", "-7"][..], "--n-predict"),
        (&["run", "-p", "x", "-n", "99999999999999999999"], "--n-predict"),
        (&["run", "-p", "x", "-c", "-5"], "--ctx-size"),
        (&["run", "-p", "x", "-c", "nan"], "--ctx-size"),
        (&["run", "-p", "x", "-t", "-1"], "--threads"),
        (&["run", "--prompt-ids", "-1"], "--prompt-ids"),
        (&["bench", "-p", "-1"], "--n-prompt"),
        (&["bench", "-n", "1,-1"], "--n-gen"),
        (&["bench", "-d", &most, "-p", "2", "-n", "0"], "-d"),
        (&["bench", "-p", &most, "-n", "0"], "-p"),
        (&["bench", "-n", &most, "-p", "0"], "-n"),
        (&["bench", "--overhead", "-n", &most], "-n"),
        (&["perplexity", "-c", "-1"], "--ctx-size"),
    ] {
        assert_eq!(fails(&troika(args), &[flag]), 2, "{args:?}");
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_before_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().display().to_string();
    let missing = dir.path().join("no/such/t.json").display().to_string();
    for path in [&folder, &missing] {
        let out = troika(&["run", "-p", "Hi", "-n", "2", "--trace", path]);
        refused(&out, 1, &["cannot write the trace", path]);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a file was left");
}

/// Endless devices, and pipes without a writer, in place of every file that is read.
#[cfg(unix)]
#[test]
fn endless_files_are_refused() {
    refused(&troika(&["run", "/dev/zero", "-p", "x"]), 1, &["/dev/zero", "not a regular file"]);
    refused(&troika(&["run", "-f", "/dev/zero"]), 1, &["/dev/zero", "longer than 256 MiB"]);
    let mut c = command(&["perplexity"]);
    let zero = std::fs::File::open("/dev/zero").unwrap();
    refused(&c.stdin(zero).output().unwrap(), 1, &["standard input", "longer than 256 MiB"]);
    for file in ["config.json", "tokenizer.json", "model.safetensors.index.json"] {
        for endless in ["/dev/zero", "pipe"] {
            let out = damaged("qwen3", |d| {
                if d.join(file).exists() {
                    std::fs::remove_file(d.join(file)).unwrap();
                }
                if file == "model.safetensors.index.json" {
                    // Where it is there, no index is read.
                    std::fs::remove_file(d.join("model.safetensors")).unwrap();
                }
                if endless == "pipe" {
                    let made = std::process::Command::new("mkfifo").arg(d.join(file)).status();
                    assert!(made.unwrap().success());
                } else {
                    std::os::unix::fs::symlink(endless, d.join(file)).unwrap();
                }
            });
            if file == "tokenizer.json" {
                // Token ids need no tokenizer.
                ends(&out, 0, &["tokenizer.json: it is not a regular file"]);
            } else {
                refused(&out, 1, &[file, "not a regular file"]);
            }
        }
    }
}

/// With little memory: sizes claimed in a file of a kilobyte are not trusted.
#[cfg(target_os = "linux")]
#[test]
fn a_small_config_does_not_take_much_memory() {
    let limited = |edit: &dyn Fn(&mut Value)| {
        let dir = golden_copy("mixtral");
        edit_config(dir.path(), edit);
        let mut c = common::limited(600_000, &["run"]);
        c.arg(dir.path()).args(["--prompt-ids", "1,2", "-n", "1", "-t", "1"]).output().unwrap()
    };
    ends(&limited(&|_| ()), 0, &[]);
    let many = |layers: u64, experts: u64| {
        limited(&|c| {
            c["num_hidden_layers"] = layers.into();
            c["num_local_experts"] = experts.into();
        })
    };
    refused(&many(4096, 4096), 1, &["16777216 experts"]);
    refused(&many(4096, 64), 1, &["layers.0", "[4, 64]", "[64, 64]"]);
    refused(&many(4096, 4), 1, &["no tensor", "layers.3"]);
    let context = limited(&|c| c["max_position_embeddings"] = (1u64 << 31).into());
    refused(&context, 1, &["no memory for the KV cache", "smaller context"]);
    let vocab = limited(&|c| c["vocab_size"] = (1 << 24).into());
    refused(&vocab, 1, &["embed_tokens", "16777216"]);
}

#[test]
fn generation_defaults_that_cannot_be_used_are_told() {
    for (content, why) in [
        (r#"{"eos_token_id": [58, 208, 97],}"#, "trailing comma"),
        ("[]", "no JSON object"),
        (r#"{"eos_token_id": ["97"]}"#, "eos_token_id"),
        (r#"{"eos_token_id": -1}"#, "eos_token_id"),
    ] {
        let write = |d: &Path| std::fs::write(d.join("generation_config.json"), content).unwrap();
        let out = damaged_with("qwen3", write, &["-n", "1"]);
        ends(&out, 0, &["generation_config.json", why]);
    }
    let write = |d: &Path| {
        std::fs::write(d.join("generation_config.json"), r#"{"eos_token_id": [2, 3]}"#).unwrap();
    };
    let out = damaged_with("qwen3", write, &["-n", "1"]);
    assert!(!text(&out.stderr).contains("generation_config"), "{}", text(&out.stderr));
}

#[test]
fn values_may_start_with_a_dash() {
    for prompt in ["- a list item", "-1", "---", "--json"] {
        let joined = troika(&["tokenize", &format!("--prompt={prompt}"), "--ids"]);
        let apart = troika(&["tokenize", "-p", prompt, "--ids"]);
        assert!(apart.status.success(), "{prompt}: {}", text(&apart.stderr));
        assert_eq!(apart.stdout, joined.stdout);
        let args = ["run", "-p", prompt, "-r", "---", "--system-prompt", "-- be kind", "-n", "1"];
        ends(&troika(&args), 0, &[]);
    }
}

#[test]
fn a_system_prompt_without_a_place_is_a_warning() {
    let (tiny, qwen) = (tiny_moe(), golden("qwen3"));
    for (args, why) in [
        (["run", &tiny, "-p", "Hi"].as_slice(), "no chat template"),
        (&["run", &tiny, "-p", "Hi", "--raw"], "--raw"),
        (&["run", &qwen, "--prompt-ids", "5,6"], "--prompt-ids"),
    ] {
        let out = troika(&[args, &["-n", "1", "-q", "--system-prompt", "Be kind"]].concat());
        ends(&out, 0, &["warning: the system prompt is not used: ", why]);
        let without = text(&troika(&[args, &["-n", "1", "-q"]].concat()).stderr);
        assert!(!without.contains("system prompt"), "{without}");
    }
}

#[test]
fn the_command_line_wins_over_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt");
    std::fs::write(&file, "Hello there").unwrap();
    let (file, folder) = (file.display().to_string(), dir.path().display().to_string());
    let (tiny, qwen) = (tiny_moe(), golden("qwen3"));
    let short = ["-n", "1", "--json"];
    let hello = ["run", "-p", "Hello there"];
    let run = |args: &[&str], vars: &[(&str, &str)]| {
        let mut command = command(args);
        json(&command.envs(vars.iter().copied()).output().unwrap())
    };
    let count = run(&[&hello[..], &short].concat(), &[])["prompt_tokens"].clone();
    for (args, vars) in [
        (
            ["run", "-f", &file, "--device", "cpu"].as_slice(),
            [("TROIKA_THREADS", "2"), ("TROIKA_ISA", "scalar")].as_slice(),
        ),
        (&["run", "-f", &file, "-t", "1"], &[("TROIKA_DEVICE", "none")]),
        (&["run", "-p", "Hello there", "--no-cache"], &[("TROIKA_CACHE_DIR", "/no/such")]),
        (&["run", "-p", "Hello there", "--cache-dir", &folder], &[("TROIKA_NO_CACHE", "1")]),
    ] {
        assert_eq!(run(&[args, &short].concat(), vars)["prompt_tokens"], count, "{args:?}");
    }
    let shown = run(&["show", &qwen, "--json"], &[("TROIKA_MODEL", "/no/such")]);
    assert_eq!(shown, run(&["show", &qwen, "--json"], &[]));
    // Two conflicting flags that were both typed are still refused.
    assert_eq!(troika(&["run", "-p", "x", "-f", &file]).status.code(), Some(2));
    assert_eq!(troika(&["show", &tiny, "-m", &qwen]).status.code(), Some(2));
}

#[cfg(unix)]
#[test]
fn a_trace_goes_to_where_a_link_leads() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("below/trace.json"), dir.path().join("link.json"));
    std::fs::create_dir(dir.path().join("below")).unwrap();
    std::fs::write(&file, "{\"traceEvents\":[]").unwrap();
    std::os::unix::fs::symlink("below/trace.json", &link).unwrap();
    let args = ["run", "-p", "Hi", "-n", "2", "-q", "--trace", &link.display().to_string()];
    ends(&troika(&args), 0, &[]);
    assert!(link.is_symlink());
    read_json(&file);
    assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

/// A MiB of the KV cache holds 1024 tokens of the built-in model, half of its context.
#[test]
fn an_answer_ends_where_the_budget_of_the_cache_does() {
    let args =
        ["run", "-p", "It was", "-n", "2000", "--temp", "0", "--ignore-eos", "--kv-size", "1"];
    let of_f16 = ["--cache-type", "f16"];
    let json = json(&troika(&[&args[..], &of_f16, &["--json"]].concat()));
    let count = |field: &str| json[field].as_u64().unwrap();
    assert_eq!(json["finish_reason"], "budget");
    assert_eq!(count("prompt_tokens") + count("generated_tokens"), 1025);
    let out = troika(&[&args[..], &of_f16].concat());
    ends(&out, 0, &["budget of the KV cache is full (--kv-size)"]);
}

/// A prompt that does not come from a file, wherever a flag names one.
#[test]
fn a_file_named_dash_is_standard_input() {
    let text_file = root().join("LICENSE-APACHE");
    let words = std::fs::read(&text_file).unwrap();
    let from = text_file.display().to_string();
    for args in [&["perplexity", "-c", "128", "--json"][..], &["tokenize", "--ids"]] {
        let read = troika(&[args, &["-f", &from]].concat());
        assert!(read.status.success() && !read.stdout.is_empty(), "{}", text(&read.stderr));
        for more in [&["-f", "-"][..], &[]] {
            let piped = with_stdin(&[args, more].concat(), &words);
            assert_eq!(text(&piped.stdout), text(&read.stdout), "{args:?} {more:?}");
        }
    }
    let run = ["run", "-n", "2", "--temp", "0", "--json", "-f", "-"];
    let one = json(&with_stdin(&run, b"Once\n"));
    let many = json_lines(&with_stdin(&[&run[..], &["--parallel", "2"]].concat(), b"Once\nOnce"));
    assert_eq!([&many[0]["tokens"], &many[1]["tokens"]], [&one["tokens"]; 2]);
    assert_eq!(troika(&["tokenize", "-p", "a", "-f", "b"]).status.code(), Some(2));
}

/// Answers of several prompts are told apart, and what they took together is said.
#[test]
fn answers_of_many_prompts_stand_under_their_prompts() {
    let long = "and so on ".repeat(20);
    let prompts = format!("Once upon\n\n{long}\n");
    let run = ["run", "--parallel", "2", "-n", "3", "--temp", "0", "--ignore-eos"];
    let out = with_stdin(&run, prompts.as_bytes());
    let said = text(&out.stdout);
    let heads: Vec<&str> = said.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(heads[..2], ["[1] Once upon", "[2]"], "{said}");
    assert!(heads[2].starts_with("[3] and so on") && heads[2].ends_with(" ..."), "{said}");
    assert!(heads[2].len() < 80, "{said}");
    let one = troika(&[&["run", "-p", "Once upon", "-q"], &run[3..]].concat());
    assert!(said.starts_with(&format!("[1] Once upon\n{}\n[2]", text(&one.stdout))), "{said}");
    ends(&out, 1, &["troika: prompt 2: ", "1 of 3 prompts failed"]);
    ends(&out, 1, &["3 prompts, 6 tokens generated in ", " tok/s"]);
    let quiet = text(&with_stdin(&[&run[..], &["-q"]].concat(), b"a\nb\n").stderr);
    assert_eq!(quiet, "");
}

#[test]
fn cores_that_two_devices_have_are_a_warning() {
    let core = troika::usable_cores().first().copied().unwrap_or(0);
    let run = |device: &str| {
        ends(&troika(&["run", "-p", "a", "-n", "1", "-q", "--device", device]), 0, &[])
    };
    let told = run(&format!("cpu:{core},cpu:{core}"));
    assert!(told.contains(&format!("warning: --device: two devices have core {core}")), "{told}");
    assert_eq!(run(&format!("cpu:{core}")), "");
    assert_eq!(run("cpu,cpu"), "");
}

/// Names of files need not be text. Where one must be, the flag is named.
#[cfg(target_os = "linux")]
#[test]
fn names_of_files_that_are_not_text_work_or_are_refused_by_flag() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let path = |end: &[u8]| dir.path().join(OsStr::from_bytes(&[b"a\xff", end].concat()));
    let (prompt, out_file) = (path(b"prompt"), path(b"out"));
    let (gguf, folder, soc) = (path(b".gguf"), path(b"model"), path(b"soc.toml"));
    std::fs::write(&prompt, "Hello there, said the fox to the crow. ".repeat(8)).unwrap();
    let tiny = root().join("models/tiny-moe").canonicalize().unwrap();
    std::os::unix::fs::symlink(tiny.join("tiny-moe-Q8_0.gguf"), &gguf).unwrap();
    std::os::unix::fs::symlink(&tiny, &folder).unwrap();
    std::fs::copy(root().join("socs/example.toml"), &soc).unwrap();
    let run = |words: &[&str], paths: &[&Path]| {
        // Each `%` stands for a path.
        let mut paths = paths.iter();
        let word = |w: &&str| match *w {
            "%" => paths.next().unwrap().as_os_str().to_owned(),
            w => w.into(),
        };
        command(&[]).args(words.iter().map(word)).output().unwrap()
    };
    for (words, paths) in [
        (&["run", "%", "-f", "%", "-n", "1", "--trace", "%"][..], &[&gguf, &prompt, &out_file][..]),
        (&["run", "-m", "%", "-f", "%", "-n", "1", "--json"], &[&folder, &prompt]),
        (&["run", "--parallel", "2", "-f", "%", "-n", "1"], &[&prompt]),
        (
            &["run", "%", "-p", "a", "-n", "1", "--quant", "q8", "--cache-dir", "%"],
            &[&folder, &path(b"c")],
        ),
        (&["cache", "ls", "--json", "--cache-dir", "%"], &[&path(b"c")]),
        (&["cache", "clear", "--cache-dir", "%"], &[&path(b"c")]),
        (&["show", "%", "--json"], &[&gguf]),
        (&["tokenize", "%", "-f", "%"], &[&folder, &prompt]),
        (&["perplexity", "%", "-f", "%", "-c", "32"], &[&gguf, &prompt]),
        (&["plan", "%", "-o", "%"], &[&gguf, &out_file]),
        (&["run", "%", "-p", "a", "-n", "1", "--plan", "%"], &[&gguf, &out_file]),
        (&["bench", "-m", "%", "-p", "2", "-n", "0", "-r", "1", "-o", "json"], &[&gguf]),
    ] {
        let paths: Vec<&Path> = paths.iter().map(|p| p.as_path()).collect();
        ends(&run(words, &paths), 0, &[]);
    }
    let mut device = Path::new("virtual:").as_os_str().to_owned();
    device.push(&soc);
    for (words, flag) in [
        (&["run", "-p", "a", "--device", "%"][..], "--device"),
        (&["devices", "--device", "%"], "--device"),
        (&["simulate", "-m", "qwen3-0.6b", "--soc", "%"], "--soc"),
        (&["run", "-p", "%"], "-p"),
    ] {
        refused_flag(&run(words, &[Path::new(&device)]), flag);
    }
    let missing = run(&["run", "%", "-p", "a"], &[&path(b"none.gguf")]);
    refused(&missing, 1, &["none.gguf"]);
    let mut with_variable = command(&["run", "-n", "1"]);
    let out = with_variable.env("TROIKA_STRATEGY", OsStr::from_bytes(b"\xff")).output().unwrap();
    refused_flag(&out, "TROIKA_");
}

#[cfg(target_os = "linux")]
#[track_caller]
fn refused_flag(out: &Output, flag: &str) {
    let err = ends(out, 2, &[]);
    let first = err.lines().next().unwrap();
    assert!(first.contains(flag) && first.contains("is not UTF-8 text"), "{err}");
}

/// `-h` is for newcomers.
#[test]
fn short_help_is_short() {
    let help = |flag: &str| text(&troika(&["run", flag]).stdout);
    let (short, long) = (help("-h"), help("--help"));
    assert!(short.lines().count() <= 62, "{short}");
    assert!(short.contains("\nPlacement:\n") && !short.contains("--presence-penalty"), "{short}");
    assert!(!short.contains("TROIKA_"), "{short}");
    assert!(long.contains("\nPlacement:\n") && long.contains("--presence-penalty"), "{long}");
    // No flag stands under a heading that is not its own.
    let headed = long.split_once("\nPlacement:\n").unwrap().1;
    assert!(!headed.contains("--json") && headed.contains("--seed"), "{headed}");
}
