//! Tells the command which commit it is built from, with which features and for which target.
//!
//! Git's log of commits is watched, so a commit builds this crate again, and none that it uses.

#![allow(clippy::disallowed_methods, clippy::print_stdout)]

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TROIKA_COMMIT");
    // A release is told its commit, since it also says whether files were changed.
    let commit = std::env::var("TROIKA_COMMIT").ok().or_else(checked_out);
    println!("cargo::rustc-env=TROIKA_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    let gpu = std::env::var_os("CARGO_FEATURE_GPU").is_some();
    println!("cargo::rustc-env=TROIKA_FEATURES={}", if gpu { "gpu" } else { "none" });
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=TROIKA_TARGET={target}");
}

/// The commit of this checkout; none for sources without git, also below another repository.
fn checked_out() -> Option<String> {
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    // A file that is not there would build this crate again each time.
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_string())
}
