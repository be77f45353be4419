//! `troika perplexity`.

use serde_json::json;
use troika::{Error, Model, Outliers, Perplexity, Scored, Source};

use super::calibrate::window_options;
use crate::error::CliError;
use crate::file::read_input;
use crate::flags::{CalibrationArgs, OpenArgs, PerplexityArgs};
use crate::interrupt::Interrupt;
use crate::{expert_groups, output, progress, resolve};

/// Measures and prints.
pub fn run(args: &PerplexityArgs) -> Result<(), CliError> {
    let source = resolve::model(&args.model)?;
    let text = read_input(args.file.as_deref())?;
    let interrupt = Interrupt::listen();
    let measuring = Measuring { args, source: &source, text: &text, interrupt: &interrupt };
    let calibration = &args.open.compute.placement.calibration;
    let ways = &calibration.outliers;
    if calibration.calibration.is_none() || ways.len() <= 1 {
        return measuring.one();
    }
    if args.json {
        let why = "--json: several --outliers are a table; give one";
        return Err(CliError::Usage(why.into()));
    }
    measuring.several(calibration, ways)
}

/// What is measured, and how.
struct Measuring<'a> {
    args: &'a PerplexityArgs,
    source: &'a Source,
    text: &'a str,
    interrupt: &'a Interrupt,
}

/// What was measured.
struct Measured {
    perplexity: Perplexity,
    /// Tokens of a window, and of the text.
    window: usize,
    tokens: usize,
    /// Windows of the text.
    windows: usize,
}

impl Measuring<'_> {
    fn measure(&self, opening: &OpenArgs) -> Result<Measured, CliError> {
        let Measuring { args, source, text, interrupt } = *self;
        let mut options = window_options(opening, source.spec()?.context)?;
        args.plan.apply(&mut options, Some(interrupt))?;
        options.devices.auto = opening.compute.placement.auto_or_open(&opening.compute.quant);
        let model = Model::open(source, &options)?;
        let window = model.context();
        output::warn(model.warnings());
        let none = || CliError::NoTokenizer(source.to_string());
        let tokenizer = model.tokenizer().ok_or_else(none)?;
        // Special tokens in the text are plain text.
        let ids = tokenizer.encode(text, true, false).map_err(Error::from)?;
        let windows = ids.len() / window.max(1);
        let bar = progress::bar(windows as u64, "{msg} [{bar:30}] {pos}/{len} windows {eta}");
        let scored = if args.all { Scored::All } else { Scored::SecondHalf };
        let result = model.perplexity(&ids, window, scored, &mut |p| {
            bar.set_position(p.windows as u64);
            bar.set_message(format!("PPL {:.4}", p.value()));
            !interrupt.pressed()
        });
        bar.finish_and_clear();
        let perplexity = result.map_err(|e| CliError::from(e).in_plan(args.plan.plan.is_some()))?;
        output::note(&expert_groups::text(&model.engine()?.group_stats()));
        Ok(Measured { perplexity, window, tokens: ids.len(), windows })
    }

    fn one(&self) -> Result<(), CliError> {
        let measured = self.measure(&self.args.open)?;
        let Measured { perplexity: p, window, tokens, windows } = &measured;
        if self.args.json {
            output::json(&json!({
                "model": self.source.to_string(),
                "n_ctx": window,
                "text_tokens": tokens,
                "windows": p.windows,
                "text_windows": windows,
                "scored_tokens": p.tokens,
                "loss": p.loss(),
                "perplexity": p.value(),
                "standard_error": p.error(),
            }))?;
        } else {
            output::write(&format!(
                "PPL = {:.4} +/- {:.4} ({} tokens scored in {} of {windows} windows of {window})\n",
                p.value(),
                p.error(),
                p.tokens,
                p.windows
            ))?;
        }
        measured.complete()
    }

    /// A table: floats, then each way to compute with outliers.
    fn several(&self, calibration: &CalibrationArgs, ways: &[Outliers]) -> Result<(), CliError> {
        output::write("| outliers | PPL | +/- | against floats |\n| --- | ---: | ---: | ---: |\n")?;
        // NPUs compute with floats where there is no calibration.
        let none = CalibrationArgs { calibration: None, npu_format: None, ..calibration.clone() };
        let with = |way: &Outliers| CalibrationArgs { outliers: vec![*way], ..calibration.clone() };
        let of_ways = ways.iter().map(|way| (way.to_string(), with(way)));
        let mut floats = None;
        for (name, calibration) in std::iter::once(("floats".into(), none)).chain(of_ways) {
            let mut open = self.args.open.clone();
            open.compute.placement.calibration = calibration;
            let measured = self.measure(&open)?;
            let (value, error) = (measured.perplexity.value(), measured.perplexity.error());
            let change = 100.0 * (value / *floats.get_or_insert(value) - 1.0);
            output::write(&format!("| {name} | {value:.4} | {error:.4} | {change:+.2} % |\n"))?;
            measured.complete()?;
        }
        Ok(())
    }
}

impl Measured {
    /// Checks that all windows were measured.
    fn complete(&self) -> Result<(), CliError> {
        let (done, all) = (self.perplexity.windows, self.windows);
        if done < all {
            let why = format!("measuring was ended by Ctrl-C after {done} of {all} windows");
            return Err(CliError::Interrupted(why));
        }
        Ok(())
    }
}
