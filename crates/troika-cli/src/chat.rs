//! Chat on a terminal.

use std::io::ErrorKind;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Map, Value, json};
use troika::{Model, Session};

use crate::error::CliError;
use crate::flags::RunArgs;
use crate::generate::generate;
use crate::interrupt::Interrupt;
use crate::prompt::{system, today};
use crate::{output, stats};

/// Reads turns until the user leaves (`/bye`, Ctrl-D, or Ctrl-C at the prompt).
///
/// # Errors
/// An error of the model or the terminal.
pub fn run(model: &Model, args: &RunArgs, interrupt: &Interrupt) -> Result<(), CliError> {
    let failed = |e: ReadlineError| CliError::Failure(format!("cannot read the terminal: {e}"));
    let mut editor = DefaultEditor::new().map_err(failed)?;
    let kind = if model.has_template() { "chat" } else { "text is continued, not answered" };
    output::note(&format!("{kind}; /clear starts over, /bye or Ctrl-D ends\n"));
    let mut messages = system(args);
    let mut session = model.session()?;
    loop {
        let line = match editor.readline(">>> ") {
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(()),
            // The invalid bytes were consumed, so this ends.
            Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::InvalidData => {
                output::note_line("troika: this line is not UTF-8 text and was left out");
                continue;
            }
            Err(e) => return Err(failed(e)),
        };
        match line.trim() {
            "" => continue,
            "/bye" | "/exit" => return Ok(()),
            "/clear" => {
                messages = system(args);
                session = model.session()?;
                continue;
            }
            _ => {}
        }
        // The history is a convenience; a turn works without it.
        let _ = editor.add_history_entry(&line);
        interrupt.clear();
        let said = messages.len();
        match turn((model, &mut session), args, &mut messages, line, interrupt) {
            Err(e @ CliError::Troika(_)) => {
                // The conversation continues without the failed turn.
                output::note_line(&format!("troika: {e}"));
                messages.truncate(said);
            }
            other => other?,
        }
    }
}

/// One turn. The prompt starts like the previous one, so only the new part is computed.
fn turn(
    (model, session): (&Model, &mut Session),
    args: &RunArgs,
    messages: &mut Vec<Value>,
    line: String,
    interrupt: &Interrupt,
) -> Result<(), CliError> {
    let (ids, time) = if model.has_template() && !args.raw {
        messages.push(json!({"role": "user", "content": line}));
        let prompt = model.chat_prompt(messages, Map::new(), today(), args.parse_special)?;
        model.tokenize_chat(&prompt)?
    } else {
        model.tokenize(&line)?
    };
    let out = generate((model, session), args, &ids, interrupt)?;
    output::write("\n")?;
    messages.push(json!({"role": "assistant", "content": out.text}));
    if !args.quiet {
        output::note(&stats::text(&out, Some(time), model.load_time()));
    }
    Ok(())
}
