//! An interpreter of Core ML's programs, which stands in for Core ML in tests: it reads packages
//! from their files as a stranger, refuses what it does not know, and rounds each result to its
//! declared type.

mod call;
mod data;
mod moves;
mod ops;
mod package;
mod products;
mod program;
mod region;

use std::path::Path;

use troika::npu::mil::{CoreMlFunction, CoreMlRuntime};

/// Runs packages on the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

impl CoreMlRuntime for Interpreter {
    fn open(&self, package: &Path, function: &str) -> Result<Box<dyn CoreMlFunction>, String> {
        let opened = package::Package::read(package)?;
        let program = program::Program::new(&opened, function)
            .map_err(|e| format!("{}, function `{function}`: {e}", package.display()))?;
        Ok(Box::new(program))
    }
}
