//! Files that commands read, write and leave behind, and flags that do nothing.

#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use common::{command, ends, json, refused, root, said, stdout};

/// A folder to work in, with a model of each format and files that flags name.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let copy = |from: &str, to: &str| {
            std::fs::copy(root().join(from), place.path(to)).unwrap();
        };
        copy("tests/gguf/llama-q4_0.gguf", "m.gguf");
        std::fs::create_dir_all(place.path("folder")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            copy(&format!("tests/golden/qwen3/{file}"), &format!("folder/{file}"));
        }
        copy("tests/golden/qwen3/config.json", "config.json");
        std::fs::write(place.path("prompt.txt"), "Hello there").unwrap();
        std::fs::write(place.path("plan.json"), "{}").unwrap();
        std::fs::write(place.path("soc.toml"), soc()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command, run in the folder.
    fn run(&self, args: &[&str]) -> Command {
        let mut c = command(args);
        c.current_dir(self.0.path());
        c
    }

    /// All files with what is in them.
    fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut folders = vec![self.0.path().to_path_buf()];
        let mut all = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => all.push((entry.clone(), std::fs::read(&entry).unwrap())),
                }
            }
        }
        all.sort();
        all
    }
}

/// Two processors that compute nothing.
fn soc() -> String {
    let processor = |name: &str, gops: u32| {
        format!(
            "[[processor]]\nname = \"{name}\"\nkind = \"{name}\"\npeak_gops = {gops}.0\n\
             bandwidth_gb_s = 20.0\nlaunch_us = 5.0\n"
        )
    };
    format!("name = \"t\"\nnumerics = \"off\"\n{}{}", processor("npu", 4000), processor("gpu", 900))
}

const SHAPE: [&str; 2] = ["--synthetic", "qwen3-moe-tiny"];
const DEVICE: [&str; 2] = ["--device", "virtual:soc.toml:npu"];

#[test]
fn no_output_replaces_what_is_read() {
    let place = Place::new();
    #[cfg(unix)]
    std::os::unix::fs::symlink("m.gguf", place.path("link.json")).unwrap();
    std::fs::hard_link(place.path("m.gguf"), place.path("hard.json")).unwrap();
    let before = place.contents();
    let cases: &[(&[&str], &[&str])] = &[
        (&["run", "m.gguf", "--trace", "m.gguf"], &["--trace m.gguf", "model"]),
        (&["run", "-m", "./m.gguf", "--trace", "folder/../m.gguf"], &["--trace", "model"]),
        (&["run", "m.gguf", "--trace", "hard.json"], &["--trace hard.json", "model (m.gguf)"]),
        #[cfg(unix)]
        (&["run", "m.gguf", "--trace", "link.json"], &["--trace link.json", "model (m.gguf)"]),
        (&["run", "folder", "--trace", "folder/config.json"], &["--trace", "model"]),
        (&["run", "folder", "--trace", "folder/model.safetensors"], &["--trace", "model"]),
        (&["run", "-f", "prompt.txt", "--trace", "prompt.txt"], &["--trace", "the text"]),
        (&["run", "--plan", "plan.json", "--trace", "plan.json"], &["--trace", "the plan"]),
        (&["run", "--profile", "plan.json", "--trace", "plan.json"], &["--trace", "the profile"]),
        (&["run", DEVICE[0], DEVICE[1], "--trace", "soc.toml"], &["--trace", "the SoC file"]),
        (&["plan", "m.gguf", "-o", "m.gguf"], &["--out m.gguf", "model"]),
        (&["plan", "folder", "-o", "folder/config.json"], &["--out", "model"]),
        (&["plan", "--profile", "plan.json", "-o", "plan.json"], &["--out", "the profile"]),
        (&["profile", "m.gguf", "-o", "m.gguf"], &["--out", "model"]),
        (&["profile", DEVICE[0], DEVICE[1], "-o", "soc.toml"], &["--out", "the SoC file"]),
        (
            &["simulate", "-m", "llama-3-8b", "--soc", "soc.toml", "--trace", "soc.toml"],
            &["--trace", "the SoC file"],
        ),
        (&["simulate", "-m", "config.json:Q8_0", "--out", "config.json"], &["--out", "model"]),
        (&["run", "m.gguf", "--trace", "config.json"], &["--trace config.json", "did not write"]),
        (&["run", "--trace", "prompt.txt"], &["--trace prompt.txt", "did not write"]),
        (&["plan", "-o", "folder/model.safetensors"], &["--out", "did not write"]),
        (&["profile", "--soc-out", "m.gguf"], &["--soc-out m.gguf", "did not write"]),
        (
            &["calibrate", "-f", "prompt.txt", "-o", "new.cal", "--routing-trace", "m.gguf"],
            &["--routing-trace m.gguf", "did not write"],
        ),
        (
            &["simulate", "-m", "llama-3-8b", "--trace", "new.json", "--out", "./new.json"],
            &["--out and --trace name the same file", "new.json"],
        ),
    ];
    for (args, words) in cases {
        refused(&place.run(args).output().unwrap(), 2, words);
    }
    // Redirected files are files, too.
    #[cfg(unix)]
    {
        let open = |name: &str| std::fs::File::open(place.path(name)).unwrap();
        let mut run = place.run(&["run", "--trace", "prompt.txt"]);
        refused(&run.stdin(open("prompt.txt")).output().unwrap(), 2, &["standard input"]);
        let report = std::fs::File::options().append(true).open(place.path("plan.json")).unwrap();
        let mut run = place.run(&["simulate", "-m", "llama-3-8b", "--out", "plan.json"]);
        let out = run.stdout(report).output().unwrap();
        refused(&out, 2, &["--out and standard output name the same file"]);
    }
    assert!(before == place.contents(), "a file was changed or left behind");
    // A device such as `/dev/null` is written to, and other files of a model's folder are replaced.
    let short = ["run", "folder", "--prompt-ids", "5", "-n", "1", "-q"];
    for trace in ["/dev/null", "folder/trace.json", "folder/trace.json"] {
        stdout(&place.run(&[&short[..], &["--trace", trace]].concat()).output().unwrap());
    }
}

