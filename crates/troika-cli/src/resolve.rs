//! From what the user calls a model to a path.

use std::cell::RefCell;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use troika_hub::{HubOptions, Progress};

use crate::error::CliError;
use crate::flags::ModelArgs;
use crate::output;

/// The built-in model's folder, relative to the project.
const BUILT_IN: &str = "models/tiny-moe";

/// The path of the model the user asked for; fetches it when it is a Hub id.
///
/// # Errors
/// A model that is not there.
pub fn model(args: &ModelArgs) -> Result<PathBuf, CliError> {
    let Some(name) = args.positional.as_deref().or(args.model.as_deref()) else {
        return built_in();
    };
    let mut options = HubOptions::from_env();
    options.offline |= args.offline;
    let bar = RefCell::new(None);
    let path = troika_hub::resolve(name, &options, &|p| show(&bar, p))?;
    if let Some(bar) = bar.take() {
        ProgressBar::finish_and_clear(&bar);
    }
    Ok(path)
}

/// Draws a bar per file on a terminal; indicatif draws nothing elsewhere.
fn show(bar: &RefCell<Option<ProgressBar>>, progress: Progress<'_>) {
    match progress {
        Progress::Note(text) => output::note_line(text),
        Progress::Start { model, files, bytes } => {
            let size = bytes.map_or(String::new(), |b| format!(", {:.1} MB", b as f64 / 1e6));
            output::note_line(&format!("fetching {model}: {files} files{size}"));
        }
        Progress::File { name, done, total } => {
            let name = output::printable(name).into_owned();
            let mut bar = bar.borrow_mut();
            let bar = bar.get_or_insert_with(|| ProgressBar::new(total).with_style(style()));
            if bar.message() != name {
                bar.set_message(name);
                bar.reset();
            }
            bar.set_length(total);
            bar.set_position(done);
        }
        _ => {}
    }
}

fn style() -> ProgressStyle {
    let form = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Looks for the built-in model above the program, above the current folder, and where the
/// program was built.
fn built_in() -> Result<PathBuf, CliError> {
    let exe = std::env::current_exe().ok();
    let here = std::env::current_dir().ok();
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let starts = [exe, here, Some(built)];
    starts
        .iter()
        .flatten()
        .flat_map(|p| p.ancestors())
        .map(|p| p.join(BUILT_IN))
        .find(|p| p.join("config.json").exists())
        .ok_or_else(|| {
            CliError::Failure(format!(
                "the built-in model ({BUILT_IN}) is not beside this program; name a model with -m"
            ))
        })
}
