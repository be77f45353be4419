//! NPU devices as a user types them: what is missing, emulation, kept graphs, memory, and
//! calibrations beside plans. What the devices compute is tested in conformance.

#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{command, ends, holds, json, npu_runtimes, read_json, said, stdout};

/// The command in a folder, with a variable that names a runtime.
fn troika(dir: &Path, (variable, value): (&str, &Path), args: &[&str]) -> Output {
    let mut c = command(args);
    for other in ["VIRTUAL_ENV", "CONDA_PREFIX", "ORT_DYLIB_PATH"] {
        c.env_remove(other);
    }
    c.current_dir(dir).env(variable, value).output().unwrap()
}

/// The command with the runtimes.
fn here(dir: &Path, args: &[&str]) -> Output {
    troika(dir, ("VIRTUAL_ENV", npu_runtimes()), args)
}

/// The command fails with a line that has all the words, beside which there are only warnings.
fn refused(out: &Output, words: &[&str]) {
    assert!(!out.status.success());
    let said = said(out);
    let lines: Vec<&str> = said.lines().filter(|l| !l.starts_with("warning: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    holds(lines[0], words);
}

const HI: [&str; 5] = ["run", "-p", "Hi", "-n", "1"];

/// A runtime that is none, of an old version, or without its plugin.
#[test]
fn runtimes_that_do_not_serve_are_named_with_what_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let old = "struct base { const void *(*api)(unsigned); const char *(*version)(void); };\n\
        static const void *api(unsigned v) { (void)v; return 0; }\n\
        static const char *version(void) { return \"1.14.0\"; }\n\
        static const struct base known = { api, version };\n\
        const struct base *OrtGetApiBase(void) { return &known; }\n";
    let library = |name: &str, source: &str| {
        let (from, to) = (dir.join(format!("{name}.c")), dir.join(name));
        std::fs::write(&from, source).unwrap();
        let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&to).arg(&from).status();
        assert!(cc.unwrap().success());
        to
    };
    std::fs::write(dir.join("text.so"), "no library").unwrap();
    let reference = [&HI[..], &["--device", "npu:reference,cpu"]].concat();
    for (library, says) in [
        (library("old.so", old), "old.so is ONNX Runtime 1.14.0, which is too old"),
        (library("other.so", "int other;\n"), "does not export `OrtGetApiBase`"),
        (dir.join("text.so"), "text.so cannot be loaded as ONNX Runtime"),
        (dir.join("none.so"), "there is no such file"),
    ] {
        let out = troika(dir, ("ORT_DYLIB_PATH", &library), &reference);
        refused(&out, &[says, "pip install onnxruntime==1.31.1"]);
    }
    // Everything else works, and the list of devices says the same.
    let library = dir.join("old.so");
    stdout(&troika(dir, ("ORT_DYLIB_PATH", &library), &HI));
    let listed = stdout(&troika(dir, ("ORT_DYLIB_PATH", &library), &["devices"]));
    assert!(listed.contains("npu:qnn: not available") && listed.contains("too old"), "{listed}");

    // A runtime alone, and beside it a plugin that is none.
    let packages = dir.join("env/lib/python3/site-packages");
    std::fs::create_dir_all(packages.join("onnxruntime_qnn")).unwrap();
    let versions = std::fs::read_dir(npu_runtimes().join("lib")).unwrap();
    let all = versions.map(|v| v.unwrap().path().join("site-packages/onnxruntime"));
    let runtime = all.into_iter().find(|folder| folder.is_dir()).unwrap();
    std::os::unix::fs::symlink(runtime, packages.join("onnxruntime")).unwrap();
    let environment = dir.join("env");
    let emulator = [&HI[..], &["--device", "npu:qnn:emulator,cpu"]].concat();
    let tried = || troika(dir, ("VIRTUAL_ENV", &environment), &emulator);
    refused(&tried(), &["install the plugin with: pip install onnxruntime-qnn"]);
    let plugin = packages.join("onnxruntime_qnn/libonnxruntime_providers_qnn.so");
    std::fs::write(&plugin, "no library").unwrap();
    refused(&tried(), &["providers_qnn.so cannot be loaded"]);
}

/// An emulated NPU takes its name, and so does the CPU in place of one.
#[test]
fn emulation_is_never_chosen_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for device in ["npu", "npu:qnn"] {
        let out = here(dir, &["devices", "--device", device]);
        refused(&out, &["finds no htp here", "npu:qnn:emulator"]);
    }
    let taken = stdout(&here(dir, &["devices", "--device", "npu:qnn:emulator"]));
    assert!(taken.contains("QNNExecutionProvider on emulator"), "{taken}");
    // The CPU is no NPU.
    refused(&here(dir, &["devices", "--device", "npu:openvino"]), &["finds no npu here"]);
    let listed = stdout(&here(dir, &["devices"]));
    holds(&listed, &["npu: no real one is here", "(emulated and slow)"]);
    // Nobody else computes what it refuses.
    let out = here(dir, &[&HI[..], &["--device", "npu:reference"]].concat());
    refused(&out, &["no device takes", "name another device"]);
}

