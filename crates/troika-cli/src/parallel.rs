//! `troika run --parallel`: answers many prompts, several at once, and prints in their order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::json;
use troika::{Control, Model, Output, Source};

use crate::error::CliError;
use crate::flags::RunArgs;
use crate::generate::{request, system, tokenize};
use crate::interrupt::Interrupt;
use crate::{output, stats};

/// An answer, and how long its prompt took to become tokens.
type Answered = (Output, Duration);

/// What was printed.
#[derive(Default)]
struct Printed {
    answers: usize,
    failed: usize,
    tokens: usize,
}

/// The prompts, and what answers them.
struct PromptLines<'a> {
    model: &'a Model,
    source: &'a Source,
    args: &'a RunArgs,
    lines: &'a [String],
    interrupt: &'a Interrupt,
    /// The first prompt that nobody answers yet.
    next: AtomicUsize,
}

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
    let start = model.clock().now();
    let prompts = PromptLines { model, source, args, lines, interrupt, next: AtomicUsize::new(0) };
    let (sender, answers) = channel();
    let printed = std::thread::scope(|scope| {
        for worker in 0..args.parallel.unwrap_or(1).min(lines.len()) {
            let (prompts, sender) = (&prompts, sender.clone());
            let answers = move || prompts.answer(&sender);
            match std::thread::Builder::new().spawn_scoped(scope, answers) {
                Err(e) if worker == 0 => {
                    let why = format!("cannot start a thread for --parallel: {e}");
                    return Err(CliError::Failure(why));
                }
                // Those that run answer all prompts.
                Err(_) => break,
                Ok(_) => {}
            }
        }
        drop(sender);
        prompts.print(answers)
    })?;
    if !args.json && !args.quiet {
        output::note(&figures(&printed, model.clock().now() - start));
    }
    match printed.failed {
        0 if printed.answers < lines.len() => Err(CliError::Interrupted(
            "ended by Ctrl-C: the prompts that follow the last answer have none".into(),
        )),
        0 => Ok(()),
        n => Err(CliError::Failure(format!("{n} of {} prompts failed", lines.len()))),
    }
}

impl PromptLines<'_> {
    /// Answers prompts until there are none.
    fn answer(&self, answers: &Sender<(usize, Result<Answered, CliError>)>) {
        while !self.interrupt.pressed() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(line) = self.lines.get(index) else { break };
            let answered = self.answer_to(line);
            let answered = answered.map_err(|e| e.in_plan(self.args.plan.plan.is_some()));
            if answers.send((index, answered)).is_err() {
                break;
            }
        }
    }

    fn answer_to(&self, line: &str) -> Result<Answered, CliError> {
        if line.is_empty() {
            return Err(troika::Error::EmptyPrompt.into());
        }
        let (ids, time) = tokenize(self.model, self.args, &mut system(self.args), line)?;
        let mut session = self.model.session()?;
        let _ends = self.interrupt.ends(session.canceller());
        let request = request(self.model, self.args)?;
        let out = session.generate(&ids, &request, &mut |_, _| Control::Continue)?;
        Ok((out, time))
    }

    /// Prints answers in the order of their prompts.
    fn print(
        &self,
        answers: Receiver<(usize, Result<Answered, CliError>)>,
    ) -> Result<Printed, CliError> {
        let (mut early, mut printed) = (BTreeMap::new(), Printed::default());
        for (index, answered) in answers {
            early.insert(index, answered);
            while let Some(answered) = early.remove(&printed.answers) {
                printed.failed += usize::from(answered.is_err());
                printed.tokens += answered.as_ref().map_or(0, |(out, _)| out.tokens.len());
                let result = match (self.args.json, answered) {
                    (false, answered) => {
                        print(printed.answers, &self.lines[printed.answers], answered)
                    }
                    (true, Ok((out, time))) => {
                        output::json_line(&stats::json(self.model, self.source, &out, Some(time)))
                    }
                    (true, Err(e)) => {
                        output::json_line(&json!({ "error": output::shortened(&e.to_string()) }))
                    }
                };
                if result.is_err() {
                    // Nobody reads any more: what is under way ends, too.
                    self.next.store(self.lines.len(), Ordering::Relaxed);
                    return result.map(|()| printed);
                }
                printed.answers += 1;
            }
        }
        Ok(printed)
    }
}

/// An answer under the number and the beginning of its prompt.
fn print(index: usize, line: &str, answered: Result<Answered, CliError>) -> Result<(), CliError> {
    let number = index + 1;
    let gap = if index == 0 { "" } else { "\n" };
    let head = format!("{gap}[{number}] {}", beginning(line));
    output::answer(&format!("{}\n", head.trim_end()))?;
    match answered {
        Ok((out, _)) => output::answer(&format!("{}\n", out.text)),
        Err(e) => {
            output::note_line(&format!("troika: prompt {number}: {e}"));
            Ok(())
        }
    }
}

/// As much of a prompt as it takes to know it again.
fn beginning(line: &str) -> String {
    const LENGTH: usize = 60;
    match line.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{} ...", line[..end].trim_end()),
        None => line.to_string(),
    }
}

fn figures(printed: &Printed, took: Duration) -> String {
    let (tokens, seconds) = (printed.tokens, took.as_secs_f64());
    let rate = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    format!(
        "\n{}, {} generated in {seconds:.2} s: {rate:.1} tok/s\n",
        stats::counted(printed.answers, "prompt"),
        stats::counted(tokens, "token")
    )
}
