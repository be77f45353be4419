//! Flags of `cargo xtask peers`.

use std::path::PathBuf;

use super::Result;
use super::{export, shapes};

/// The text of `--help`.
pub const HELP: &str = "\
Times Troika and its peers on the same GGUF files, in turns, and prints the ratios: llama.cpp and,
with --ik, ik_llama.cpp.

Usage: cargo xtask peers [DIR] [FLAGS]

DIR keeps llama.cpp and the models [default: target/peers]; both are made on first use: llama.cpp
from the source package of llama-cpp-python (needs Python, a C++ compiler and some minutes), the
models with random weights of known shapes, `tiny-moe` from the built-in model.

Flags:
  --llama DIR      folder with llama-bench and llama-quantize, instead of building them
  --ik DIR         folder with the llama-bench of ik_llama.cpp, which is measured too: once as it
                   is, once with weights repacked at load (-rtr 1); it has no depths (-d)
  --models DIR     folder of the models [default: DIR/models]
  --file FILE      a GGUF file to measure instead of the shapes; may be repeated
  --troika FILE    the troika command, instead of building it
  --shapes LIST    shapes [default: qwen3-0.6b,qwen3-moe-1b]
  --types LIST     types, as llama-quantize calls them [default: BF16,Q8_0,Q4_0,Q4_K_M]
  -p LIST          prompt lengths [default: 512]
  -n LIST          tokens to decode [default: 64]
  -d LIST          tokens in the context before [default: 0]
  -t N             threads [default: one per core]
  -r N             repetitions of a turn [default: 2]
  --rounds N       turns of each [default: 3]
  --only-make      make tools and models, print the files, measure nothing
";

/// The parsed flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub dir: Option<PathBuf>,
    pub llama: Option<PathBuf>,
    pub ik: Option<PathBuf>,
    pub models: Option<PathBuf>,
    pub files: Vec<PathBuf>,
    pub troika: Option<PathBuf>,
    pub shapes: Vec<String>,
    pub types: Vec<String>,
    /// Prompt lengths, tokens to decode, and depths, in the commands' format.
    pub tests: [String; 3],
    pub threads: usize,
    pub repetitions: usize,
    pub rounds: usize,
    pub only_make: bool,
}

impl Options {
    /// Parses the flags.
    ///
    /// # Errors
    /// Unknown flags, shapes or numbers.
    pub fn parse(args: &[&str]) -> Result<Options> {
        let list = |s: &str| -> Vec<String> { s.split(',').map(str::to_string).collect() };
        let mut o = Options {
            dir: None,
            llama: None,
            ik: None,
            models: None,
            files: Vec::new(),
            troika: None,
            shapes: list("qwen3-0.6b,qwen3-moe-1b"),
            types: list("BF16,Q8_0,Q4_0,Q4_K_M"),
            tests: ["512", "64", "0"].map(str::to_string),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            repetitions: 2,
            rounds: 3,
            only_make: false,
        };
        let mut args = args.iter();
        while let Some(&flag) = args.next() {
            if flag == "--only-make" {
                o.only_make = true;
                continue;
            }
            if !flag.starts_with('-') {
                o.dir = Some(flag.into());
                continue;
            }
            let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag {
                "--llama" => o.llama = Some(value()?.into()),
                "--ik" => o.ik = Some(value()?.into()),
                "--models" => o.models = Some(value()?.into()),
                "--file" => o.files.push(value()?.into()),
                "--troika" => o.troika = Some(value()?.into()),
                "--shapes" => o.shapes = list(value()?),
                "--types" => o.types = list(value()?),
                "-p" => o.tests[0] = numbers(flag, value()?)?,
                "-n" => o.tests[1] = numbers(flag, value()?)?,
                "-d" => o.tests[2] = numbers(flag, value()?)?,
                "-t" => o.threads = count(flag, value()?)?,
                "-r" => o.repetitions = count(flag, value()?)?,
                "--rounds" => o.rounds = count(flag, value()?)?,
                _ => return Err(format!("unknown flag {flag}; see cargo xtask peers --help")),
            }
        }
        let known = |s: &&String| *s == export::BUILT_IN || shapes::is_known(s);
        match o.shapes.iter().find(|s| !known(s)) {
            Some(s) => Err(format!(
                "unknown shape {s}; known: {}, {}",
                shapes::names().join(", "),
                export::BUILT_IN
            )),
            None => Ok(o),
        }
    }
}

fn count(flag: &str, value: &str) -> Result<usize> {
    let n = value.parse().ok().filter(|&n| n > 0);
    n.ok_or_else(|| format!("{flag} {value}: not a number of at least 1"))
}

fn numbers(flag: &str, value: &str) -> Result<String> {
    match value.split(',').all(|n| n.parse::<usize>().is_ok()) {
        true => Ok(value.to_string()),
        false => Err(format!("{flag} {value}: not a list of numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read() {
        let o = Options::parse(&["x", "-p", "8,16", "--types", "Q8_0", "--rounds", "5"]).unwrap();
        assert_eq!(o.dir, Some("x".into()));
        assert_eq!(o.tests, ["8,16", "64", "0"]);
        assert_eq!((o.types, o.rounds, o.ik), (vec!["Q8_0".to_string()], 5, None));
        assert_eq!(Options::parse(&["--ik", "y"]).unwrap().ik, Some("y".into()));
        assert!(Options::parse(&["--shapes", "tiny-moe,olmoe-1b-7b", "--only-make"]).is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for args in [
            &["--shapes", "gpt-9"][..],
            &["-p", "a"],
            &["-r", "0"],
            &["-t"],
            &["--fast"],
            &["--llama"],
            &["--ik"],
        ] {
            assert!(Options::parse(args).is_err(), "{args:?}");
        }
    }
}