/// What is typed has an effect, or is refused with the reason.
#[test]
fn flags_without_effect_are_refused() {
    let place = Place::new();
    let cases: &[(&[&str], &[&str])] = &[
        (&["profile", "--profile", "plan.json"], &["--profile has no effect in troika profile"]),
        (&["profile", "--strategy", "alternate"], &["--strategy has no effect", "by itself"]),
        (&["profile", "--goal", "tps"], &["--goal has no effect"]),
        (&["profile", "--goal", "tps", "--sync", "blocking"], &["--goal and --sync have"]),
        (&["run", "--plan", "plan.json", "--goal", "tps"], &["--goal", "without --profile"]),
        (
            &["bench", "--strategy", "alternate", "--for", "5"],
            &["--for has no effect", "--profile"],
        ),
        (&["plan", "--goal", "tps"], &["--goal", "without --profile"]),
        (&["run", "--plan", "plan.json", "-c", "9"], &["--ctx-size cannot be used with --plan"]),
        (&["bench", "--plan", "plan.json", "--dtype", "f32"], &["--dtype cannot", "with --plan"]),
        (&["perplexity", "--plan", "plan.json", "--sync", "blocking"], &["--sync", "--plan"]),
        (&["run", "-p", "x", "-b", "9"], &["--batch-size has no effect without --parallel"]),
        (&["run", "--prompt-ids", "5", "--parse-special"], &["--parse-special", "--prompt-ids"]),
        (&["run", "--no-cache", "--cache-mib", "9"], &["--cache-mib", "--no-cache"]),
        (&["bench", "--overhead", "-p", "9"], &["--n-prompt", "--overhead"]),
        (
            &["run", "-p", "x", "--temp", "0", "--top-p", "0.5"],
            &["--top-p has no effect with --temp"],
        ),
        (
            &["run", "-p", "x", "--temp", "-1", "--top-k", "3"],
            &["--top-k has no effect", "--temp 0"],
        ),
        (
            &["run", "-p", "x", "-n", "1", "--repeat-last-n", "5"],
            &["--repeat-last-n has no effect"],
        ),
        (&["run", "--npu-profiling", "basic"], &["--npu-profiling has", "without --trace"]),
        (&["plan", "--npu-profiling", "basic"], &["--npu-profiling has", "without --compile"]),
        (
            &["run", "-p", "x", "--trace", "t.json", "--npu-profiling", "basic"],
            &["--npu-profiling has no effect without an NPU"],
        ),
    ];
    for (args, words) in cases {
        refused(&place.run(args).output().unwrap(), 2, words);
    }
    let forms = place.run(&["tokenize", "-p", "x", "--ids", "--json"]).output().unwrap();
    assert_eq!(forms.status.code(), Some(2), "one of two forms");
    // They have one where the number is another, or where a variable may have been meant for others.
    let warm = ["run", "-p", "x", "-n", "1", "--temp", "0.1", "--top-p", "0.5", "--seed", "3"];
    stdout(&place.run(&warm).output().unwrap());
    let penalty = ["run", "-p", "x", "-n", "1", "--repeat-last-n", "5", "--repeat-penalty", "1.1"];
    stdout(&place.run(&penalty).output().unwrap());
    let mut cold = place.run(&["run", "-p", "x", "-n", "1", "--temp", "0"]);
    stdout(&cold.env("TROIKA_SEED", "3").env("TROIKA_REPEAT_LAST_N", "5").output().unwrap());
    let mut cold = place.run(&["run", "-p", "x", "--top-k", "3"]);
    refused(&cold.env("TROIKA_TEMP", "0").output().unwrap(), 2, &["--top-k", "with TROIKA_TEMP 0"]);
    // Scripts give both.
    let both = ["run", "-p", "x", "-n", "1", "--temp", "0", "--seed", "3"];
    assert!(place.run(&both).output().unwrap().status.success());
    // Of two variables neither wins.
    let mut both = place.run(&["run", "-p", "x"]);
    both.env("TROIKA_PLAN", "plan.json").env("TROIKA_STRATEGY", "alternate");
    let words = ["TROIKA_STRATEGY cannot be used with TROIKA_PLAN", "the plan says it"];
    refused(&both.output().unwrap(), 2, &words);
}

