//! `cargo xtask valgrind`: runs the CPU device's tests under valgrind's memcheck, which finds
//! accesses beyond allocations and uses of uninitialised memory. Address sanitizers need nightly
//! Rust; this works on stable.
//!
//! Valgrind emulates a processor with AVX2 but without AVX-512, which the kernels detect as on any
//! machine. So it checks the scalar and AVX2 paths.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The text of `--help`.
pub const HELP: &str = "\
Runs the tests of the CPU device's kernels under valgrind.

Usage: cargo xtask valgrind [--cases N] [FILTER]...

  --cases N   random cases per property, of which each takes some 30 times as long [default: 4]
  FILTER      only tests whose names hold one of these
";

/// The crate's test programs to run.
const TESTS: &[&str] = &["kernels", "device"];

/// Builds the tests and runs them.
///
/// # Errors
/// Valgrind is missing, tests do not build, or valgrind finds errors.
pub fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let (cases, filters) = options(args)?;
    for program in build(root)? {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=99", "--leak-check=no", "--fair-sched=yes"]);
        command.arg(&program).args(&filters).env("PROPTEST_CASES", cases.to_string());
        command.current_dir(root);
        let status = command.status().map_err(|e| format!("cannot run valgrind: {e}"))?;
        if !status.success() {
            let found = match status.code() {
                Some(99) => "valgrind found errors",
                _ => "tests failed",
            };
            return Err(format!("{found} ({status}) in {}", program.display()));
        }
    }
    println!("valgrind: nothing found");
    Ok(())
}

fn options<'a>(args: &[&'a str]) -> Result<(u32, Vec<&'a str>), String> {
    let (mut cases, mut filters) = (4, Vec::new());
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        if arg == "--cases" {
            let n = args.next().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
            cases = n.ok_or("--cases needs a number of at least 1")?;
        } else if arg.starts_with('-') {
            return Err(format!("unknown flag {arg}"));
        } else {
            filters.push(arg);
        }
    }
    Ok((cases, filters))
}

/// Builds the test programs.
fn build(root: &Path) -> Result<Vec<PathBuf>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Optimized, with line numbers for valgrind's reports; release builds have none.
    command.args(["test", "-q", "--profile", "profiling", "-p", "troika-cpu", "--no-run"]);
    command.args(TESTS.iter().flat_map(|t| ["--test", t]));
    command.args(["--message-format", "json"]).current_dir(root);
    let out = command.output().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !out.status.success() {
        return Err(format!("the tests do not build: {}", String::from_utf8_lossy(&out.stderr)));
    }
    Ok(programs(&String::from_utf8_lossy(&out.stdout)))
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
    fn flags_and_filters_are_read() {
        assert_eq!(options(&[]).unwrap(), (4, vec![]));
        assert_eq!(options(&["a", "--cases", "9", "b"]).unwrap(), (9, vec!["a", "b"]));
        for bad in [&["--cases"][..], &["--cases", "x"], &["--cases", "0"], &["--fast"]] {
            assert!(options(bad).is_err(), "{bad:?}");
        }
    }

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
