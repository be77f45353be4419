//! Fetching from a hub that runs in the test.

use super::server::{Behaviour, Ranges, Server, etag};
use super::*;

pub const WEIGHTS: usize = 3_000_000;

pub fn weights() -> Vec<u8> {
    (0..WEIGHTS).map(|k| (k * 7 % 251) as u8).collect()
}

/// A small model in safetensors, beside files nobody needs.
pub fn model() -> Behaviour {
    let small = ["config.json", "tokenizer.json", "README.md", "pytorch_model.bin"];
    let mut files: std::collections::BTreeMap<String, Vec<u8>> =
        small.iter().map(|name| (name.to_string(), name.as_bytes().to_vec())).collect();
    files.insert("model.safetensors".to_string(), weights());
    Behaviour { files, ..Behaviour::default() }
}

impl Server {
    pub fn options(&self) -> HubOptions {
        HubOptions { endpoint: Some(self.url()), ..options(self.cache.path()) }
    }

    /// Resolves the model.
    pub fn run(&self) -> (Result<PathBuf, HubError>, Vec<String>) {
        run("o/n", &self.options())
    }

    /// The notes while the model is fetched, which succeeds.
    pub fn completes(&self) -> Vec<String> {
        let (got, told) = self.run();
        assert_complete(&got.expect("a model"));
        told
    }

    /// The sentence of the error for the model.
    pub fn sentence(&self) -> String {
        sentence("o/n", &self.options())
    }

    /// What the cache has of the model.
    pub fn home(&self) -> PathBuf {
        self.cache.path().join("models--o--n")
    }

    /// Where a part of the weights is kept.
    pub fn part(&self) -> PathBuf {
        let blobs = self.home().join("blobs");
        std::fs::create_dir_all(&blobs).expect("folder");
        blobs.join(format!("{}.part", etag(&weights())))
    }
}

pub fn assert_complete(path: &Path) {
    assert_eq!(std::fs::read(path.join("model.safetensors")).expect("weights"), weights());
    assert_eq!(std::fs::read(path.join("config.json")).expect("config"), b"config.json");
    assert!(!path.join("pytorch_model.bin").exists());
}

#[test]
fn a_model_is_fetched_once() {
    let server = Server::start(model());
    let (got, told) = server.run();
    let path = got.expect("a model");
    assert_complete(&path);
    let home = server.home();
    assert_eq!(path, home.join("snapshots").join(SHA));
    assert_eq!(std::fs::read_to_string(home.join("refs/main")).expect("ref"), SHA);
    assert_eq!(std::fs::read_dir(home.join("refs")).expect("refs").count(), 1);
    let total = WEIGHTS + "config.json".len() + "tokenizer.json".len();
    assert_eq!(told[0], format!("start o/n 3 Some({total})"));
    assert_eq!(told[1], "file config.json 11/11");
    assert_eq!(told.last(), Some(&format!("file model.safetensors {WEIGHTS}/{WEIGHTS}")));
    let steps = told.iter().filter(|line| line.starts_with("file model")).count();
    assert!((2..10).contains(&steps), "{told:?}");

    server.requests();
    assert_eq!(server.run().0.expect("a model"), path);
    assert_eq!(server.requests(), ["/api/models/o/n/revision/main?blobs=true"]);
    let offline = HubOptions { offline: true, ..server.options() };
    assert_eq!(run("o/n", &offline).0.expect("a model"), path);
    assert!(server.requests().is_empty());
}

#[test]
fn a_cut_connection_is_resumed() {
    let server = Server::start(Behaviour { cut_at: 1_000_000, cuts: 1, ..model() });
    let told = server.completes();
    assert!(told.iter().any(|line| line.contains("trying again")), "{told:?}");
    let last = server.requests().pop().expect("a request");
    let from: usize =
        last.rsplit(' ').next().and_then(|r| r[..r.len() - 1].parse().ok()).expect("from");
    assert!(from > 0 && from <= 1_000_000, "{last}");
}

#[test]
fn a_later_run_goes_on_where_an_earlier_one_stopped() {
    let server = Server::start(Behaviour { cut_at: 300_000, cuts: 3, ..model() });
    let text = server.sentence();
    assert!(text.starts_with("o/n: cannot fetch from http://127.0.0.1"), "{text}");
    assert!(text.contains("a folder or a .gguf file"), "{text}");
    assert!(!server.home().join("refs/main").exists());
    server.requests();
    server.completes();
    let last = server.requests().pop().expect("a request");
    assert!(!last.ends_with(" 0-"), "{last}");
}

#[test]
fn a_server_without_ranges_does_not_spoil_the_file() {
    for no_ranges in [Ranges::Large, Ranges::All] {
        let cut = Behaviour { cut_at: 500_000, cuts: 1, no_ranges, ..model() };
        let server = Server::start(cut);
        server.completes();
    }
}