/// A variable is a default: what is typed in its place wins, and that is said of a plan.
#[test]
fn what_is_typed_wins_over_variables() {
    let place = Place::new();
    let short = ["run", "-p", "Hello", "-n", "2", "--temp", "0", "-q"];
    stdout(&place.run(&["plan", "-o", "made.json"]).output().unwrap());
    let plain = stdout(&place.run(&short).output().unwrap());
    let by_plan = [&short[..], &["--plan", "made.json"]].concat();
    let out = place.run(&by_plan).env("TROIKA_STRATEGY", "alternate").output().unwrap();
    assert_eq!(said(&out), "note: TROIKA_STRATEGY is not used: --plan is given\n");
    assert_eq!(stdout(&out), plain);
    let typed = [&short[..], &["--strategy", "one-device"]].concat();
    let out = place.run(&typed).env("TROIKA_PLAN", "no/such.json").output().unwrap();
    assert_eq!(said(&out), "note: TROIKA_PLAN is not used: --strategy is given\n");
    assert_eq!(stdout(&out), plain);
    // Where nothing needs its flag, a variable is passed over.
    let out = place.run(&short).env("TROIKA_BATCH_SIZE", "9").output().unwrap();
    assert_eq!((said(&out), stdout(&out)), (String::new(), plain));
}

