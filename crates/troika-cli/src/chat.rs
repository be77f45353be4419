//! Chat on a terminal.

use std::cell::Cell;
use std::io::ErrorKind;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};
use serde_json::{Value, json};
use troika::{Finish, Model, Session};

use crate::error::CliError;
use crate::flags::RunArgs;
use crate::generate::{generate, system, tokenize};
use crate::interrupt::Interrupt;
use crate::{output, stats};

const HELP: &str = "\
/help    show this
/clear   forget the conversation and start over
/bye     end, as Ctrl-D does
Ctrl-C   drop the line, or stop the answer; twice on an empty line, end
";

/// Whether a line is being typed. Ctrl-C drops it, and asks for an end where there is none.
#[derive(Default)]
struct Typing(Cell<bool>);

impl Hinter for Typing {
    type Hint = String;

    /// Called after each change of the line.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.0.set(!line.is_empty());
        None
    }
}

impl Completer for Typing {
    type Candidate = String;
}

impl Highlighter for Typing {}
impl Validator for Typing {}
impl Helper for Typing {}

/// A conversation, and how it goes on.
struct Chat<'a> {
    model: &'a Model,
    args: &'a RunArgs,
    interrupt: &'a Interrupt,
    /// Lines are messages, and all former ones stay in the context; else each is a text by itself.
    answers: bool,
    messages: Vec<Value>,
    session: Session,
}

/// Reads turns until the user leaves (`/bye`, Ctrl-D, or Ctrl-C twice).
pub fn run(model: &Model, args: &RunArgs, interrupt: &Interrupt) -> Result<(), CliError> {
    let failed = |e: ReadlineError| CliError::Failure(format!("cannot read the terminal: {e}"));
    let mut editor = Editor::<Typing, DefaultHistory>::new().map_err(failed)?;
    editor.set_helper(Some(Typing::default()));
    let answers = model.has_template() && !args.raw;
    let kind = if answers { "chat" } else { "text is continued, not answered" };
    output::note(&format!("{kind}; /help lists the commands, /bye or Ctrl-D ends\n"));
    let (messages, session) = (system(args), model.session()?);
    let mut chat = Chat { model, args, interrupt, answers, messages, session };
    let mut asked_to_end = false;
    loop {
        let read = editor.readline(">>> ");
        let typing = editor.helper().is_some_and(|typing| typing.0.take());
        let line = match read {
            Err(ReadlineError::Interrupted) if typing => {
                asked_to_end = false;
                continue;
            }
            Err(ReadlineError::Interrupted) if asked_to_end => {
                return Err(CliError::Interrupted("the chat was ended by Ctrl-C".into()));
            }
            Err(ReadlineError::Interrupted) => {
                output::note("Ctrl-C once more, Ctrl-D or /bye ends\n");
                asked_to_end = true;
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            // The invalid bytes were consumed, so this ends.
            Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => {
                output::note_line("troika: this line is not UTF-8 text and was left out");
                continue;
            }
            Err(e) => return Err(failed(e)),
            Ok(line) => line,
        };
        asked_to_end = false;
        match line.trim() {
            "" => continue,
            "/bye" | "/exit" | "/quit" => return Ok(()),
            "/help" | "/?" => output::note(HELP),
            "/clear" => {
                (chat.messages, chat.session) = (system(args), model.session()?);
                output::note("the conversation starts over\n");
            }
            _ => {
                // The history is a convenience; a turn works without it.
                let _ = editor.add_history_entry(&line);
                chat.turn(&line)?;
            }
        }
    }
}

impl Chat<'_> {
    /// One turn. The conversation continues without a failed turn.
    fn turn(&mut self, line: &str) -> Result<(), CliError> {
        self.interrupt.clear();
        let said = self.messages.len();
        match self.answer(line) {
            Err(CliError::Troika(e)) => {
                let full = matches!(e, troika::Error::PromptTooLong { .. });
                output::note_line(&format!("troika: {}", CliError::Troika(e)));
                if full {
                    self.context_is_full();
                }
                self.messages.truncate(said);
                Ok(())
            }
            other => other,
        }
    }

    /// The prompt starts like the previous one, so only the new part is computed.
    fn answer(&mut self, line: &str) -> Result<(), CliError> {
        let (model, args) = (self.model, self.args);
        let (ids, _) = tokenize(model, args, &mut self.messages, line)?;
        let out = generate(model, &mut self.session, args, &ids, self.interrupt, &mut || {})?;
        output::write("\n")?;
        self.messages.push(json!({"role": "assistant", "content": out.text}));
        if !args.quiet {
            output::note(&stats::line(&out));
        }
        if matches!(out.finish, Finish::Context | Finish::Budget) {
            self.context_is_full();
        }
        Ok(())
    }

    fn context_is_full(&self) {
        output::note(match self.answers {
            true => "the context is full: /clear starts over with an empty one\n",
            false => "the context is full: troika run -c gives a longer one\n",
        });
    }
}
