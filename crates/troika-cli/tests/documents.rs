//! README.md and docs: every command in them runs, and prints what they show.
//!
//! Fences say how. `sh`: commands that must succeed. `console`: commands after `$ ` and what they
//! print, where `[..]` stands for any text within a line and `...` for any lines. `console figures`:
//! numbers may be others. `console answer`: so may all of standard output, which ends before the
//! figures begin. `rust` is compiled as a test of the crate `troika`.

#![allow(clippy::disallowed_methods, clippy::panic, clippy::unwrap_used)]
#![cfg(unix)]

mod common;

use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use snapbox::IntoData;
use tempfile::TempDir;

/// Commands that are not run here, each with its reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo test --workspace --release", "this test is part of it"),
    ("cargo install --path crates/troika-cli", "it builds the command once more"),
    ("cargo run --release -p conformance -- golden DIR", "conformance has a test of it"),
    (".ci/npu-runtimes npu-runtimes", "it was run before, with another folder"),
    (".ci/gpu-driver", "it was run before"),
    ("troika ps", "no server runs here"),
    (
        "cargo xtask peers model-Q8_0.gguf --llama llama.cpp/build/bin --ik ik_llama.cpp/build/bin --sequences 4,8,16,32",
        "other engines are not built here",
    ),
    ("troika serve", "it runs until it is stopped; the tests of clients run it"),
];

/// Most words of a document that is to be read in one go.
const MOST_WORDS: [(&str, usize); 2] = [("README.md", 1000), ("ARCHITECTURE.md", 1700)];

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn root() -> PathBuf {
    common::root().canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A document, by its path from the root.
struct Document {
    path: String,
    text: String,
}

/// The pages of the book, by name.
fn pages() -> Vec<String> {
    let files = std::fs::read_dir(root().join("docs")).unwrap();
    let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
    let mut pages: Vec<String> =
        names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect();
    pages.sort();
    pages
}

/// README.md and the pages of the book.
fn documents() -> Vec<Document> {
    let pages = pages().into_iter().map(|page| format!("docs/{page}"));
    let paths = std::iter::once("README.md".to_string()).chain(pages);
    paths.map(|path| Document { text: read(&root().join(&path)), path }).collect()
}

/// What is between two fences.
struct Block<'a> {
    /// Where it begins, for messages: `FILE:LINE`.
    place: String,
    /// The line of the document in which its first fence is, from 1.
    line: usize,
    fence: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(document: &Document) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut lines = document.text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(fence) = line.trim_start().strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line);
        let lines = inside.take_while(|line| !line.trim_start().starts_with("```")).collect();
        let place = format!("{}:{}", document.path, at + 1);
        blocks.push(Block { place, line: at + 1, fence, lines });
    }
    blocks
}

/// A command with what it prints.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    /// Nothing where only success counts.
    prints: Option<String>,
}

/// Commands of a block, one a line. A backslash at the end of a line goes on in the next one.
fn commands(lines: &[&str]) -> Vec<Step> {
    let joined = lines.join("\n").replace("\\\n", " ");
    let commands = joined.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    commands.map(|line| Step { command: line.to_string(), prints: None }).collect()
}

/// Commands of a block that shows a terminal.
fn dialogue(lines: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in lines {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_string(), prints: Some(String::new()) });
        } else if let Some(prints) = steps.last_mut().and_then(|step| step.prints.as_mut()) {
            writeln!(prints, "{line}").unwrap();
        }
    }
    steps
}

/// Every number as `#`, and rows of spaces and dashes, whose length follows from numbers, as one.
fn without_figures(text: &str) -> String {
    let mut plain = String::new();
    let mut last = '\n';
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let in_number = last == '#' && c == '.' && chars.peek().is_some_and(char::is_ascii_digit);
        let c = if c.is_ascii_digit() || in_number { '#' } else { c };
        let at_line = plain.is_empty() || plain.ends_with('\n');
        if !(c == last && matches!(c, '#' | ' ') || c == ' ' && at_line) {
            plain.push(c);
        }
        last = c;
    }
    plain
}

