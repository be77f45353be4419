//! Models of the Hub as a user types them: `pull`, `ls` and `rm`, with a hub that runs in the test.

#![allow(clippy::panic, clippy::unwrap_used)]
#![cfg(unix)]

mod common;

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use common::hub::{Answers, Files, Hub, SHA};
use common::{command, fails, holds, json, root, said, stdout};

fn files(all: &[(&str, &[u8])]) -> Files {
    all.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect()
}

impl Hub {
    fn start(all: &[(&str, &[u8])]) -> Hub {
        Hub::open(Answers::Range, files(all))
    }

    /// How often it was asked since the last time.
    fn asked(&self) -> usize {
        std::mem::take(&mut *self.log.lock().unwrap()).len()
    }
}

/// The command with a cache and a hub. Nothing of this machine's settings reaches it.
fn troika(home: &Path, hub: &str, args: &[&str]) -> Output {
    let mut c = command(args);
    c.env_clear().env("HF_HOME", home).env("HOME", home).env("HF_ENDPOINT", hub).output().unwrap()
}

/// One sentence, and nothing on standard output.
#[track_caller]
fn refused(out: &Output, code: i32) -> String {
    assert_eq!(fails(out, &[]), code);
    said(out).lines().last().unwrap().to_string()
}

fn names(home: &Path) -> Vec<String> {
    let list = json(&troika(home, "http://127.0.0.1:9", &["ls", "--json"]));
    let models = list["models"].as_array().unwrap();
    models.iter().map(|model| model["name"].as_str().unwrap().to_string()).collect()
}

fn small_model() -> Vec<u8> {
    std::fs::read(root().join("tests/gguf/llama-q4_0.gguf")).unwrap()
}

/// The same model with some bytes behind it.
fn followed_by(end: &str) -> Vec<u8> {
    [&small_model(), end.as_bytes()].concat()
}

/// A repository of the cache without blobs.
fn cached(home: &Path, folder: &str, files: &[(&str, &str)]) -> PathBuf {
    let home = home.join("hub").join(folder);
    let snapshot = home.join("snapshots").join(SHA);
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(home.join("refs")).unwrap();
    std::fs::write(home.join("refs/main"), SHA).unwrap();
    for (name, text) in files {
        std::fs::write(snapshot.join(name), text).unwrap();
    }
    snapshot
}

#[test]
fn a_model_is_pulled_listed_run_and_removed() {
    let (home, model) = (tempfile::tempdir().unwrap(), small_model());
    let home = home.path();
    let hub = Hub::start(&[("m-Q4_0.gguf", &model), ("m-Q8_0.gguf", &followed_by("other"))]);
    let run = |args: &[&str]| troika(home, &hub.address, args);
    let pulled = run(&["pull", "o/n:Q4_0"]);
    assert!(stdout(&pulled).starts_with("o/n:Q4_0 is fetched: "), "{}", stdout(&pulled));
    let note = said(&pulled);
    assert!(note.starts_with("fetching o/n:Q4_0: 1 file, "), "{note}");
    assert!(hub.asked() > 0);
    // What is here is not asked for again.
    let pulled = stdout(&run(&["pull", "o/n:Q4_0"]));
    assert!(pulled.starts_with("o/n:Q4_0 is here: ") && pulled.contains("--refresh"), "{pulled}");
    assert_eq!(hub.asked(), 0);
    assert!(stdout(&run(&["pull", "--refresh", "o/n:Q4_0"])).contains("has not changed"));
    assert_eq!(hub.asked(), 1);
    assert_eq!(json(&run(&["pull", "o/n:Q4_0", "o/n:Q8_0", "--json"]))[1]["fetched"], true);
    assert_eq!(names(home), ["o/n:Q4_0", "o/n:Q8_0"]);
    let parts = ["MODEL", "o/n:Q4_0", "GGUF Q4_0", "s ago", "built-in", "2 models"];
    holds(&stdout(&run(&["list"])), &parts);
    let args = ["run", "o/n:Q4_0", "--offline", "--prompt-ids", "5,6", "-n", "1", "--ignore-eos"];
    stdout(&run(&args));
    // A new version comes beside the old one.
    let newer = "fedcba9876543210fedcba9876543210fedcba98";
    hub.now(newer, files(&[("m-Q4_0.gguf", &followed_by("newer"))]));
    let pulled = stdout(&run(&["pull", "--update", "o/n:Q4_0"]));
    assert!(pulled.contains("has changed: ") && pulled.contains(SHA), "{pulled}");
    let old = format!("@{SHA}");
    let all = ["o/n:Q4_0", &format!("o/n:Q4_0{old}"), &format!("o/n:Q8_0{old}")];
    assert_eq!(names(home), all);
    let removed = stdout(&run(&["rm", "-f", all[1], all[0]]));
    assert_eq!(removed.lines().count(), 2, "{removed}");
    assert_eq!(names(home), [all[2]]);
    assert_eq!(json(&run(&["rm", "--yes", "o/n", "--json"]))["removed"][0], all[2]);
    assert_eq!(names(home), Vec::<String>::new());
    assert!(stdout(&run(&["ls"])).contains("no models"));
}

