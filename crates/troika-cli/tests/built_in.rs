//! The command alone, as on a machine without its sources.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The built-in model's name, shown in place of a path.
const NAME: &str = "tiny-moe (built-in)";

/// The command in an empty folder, run there without this environment.
struct Alone {
    folder: tempfile::TempDir,
}

impl Alone {
    fn new() -> Alone {
        let folder = tempfile::tempdir().unwrap();
        // Not copied by this process: a concurrent test that starts a process would pass it the
        // file open for writing, and the system would refuse to run it.
        let copied = Command::new("cp")
            .args([env!("CARGO_BIN_EXE_troika").as_ref(), folder.path().join("copy").as_os_str()])
            .status();
        assert!(copied.unwrap().success());
        Alone { folder }
    }

    fn run(&self, args: &[&str]) -> Output {
        let home = self.folder.path().join("home");
        std::fs::create_dir_all(&home).unwrap();
        let mut command = Command::new(self.folder.path().join("copy"));
        command.args(args).current_dir(&home).env_clear().stdin(Stdio::null());
        command.env("HOME", &home).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }
}

#[test]
fn a_copied_command_has_its_model_with_it() {
    let alone = Alone::new();
    let run = alone.json(&["run", "-p", "It was a dark night", "-n", "8", "--temp", "0", "--json"]);
    assert_eq!(run["model"], NAME);
    assert_eq!(run["generated_tokens"], 8);
    let show = alone.json(&["show", "--json"]);
    assert_eq!((&show["model"], &show["context"]), (&NAME.into(), &2048.into()));
    let ids = alone.json(&["tokenize", "-p", "It was a dark night", "--json"]);
    assert!(ids["ids"].as_array().unwrap().len() > 3);
    let bench = ["bench", "-p", "8", "-n", "2", "-r", "1", "-t", "1", "-o", "json"];
    assert_eq!(alone.json(&bench)[0]["model_filename"], NAME);
    let text = alone.folder.path().join("text");
    std::fs::write(&text, "It was a dark and stormy night, and the rain fell. ".repeat(40))
        .unwrap();
    let measure = ["perplexity", "-f", &text.display().to_string(), "-c", "64", "--json"];
    let ppl = alone.json(&measure);
    assert_eq!(ppl["model"], NAME);
    assert!(ppl["perplexity"].as_f64().unwrap() < 100.0, "{ppl}");
    // It leaves nothing behind and needs no folder.
    assert_eq!(std::fs::read_dir(alone.folder.path().join("home")).unwrap().count(), 0);
}

#[test]
fn a_folder_of_the_models_name_is_not_mistaken_for_it() {
    let alone = Alone::new();
    let here = alone.folder.path().join("home");
    let nearby = here.join("models").join("tiny-moe");
    std::fs::create_dir_all(&nearby).unwrap();
    std::fs::write(nearby.join("config.json"), "{}").unwrap();
    assert_eq!(alone.json(&["show", "--json"])["model"], NAME);
    let out = alone.run(&["show", "-m", NAME]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && text.contains("no such file or folder"), "{text}");
}

#[test]
fn the_command_does_not_know_where_it_was_built() {
    // Assembled here, since this file's own text could otherwise be found.
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let model = source.join("models").display().to_string();
    let manifest = source.join("crates").join("troika-cli").display().to_string();
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_troika")).unwrap();
    for path in [model, manifest] {
        let found = bytes.windows(path.len()).any(|window| window == path.as_bytes());
        assert!(!found, "the command holds the path {path}");
    }
}
