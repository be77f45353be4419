//! `troika calibrate`.

use serde_json::json;
use troika::plan::{Calibration, PlanError};
use troika::trace::Tracer;
use troika::{Error, calibrate};

use super::run::open_options;
use crate::error::CliError;
use crate::flags::CalibrateArgs;
use crate::input::read_input;
use crate::interrupt::Interrupt;
use crate::{file, output, progress, resolve};

/// Tokens of a window.
const WINDOW: usize = 512;

/// Reads the text with the model and writes what it showed.
///
/// # Errors
/// A model that cannot be opened or has no tokenizer, a file that cannot be read or written.
pub fn run(args: &CalibrateArgs) -> Result<(), CliError> {
    file::check("calibration", Some(&args.out))?;
    let source = resolve::model(&args.model)?;
    let text = read_input(args.file.as_deref())?;
    let interrupt = Interrupt::listen();
    let mut options = open_options(&args.open, Tracer::off())?;
    let given = options.context;
    options.context = Some(given.unwrap_or(WINDOW));
    let mut counting = progress::counting("calibrating");
    let mut go_on = |done: usize, all: usize| {
        counting(done, all);
        !interrupt.pressed()
    };
    let calibration = match calibrate(&source, &options, &text, &mut go_on) {
        Err(Error::Plan(PlanError::Range { high, .. })) if given.is_none() && high < WINDOW => {
            options.context = Some(high);
            calibrate(&source, &options, &text, &mut go_on)?
        }
        done => done?,
    };
    let Some(calibration) = calibration else {
        return Err(CliError::Interrupted("calibrating was ended; nothing is written".into()));
    };
    let text = calibration.to_json();
    file::write("calibration", &args.out, |to| to.write_all(text.as_bytes()))?;
    let found = calibration.summary();
    match args.json {
        true => output::json(&json!({
            "file": args.out.display().to_string(),
            "tokens": calibration.tokens,
            "products": found.products,
            "columns": found.columns,
            "outlier_columns": found.outlier_columns,
            "hot_share": found.hot_share,
            "importance": found.importance,
        })),
        false => output::write(&table(&calibration)),
    }
}

fn table(calibration: &Calibration) -> String {
    let found = calibration.summary();
    let percent = |part: usize| 100.0 * part as f64 / found.columns.max(1) as f64;
    let mut text = format!(
        "{} tokens, {} products. {} of {} input columns had outliers ({:.2} %); in the mean, {:.2} % \
         of a product's columns have 80 % of them.\n",
        calibration.tokens,
        found.products,
        found.outlier_columns,
        found.columns,
        percent(found.outlier_columns),
        100.0 * found.hot_share
    );
    for (weight, importance) in found.importance.iter().take(10) {
        text.push_str(&format!("{weight}: up to {importance:.1} times the limit\n"));
    }
    text
}
