//! `cargo xtask loom`: tests how queues wait for each other, in all interleavings of threads.
//!
//! With `cfg(loom)`, the loom crate replaces the standard library's atomics and locks. That affects
//! all builds, so these have a separate folder.

use std::path::Path;
use std::process::Command;

/// The text of `--help`.
pub const HELP: &str = "\
Runs the tests of what queues wait by in all interleavings of their threads (crate loom).

Usage: cargo xtask loom
";

/// Builds and runs the tests.
///
/// # Errors
/// Tests that do not build, and failing interleavings.
pub fn run(root: &Path) -> Result<(), String> {
    let mut command = Command::new("cargo");
    command.args(["test", "--release", "--target-dir", "target/loom"]);
    command.args(["-p", "troika-device", "--lib", "timeline"]);
    let status = command.env("RUSTFLAGS", "--cfg loom").current_dir(root).status();
    let status = status.map_err(|e| format!("cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("tests failed ({status})")) }
}
