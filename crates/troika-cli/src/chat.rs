//! Chat on a terminal.

use std::io::ErrorKind;
use std::time::{SystemTime, UNIX_EPOCH};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Map, Value, json};
use troika::Model;

use crate::error::CliError;
use crate::flags::RunArgs;
use crate::generate::generate;
use crate::interrupt::Interrupt;
use crate::{output, stats};

/// The system message, if any, as the start of a conversation.
pub fn system(args: &RunArgs) -> Vec<Value> {
    let message = |text| json!({"role": "system", "content": text});
    args.system_prompt.iter().map(message).collect()
}

/// Today's date (UTC) for templates that print it.
pub fn today() -> Option<(i32, u32, u32)> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(civil((seconds / 86_400) as i64))
}

/// Days since 1970 as year, month, day (Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: i64) -> (i32, u32, u32) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = (doy - (153 * mp + 2) / 5 + 1) as u32;
    let month = (if mp < 10 { mp + 3 } else { mp - 9 }) as u32;
    let year = yoe + era * 400 + i64::from(month <= 2);
    (year as i32, month, day)
}

/// Reads turns until the user leaves (`/bye`, Ctrl-D, or Ctrl-C at the prompt).
///
/// # Errors
/// What the model or the terminal reports.
pub fn run(model: &mut Model, args: &RunArgs, interrupt: &Interrupt) -> Result<(), CliError> {
    let failed = |e: ReadlineError| CliError::Failure(format!("cannot read the terminal: {e}"));
    let mut editor = DefaultEditor::new().map_err(failed)?;
    let kind = if model.has_template() { "chat" } else { "text is continued, not answered" };
    output::note(&format!("{kind}; /clear starts over, /bye or Ctrl-D ends\n"));
    let mut messages = system(args);
    loop {
        let line = match editor.readline(">>> ") {
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(()),
            // The bytes that made no text are read and gone, so this ends.
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
                model.reset();
                continue;
            }
            _ => {}
        }
        // The history is a convenience; a turn works without it.
        let _ = editor.add_history_entry(&line);
        interrupt.clear();
        let said = messages.len();
        match turn(model, args, &mut messages, line, interrupt) {
            Err(CliError::Troika(e)) => {
                // The conversation goes on without the turn that failed.
                output::note_line(&format!("troika: {e}"));
                messages.truncate(said);
            }
            other => other?,
        }
    }
}

/// One turn: the prompt starts like the last one's, so only the new part is computed.
fn turn(
    model: &mut Model,
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
    let out = generate(model, args, &ids, interrupt)?;
    output::write("\n")?;
    messages.push(json!({"role": "assistant", "content": out.text}));
    if !args.quiet {
        output::note(&stats::text(&out.stats, Some(time), model.load_time()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_778), (2026, 11, 21));
        assert_eq!(civil(11_016), (2000, 2, 29));
    }
}
