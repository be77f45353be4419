//! `cargo xtask valgrind`: runs the CPU device's tests under valgrind's memcheck, which finds
//! accesses beyond allocations and uses of uninitialised memory. Address sanitizers need nightly
//! Rust; this works on stable.
//!
//! Valgrind emulates a processor with AVX2 but without AVX-512, which the kernels detect as on any
//! machine. So it checks the scalar and AVX2 paths.

use std::path::Path;

use crate::command::{self, Result, cargo};

/// Makes cargo start test programs with valgrind.
const RUNNER: &str = "target.'cfg(all())'.runner = \
    'valgrind --quiet --error-exitcode=99 --leak-check=no --fair-sched=yes'";

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

/// Builds the tests and runs them.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    // Optimized, with line numbers for valgrind's reports; release builds have none.
    let tests = ["test", "-q", "--profile", "profiling", "-p", "troika-cpu"];
    let mut cargo = cargo(root, &tests);
    cargo.args(["--test", "kernels", "--test", "device", "--config", RUNNER, "--"]);
    cargo.args(&options.filters).env("PROPTEST_CASES", options.cases.to_string());
    command::run(&mut cargo, "a test under valgrind")?;
    println!("valgrind: nothing found");
    Ok(())
}
