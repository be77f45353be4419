//! `cargo xtask dist`: the files of a release, made by `xtask/dist.py`.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use crate::command::{self, Result};

/// What the script needs, in the versions that it is tested with.
const PACKAGES: &[&str] = &["maturin==1.16.0", "ziglang==0.17.1"];

/// Runs the script with these arguments. `root` is the workspace.
pub fn run(root: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
    let python = command::python(&root.join("target/dist/tools"), PACKAGES)?;
    command::run(Command::new(python).arg(root.join("xtask/dist.py")).args(args), "dist.py")
}
