//! `cargo xtask fuzz`: runs every target of `fuzz/Cargo.toml` under libFuzzer, built with the
//! project's stable compiler. The address sanitizers of `cargo fuzz` need nightly Rust; the parsers
//! have no unsafe code, so an access out of bounds panics without them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The text of `--help`.
pub const HELP: &str = "\
Feeds mutated files to the parsers, starting from the files of fuzz/seeds.

Usage: cargo xtask fuzz [--seconds N | --minutes N] [TARGET]...

  --seconds N  time per target [default: 60]
  --minutes N  the same in minutes
  TARGET       names from fuzz/Cargo.toml [default: all]

Inputs that reach new code are added to fuzz/corpus/TARGET, inputs that crash, take more than
30 seconds or more than 2 GB of memory are written to fuzz/artifacts/TARGET; git ignores both.
";

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
///
/// # Errors
/// Invalid flags, targets that do not build, and inputs that fail.
pub fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let folder = root.join("fuzz");
    let (seconds, named) = options(args)?;
    let manifest = folder.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)
        .map_err(|e| format!("cannot read {}: {e}", manifest.display()))?;
    let targets = choose(&declared(&text)?, &named)?;
    let host = host()?;
    build(&folder, &host, &targets)?;
    let programs = folder.join("target").join(&host).join("release");
    let mut failed = Vec::new();
    for target in &targets {
        let result = fuzz(&folder, &programs.join(target), target, seconds)?;
        println!("{}", result.line(target));
        if !result.passed {
            println!("{}", result.excerpt);
            failed.push(target.as_str());
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        names => Err(format!("failed: {}", names.join(", "))),
    }
}

fn options<'a>(args: &[&'a str]) -> Result<(u32, Vec<&'a str>), String> {
    let (mut seconds, mut named) = (60, Vec::new());
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        let unit = match arg {
            "--seconds" => 1,
            "--minutes" => 60,
            _ if arg.starts_with('-') => return Err(format!("unknown flag {arg}")),
            _ => {
                named.push(arg);
                continue;
            }
        };
        let number = args.next().and_then(|n| n.parse::<u32>().ok()).filter(|&n| n > 0);
        let number = number.and_then(|n| n.checked_mul(unit));
        seconds = number.ok_or_else(|| format!("{arg} needs a number of at least 1"))?;
    }
    Ok((seconds, named))
}

/// The names of the manifest's programs.
fn declared(manifest: &str) -> Result<Vec<String>, String> {
    let manifest: toml::Table =
        manifest.parse().map_err(|e| format!("fuzz/Cargo.toml is not a manifest: {e}"))?;
    let programs = manifest.get("bin").and_then(toml::Value::as_array);
    let name = |p: &toml::Value| Some(p.get("name")?.as_str()?.to_string());
    Ok(programs.into_iter().flatten().filter_map(name).collect())
}

/// All targets, or the named ones.
fn choose(all: &[String], named: &[&str]) -> Result<Vec<String>, String> {
    if let Some(unknown) = named.iter().find(|n| !all.iter().any(|a| a == *n)) {
        return Err(format!("no target is called {unknown}; there are {}", all.join(", ")));
    }
    let wanted = |a: &&String| named.is_empty() || named.contains(&a.as_str());
    Ok(all.iter().filter(wanted).cloned().collect())
}

/// The machine's own target. Naming it to cargo makes build scripts, which have no fuzzer to link
/// with, build without coverage.
fn host() -> Result<String, String> {
    let out = Command::new("rustc").arg("-vV").output();
    let out = out.map_err(|e| format!("rustc does not start: {e}"))?.stdout;
    let text = String::from_utf8_lossy(&out).into_owned();
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    Ok(host.ok_or("rustc does not name its host")?.to_string())
}

fn build(folder: &Path, host: &str, targets: &[String]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--target", host, "--manifest-path"]);
    command.arg(folder.join("Cargo.toml"));
    command.args(targets.iter().flat_map(|t| ["--bin", t]));
    command.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"));
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    let status = command.status().map_err(|e| format!("cannot run cargo: {e}"))?;
    if status.success() { Ok(()) } else { Err("the targets do not build".to_string()) }
}

