//! `cargo xtask fuzz`: runs every target of `fuzz/Cargo.toml` under libFuzzer, built with the
//! project's stable compiler. The address sanitizers of `cargo fuzz` need nightly Rust; the parsers
//! have no unsafe code, so an access out of bounds panics without them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{self, Result, cargo, failed};

/// Feed mutated files to the parsers, starting from the files of fuzz/seeds
///
/// Inputs that reach new code are added to fuzz/corpus/TARGET, inputs that crash, take more than
/// 30 seconds or more than 2 GB of memory are written to fuzz/artifacts/TARGET; git ignores both.
#[derive(clap::Args)]
pub struct Options {
    /// Time per target
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The same in minutes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1_000_000), conflicts_with = "seconds")]
    minutes: Option<u32>,
    /// Names from fuzz/Cargo.toml [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// Seconds after which an input counts as an endless loop. The slowest known one, a chat template
/// that uses up its budget, takes four on an idle core.
const INPUT_SECONDS: u32 = 30;
/// Address space of a target. Allocations beyond it fail, touched or not.
const MEMORY_MB: u32 = 2048;

/// Coverage in libFuzzer's format: a counter per branch, a table of their addresses, and the
/// operands of comparisons. Branches are not merged, so that each is seen.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "--cfg=fuzzing",
];

/// Builds the targets and runs each.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let folder = root.join("fuzz");
    let seconds = options.minutes.map_or(options.seconds, |minutes| 60 * minutes);
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|e| failed("read", &manifest, &e))?;
    let targets = choose(&declared(&text)?, &options.targets)?;
    let host = host()?;
    build(&folder, &host, &targets)?;
    let programs = folder.join("target").join(&host).join("release");
    let mut failed = Vec::new();
    for target in &targets {
        println!("fuzz {target}");
        failed.extend(fuzz(&folder, &programs.join(target), target, seconds).err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// The names of the manifest's programs.
fn declared(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table =
        manifest.parse().map_err(|e| format!("fuzz/Cargo.toml is not a manifest: {e}"))?;
    let programs = manifest.get("bin").and_then(toml::Value::as_array);
    let name = |p: &toml::Value| Some(p.get("name")?.as_str()?.to_string());
    Ok(programs.into_iter().flatten().filter_map(name).collect())
}

/// All targets, or the named ones.
fn choose(all: &[String], named: &[String]) -> Result<Vec<String>> {
    match named.iter().find(|n| !all.contains(n)) {
        Some(unknown) => Err(format!("no target is {unknown}; there are {}", all.join(", "))),
        None => Ok(if named.is_empty() { all } else { named }.to_vec()),
    }
}

/// The machine's own target. Naming it to cargo makes build scripts, which have no fuzzer to link
/// with, build without coverage.
fn host() -> Result<String> {
    let text = command::text(Command::new("rustc").arg("-vV"), "rustc")?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    Ok(host.ok_or("rustc does not name its host")?.to_string())
}

fn build(folder: &Path, host: &str, targets: &[String]) -> Result<()> {
    let mut command = cargo(folder, &["build", "--release", "--target", host]);
    command.args(targets.iter().flat_map(|t| ["--bin", t]));
    command.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"));
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    command::run(&mut command, "the build of the targets")
}

fn fuzz(folder: &Path, program: &Path, target: &str, seconds: u32) -> Result<()> {
    let seeds = folder.join("seeds").join(target);
    if !fs::read_dir(&seeds).is_ok_and(|mut files| files.next().is_some()) {
        return Err(format!(
            "{} has no files; put valid inputs there: without them mutations do not get past the \
             first check",
            seeds.display()
        ));
    }
    let made = |name: &str| -> Result<PathBuf> {
        let path = folder.join(name).join(target);
        fs::create_dir_all(&path).map_err(|e| failed("make", &path, &e))?;
        Ok(path)
    };
    let (corpus, artifacts) = (made("corpus")?, made("artifacts")?);
    // libFuzzer measures resident memory once a second; the shell's limit also stops an allocation
    // of gigabytes that is never touched.
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -v {}; exec \"$@\"", MEMORY_MB * 1024)).arg("sh");
    command.arg(program).arg(corpus).arg(seeds);
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-timeout={INPUT_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MB}"));
    command.args(["-print_final_stats=1", "-verbosity=0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command::run(&mut command, target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_from_the_manifest() {
        let manifest = "[package]\nname = \"f\"\n[[bin]]\nname = \"a\"\n[[bin]]\nname = \"b\"\n";
        let all = declared(manifest).unwrap();
        assert_eq!(all, ["a", "b"]);
        assert_eq!(choose(&all, &[]).unwrap(), ["a", "b"]);
        assert_eq!(choose(&all, &all[1..]).unwrap(), ["b"]);
        assert!(choose(&all, &["c".to_string()]).unwrap_err().contains("a, b"));
    }
}