#[test]
fn a_long_download_may_break_often() {
    let server = Server::start(Behaviour { cut_at: 1_100_000, cuts: 2, ..model() });
    let limits = Limits { tries: 2, ..quick() };
    let (got, told) = run_within("o/n", &server.options(), limits);
    assert_complete(&got.expect("a model"));
    assert_eq!(told.iter().filter(|line| line.contains("trying again")).count(), 2, "{told:?}");
}

#[test]
fn a_part_that_is_whole_or_too_long_is_no_obstacle() {
    for extra in [0, 5] {
        let server = Server::start(model());
        std::fs::write(server.part(), [weights(), vec![0; extra]].concat()).expect("part");
        server.completes();
        let fetched = server.requests().iter().any(|line| line.contains("model.safetensors"));
        assert_eq!(fetched, extra > 0);
    }
}

#[test]
fn contents_that_are_there_are_linked() {
    let server = Server::start(model());
    let path = server.run().0.expect("a model");
    std::fs::remove_file(path.join("model.safetensors")).expect("link");
    server.requests();
    server.completes();
    assert!(!server.requests().iter().any(|line| line.contains("safetensors")));
}

#[test]
fn a_quantization_is_fetched_alone() {
    let names = [
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "b/m-BF16-00001-of-00002.gguf",
        "b/m-BF16-00002-of-00002.gguf",
    ];
    let files = names.iter().map(|name| (name.to_string(), name.as_bytes().to_vec())).collect();
    let server = Server::start(Behaviour { files, ..Behaviour::default() });
    let options = server.options();
    let path = |model| run(model, &options).0.expect("a model");
    assert!(path("o/n").ends_with("m-Q4_K_M.gguf"));
    assert!(path("o/n:m-q8_0.gguf").ends_with("m-Q8_0.gguf"));
    let first = path("o/n:bf16");
    assert!(first.ends_with("b/m-BF16-00001-of-00002.gguf"));
    assert_eq!(std::fs::read(first).expect("part"), names[2].as_bytes());
    let told = run("o/n:BF16", &options).1;
    assert!(told.is_empty(), "{told:?}");
    assert!(
        sentence("o/n:Q2_K", &options).contains("no GGUF file is tagged `Q2_K`; there are: b/m")
    );
    assert!(sentence("o/n:x.gguf", &options).contains("there is no file `x.gguf`"));
}

#[test]
fn without_a_network_a_complete_copy_is_used_and_said() {
    let server = Server::start(model());
    let path = server.run().0.expect("a model");
    server.now(|behaviour| behaviour.status = Some(503));
    let (got, told) = server.run();
    assert_eq!(got.expect("a model"), path);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].contains("HTTP status 503; trying again"), "{told:?}");
    assert!(told[2].contains("HTTP status 503") && told[2].contains("using the copy"), "{told:?}");
    let endpoint = Some("http://127.0.0.1:9".to_string());
    let closed = HubOptions { endpoint, ..server.options() };
    let (got, told) = run("o/n", &closed);
    assert_eq!(got.expect("a model"), path);
    assert!(matches!(&told[..], [note] if note.contains("using the copy at")), "{told:?}");
    let text = sentence("o/other", &closed);
    assert!(text.starts_with("o/other: cannot fetch from http://127.0.0.1:9"), "{text}");
}

#[test]
fn refusals_say_what_to_do() {
    let server = Server::start(Behaviour { token: Some("secret".to_string()), ..model() });
    let mut options = server.options();
    assert!(sentence("o/n", &options).contains("set HF_TOKEN"));
    options.token = Some("wrong".to_string());
    let text = sentence("o/n", &options);
    assert!(text.contains("(401)") && text.contains("token"), "{text}");
    assert!(!text.contains("wrong"));
    options.token = Some("secret".to_string());
    assert_complete(&run("o/n", &options).0.expect("a model"));
    server.now(|behaviour| behaviour.status = Some(403));
    assert!(sentence("o/n", &options).contains("accept the model's terms"));
    server.now(|behaviour| behaviour.status = None);
    assert!(sentence("o/other", &options).contains("has no such model"));
}

#[test]
fn odd_answers_are_errors() {
    let mut files = model().files;
    files.retain(|name, _| !name.ends_with("safetensors"));
    let server = Server::start(Behaviour { files, ..Behaviour::default() });
    assert!(server.sentence().contains("no weights in safetensors or GGUF"));
    for (name, says) in [
        ("../../m.gguf", "no weights in safetensors or GGUF"),
        ("\"m.gguf", "does not answer like a model hub"),
    ] {
        server.now(|behaviour| behaviour.files = [(name.to_string(), b"x".to_vec())].into());
        assert!(server.sentence().contains(says), "{name}");
    }
}
