//! `troika perplexity`.

use serde_json::json;
use troika::plan::PlanError;
use troika::trace::Tracer;
use troika::{Error, Model, Scored, Source};

use super::run;
use crate::error::CliError;
use crate::flags::PerplexityArgs;
use crate::input::read_input;
use crate::interrupt::Interrupt;
use crate::{output, progress, resolve};

/// The window of `llama-perplexity`.
const WINDOW: usize = 512;

/// Measures and prints.
///
/// # Errors
/// A model without a tokenizer, a text shorter than a window.
pub fn run(args: &PerplexityArgs) -> Result<(), CliError> {
    let source = resolve::model(&args.model)?;
    let text = read_input(args.file.as_deref())?;
    let interrupt = Interrupt::listen();
    let model = open(&source, args, &interrupt)?;
    let window = model.context();
    for w in model.warnings() {
        output::note_line(&format!("warning: {w}"));
    }
    let none = || CliError::NoTokenizer(source.to_string());
    let tokenizer = model.tokenizer().ok_or_else(none)?;
    // Special tokens in the text are plain text.
    let ids = tokenizer.encode(&text, true, false).map_err(Error::from)?;
    let total = ids.len() / window.max(1);
    let bar = progress::bar(total as u64, "{msg} [{bar:30}] {pos}/{len} windows {eta}");
    let scored = if args.all { Scored::All } else { Scored::SecondHalf };
    let result = model.perplexity(&ids, window, scored, &mut |p| {
        bar.set_position(p.windows as u64);
        bar.set_message(format!("PPL {:.4}", p.value()));
        !interrupt.pressed()
    });
    bar.finish_and_clear();
    let p = result.map_err(|e| CliError::from(e).in_plan(args.plan.plan.is_some()))?;
    if args.json {
        output::json(&json!({
            "model": source.to_string(),
            "n_ctx": window,
            "text_tokens": ids.len(),
            "windows": p.windows,
            "text_windows": total,
            "scored_tokens": p.tokens,
            "loss": p.loss(),
            "perplexity": p.value(),
            "standard_error": p.error(),
        }))?;
    } else {
        output::write(&format!(
            "PPL = {:.4} +/- {:.4} ({} tokens scored in {} of {total} windows of {window})\n",
            p.value(),
            p.error(),
            p.tokens,
            p.windows
        ))?;
    }
    if p.windows < total {
        let why = format!("measuring was ended by Ctrl-C after {} of {total} windows", p.windows);
        return Err(CliError::Interrupted(why));
    }
    Ok(())
}

/// Opens the model with the requested window as context, else the usual one, or the model's own if
/// that is shorter.
fn open(source: &Source, args: &PerplexityArgs, interrupt: &Interrupt) -> Result<Model, CliError> {
    let mut options = run::open_options(&args.open, Tracer::off())?;
    args.plan.apply(&mut options)?;
    options.compile.cancel = Some(interrupt.flag());
    let given = options.context;
    options.context = Some(given.unwrap_or(WINDOW));
    match Model::open(source, &options) {
        Err(Error::Plan(PlanError::Range { high, .. })) if given.is_none() && high < WINDOW => {
            options.context = Some(high);
            Ok(Model::open(source, &options)?)
        }
        opened => Ok(opened?),
    }
}
