//! Programs that the chores run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A result whose error is a sentence.
pub type Result<T> = std::result::Result<T, String>;

/// Cargo in the workspace, with these arguments.
pub fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root);
    command
}

/// Runs a command, whose output is seen, to its end.
pub fn run(command: &mut Command, what: &str) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|e| format!("cannot run {name}: {e}"))?;
    status.success().then_some(()).ok_or_else(|| format!("{what} failed ({status})"))
}

/// Runs a command to its end, whatever that is.
pub fn output(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(|e| format!("cannot run {name}: {e}"))
}

/// What a command prints.
///
/// # Errors
/// It does not start or fails; the end of its errors is in the sentence.
pub fn text(command: &mut Command, what: &str) -> Result<String> {
    let out = output(command)?;
    if !out.status.success() {
        let errors = String::from_utf8_lossy(&out.stderr);
        let lines: Vec<&str> = errors.trim_end().lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n");
        return Err(format!("{what} failed ({}): {tail}", out.status));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Builds the command `troika` and returns its path.
pub fn build_troika(root: &Path) -> Result<PathBuf> {
    run(&mut cargo(root, &["build", "-q", "--release", "-p", "troika-cli"]), "cargo build")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("release/troika"))
}

/// Runs the script `xtask/NAME` with these arguments, by the Python of an environment in `target`
/// with these packages. The environment is made and the packages are installed if need be.
pub fn script(
    root: &Path,
    name: &str,
    environment: &str,
    packages: &[&str],
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    let dir = root.join("target").join(environment);
    let python = dir.join("bin/python");
    if !python.exists() {
        text(Command::new("python3").args(["-m", "venv"]).arg(&dir), "python3 -m venv")?;
    }
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]);
    text(pip.args(packages), "pip install")?;
    run(Command::new(python).arg(root.join("xtask").join(name)).args(args), name)
}

/// A sentence about a file.
pub fn failed(what: &str, path: &Path, e: &std::io::Error) -> String {
    format!("cannot {what} {}: {e}", path.display())
}