/// What a file holds is a failure and no wrong usage, whatever flag names it.
#[test]
fn files_that_are_no_good_end_with_code_1() {
    let place = Place::new();
    for text in ["", "{", "[1]", "{\"version\": 1}", "name = 3", "\u{1}"] {
        for file in ["bad.json", "bad.toml"] {
            std::fs::write(place.path(file), text).unwrap();
        }
        let cases: &[(&[&str], &str)] = &[
            (&["run", "-p", "x", "--plan", "bad.json"], "bad.json"),
            (&["run", "-p", "x", "--profile", "bad.json"], "bad.json"),
            (&["plan", "--profile", "bad.json"], "bad.json"),
            (&["devices", "--device", "virtual:bad.toml"], "bad.toml"),
            (&["simulate", "-m", "llama-3-8b", "--soc", "bad.toml"], "bad.toml"),
            (&["simulate", "-m", "bad.json"], "bad.json"),
            (&["run", "bad.json", "-p", "x"], "bad.json"),
        ];
        for (args, file) in cases {
            let out = place.run(args).output().unwrap();
            refused(&out, 1, &[file]);
            for rust in ["usize", "struct", "variant", "serde"] {
                assert!(!said(&out).contains(rust), "{args:?}: {}", said(&out));
            }
        }
    }
    stdout(&place.run(&["plan", "-o", "made.json"]).output().unwrap());
    let plan = std::fs::read_to_string(place.path("made.json")).unwrap();
    let spoilt = plan.replacen("\"chunk\": 512", "\"chunk\": \"many\"", 1);
    assert_ne!(spoilt, plan);
    std::fs::write(place.path("made.json"), spoilt).unwrap();
    let out = place.run(&["run", "-p", "x", "--plan", "made.json"]).output().unwrap();
    refused(&out, 1, &["made.json: ", "line ", "\"many\" where a whole number from 0 on belongs"]);
    // A name that stands for no file is wrong usage.
    let out = place.run(&["simulate", "-m", "llama-3-8b", "--soc", "toaster"]).output().unwrap();
    refused(&out, 2, &["there is no SoC"]);
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A process that is killed may leave a file that it was writing: the next one removes it.
#[test]
fn what_killed_processes_leave_is_removed() {
    let place = Place::new();
    let folder = place.path("out");
    std::fs::create_dir(&folder).unwrap();
    let profile = [&["profile"][..], &SHAPE, &DEVICE, &["-o", "out/p.json"]].concat();
    let mut child = place.run(&profile).stderr(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    while names(&folder).is_empty() && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // As it would be if it was killed between two certain instructions.
    for left in ["p.json.7-1-5.partial", "t.json.7-1-5.partial", "p.json.old"] {
        std::fs::write(folder.join(left), "half").unwrap();
    }
    let mut run = place.run(&profile);
    assert!(run.output().unwrap().status.success());
    assert_eq!(names(&folder), ["p.json", "p.json.old", "t.json.7-1-5.partial"]);
    let run = ["run", "-p", "x", "-n", "1", "--trace", "out/t.json"];
    stdout(&place.run(&run).output().unwrap());
    assert_eq!(names(&folder), ["p.json", "p.json.old", "t.json"]);
}

/// Profiles are listed, checked and removed with what else is kept.
#[test]
fn the_cache_knows_profiles_and_leftovers() {
    let place = Place::new();
    let at = ["--cache-dir", "cache"];
    let cache = |args: &[&str]| place.run(&[&["cache"][..], args, &at].concat()).output().unwrap();
    let list = || -> Vec<Value> {
        let json = json(&cache(&["ls", "--json"]));
        json["files"].as_array().unwrap().clone()
    };
    let measure = || {
        let args = [&["profile"][..], &SHAPE, &DEVICE, &at].concat();
        stdout(&place.run(&args).output().unwrap());
        list().into_iter().find(|f| f["kind"] == "profile").unwrap()
    };
    let kept = measure();
    assert_eq!(kept["types"], "complete");
    assert!(kept["of"].as_str().unwrap().ends_with(" on npu"), "{kept}");
    // It is found there by who plans with the same folder.
    let plan = [&["plan"][..], &SHAPE, &DEVICE, &at, &["--profile"]].concat();
    assert!(stdout(&place.run(&plan).output().unwrap()).contains("predicted"));
    let path = place.path(kept["file"].as_str().unwrap());
    let left = path
        .with_file_name(format!("{}.7-1-5.partial", path.file_name().unwrap().to_str().unwrap()));
    std::fs::write(&left, "half").unwrap();
    assert!(list().iter().any(|f| f["kind"] == "partial"));
    stdout(&cache(&["verify"]));
    // Nothing is wrong with the profile: it stays, however small the cache is to be.
    stdout(&cache(&["prune", "--cache-mib", "1"]));
    assert!(path.exists() && !left.exists());
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    let out = cache(&["verify"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stdout).contains("damaged: it is not a profile"));
    stdout(&cache(&["prune"]));
    assert!(!path.exists());
    measure();
    std::fs::write(&left, "half").unwrap();
    stdout(&cache(&["clear"]));
    assert!(list().is_empty() && !path.exists() && !left.exists());
}

/// What was measured is printed, and that it is not all.
#[cfg(unix)]
#[test]
fn an_interrupted_perplexity_says_how_many_windows_it_is_of() {
    common::ctrl_c::ends_commands();
    let place = Place::new();
    std::fs::write(place.path("text.txt"), "Once upon a time there was a king. ".repeat(40_000))
        .unwrap();
    // Before the handler is there, the signal ends the process, and while the model is opened there
    // are no windows yet.
    for wait in [250, 500, 1000, 2000, 4000, 8000, 16000] {
        let args = ["perplexity", "-f", "text.txt", "-c", "64", "-t", "1", "--json"];
        let child = common::started(&mut place.run(&args));
        std::thread::sleep(Duration::from_millis(wait));
        common::ctrl_c::press(&child);
        let out = child.wait_with_output().unwrap();
        if out.stdout.is_empty() {
            continue;
        }
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        let (done, all) = (json["windows"].as_u64().unwrap(), json["text_windows"].as_u64());
        assert!(done > 0 && Some(done) < all, "{json}");
        assert!(json["perplexity"].as_f64().unwrap() > 1.0);
        ends(&out, 130, &[&format!("after {done} of {} windows", all.unwrap())]);
        return;
    }
    panic!("no window was measured");
}