/// What NPU devices need, and the software GPU, installed once.
fn runtimes() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let driver = Command::new(root().join(".ci/gpu-driver")).status();
        assert!(driver.unwrap().success());
        common::installed("npu-runtimes")
    })
}

/// A folder with all that the documents name: models, texts, virtual phones, and a cache of the Hub.
fn desk() -> TempDir {
    let desk = tempfile::tempdir().unwrap();
    let at = |name: &str| desk.path().join(name);
    let link = |from: &str, to: &str| {
        std::fs::create_dir_all(at(to).parent().unwrap()).unwrap();
        symlink(root().join(from), at(to)).unwrap();
    };
    let (folder, file) = ("models/tiny-moe", "tests/gguf/llama-q4_k_m.gguf");
    link("socs", "socs");
    link("docs/reports", "docs/reports");
    link(folder, "Qwen3-0.6B");
    link(file, "model-Q4_K_M.gguf");
    for (repository, from, to) in
        [("Qwen--Qwen3-0.6B", folder, ""), ("owner--name", file, "/name-Q4_K_M.gguf")]
    {
        let home = format!("hub/hub/models--{repository}");
        link(from, &format!("{home}/snapshots/{COMMIT}{to}"));
        std::fs::create_dir_all(at(&format!("{home}/refs"))).unwrap();
        std::fs::write(at(&format!("{home}/refs/main")), COMMIT).unwrap();
    }
    std::fs::write(at("prompts.txt"), "Once upon a time\nThe sea was\nIn the city\n").unwrap();
    symlink(root().join("LICENSE-APACHE"), at("text.txt")).unwrap();
    desk
}

/// The command as a shell runs it. Nothing of this machine's settings reaches it.
fn run(command: &str, desk: &Path) -> Output {
    let own = Path::new(env!("CARGO_BIN_EXE_troika")).parent().unwrap();
    let system = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> =
        std::iter::once(own.to_path_buf()).chain(std::env::split_paths(&system)).collect();
    let command = command.replace("cargo run --release -- ", "troika ");
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).current_dir(desk).stdin(Stdio::null()).env_clear();
    shell.env("PATH", std::env::join_paths(path).unwrap()).env("HOME", desk);
    shell.env("VIRTUAL_ENV", runtimes());
    // Without it, Mesa's drivers complain that there is no desktop.
    shell.env("XDG_RUNTIME_DIR", desk);
    shell.env("HF_HOME", desk.join("hub")).env("HF_HUB_OFFLINE", "1").output().unwrap()
}

/// What was printed. A machine with a GPU, or a slow one, has lines more than the documents show.
fn utf8(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let more = ["note: the CPU computes; --device ", "calibrating "];
    let shown = |line: &&str| !more.iter().any(|start| line.starts_with(start));
    text.split_inclusive('\n').filter(shown).collect()
}

/// Runs a command and compares what it prints.
fn check(fence: &str, step: &Step, desk: &Path) -> Result<(), String> {
    let failure = |out: &Output| Err(format!("{}: {}", out.status, utf8(&out.stderr)));
    let Some(shown) = &step.prints else {
        let out = run(&step.command, desk);
        return if out.status.success() { Ok(()) } else { failure(&out) };
    };
    if fence == "console answer" {
        let out = run(&step.command, desk);
        let (shown, figures) = (without_figures(shown), without_figures(&utf8(&out.stderr)));
        return match out.status.success() && !out.stdout.is_empty() {
            false => failure(&out),
            true if shown.ends_with(&figures) => Ok(()),
            true => Err(format!("it does not end with {figures}")),
        };
    }
    // As on a terminal, errors stand where they were printed.
    let out = run(&format!("{{ {}\n}} 2>&1", step.command), desk);
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, utf8(&out.stdout)));
    }
    let printed = utf8(&out.stdout);
    let (printed, shown) = match fence {
        "console figures" => (without_figures(&printed), without_figures(shown)),
        _ => (printed, shown.clone()),
    };
    let compared = snapbox::Assert::new().normalize_paths(false).try_eq(
        Some(&"what it prints"),
        printed.into_data(),
        shown.into_data(),
    );
    compared.map_err(|difference| difference.to_string())
}

