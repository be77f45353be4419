//! `cargo xtask loom`: how queues wait for each other, in all interleavings of their threads.
//!
//! The loom crate takes the place of the standard library's atomics and locks where `cfg(loom)` is
//! set. That changes how everything is built, so these builds have a folder of their own.

use std::path::Path;
use std::process::Command;

/// What `--help` says.
pub const HELP: &str = "\
Runs the tests of what queues wait by in all interleavings of their threads (crate loom).

Usage: cargo xtask loom
";

/// Builds and runs them.
///
/// # Errors
/// Tests that do not build, and interleavings that fail.
pub fn run(root: &Path) -> Result<(), String> {
    let mut command = Command::new("cargo");
    command.args(["test", "--release", "--target-dir", "target/loom"]);
    command.args(["-p", "troika-device", "--lib", "timeline"]);
    let status = command.env("RUSTFLAGS", "--cfg loom").current_dir(root).status();
    let status = status.map_err(|e| format!("cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("tests failed ({status})")) }
}
