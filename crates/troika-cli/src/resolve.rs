//! Finds a model's files by the name the user gave.

use std::cell::RefCell;
use std::path::PathBuf;

use indicatif::ProgressBar;
use troika::Source;
use troika::model::tokenizer::Tokenizer;
use troika_hub::{HubOptions, Progress};
use troika_lab::Subject;

use crate::error::CliError;
use crate::flags::{ModelArgs, SubjectArgs};
use crate::{output, progress, stats, verdict};

/// The requested model, or the built-in one; a Hub id is fetched. The Hub may answer differently
/// the next time, so a command calls this once.
pub fn model(args: &ModelArgs) -> Result<Source, CliError> {
    let Some(name) = args.positional.as_deref().or(args.model.as_deref()) else {
        return Ok(Source::BuiltIn);
    };
    let mut options = HubOptions { look: Some(verdict::look), ..HubOptions::from_env() };
    options.offline |= args.offline;
    let path = match name.to_str() {
        Some(name) => shown(|show| troika_hub::resolve(name, &options, show))?,
        // The Hub has no such names.
        None => PathBuf::from(name),
    };
    Ok(Source::Path(path))
}

/// Fetches what the Hub has of a model now.
pub fn fetch(name: &str, options: &HubOptions) -> Result<PathBuf, CliError> {
    if options.offline {
        // Its error says what is missing.
        return Ok(troika_hub::resolve(name, options, &|_| {})?);
    }
    Ok(shown(|show| troika_hub::fetch(name, options, show))?)
}

/// Does something that may fetch, and shows its progress.
fn shown<T>(fetch: impl FnOnce(&dyn Fn(Progress<'_>)) -> T) -> T {
    let bar = RefCell::new(None);
    let done = fetch(&|progress| show(&bar, progress));
    if let Some(bar) = bar.take() {
        ProgressBar::finish_and_clear(&bar);
    }
    done
}

/// The model that flags name, or a known shape.
pub fn subject(args: &SubjectArgs) -> Result<Subject, CliError> {
    Ok(match &args.synthetic {
        Some(shape) => Subject::Synthetic(shape.clone()),
        None => Subject::Files(model(&args.model)?),
    })
}

/// Draws a bar per file on a terminal; indicatif draws nothing elsewhere.
fn show(bar: &RefCell<Option<ProgressBar>>, progress: Progress<'_>) {
    match progress {
        Progress::Note(text) => output::note_line(text),
        Progress::Start { model, files, bytes } => {
            let size = bytes.map_or(String::new(), |b| format!(", {:.1} MB", b as f64 / 1e6));
            let files = stats::counted(files, "file");
            output::note_line(&format!("fetching {model}: {files}{size}"));
        }
        Progress::File { name, done, total } => {
            let name = output::printable(name).into_owned();
            let mut bar = bar.borrow_mut();
            let form = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let bar = bar.get_or_insert_with(|| progress::bar(total, form));
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

/// The tokens of a text, in which special tokens are plain text.
pub fn tokens(source: &Source, text: &str) -> Result<Vec<u32>, CliError> {
    Ok(tokenizer(source)?.0.encode(text, true, false).map_err(troika::Error::from)?)
}

/// A model's tokenizer, with a warning.
pub fn tokenizer(source: &Source) -> Result<(Tokenizer, Option<String>), CliError> {
    source.tokenizer().map_err(|e| match e {
        troika::Error::NoTokenizer(model) => CliError::NoTokenizer(model),
        e => e.into(),
    })
}