/// The commands of a block.
fn steps(block: &Block<'_>) -> Result<Vec<Step>, String> {
    match block.fence {
        "sh" => Ok(commands(&block.lines)),
        "console" | "console figures" | "console answer" => Ok(dialogue(&block.lines)),
        "rust" | "toml" | "json" | "python" | "js" | "yaml" => Ok(Vec::new()),
        "text" if !block.lines.iter().any(|line| line.starts_with("$ ")) => Ok(Vec::new()),
        fence => Err(format!("what begins with {fence:?} is not run by this test")),
    }
}

/// Runs the commands of a document; says what went wrong.
fn try_document(document: &Document) -> String {
    let desk = desk();
    let mut wrong = String::new();
    for block in blocks(document) {
        let place = &block.place;
        let steps = steps(&block).unwrap_or_else(|why| {
            writeln!(wrong, "{place}: {why}").unwrap();
            Vec::new()
        });
        for step in steps {
            let command = step.command.split(" #").next().unwrap_or_default().trim_end();
            if NOT_RUN.iter().any(|(known, _)| *known == command) {
                continue;
            }
            if let Err(why) = check(block.fence, &step, desk.path()) {
                writeln!(wrong, "{place}: $ {command}\n{why}").unwrap();
            }
        }
    }
    wrong
}