#[test]
fn a_revision_is_named_in_the_name() {
    let (home, hub) =
        (tempfile::tempdir().unwrap(), Hub::start(&[("m-Q8_0.gguf", &small_model())]));
    let run = |args: &[&str]| troika(home.path(), &hub.address, args);
    stdout(&run(&["pull", "o/n@v1:Q8_0"]));
    assert_eq!(names(home.path()), ["o/n:Q8_0@v1"]);
    assert!(stdout(&run(&["pull", "o/n@v1:Q8_0"])).contains("is here"));
}

#[test]
fn names_that_cannot_be_pulled_or_removed_are_refused() {
    let (home, hub) = (tempfile::tempdir().unwrap(), Hub::start(&[("m-Q8_0.gguf", b"weights")]));
    let home = home.path();
    cached(home, "models--o--kept", &[("m-Q8_0.gguf", "weights")]);
    let run = |args: &[&str]| troika(home, &hub.address, args);
    let here = home.display().to_string();
    for (args, code, says) in [
        (&["pull", "o/n:Q2_K"][..], 1, "no GGUF file is tagged `Q2_K`; there are: m-Q8_0.gguf"),
        (&["pull", "o/x"], 1, "has no such model, revision or file"),
        (&["pull", "../../etc/passwd"], 1, "no such file or folder"),
        (&["pull", "o/.."], 1, "is not a name on the Hub"),
        (&["pull", &here], 2, "is on this machine already"),
        (&["rm", "-y", "o/kept", "o/x"], 1, "o/x: the model is not in the cache at"),
        (&["rm", "-y", "o/kept:../../x.gguf"], 1, "neither a tag nor a .gguf file"),
        (&["rm", "-y", "../models--o--kept"], 2, "only models of the Hub's cache are removed"),
        (&["rm", "-y", &here], 2, "only models of the Hub's cache are removed"),
        (&["rm", "-y", "built-in"], 2, "only models of the Hub's cache are removed"),
        // Nobody can be asked.
        (&["rm", "o/kept"], 2, "--yes removes them"),
    ] {
        let told = refused(&run(args), code);
        assert!(told.starts_with("troika: ") && told.contains(says), "{args:?}: {told}");
    }
    assert_eq!(names(home), ["o/kept:Q8_0"]);
    let unreachable = troika(home, "http://127.0.0.1:9", &["pull", "o/n"]);
    assert!(refused(&unreachable, 1).contains("cannot fetch from http://127.0.0.1:9"));
    let offline = |args: &[&str]| {
        command(args).env("HF_HOME", home).env("HF_HUB_OFFLINE", "1").output().unwrap()
    };
    assert!(refused(&offline(&["pull", "o/n"]), 1).contains("run once without HF_HUB_OFFLINE"));
    assert!(refused(&offline(&["pull", "--refresh", "o/n"]), 2).contains("HF_HUB_OFFLINE"));
    stdout(&offline(&["pull", "o/kept"]));
}

/// A file of an exbibyte: no disk has room for it.
#[test]
fn a_download_that_does_not_fit_is_refused_before_it_begins() {
    let (home, hub) =
        (tempfile::tempdir().unwrap(), Hub::start(&[("m-Q8_0.gguf", &small_model())]));
    *hub.claims.lock().unwrap() = Some(1 << 60);
    let words = ["m-Q8_0.gguf needs 1152921504606846976 bytes more", "are free", "HF_HUB_CACHE"];
    assert_eq!(fails(&troika(home.path(), &hub.address, &["pull", "o/n"]), &words), 1);
    *hub.claims.lock().unwrap() = None;
    stdout(&troika(home.path(), &hub.address, &["pull", "o/n"]));
}