/// The result of one target.
struct Outcome {
    passed: bool,
    executions: Option<u64>,
    coverage: Option<u64>,
    artifact: Option<String>,
    /// For failures: the end of the target's output.
    excerpt: String,
}

impl Outcome {
    /// Parses libFuzzer's output.
    fn read(passed: bool, log: &str) -> Outcome {
        let number = |text: &str| text.split_whitespace().next()?.parse().ok();
        let after = |label: &str| log.rsplit_once(label).and_then(|(_, rest)| number(rest));
        let artifact = log.rsplit_once("Test unit written to ").and_then(|(_, rest)| {
            Some(rest.lines().next()?.trim().to_string()).filter(|l| !l.is_empty())
        });
        let lines: Vec<&str> = log.lines().collect();
        // After a crash come statistics and the input in base 64; the cause is above.
        let excerpt = lines[lines.len().saturating_sub(40)..].join("\n");
        Outcome {
            passed,
            executions: after("stat::number_of_executed_units:"),
            coverage: after(" cov: "),
            artifact,
            excerpt,
        }
    }

    fn line(&self, target: &str) -> String {
        let or_unknown = |n: Option<u64>| n.map_or("?".to_string(), |n| n.to_string());
        let (runs, coverage) = (or_unknown(self.executions), or_unknown(self.coverage));
        let end = match (&self.artifact, self.passed) {
            (_, true) => "passed".to_string(),
            (Some(file), false) => format!("FAILED on {file}"),
            (None, false) => "FAILED".to_string(),
        };
        format!("fuzz {target}: {runs} executions, {coverage} branches covered, {end}")
    }
}

fn fuzz(folder: &Path, program: &Path, target: &str, seconds: u32) -> Result<Outcome, String> {
    let seeds = folder.join("seeds").join(target);
    if !fs::read_dir(&seeds).is_ok_and(|mut files| files.next().is_some()) {
        return Err(format!(
            "{} has no files; put valid inputs there: without them mutations do not get past the \
             first check",
            seeds.display()
        ));
    }
    let made = |name: &str| -> Result<PathBuf, String> {
        let path = folder.join(name).join(target);
        fs::create_dir_all(&path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
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
    command.args(["-print_final_stats=1", "-verbosity=1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let out = command.output().map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    Ok(Outcome::read(out.status.success(), &String::from_utf8_lossy(&out.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_targets_are_read() {
        assert_eq!(options(&[]).unwrap(), (60, vec![]));
        assert_eq!(options(&["a", "--minutes", "2", "b"]).unwrap(), (120, vec!["a", "b"]));
        assert_eq!(options(&["--seconds", "5"]).unwrap(), (5, vec![]));
        for bad in [&["--seconds"][..], &["--minutes", "0"], &["--minutes", "99999999"], &["-x"]] {
            assert!(options(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn targets_come_from_the_manifest() {
        let manifest = "[package]\nname = \"f\"\n[[bin]]\nname = \"a\"\n[[bin]]\nname = \"b\"\n";
        let all = declared(manifest).unwrap();
        assert_eq!(all, ["a", "b"]);
        assert_eq!(choose(&all, &[]).unwrap(), ["a", "b"]);
        assert_eq!(choose(&all, &["b"]).unwrap(), ["b"]);
        assert!(choose(&all, &["c"]).unwrap_err().contains("a, b"));
    }

    #[test]
    fn a_run_is_summed_up() {
        let log = "#2\tINITED cov: 12 ft: 13\n#9\tNEW    cov: 345 ft: 400 corp: 2/9b\n\
                   #9\tDONE   cov: 346 ft: 401 corp: 2/9b\n\
                   stat::number_of_executed_units: 777\nstat::average_exec_per_sec: 7\n";
        let passed = Outcome::read(true, log).line("t");
        assert_eq!(passed, "fuzz t: 777 executions, 346 branches covered, passed");
        let log = "thread panicked at 'x'\nartifact_prefix='./'; Test unit written to ./crash-1\n";
        let failed = Outcome::read(false, log);
        assert_eq!(
            failed.line("t"),
            "fuzz t: ? executions, ? branches covered, FAILED on ./crash-1"
        );
        assert!(failed.excerpt.contains("panicked"));
    }
}
