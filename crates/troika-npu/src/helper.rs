//! Compiling in a process of its own: vendors' compilers crash and hang.
//!
//! The helper reads a line per graph from standard input, the file of a model, the file to write its
//! compiled form to and, if it is profiled, the level and the profiler's file, and answers with a
//! line on standard output. Compilers print there, too: an answer begins with [`ANSWER`]. A line of
//! three has a compiled form profiled by QNN's own interface: its file, the level and the file to
//! write.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::onnx::OnnxFiles;
use crate::profiling::{ProfileFile, ProfilingLevel};
use crate::runtime::{Chosen, Runtime, RuntimePlaces, one_line};

/// What answers begin with.
const ANSWER: &str = "troika-npu-compile ";
/// Separates the parts of a request and of an answer. It does not occur in a path or message.
const BETWEEN: char = '\u{1f}';
/// How often a caller that wants to stop is asked.
const ASKED: Duration = Duration::from_millis(50);

/// How to start the helper: a program that calls [`serve_compile`] with the arguments that follow
/// these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperCommand {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments.
    pub args: Vec<String>,
    /// How long a graph may take.
    pub limit: Duration,
}

/// The reason why a graph is not compiled.
pub(crate) enum HelperError {
    /// The caller stopped it.
    Stopped,
    /// What is wrong with the graph, or with its compiler.
    Refused(String),
}

/// A running helper.
struct Running {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles graphs one after another, each by a helper that is alive.
pub(crate) struct Helper<'a> {
    command: &'a HelperCommand,
    library: &'a Path,
    chosen: Chosen,
    threads: usize,
    running: Option<Running>,
}

