//! The command with a hub that runs in the test.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use common::hub::{Answers, Files, Hub};
use common::{ends, json, read_json, root, said, stdout};

const NAME: &str = "m-Q4_0.gguf";

/// Hubs that answer with one list.
impl Hub {
    /// A hub whose model is one file.
    fn start() -> Hub {
        Hub::of(vec![(NAME.to_string(), std::fs::read(model()).unwrap())])
    }

    fn of(files: Files) -> Hub {
        Hub::that(Answers::Range, files)
    }

    fn that(answers: Answers, files: Files) -> Hub {
        let hub = Hub::open(answers, files);
        *hub.lists.lock().unwrap() = 1;
        hub
    }

    fn command(&self, home: &Path, args: &[&str]) -> Command {
        let mut command = common::command(args);
        command.env("HF_HOME", home).env("HF_ENDPOINT", &self.address);
        for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"] {
            command.env_remove(name);
        }
        command
    }
}

/// A small model.
fn model() -> PathBuf {
    root().join("tests/gguf/llama-q4_0.gguf")
}

const RUN: [&str; 8] = ["run", "o/n", "--prompt-ids", "5,6", "-n", "2", "--json", "--ignore-eos"];

#[test]
fn a_model_is_looked_up_once() {
    let home = tempfile::tempdir().unwrap();
    // The Hub refuses a second request.
    for args in [&RUN[..], &["bench", "-m", "o/n", "-p", "4", "-n", "1", "-r", "1", "-t", "1,2"]] {
        let hub = Hub::start();
        let out = hub.command(home.path(), args).output().unwrap();
        stdout(&out);
        let lists = hub.log.lock().unwrap().iter().filter(|l| l.starts_with("/api/")).count();
        assert_eq!(lists, 1);
        if args == RUN {
            let json = json(&out);
            assert!(json["model"].as_str().unwrap().ends_with(NAME), "{json}");
            assert_eq!(json["generated_tokens"], 2);
        }
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_in_a_download_leaves_what_arrived() {
    common::ctrl_c::ends_commands();
    const ARRIVED: usize = 100_000;
    let (hub, home) = (Hub::start(), tempfile::tempdir().unwrap());
    *hub.stall.lock().unwrap() = Some(ARRIVED);
    let whole = std::fs::read(model()).unwrap();
    assert!(whole.len() > ARRIVED);
    let mut child = common::started(&mut hub.command(home.path(), &RUN));
    let blobs = home.path().join("hub/models--o--n/blobs");
    let blob = common::hub::etag(&whole);
    let part = blobs.join(format!("{blob}.part"));
    let start = std::time::Instant::now();
    while part.metadata().map_or(0, |meta| meta.len()) < ARRIVED as u64 {
        assert!(start.elapsed().as_secs() < 60, "nothing arrived");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    common::ctrl_c::press(&child);
    assert!(!child.wait().unwrap().success());
    assert!(part.exists() && !blobs.join(blob).exists());
    *hub.lists.lock().unwrap() = 1;
    hub.log.lock().unwrap().clear();
    stdout(&hub.command(home.path(), &RUN).output().unwrap());
    let log = hub.log.lock().unwrap();
    assert!(log.last().unwrap().ends_with(&format!(" {ARRIVED}-")), "{log:?}");
}

/// A config of the Hub, and a model in safetensors that has it.
fn safetensors(config: &str) -> Hub {
    let files =
        [("config.json", config), ("tokenizer.json", "{}"), ("model.safetensors", "weights")];
    let files = files.iter().filter(|(_, text)| !text.is_empty());
    Hub::of(files.map(|(name, text)| (name.to_string(), text.as_bytes().to_vec())).collect())
}

/// 18 GB, and then a refusal, would be too late.
#[test]
fn a_model_that_is_not_supported_is_refused_before_its_weights_are_fetched() {
    let llama = read_json(root().join("tests/golden/llama-3.2/config.json"));
    let with = |key: &str, value: Value| {
        let mut config = llama.clone();
        config[key] = value;
        config.to_string()
    };
    let hqq = serde_json::json!({ "quant_method": "hqq" });
    for (config, says) in [
        (with("model_type", "rwkv7".into()), "model_type \"rwkv7\" is not supported"),
        (
            with("quantization_config", hqq),
            "quantization_config of method \"hqq\" is not supported",
        ),
        ("{".into(), "EOF while parsing"),
        (String::new(), "o/n: its config.json cannot be used: "),
    ] {
        for args in [&RUN[..], &["pull", "o/n"], &["serve", "o/n", "--port", "0"]] {
            let (hub, home) = (safetensors(&config), tempfile::tempdir().unwrap());
            *hub.lists.lock().unwrap() = 2;
            let text = ends(&hub.command(home.path(), args).output().unwrap(), 1, &[]);
            assert!(text.lines().last().unwrap().contains(says), "{text}");
            let log = hub.log.lock().unwrap();
            assert!(!log.iter().any(|line| line.contains("safetensors")), "{log:?}");
            assert_eq!(log.iter().any(|line| line.contains("/config.json")), !config.is_empty());
        }
    }
    // What is supported is fetched whole.
    let (hub, home) = (safetensors(&llama.to_string()), tempfile::tempdir().unwrap());
    *hub.lists.lock().unwrap() = 2;
    let out = hub.command(home.path(), &["pull", "o/n"]).output().unwrap();
    ends(&out, 0, &["o/n: llama in float32, "]);
    assert!(hub.log.lock().unwrap().iter().any(|line| line.contains("safetensors")));
}

/// The small model with another word in place of its architecture, and so many bytes behind it.
fn gguf(architecture: &str, behind: usize) -> Vec<u8> {
    let mut bytes = std::fs::read(model()).unwrap();
    let at = bytes.windows(5).position(|w| w == b"llama").unwrap();
    bytes[at..at + 5].copy_from_slice(architecture.as_bytes());
    bytes.resize(bytes.len() + behind, 0);
    bytes
}

/// A GGUF file whose header is not supported is not fetched, one that is supported is described.
#[test]
fn a_gguf_file_is_looked_at_by_its_header() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::of(vec![(NAME.to_string(), gguf("kimik", 12 << 20))]);
    let text = ends(&hub.command(home.path(), &RUN).output().unwrap(), 1, &[]);
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("troika: o/n: its GGUF file") && last.contains("kimik"), "{text}");
    let log = hub.log.lock().unwrap().clone();
    assert!(log.last().unwrap().ends_with(" 0-8388607"), "{log:?}");

    let home = tempfile::tempdir().unwrap();
    let hub = Hub::of(vec![(NAME.to_string(), gguf("llama", 12 << 20))]);
    let text = ends(&hub.command(home.path(), &RUN).output().unwrap(), 0, &[]);
    let line = text.lines().find(|line| line.starts_with("o/n: ")).unwrap();
    assert!(line.contains("llama in Q4_0, ") && line.contains("it runs on "), "{text}");
    assert!(line.contains("fits into the "), "{text}");
}

/// Without a file, what there is; with `-y`, the best that fits.
#[test]
fn a_repository_with_several_models_is_listed() {
    let home = tempfile::tempdir().unwrap();
    let files = || {
        let named = |name: &str, behind| (format!("m-{name}.gguf"), gguf("llama", behind));
        vec![named("Q4_0", 0), named("Q8_0", 1 << 20), named("BF16", 2 << 20)]
    };
    let hub = Hub::of(files());
    *hub.lists.lock().unwrap() = usize::MAX;
    let out = hub.command(home.path(), &["pull", "o/n"]).output().unwrap();
    let (list, text) = (stdout(&out), said(&out));
    let rows: Vec<&str> = list.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(rows, ["MODEL", "o/n:Q4_0", "o/n:Q8_0", "o/n:BF16"]);
    assert!(list.lines().skip(1).all(|line| line.ends_with(" fits")), "{list}");
    assert!(text.contains("o/n:Q8_0: llama in Q4_0, "), "{text}");
    assert!(text.ends_with("troika pull o/n:Q8_0 fetches one; troika pull -y o/n this one\n"));
    let json = json(&hub.command(home.path(), &["pull", "--json", "o/n"]).output().unwrap());
    let offers = json[0]["offers"].as_array().unwrap();
    assert_eq!((offers.len(), &offers[1]["verdict"]), (3, &Value::from("fits")));
    assert_eq!(json[0]["best"], "o/n:Q8_0");

    let out = hub.command(home.path(), &["pull", "-y", "o/n"]).output().unwrap();
    let said = stdout(&out);
    assert!(said.starts_with("o/n:Q8_0 is fetched: "), "{said}");
    // A file that is named is not chosen again.
    let out = hub.command(home.path(), &["pull", "o/n:BF16"]).output().unwrap();
    let said = stdout(&out);
    assert!(said.starts_with("o/n:BF16 is fetched: "), "{said}");
}

/// The small model with a header that is longer than what is looked at first.
fn with_long_header() -> Vec<u8> {
    let mut bytes = gguf("llama", 0);
    let entries = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 1;
    bytes[16..24].copy_from_slice(&entries.to_le_bytes());
    let key = b"general.note";
    // The tensors behind it stay where their alignment wants them.
    let text = vec![b'x'; (9 << 20) - (8 + key.len() + 4 + 8)];
    let lengths = [key.len(), text.len()].map(|n| (n as u64).to_le_bytes());
    let entry = [&lengths[0][..], key, &8u32.to_le_bytes(), &lengths[1], &text].concat();
    bytes.splice(24..24, entry);
    bytes
}

/// Hubs and mirrors that know no ranges, fail, or send a page for people.
#[test]
fn odd_answers_to_ranges_end_in_an_answer_or_a_sentence() {
    for (answers, file, says) in [
        (Answers::Range, with_long_header(), Ok("o/n: llama in Q4_0, ")),
        (Answers::Whole, gguf("llama", 12 << 20), Ok("o/n: llama in Q4_0, ")),
        (Answers::Status(416), gguf("llama", 12 << 20), Ok("its header cannot be looked at")),
        (Answers::Status(500), gguf("llama", 12 << 20), Err("HTTP status 500")),
        (Answers::Page, gguf("llama", 12 << 20), Err("does not answer like a model hub")),
    ] {
        let home = tempfile::tempdir().unwrap();
        let hub = Hub::that(answers, vec![(NAME.to_string(), file)]);
        let out = hub.command(home.path(), &RUN).output().unwrap();
        let (code, says) = says.map_or_else(|says| (1, says), |says| (0, says));
        let text = ends(&out, code, &[says]);
        if code == 1 {
            assert!(text.lines().last().unwrap().starts_with("troika: o/n: "), "{text}");
        }
    }
}

#[test]
fn a_repository_with_two_hundred_files_is_listed() {
    let home = tempfile::tempdir().unwrap();
    let named = |k| (format!("m{k:03}-Q4_0.gguf"), gguf("llama", k));
    let hub = Hub::of((0..200).map(named).collect());
    *hub.lists.lock().unwrap() = 2;
    let out = hub.command(home.path(), &["pull", "o/n"]).output().unwrap();
    let list = stdout(&out);
    assert_eq!(list.lines().filter(|line| line.starts_with("o/n:")).count(), 200, "{list}");
    let heads = hub.log.lock().unwrap().iter().filter(|line| line.contains(".gguf")).count();
    assert!(heads <= 2, "only one is looked at, not {heads}");
}