#[test]
fn commands_run_and_print_what_the_documents_show() {
    let documents = documents();
    let wrong: String = std::thread::scope(|scope| {
        let tries: Vec<_> =
            documents.iter().map(|document| scope.spawn(|| try_document(document))).collect();
        tries.into_iter().map(|tried| tried.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn what_differs_is_found() {
    let desk = desk();
    let step = |command: &str, shown: Option<&str>| Step {
        command: command.into(),
        prints: shown.map(str::to_string),
    };
    let tried =
        |fence: &str, command: &str, shown| check(fence, &step(command, shown), desk.path());
    assert!(tried("sh", "troika tokenize -p Hi", None).is_ok());
    assert!(tried("sh", "troika tokenize --no-such-flag", None).is_err());
    assert!(tried("console", "echo 1 ms", Some("1 ms\n")).is_ok());
    assert!(tried("console", "echo 1 ms", Some("2 ms\n")).is_err());
    assert!(tried("console", "echo 1 ms", Some("[..] ms\n")).is_ok());
    assert!(tried("console figures", "echo '  12.5 ms'", Some(" 2 ms\n")).is_ok());
    assert!(tried("console figures", "echo 1 ms", Some("2 us\n")).is_err());
    assert!(tried("console answer", "echo a; echo 1 ms >&2", Some("b\n2 ms\n")).is_ok());
    assert!(tried("console answer", "echo a; echo 1 ms >&2", Some("b\n2 us\n")).is_err());
    let block = |fence, lines| Block { place: String::new(), line: 1, fence, lines };
    assert!(steps(&block("bash", vec!["troika run"])).is_err());
    assert!(steps(&block("text", vec!["$ troika run"])).is_err());
    let one = step("a   b # c", None);
    assert_eq!(steps(&block("sh", vec!["# d", "a \\", " b # c"])).unwrap(), [one]);
}

#[test]
fn commands_that_are_not_run_are_still_there() {
    let documents = documents();
    for (command, _) in NOT_RUN {
        assert!(documents.iter().any(|d| d.text.contains(command)), "no document has {command}");
    }
}

#[test]
fn every_page_of_the_book_begins_with_a_command_and_is_in_its_summary() {
    let summary = read(&root().join("docs/SUMMARY.md"));
    for document in documents().iter().filter(|d| d.path.starts_with("docs/")) {
        let first = blocks(document).into_iter().next();
        let first = first.filter(|b| b.line <= 6 && b.fence.starts_with("console"));
        assert!(first.is_some(), "{}: it does not begin with a command", document.path);
        let name = document.path.trim_start_matches("docs/");
        assert!(summary.contains(&format!("]({name})")), "SUMMARY.md does not have {name}");
    }
}

/// Targets of the links of a text that are files.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
}

#[test]
fn links_lead_to_files() {
    let others = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/SUMMARY.md", "socs/README.md"];
    let crates = crates().into_iter().map(|folder| folder.join("README.md"));
    let others = others.into_iter().map(|path| root().join(path)).chain(crates);
    let others = others.map(|path| Document {
        text: read(&path),
        path: path.strip_prefix(root()).unwrap().display().to_string(),
    });
    let others: Vec<Document> = others.collect();
    for document in documents().iter().chain(&others) {
        let folder = root().join(&document.path).parent().unwrap().to_path_buf();
        for link in links(&document.text) {
            let path = &document.path;
            assert!(folder.join(link).exists(), "{path}: {link} is not there");
            // A page that is built knows nothing beside the book.
            assert!(!path.starts_with("docs/") || !link.contains("../"), "{path}: {link}");
        }
    }
}

#[test]
fn documents_are_short() {
    for (path, most) in MOST_WORDS {
        let words = read(&root().join(path)).split_whitespace().count();
        assert!(words <= most, "{path} has {words} words, {most} are allowed");
    }
}

/// Names of what a manifest depends on.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let tables = manifest.split("\n[").filter(|table| {
        table.lines().next().is_some_and(|header| header.ends_with("dependencies]"))
    });
    let lines = tables.flat_map(|table| table.lines().skip(1));
    lines.filter_map(|line| line.split_once('=')).map(|(name, _)| {
        let name = name.trim();
        name.strip_suffix(".workspace").unwrap_or(name)
    })
}

/// The folders of the workspace's crates.
fn crates() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    crates.map(|f| f.unwrap().path()).chain([root().join("xtask")]).collect()
}

#[test]
fn every_dependency_has_its_reason() {
    let mut used = 0;
    for folder in crates() {
        let (manifest, readme) = (read(&folder.join("Cargo.toml")), folder.join("README.md"));
        let text = read(&readme);
        let reasons = text.split("## Dependencies").nth(1).unwrap();
        let is_named = |name: &str| reasons.contains(&format!("`{name}`"));
        for name in dependencies(&manifest).filter(|name| !name.starts_with("troika")) {
            assert!(is_named(name), "{readme:?} has no reason for {name}");
            used += 1;
        }
    }
    assert!(used > 100, "{used}");
}

/// Whether a module or file is there, as `ARCHITECTURE.md` spells it: `engine/step`, `docs/x.md`.
fn is_there(path: &str) -> bool {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let modules = [format!("troika-{first}/src/{rest}"), format!("{first}/src/{rest}")];
    let modules = modules.into_iter().chain([format!("troika-engine/src/{path}"), path.into()]);
    let mut files = modules.flat_map(|m| [format!("crates/{m}"), format!("crates/{m}.rs")]);
    root().join(path).exists() || files.any(|file| root().join(file).exists())
}

#[test]
fn modules_that_architecture_names_are_there() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let quoted = text.split('`').skip(1).step_by(2);
    let paths: Vec<&str> =
        quoted.filter(|q| q.contains('/') && !q.contains(char::is_whitespace)).collect();
    assert!(paths.len() > 40 && !is_there("engine/nothing"));
    let missing: Vec<_> = paths.iter().filter(|path| !is_there(path)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names {missing:?}");
}
