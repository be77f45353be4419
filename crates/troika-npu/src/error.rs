//! Why there is no NPU: for each step on the way to one, with what mends it.

use std::path::{Path, PathBuf};

/// The step on the way to an NPU that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NpuError {
    /// No runtime.
    #[error(
        "ONNX Runtime was not found; install it with: pip install onnxruntime==1.31.1, and \
         activate that Python environment or set ORT_DYLIB_PATH to the library"
    )]
    NoRuntime,
    /// A file that is not a runtime.
    #[error(
        "{file} cannot be loaded as ONNX Runtime: {why}; let ORT_DYLIB_PATH name its library, or \
         install: pip install onnxruntime==1.31.1"
    )]
    BadRuntime {
        /// The file.
        file: PathBuf,
        /// What the system says.
        why: String,
    },
    /// A runtime from before what is needed.
    #[error(
        "{file} is ONNX Runtime {version}, which is too old; install: pip install \
         onnxruntime==1.31.1"
    )]
    OldRuntime {
        /// The file.
        file: PathBuf,
        /// Its version.
        version: String,
    },
    /// No plugin beside the runtime.
    #[error("{looked} was not found; install the plugin with: pip install {package}")]
    NoPlugin {
        /// Where it should be.
        looked: PathBuf,
        /// The package that has it.
        package: &'static str,
    },
    /// A plugin that does not load.
    #[error("{file} cannot be loaded: {why}; install it again with: pip install {package}")]
    BadPlugin {
        /// The file.
        file: PathBuf,
        /// What the runtime says.
        why: String,
        /// The package that has it.
        package: &'static str,
    },
    /// What is asked for is not here, or cannot be done: a sentence.
    #[error("{0}")]
    Unfit(String),
}

impl NpuError {
    /// The command that mends it, where one does.
    pub fn remedy(&self) -> Option<String> {
        match self {
            NpuError::NoRuntime | NpuError::BadRuntime { .. } | NpuError::OldRuntime { .. } => {
                Some("pip install onnxruntime==1.31.1".into())
            }
            NpuError::NoPlugin { package, .. } | NpuError::BadPlugin { package, .. } => {
                Some(format!("pip install {package}"))
            }
            NpuError::Unfit(_) => None,
        }
    }

    /// The folder for profilers' files cannot be made or written.
    pub(crate) fn no_folder(folder: &Path, why: &std::io::Error) -> NpuError {
        let folder = folder.display();
        NpuError::Unfit(format!("profiles cannot be written to the folder {folder}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::NpuError;

    #[test]
    fn a_remedy_is_what_the_sentence_says() {
        let file = || "f".into();
        for error in [
            NpuError::NoRuntime,
            NpuError::BadRuntime { file: file(), why: "w".into() },
            NpuError::OldRuntime { file: file(), version: "1".into() },
            NpuError::NoPlugin { looked: file(), package: "p==1" },
            NpuError::BadPlugin { file: file(), why: "w".into(), package: "p==1" },
        ] {
            let remedy = error.remedy().unwrap();
            assert!(error.to_string().contains(&remedy), "{error}: {remedy}");
        }
        assert_eq!(NpuError::Unfit("x".into()).remedy(), None);
    }
}
