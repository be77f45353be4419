//! Compiling in a process of its own: vendors' compilers crash and hang.
//!
//! The helper reads a line per graph from standard input, the file of a model, the file to write its
//! compiled form to, and the level and file of a profile, and answers with a line on standard output.
//! Compilers print there, too: an answer begins with [`ANSWER`]. Without a second file, the first is a
//! compiled form that QNN's own interface profiles; without a level there is no profile.

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
        let to = model.folder().join("context.onnx");
        self.ask(&model.path(), Some(&to), profile, may_continue)?;
        let read = std::fs::read(&to);
        read.map_err(|e| HelperError::Refused(format!("no result for its compiler: {e}")))
    }

    /// Has QNN's own interface profile the compiled form of a model.
    pub fn profile(
        &mut self,
        model: &OnnxFiles,
        compiled: &[u8],
        profile: &ProfileFile,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<(), HelperError> {
        let from = model.folder().join("context.onnx");
        std::fs::write(&from, compiled).map_err(|e| HelperError::Refused(e.to_string()))?;
        self.ask(&from, None, Some(profile), may_continue)
    }

    /// Asks for a compiled form, or for the profile of one.
    fn ask(
        &mut self,
        from: &Path,
        to: Option<&Path>,
        profile: Option<&ProfileFile>,
        may_continue: &dyn Fn() -> bool,
    ) -> Result<(), HelperError> {
        let none = Path::new("");
        let (level, file) = profile.map_or(("", none), |p| (p.level.name(), p.path.as_path()));
        let [from, to, file] = [from, to.unwrap_or(none), file].map(Path::display);
        let request = format!("{from}{BETWEEN}{to}{BETWEEN}{level}{BETWEEN}{file}");
        let answered = self.answer(&request, may_continue);
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
        let running = self.running.take().map_or_else(|| self.start(), Ok)?;
        let running = self.running.insert(running);
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

    fn start(&self) -> Result<Running, HelperError> {
        let HelperCommand { program, args, .. } = self.command;
        let mut child = Command::new(program)
            .args(args)
            .arg(self.library)
            .arg(self.chosen.to_string())
            .arg(self.threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                let program = program.display();
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
        let [from, to, level, path] = parts[..] else {
            return Err(format!("{line:?} is no request"));
        };
        let (from, level) = (Path::new(from), ProfilingLevel::parse(level));
        let done = match level.map(|level| ProfileFile { level, path: path.into() }) {
            Some(profile) if to.is_empty() => runtime.profile(from, &profile),
            profile => runtime.compile_to(chosen, threads, from, Path::new(to), profile.as_ref()),
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
