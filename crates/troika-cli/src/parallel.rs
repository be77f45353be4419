//! `troika run --parallel`: answers many prompts, several at once, and prints in their order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use serde_json::{Value, json};
use troika::{Control, Model, Source};

use crate::error::CliError;
use crate::flags::RunArgs;
use crate::generate::request;
use crate::interrupt::Interrupt;
use crate::prompt::tokenize;
use crate::{output, stats};

/// Answers each line. A failed prompt has an error instead of its answer; the others continue.
///
/// # Errors
/// Prompts that failed, after all answers are printed, or a closed standard output.
pub fn run(
    model: &Model,
    source: &Source,
    args: &RunArgs,
    lines: &[String],
    interrupt: &Interrupt,
) -> Result<(), CliError> {
    // Flags out of range are reported once.
    request(model, args)?;
    let next = AtomicUsize::new(0);
    let (sender, answers) = channel();
    let workers = args.parallel.unwrap_or(1).min(lines.len());
    let mut failed = 0;
    let printed = std::thread::scope(|scope| {
        for _ in 0..workers {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                while !interrupt.pressed() {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(line) = lines.get(index) else { break };
                    let answered = answer(model, source, args, line, interrupt);
                    let answered = answered.map_err(|e| e.in_plan(args.plan.plan.is_some()));
                    if sender.send((index, answered)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (index, answered) in answers {
            early.insert(index, answered);
            while let Some(answered) = early.remove(&due) {
                failed += usize::from(answered.is_err());
                if let Err(e) = print(args, due, answered) {
                    // Nobody reads any more: end the current work too.
                    next.store(lines.len(), Ordering::Relaxed);
                    return Err(e);
                }
                due += 1;
            }
        }
        Ok(due)
    });
    let answered = printed?;
    match failed {
        0 if answered < lines.len() => Err(CliError::Interrupted(
            "ended by Ctrl-C: the prompts that follow the last answer have none".into(),
        )),
        0 => Ok(()),
        n => Err(CliError::Failure(format!("{n} of {} prompts failed", lines.len()))),
    }
}

/// The answer to a prompt, as it is printed.
fn answer(
    model: &Model,
    source: &Source,
    args: &RunArgs,
    line: &str,
    interrupt: &Interrupt,
) -> Result<Value, CliError> {
    if line.is_empty() {
        return Err(troika::Error::EmptyPrompt.into());
    }
    let (ids, time) = tokenize(model, args, line)?;
    let mut session = model.session()?;
    let _ends = interrupt.ends(session.canceller());
    let out = session.generate(&ids, &request(model, args)?, &mut |_, _| Control::Continue)?;
    Ok(stats::json(&source.to_string(), &out, Some(time), model.load_time()))
}

fn print(args: &RunArgs, index: usize, answered: Result<Value, CliError>) -> Result<(), CliError> {
    match answered {
        Ok(answer) if args.json => output::write(&format!("{answer}\n")),
        Ok(answer) => {
            let text = answer["text"].as_str().unwrap_or_default();
            output::write(&format!("{text}\n"))
        }
        Err(e) if args.json => {
            let error = output::shortened(&e.to_string()).into_owned();
            output::write(&format!("{}\n", json!({ "error": error })))
        }
        Err(e) => {
            output::note_line(&format!("troika: prompt {}: {e}", index + 1));
            output::write("\n")
        }
    }
}