/// A cache that takes nothing costs a warning. What lies there under another graph's name is not
/// used.
#[test]
fn kept_graphs_are_those_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let run = |cache: &str| {
        let args = ["run", "-q", "-p", "It was", "-n", "3", "--temp", "0", "--ubatch-size", "16"];
        let device = ["--device", "npu:qnn:emulator,cpu", "--cache-dir", cache];
        here(dir, &[&args[..], &device].concat())
    };
    std::fs::write(dir.join("file"), "no folder").unwrap();
    let out = run("file");
    ends(&out, 0, &["warning: compiled graphs are not kept in file ("]);
    let text = stdout(&out);
    let first = run("cache");
    assert_eq!(stdout(&first), text);
    assert!(!said(&first).contains("not kept"));
    let kept = std::fs::read_dir(dir.join("cache/graphs")).unwrap();
    let mut kept: Vec<PathBuf> = kept.map(|entry| entry.unwrap().path()).collect();
    kept.sort();
    // Each file gets the next one's content.
    let contents: Vec<Vec<u8>> = kept.iter().map(|file| std::fs::read(file).unwrap()).collect();
    for (file, content) in kept.iter().zip(contents.iter().cycle().skip(1)) {
        std::fs::write(file, content).unwrap();
    }
    let verify = ["cache", "verify", "--cache-dir", "cache"];
    refused(&here(dir, &verify), &[&format!("cache: {} files;", kept.len())]);
    assert_eq!(stdout(&run("cache")), text);
    stdout(&here(dir, &verify));
}

/// A plan made by a calibration is used with that one.
#[test]
fn plans_keep_to_their_calibration() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (name, words) in [("one", "The night was dark. "), ("other", "A bird sang at dawn. ")] {
        std::fs::write(dir.join(name), words.repeat(40)).unwrap();
        let out = format!("{name}.json");
        let said = stdout(&here(dir, &["calibrate", "-f", name, "-o", &out, "-c", "64"]));
        holds(&said, &["The columns that shadow products hold", "| layers.0 | 960 |"]);
    }
    let device = ["--device", "npu:reference,cpu", "--row-buckets", "16"];
    let make = ["plan", "--calibration", "one.json", "-o", "plan.json"];
    stdout(&here(dir, &[&make[..], &device].concat()));
    let plan = read_json(dir.join("plan.json"));
    assert_eq!(plan["calibration"].as_str().unwrap().len(), 32);
    let run = |more: &[&str]| {
        let plan = ["--plan", "plan.json", "--device", "npu:reference,cpu"];
        here(dir, &[&HI[..], &plan, more].concat())
    };
    stdout(&run(&["--calibration", "one.json"]));
    let other = run(&["--calibration", "other.json"]);
    refused(&other, &["plan.json: the plan was made with the calibration"]);
    refused(&run(&[]), &["give its file (--calibration FILE)"]);
    // Each phase has a format of its own, or floats.
    for (format, prefill, decode) in [
        ("prefill=f16,decode=w8a8", Some("f16"), Some("int8:tensor")),
        ("prefill=f32,decode=w8a8", None, Some("int8:tensor")),
        ("prefill=w4f16,decode=w8a8", Some("f16:int4"), Some("int8:tensor")),
        ("w8a8", Some("int8:tensor"), Some("int8:tensor")),
    ] {
        let make = ["plan", "--calibration", "one.json", "--npu-format", format];
        stdout(&here(dir, &[&make[..], &["-o", "phases.json"], &device].concat()));
        let plan = read_json(dir.join("phases.json"));
        for (phase, expected) in [("prefill", prefill), ("decode", decode)] {
            let rules = plan[phase]["rules"].as_array().unwrap();
            let on_npu = rules.iter().filter(|r| r["device"] == "npu");
            let first: Vec<_> = on_npu.map(|r| r["activations"][0].as_str()).collect();
            let is = |found: &Option<&str>| match expected {
                Some(name) => found.is_some_and(|f| f.starts_with(name)),
                None => found.is_none(),
            };
            assert!(!first.is_empty() && first.iter().all(is), "{format}, {phase}: {first:?}");
        }
        let plan = ["--plan", "phases.json", "--calibration", "one.json"];
        let run = ["run", "-p", "Hi", "-n", "3", "--device", "npu:reference,cpu"];
        stdout(&here(dir, &[&run[..], &plan].concat()));
    }
    // Prompts in four bits on the NPU, answers as another device computes them.
    let apart = ["plan", "--npu-format", "w4f16", "--strategy", "prefill-decode"];
    let plan = json(&here(dir, &[&apart[..], &device].concat()));
    let has = |phase: &str| plan[phase].to_string().contains("f16:int4");
    assert!(has("prefill") && !has("decode"), "{plan}");
    for format in ["f64", "prefill=f64", "decode=f16,decode=f16", "first=f16", "prefill=f16,w8a8"] {
        let out = here(dir, &[&HI[..], &device, &["--npu-format", format]].concat());
        holds(&said(&out), &["as in prefill=f16,decode=w8a8"]);
    }
    // Each verb says that nothing computes with it.
    for verb in [&HI[..], &["bench", "-p", "4", "-n", "0", "-r", "1"]] {
        let out = here(dir, &[verb, &["--device", "cpu", "--calibration", "one.json"]].concat());
        holds(&said(&out), &["the calibration is of no use"]);
    }
    // Several ways in one table, where they are wanted.
    let ways = ["--calibration", "one.json", "--outliers", "kept,shadow=0"];
    let ways = [&ways[..], &["--npu-format", "w8a16"]].concat();
    let one = here(dir, &[&HI[..], &device, &ways].concat());
    refused(&one, &["only troika perplexity takes several"]);
    let measure = ["perplexity", "-f", "one", "-c", "32", "--no-cache"];
    let table = stdout(&here(dir, &[&measure[..], &device, &ways].concat()));
    holds(&table, &["| floats |", "| kept |", "| shadow=0 |"]);
}