impl<'a> Helper<'a> {
    pub fn new(
        command: &'a HelperCommand,
        library: &'a Path,
        chosen: Chosen,
        threads: usize,
    ) -> Helper<'a> {
        Helper { command, library, chosen, threads, running: None }
    }

    /// The compiled form of a model.
    pub fn compile(
        &mut self,
        model: &OnnxFiles,
        profile: Option<&ProfileFile>,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, HelperError> {
        let refused = |what: &str, e: std::io::Error| {
            HelperError::Refused(format!("{what} for its compiler: {e}"))
        };
        let (from, to) = (model.path(), model.folder().join("context.onnx"));
        let mut request = format!("{}{BETWEEN}{}", from.display(), to.display());
        if let Some(ProfileFile { level, path }) = profile {
            request += &format!("{BETWEEN}{}{BETWEEN}{}", level.name(), path.display());
        }
        self.ask(&request, may_continue)?;
        std::fs::read(&to).map_err(|e| refused("no result", e))
    }

    /// Has QNN's own interface profile the compiled form of a model.
    pub fn profile(
        &mut self,
        model: &OnnxFiles,
        compiled: &[u8],
        ProfileFile { level, path }: &ProfileFile,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<(), HelperError> {
        let from = model.folder().join("context.onnx");
        std::fs::write(&from, compiled).map_err(|e| HelperError::Refused(e.to_string()))?;
        let (from, to, level) = (from.display(), path.display(), level.name());
        self.ask(&format!("{from}{BETWEEN}{level}{BETWEEN}{to}"), may_continue)
    }

    /// Asks for something.
    fn ask(&mut self, request: &str, may_continue: &dyn Fn() -> bool) -> Result<(), HelperError> {
        let answered = self.answer(request, may_continue);
        let done = answered.and_then(|answer| match answer.split_once(BETWEEN) {
            Some((_, why)) => Err(HelperError::Refused(why.into())),
            None => Ok(()),
        });
        if done.is_err() {
            // It may be in the midst of the graph. Some compilers refuse all graphs after one.
            self.running = None;
        }
        done
    }

    fn answer(
        &mut self,
        request: &str,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<String, HelperError> {
        let gone = |child: &mut Child| {
            let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            HelperError::Refused(format!("its compiler ended in the middle ({how})"))
        };
        let running = match &mut self.running {
            Some(running) => running,
            none => none.insert(start(self.command, self.library, self.chosen, self.threads)?),
        };
        if writeln!(running.requests, "{request}").is_err() {
            return Err(gone(&mut running.child));
        }
        let start = Instant::now();
        loop {
            match running.answers.recv_timeout(ASKED) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(gone(&mut running.child)),
                Err(RecvTimeoutError::Timeout) if !may_continue() => {
                    return Err(HelperError::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() > self.command.limit => {
                    let limit = self.command.limit.as_secs();
                    let why = format!("its compiler was ended after {limit} s");
                    return Err(HelperError::Refused(why));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn start(
    command: &HelperCommand,
    library: &Path,
    chosen: Chosen,
    threads: usize,
) -> Result<Running, HelperError> {
    let mut child = Command::new(&command.program)
        .args(&command.args)
        .arg(library)
        .arg(chosen.to_string())
        .arg(threads.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| {
            let program = command.program.display();
            HelperError::Refused(format!("{program} does not start to compile it: {e}"))
        })?;
    let (send, answers) = channel();
    let lines = child.stdout.take().map(BufReader::new);
    let reader = move || {
        for line in lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
            if let Some(answer) = line.strip_prefix(ANSWER)
                && send.send(answer.to_string()).is_err()
            {
                break;
            }
        }
    };
    let started = std::thread::Builder::new().name("troika-npu-answers".into()).spawn(reader);
    let requests = child.stdin.take();
    match (requests, started) {
        (Some(requests), Ok(_)) => Ok(Running { child, requests, answers }),
        _ => {
            let _ = child.kill();
            let _ = child.wait();
            Err(HelperError::Refused("no thread for its compiler's answers".into()))
        }
    }
}

/// The helper: compiles the models that standard input names until it ends. `args` are the library,
/// the provider and the number of threads, as the caller of this process gives them.
///
/// # Errors
/// Arguments that are none, or a runtime that does not load.
pub fn serve_compile(args: &[String]) -> Result<(), String> {
    let [library, chosen, threads] = args else {
        return Err("it takes a library, a provider and a number of threads".into());
    };
    let chosen = Chosen::parse(chosen).ok_or_else(|| format!("{chosen:?} is no provider"))?;
    let threads = threads.parse().map_err(|_| format!("{threads:?} is no number"))?;
    let places = RuntimePlaces { library: Some(library.into()), environments: Vec::new() };
    let runtime = Runtime::load(&places).map_err(|e| e.to_string())?;
    runtime.reach(chosen).map_err(|e| e.to_string())?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(|e| e.to_string())?;
        let parts: Vec<&str> = line.split(BETWEEN).collect();
        let (from, to, level) = match parts[..] {
            [from, to] => (from, Some(to), None),
            [from, level, path] => (from, None, Some((level, path))),
            [from, to, level, path] => (from, Some(to), Some((level, path))),
            _ => return Err(format!("{line:?} is no request")),
        };
        let profile = level.and_then(|(level, path)| {
            Some(ProfileFile { level: ProfilingLevel::parse(level)?, path: path.into() })
        });
        let (from, to) = (Path::new(from), to.map(Path::new));
        let done = match (to, &profile) {
            (Some(to), profile) => runtime.compile_to(chosen, threads, from, to, profile.as_ref()),
            (None, Some(ProfileFile { level, path })) => runtime.profile(from, *level, path),
            (None, None) => return Err(format!("{line:?} names no level")),
        };
        let answer = match done {
            Ok(()) => "ok".to_string(),
            Err(why) => format!("no{BETWEEN}{}", one_line(&why)),
        };
        let mut out = std::io::stdout().lock();
        // On a line of its own, whatever a compiler has printed.
        let told = writeln!(out, "\n{ANSWER}{answer}").and_then(|()| out.flush());
        told.map_err(|e| e.to_string())?;
    }
    Ok(())
}