#[test]
fn a_cache_that_is_damaged_is_still_listed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let run = |args: &[&str]| troika(home, "http://127.0.0.1:9", args);
    assert!(stdout(&run(&["ls"])).contains("no models"));
    cached(home, "models--o--good", &[("m-Q8_0.gguf", "weights")]);
    let snapshot = cached(home, "models--o--bad", &[]);
    symlink("../../blobs/gone", snapshot.join("m-Q8_0.gguf")).unwrap();
    let hostile = "models--o--\u{1b}[2J";
    cached(home, hostile, &[("m-Q8_0.gguf", "weights")]);
    symlink("/", home.join("hub/models--o--root")).unwrap();
    let closed = home.join("hub/models--o--closed/snapshots");
    std::fs::create_dir_all(&closed).unwrap();
    std::fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
    let table = stdout(&run(&["ls"]));
    std::fs::set_permissions(&closed, Permissions::from_mode(0o755)).unwrap();
    assert!(table.contains("o/good:Q8_0") && table.contains("1 model,"), "{table}");
    assert!(!table.contains('\u{1b}') && table.contains(r"models--o--\u{1b}[2J"), "{table}");
    for name in ["models--o--bad", "models--o--root", "models--o--closed"] {
        assert!(table.contains(&format!("not usable: {name}, ")), "{name}: {table}");
    }
    // What is damaged can be removed.
    stdout(&run(&["rm", "-y", "o/bad", "o/root", "o/closed"]));
    assert!(Path::new("/usr").exists());
    assert_eq!(names(home), ["o/good:Q8_0"]);
    std::fs::remove_dir_all(home.join("hub")).unwrap();
    std::fs::write(home.join("hub"), "").unwrap();
    assert!(refused(&run(&["ls"]), 1).contains("cannot read the model cache at"));
}

/// Whoever is killed in the middle leaves the model whole or gone, and the next removal tidies up.
#[test]
fn a_removal_that_is_killed_leaves_a_cache_that_can_be_used() {
    const FILES: usize = 3000;
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    cached(home, "models--o--kept", &[("m-Q8_0.gguf", "weights")]);
    let leftovers = || {
        let entries = std::fs::read_dir(home.join("hub")).unwrap().flatten();
        entries.filter(|e| e.file_name().to_string_lossy().starts_with(".removed-")).count()
    };
    let mut halfway = 0;
    for attempt in 0..6 {
        let snapshot = cached(home, "models--o--n", &[("m-Q8_0.gguf", "weights")]);
        (0..FILES).for_each(|n| std::fs::write(snapshot.join(format!("{n}.txt")), "text").unwrap());
        let mut c = command(&["rm", "-y", "o/n"]);
        c.env("HF_HOME", home).env_remove("HF_HUB_CACHE").stdout(Stdio::null());
        let mut child = c.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(attempt));
        while attempt > 1 && leftovers() == 0 && child.try_wait().unwrap().is_none() {}
        child.kill().unwrap();
        child.wait().unwrap();
        let run = |args: &[&str]| troika(home, "http://127.0.0.1:9", args);
        match names(home).as_slice() {
            [kept] => assert_eq!(kept, "o/kept:Q8_0"),
            [kept, there] => {
                assert_eq!([kept.as_str(), there], ["o/kept:Q8_0", "o/n:Q8_0"]);
                assert_eq!(std::fs::read_dir(&snapshot).unwrap().count(), FILES + 1);
            }
            other => panic!("{other:?}"),
        }
        halfway += leftovers();
        // The next one, of whatever model.
        cached(home, "models--o--other", &[("m-Q8_0.gguf", "weights")]);
        stdout(&run(&["rm", "-y", "o/other"]));
        let _ = run(&["rm", "-y", "o/n"]);
        assert_eq!(std::fs::read_dir(home.join("hub")).unwrap().count(), 1);
    }
    assert!(halfway > 0, "none was killed in the middle");
}