/// What has no room on a device is elsewhere, and what is held is said.
#[test]
fn memory_is_kept_to_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let plan = |more: &[&str]| {
        let args = ["plan", "--synthetic", "qwen3-0.6b:Q8_0", "-c", "1024", "--explain"];
        let devices = ["--device", "npu:reference,cpu", "--strategy", "prefill-decode"];
        here(dir, &[&args[..], &devices, more].concat())
    };
    let whole = stdout(&plan(&[]));
    assert!(whole.contains("static shapes of 64, 256 rows"), "few numbers of rows: {whole}");
    let npu = whole.lines().find(|l| l.starts_with("| npu | ")).unwrap();
    assert!(npu.contains(" | any, once | "), "which share their weights: {npu}");
    let out = plan(&["--device-memory", "npu=900"]);
    ends(&out, 0, &["device npu holds 900 MiB of weights, and cpu computes"]);
    let divided = stdout(&out);
    let held = divided.lines().find(|l| l.starts_with("| npu | ")).unwrap();
    let held: f64 = held.split(" | ").last().unwrap().trim_end_matches(" |").parse().unwrap();
    assert!(held > 600.0 && held <= 900.0, "{held}");
    let on_npu = |l: &&str| l.starts_with("| prefill") && l.contains("| npu");
    let on_npu: Vec<&str> = divided.lines().filter(on_npu).collect();
    assert!(on_npu.iter().any(|l| l.contains("| ffn |")), "{divided}");
    assert!(!on_npu.iter().any(|l| l.contains("head") || l.contains("embed")), "{divided}");
    refused(&plan(&["--device-memory", "gpu=9"]), &["there is no device gpu"]);
    // A plan that a limit does not allow.
    let args = ["plan", "--synthetic", "qwen3-0.6b:Q8_0", "-c", "1024"];
    let one = [&args[..], &["--device", "cpu", "--device-memory", "cpu=9"]].concat();
    refused(&here(dir, &one), &["bytes of weights on device cpu, which holds 9437184"]);
}

/// Attention over less than a graph's positions, all of them and more, and after a longer sequence.
#[test]
fn attention_of_any_length_gives_the_tokens_of_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let lines = [150, 1, 140, 9].map(|words| "Then he saw it. ".repeat(words / 4 + 1));
    std::fs::write(dir.join("prompts"), lines.join("\n")).unwrap();
    for prompts in [&["--prompt-ids", ""][..], &["-f", "prompts", "--parallel", "2"]] {
        let lengths = if prompts.len() == 2 { &[127, 128, 129, 200][..] } else { &[0] };
        for &length in lengths {
            let ids: Vec<String> = (0..length).map(|i| (5 + i % 900).to_string()).collect();
            let ids = ids.join(",");
            let run = |devices: &[&str]| {
                let args = ["run", "-q", "--temp", "0", "-n", "6", "-c", "260", "--dtype", "f32"];
                let prompts =
                    if length > 0 { vec!["--prompt-ids", &ids] } else { prompts.to_vec() };
                stdout(&here(dir, &[&args[..], &prompts, devices].concat()))
            };
            let npu = ["--device", "npu:reference,cpu", "--npu-attention", "--row-buckets", "1,64"];
            assert_eq!(run(&npu), run(&["--device", "cpu"]), "{length}");
        }
    }
}

