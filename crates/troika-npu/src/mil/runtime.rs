//! What runs functions of packages.

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;

/// Where a package's files are.
pub(super) const ROOT: &str = "Data/com.apple.CoreML";

/// Opens functions of packages: Core ML, or what stands in for it in tests.
pub trait CoreMlRuntime: Debug + Send + Sync {
    /// Opens a function of the package in a folder.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open(&self, package: &Path, function: &str) -> Result<Box<dyn CoreMlFunction>, String>;
}

/// What a sequence keeps between runs of functions whose states have the same names and shapes.
pub struct CoreMlState(pub Box<dyn Any + Send>);

/// A function that is ready to run.
pub trait CoreMlFunction: Send {
    /// A state of zeros for its states; functions of the same package with the same states take it,
    /// too.
    ///
    /// # Errors
    /// There is no memory for it.
    fn state(&self) -> Result<CoreMlState, String>;

    /// Runs it. Inputs and outputs go by their names; their bytes are elements of the type that the
    /// package declares, row by row, without gaps.
    ///
    /// # Errors
    /// A name or size that the package does not declare, or what the runtime says.
    fn predict(
        &mut self,
        inputs: &[(&str, &[u8])],
        state: Option<&mut CoreMlState>,
        outputs: &mut [(&str, &mut [u8])],
    ) -> Result<(), String>;
}
