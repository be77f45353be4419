//! From what the user calls a model to a path.

use std::path::{Path, PathBuf};

use crate::error::CliError;
use crate::flags::ModelArgs;

/// The built-in model's folder, relative to the project.
const BUILT_IN: &str = "models/tiny-moe";

/// The path of the model the user asked for.
///
/// # Errors
/// A model that is not there.
pub fn model(args: &ModelArgs) -> Result<PathBuf, CliError> {
    match args.positional.as_deref().or(args.model.as_deref()) {
        None => built_in(),
        Some(name) => {
            let path = Path::new(name);
            if path.exists() {
                return Ok(path.to_path_buf());
            }
            Err(CliError::Failure(format!("{name}: no such file or folder")))
        }
    }
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