/// Prompts of one token, of less than a shape, of a shape, one more, and that fill the context.
#[test]
fn prompts_of_any_length_give_the_tokens_of_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = |length: usize, device: &str| {
        let ids: Vec<String> = (5..5 + length).map(|id| id.to_string()).collect();
        let ids = ids.join(",");
        let args = ["run", "--json", "--temp", "0", "-n", "4", "-c", "40", "--dtype", "f32"];
        let of = ["--prompt-ids", &ids, "--ubatch-size", "16", "--device", device];
        here(dir.path(), &[&args[..], &of].concat())
    };
    for length in [1, 3, 16, 17, 33, 39, 40] {
        let [npu, cpu] = ["npu:reference,cpu", "cpu"].map(|device| json(&tokens(length, device)));
        assert_eq!(npu["tokens"], cpu["tokens"], "{length}");
        assert_eq!(npu["finish_reason"], cpu["finish_reason"], "{length}");
        let full = if length > 36 { "context" } else { "length" };
        assert_eq!(npu["finish_reason"], full, "{length}");
    }
    let beyond = tokens(41, "npu:reference,cpu");
    refused(&beyond, &["the prompt has 41 tokens, the context holds 40"]);
}

/// A profile takes any numbers of rows, and plans by it run.
#[test]
fn profiles_are_of_any_numbers_of_rows() {
    let dir = tempfile::tempdir().unwrap();
    let at = ["--device", "npu:reference,cpu", "-c", "256", "--row-buckets", "16,64"];
    let more = ["--ubatch-size", "64"];
    let profile = ["profile", "-o", "p.json"];
    let table = stdout(&here(dir.path(), &[&profile[..], &at, &more].concat()));
    assert!(table.contains("| npu | qkv | "), "{table}");
    assert!(!table.contains("| npu | attention | "), "plans leave it to the CPU: {table}");
    let run = ["run", "-p", "Hi", "-n", "4", "--temp", "0", "-q", "--profile", "p.json"];
    let text = stdout(&here(dir.path(), &[&run[..], &at, &more].concat()));
    assert!(!text.is_empty());
    // With the threads that it was measured with.
    let bench = ["bench", "-p", "16", "-n", "2", "-r", "1", "--profile", "p.json"];
    let on = ["--device", "npu:reference,cpu", "--row-buckets", "16,64"];
    stdout(&here(dir.path(), &[&bench[..], &on, &more].concat()));
}

/// A plan's file names how graphs are written: the text is the same, and a name that is none is refused.
#[test]
fn a_plans_file_names_rewrites() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let device = ["--device", "npu:openvino:cpu,cpu"];
    let make = ["plan", "--npu-attention", "--row-buckets", "1,16", "-c", "64", "-o", "plan.json"];
    stdout(&here(dir, &[&make[..], &device].concat()));
    let mut plan = read_json(dir.join("plan.json"));
    let mut run = |rewrites: &[&str]| {
        plan["npu_rewrites"] = rewrites.into();
        std::fs::write(dir.join("plan.json"), plan.to_string()).unwrap();
        let kept = ["--temp", "0", "--plan", "plan.json"];
        here(dir, &[&HI[..], &kept, &device].concat())
    };
    let plain = stdout(&run(&[]));
    assert_eq!(stdout(&run(&["pow-to-mul", "slice-q=16:2", "pad-cache"])), plain);
    let words = ["plan.json: its \"npu_rewrites\" cannot be used: ", "no rewrite \"pow\""];
    refused(&run(&["pow"]), &words);
}

#[test]
fn an_ablation_of_llm_npu_runs_on_a_compiler_for_npus() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("text.txt"), "The sea was grey and the boats were late. ".repeat(40))
        .unwrap();
    stdout(&here(dir, &["calibrate", "-f", "text.txt", "-o", "c.json", "-c", "128"]));
    let of = ["bench", "--ablation", "llm.npu", "-p", "100", "-r", "1", "--ubatch-size", "32"];
    let on = [&of[..], &["--device", "npu:openvino:cpu,cpu", "-o", "json"]].concat();
    refused(&here(dir, &on), &["the ablation needs a calibration"]);
    let steps = json(&here(dir, &[&on[..], &["--calibration", "c.json"]].concat()));
    let names = steps.as_array().unwrap().iter().map(|s| s["step"].as_str().unwrap());
    let names: Vec<&str> = names.collect();
    assert_eq!(
        (names.len(), names[0], names[6]),
        (7, "the other device alone", "the longest way first")
    );
    // Making a graph once the prompt is known counts.
    let number = |i: usize, field: &str| steps[i][field].as_f64().unwrap();
    assert!(number(1, "ttft_ms") > number(1, "prepare_ms"), "{steps}");
    let alone = [&of[..], &["--device", "cpu"]].concat();
    refused(&here(dir, &alone), &["the ablation needs two devices"]);
}
