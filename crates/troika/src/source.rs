//! The location of a model: in files, or inside this library.

use std::fmt;
use std::path::{Path, PathBuf};

use troika_weights::{self as weights, ModelFiles};

use crate::error::Error;

/// The name of the built-in model, in place of a path.
const NAME: &str = "tiny-moe (built-in)";

/// Bytes aligned for the fastest loads.
#[repr(C, align(64))]
struct Aligned<B: ?Sized>(B);

/// The model of `models/tiny-moe` as a GGUF file, made by `cargo xtask built-in`. Programs that
/// never name it are linked without it.
static BUILT_IN: &Aligned<[u8]> =
    &Aligned(*include_bytes!("../../../models/tiny-moe/tiny-moe-Q8_0.gguf"));

/// Where to find a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder or a .gguf file.
    Path(PathBuf),
    /// The small model inside this library.
    BuiltIn,
}

impl Source {
    /// The bytes of the built-in model.
    pub fn built_in_bytes() -> u64 {
        BUILT_IN.0.len() as u64
    }

    /// Bytes of the files that it is read from.
    pub fn bytes(&self) -> u64 {
        let of = |path: &PathBuf| std::fs::metadata(path).map_or(0, |about| about.len());
        match self {
            Source::Path(path) => weights::files_of_model(path).iter().map(of).sum(),
            Source::BuiltIn => Source::built_in_bytes(),
        }
    }

    /// Its name without folders and a file's ending, for people.
    pub fn name(&self) -> String {
        let Source::Path(path) = self else { return NAME.into() };
        let plain = if path.is_dir() { path.file_name() } else { path.file_stem() };
        plain.map_or_else(|| self.to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// Opens the model's files.
    ///
    /// # Errors
    /// Missing or damaged files.
    pub fn files(&self) -> Result<ModelFiles, Error> {
        Ok(match self {
            Source::Path(path) => weights::open(path)?,
            Source::BuiltIn => weights::open_inside(NAME, &BUILT_IN.0)?,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Path(path) => path.display().fmt(f),
            Source::BuiltIn => f.write_str(NAME),
        }
    }
}

impl<P: AsRef<Path> + ?Sized> From<&P> for Source {
    fn from(path: &P) -> Source {
        Source::Path(path.as_ref().to_path_buf())
    }
}

impl From<&Source> for Source {
    fn from(source: &Source) -> Source {
        source.clone()
    }
}
