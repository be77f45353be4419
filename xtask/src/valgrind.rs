//! `cargo xtask valgrind`: runs the CPU device's tests under valgrind's memcheck, which finds
//! accesses beyond allocations and uses of uninitialised memory. Address sanitizers need nightly
//! Rust; this works on stable.
//!
//! Valgrind emulates a processor with AVX2 but without AVX-512, which the kernels detect as on any
//! machine. So it checks the scalar and AVX2 paths.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::{self, Result, cargo};

/// Run the tests of the CPU device's kernels under valgrind
#[derive(clap::Args)]
pub struct Options {
    /// Random cases per property, of which each takes some 30 times as long
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    cases: u32,
    /// Only tests whose names hold one of these
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
}

/// The crate's test programs to run.
const TESTS: &[&str] = &["kernels", "device"];

/// Builds the tests and runs them.
///
/// # Errors
/// Valgrind is missing, tests do not build, or fail, with status 99 if by valgrind.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    // Optimized, with line numbers for valgrind's reports; release builds have none.
    let args = ["test", "-q", "--profile", "profiling", "-p", "troika-cpu", "--no-run"];
    let mut build = cargo(root, &args);
    build.args(TESTS.iter().flat_map(|t| ["--test", t])).args(["--message-format", "json"]);
    for program in programs(&command::text(&mut build, "the build of the tests")?) {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=99", "--leak-check=no", "--fair-sched=yes"]);
        command.arg(&program).args(&options.filters);
        command.env("PROPTEST_CASES", options.cases.to_string()).current_dir(root);
        command::run(&mut command, &program.display().to_string())?;
    }
    println!("valgrind: nothing found");
    Ok(())
}

/// The test programs among cargo's messages.
fn programs(messages: &str) -> Vec<PathBuf> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?;
        let path = message["executable"].as_str()?;
        TESTS.contains(&name).then(|| PathBuf::from(path))
    };
    messages.lines().filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_messages() {
        let messages = "\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"kernels\"},\"executable\":\"/t/k-1\"}\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"serde\"},\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"other\"},\"executable\":\"/t/o\"}\n\
            not json\n{\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(programs(messages), [PathBuf::from("/t/k-1")]);
    }
}
