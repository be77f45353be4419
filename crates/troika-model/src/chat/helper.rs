//! Rendering in a process of its own, which can be ended whatever a template does.
//!
//! The helper reads a line of JSON per rendering from standard input, and answers with a line on
//! standard output. It ends when a rendering takes too long or too much memory.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use troika_device::lock;

use super::mask::ChatPrompt;
use super::render::{ChatError, ChatInput, Template};

/// Memory of the helper, before what the size of the request adds: four times the data that a
/// template's fuel pays for.
const MEMORY: usize = 512 << 20;
/// Memory for each byte of a request.
const MEMORY_PER_BYTE: usize = 1024;
/// The most memory that the size of a request adds.
const MEMORY_ADDED: usize = 3 << 30;

/// A prompt, or why there is none; `None` for a rendering that took too long.
type Answer = Result<ChatPrompt, Option<String>>;

/// How to start the helper: a program that calls [`serve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

/// What a model has. It is sent where it differs from the last rendering's.
#[derive(Default, Serialize, Deserialize)]
struct SentTemplate {
    source: String,
    control: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Request<K, I> {
    template: Option<K>,
    input: I,
}

struct Running {
    template: SentTemplate,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A helper that is started when it is needed and serves one rendering after another.
pub(super) struct Helper {
    command: HelperCommand,
    running: Mutex<Option<Running>>,
}

impl Helper {
    pub fn new(command: HelperCommand) -> Helper {
        Helper { command, running: Mutex::new(None) }
    }

    pub fn render(&self, source: &str, input: &ChatInput) -> Result<ChatPrompt, ChatError> {
        let failed = |e: &dyn std::fmt::Display| {
            let program = self.command.program.display();
            ChatError::Render(format!("{program} does not render it: {e}"))
        };
        let mut running = lock(&self.running);
        // The one of the last rendering may have ended since.
        let mut last = running.take();
        let sent = last.as_mut().is_some_and(|helper| helper.send(source, input).is_ok());
        let mut helper = match last.filter(|_| sent) {
            Some(helper) => helper,
            None => {
                let mut helper = self.command.start().map_err(|e| failed(&e))?;
                helper.send(source, input).map_err(|e| failed(&e))?;
                helper
            }
        };
        let mut answer = String::new();
        let _ = helper.answers.read_line(&mut answer);
        match serde_json::from_str::<Answer>(&answer) {
            Ok(Err(None)) => Err(ChatError::Slow),
            Ok(answer) => {
                *running = Some(helper);
                answer.map_err(|why| ChatError::Render(why.unwrap_or_default()))
            }
            Err(_) => {
                let why = "it takes more memory than any conversation needs";
                Err(ChatError::Render(why.into()))
            }
        }
    }
}

impl Running {
    fn send(&mut self, source: &str, input: &ChatInput) -> std::io::Result<()> {
        let control = &input.control;
        let is_new = self.template.source != source || self.template.control != *control;
        if is_new {
            self.template = SentTemplate { source: source.into(), control: control.clone() };
        }
        let template = is_new.then_some(&self.template);
        let request = serde_json::to_string(&Request { template, input })? + "\n";
        self.requests.write_all(request.as_bytes())
    }
}

impl HelperCommand {
    fn start(&self) -> std::io::Result<Running> {
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        match (child.stdin.take(), child.stdout.take().map(BufReader::new)) {
            (Some(requests), Some(answers)) => {
                Ok(Running { template: SentTemplate::default(), child, requests, answers })
            }
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// The helper: renders what standard input asks for until it ends. `limit` sets the bytes that this
/// process may take; it ends where it would take more.
///
/// # Errors
/// A request that is none, or standard output that is closed.
pub fn serve(limit: impl Fn(usize)) -> Result<(), String> {
    let mut template = Err(ChatError::Render("there is no template".into()));
    let mut control = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| e.to_string())?;
        limit(MEMORY + line.len().saturating_mul(MEMORY_PER_BYTE).min(MEMORY_ADDED));
        let request: Request<SentTemplate, ChatInput> =
            serde_json::from_str(&line).map_err(|e| e.to_string())?;
        if let Some(sent) = request.template {
            (template, control) = (Template::new(&sent.source), sent.control);
        }
        let input = ChatInput { control: control.clone(), ..request.input };
        let rendered = template.as_ref().map_err(ChatError::clone).and_then(|t| t.render(&input));
        let answer: Answer = rendered.map_err(|e| match e {
            ChatError::Slow => None,
            ChatError::Render(why) => Some(why),
            other => Some(other.to_string()),
        });
        let json = serde_json::to_string(&answer).map_err(|e| e.to_string())?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{json}").and_then(|()| out.flush()).map_err(|e| e.to_string())?;
        if answer == Err(None) {
            // The rendering goes on; the end of the process ends it.
            break;
        }
    }
    Ok(())
}
