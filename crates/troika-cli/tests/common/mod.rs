//! The command as tests start it, what it answers, and what they give it.

#![allow(dead_code, reason = "no test needs all of it")]

pub mod ctrl_c;
pub mod hub;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;
use tempfile::TempDir;

/// The folder of the sources.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A place below it, as flags name it.
pub fn in_root(path: &str) -> String {
    root().join(path).display().to_string()
}

/// The command without input.
pub fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_troika"));
    c.args(args).stdin(Stdio::null());
    c
}

/// The command in a shell, which first does something else.
pub fn behind(script: &str, args: &[&str]) -> Command {
    let mut c = Command::new("sh");
    c.args(["-c", &format!("{script} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_troika")]);
    c.args(args).stdin(Stdio::null());
    c
}

/// The command with so many KiB of addresses.
pub fn limited(kib: u32, args: &[&str]) -> Command {
    behind(&format!("ulimit -v {kib}"), args)
}

/// What a command answers.
pub fn troika(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// The same in a folder.
pub fn troika_in(dir: &Path, args: &[&str]) -> Output {
    command(args).current_dir(dir).output().unwrap()
}

/// Starts a command whose answer is read while it runs.
pub fn started(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The same, once text flows.
pub fn begun(command: &mut Command) -> Child {
    let mut child = started(command);
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    child
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a command printed, which succeeded.
#[track_caller]
pub fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    text(&out.stdout)
}

/// What it told besides.
pub fn said(out: &Output) -> String {
    text(&out.stderr)
}

/// The JSON that a command printed, which succeeded.
#[track_caller]
pub fn json(out: &Output) -> Value {
    serde_json::from_str(&stdout(out)).unwrap()
}

/// The same, an object a line.
#[track_caller]
pub fn json_lines(out: &Output) -> Vec<Value> {
    stdout(out).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The one line of a command that fails, which has all the words.
#[track_caller]
pub fn refusal(out: &Output, words: &[&str]) -> String {
    let err = said(out);
    assert!(!out.status.success(), "{}", text(&out.stdout));
    assert_eq!(err.trim_end().lines().count(), 1, "{err}");
    holds(&err, words);
    err
}

/// The text has all the words.
#[track_caller]
pub fn holds(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// What a command told, which ends with this code and tells all the words.
#[track_caller]
pub fn ends(out: &Output, code: i32, words: &[&str]) -> String {
    let err = said(out);
    assert_eq!(out.status.code(), Some(code), "{err}");
    holds(&err, words);
    assert!(!err.contains("panicked"), "{err}");
    err
}

/// The code of a command that fails, prints nothing, and tells all the words.
#[track_caller]
pub fn fails(out: &Output, words: &[&str]) -> i32 {
    assert!(!out.status.success() && out.stdout.is_empty(), "{}", text(&out.stdout));
    let code = out.status.code().unwrap();
    ends(out, code, words);
    code
}

/// The command fails with this code, prints nothing, and tells one line with all the words.
#[track_caller]
pub fn refused(out: &Output, code: i32, words: &[&str]) {
    let err = refusal(out, words);
    assert_eq!(fails(out, words), code, "{err}");
}

/// The JSON in a file.
pub fn read_json(file: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Changes the JSON in a file.
pub fn edit_json(file: &Path, edit: impl FnOnce(&mut Value)) {
    let mut json = read_json(file);
    edit(&mut json);
    std::fs::write(file, json.to_string()).unwrap();
}

/// Copies a folder's files to another one.
pub fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let file = entry.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// A folder with the config and the weights of a test model.
pub fn golden_copy(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        let from = root().join("tests/golden").join(name).join(file);
        std::fs::copy(from, dir.path().join(file)).unwrap();
    }
    dir
}

/// A folder with links to a model's files, except for those with contents of their own.
#[cfg(unix)]
pub fn linked_model(from: &str, own: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(root().join(from)).unwrap() {
        let path = std::fs::canonicalize(entry.unwrap().path()).unwrap();
        let name = path.file_name().unwrap();
        if !own.iter().any(|(n, _)| *n == name) {
            std::os::unix::fs::symlink(&path, dir.path().join(name)).unwrap();
        }
    }
    for (name, content) in own {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

/// The GPU of `socs/example.toml` with another text in its file, which is written.
pub fn example_with(file: &Path, from: &str, to: &str) -> String {
    let soc = std::fs::read_to_string(root().join("socs/example.toml")).unwrap();
    assert!(soc.contains(from), "{from}");
    std::fs::write(file, soc.replacen(from, to, 1)).unwrap();
    format!("virtual:{}:gpu", file.display())
}

/// The port of a server that answers everything with this, for as long as the test runs.
pub fn answering(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let _gone = stream.write_all(answer.as_bytes());
        }
    });
    port.to_string()
}

/// The folder that `.ci/NAME` fills; what is there stays.
pub fn installed(name: &str) -> PathBuf {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = root().join("target").join(name);
    let installed = Command::new(root().join(".ci").join(name)).arg(&place).status();
    assert!(installed.unwrap().success());
    place.canonicalize().unwrap()
}

/// What NPU devices need, installed once.
pub fn npu_runtimes() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| installed("npu-runtimes"))
}
