//! Project chores, run as `cargo xtask COMMAND`.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout)]

mod aarch64;
mod command;
mod fuzz;
mod models;
mod peers;
mod soak;
mod tidy;
mod valgrind;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

/// What `xtask/dist.py` needs, in the versions that it is tested with.
const DIST_PACKAGES: &[&str] = &["maturin==1.16.0", "ziglang==0.17.1"];

/// Project chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Build for 64-bit ARM; test kernels and models under QEMU
    Aarch64,
    /// Write the model that is compiled into the command, from the folder of the built-in model
    BuiltIn,
    /// Make the files of a release: see `cargo xtask dist --help`
    #[command(disable_help_flag = true)]
    Dist {
        /// Arguments of `xtask/dist.py`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    Fuzz(fuzz::Options),
    /// Test how queues wait for each other, in all interleavings of threads (crate loom)
    Loom,
    /// Write a model for measuring or testing: see `cargo xtask model --help`
    #[command(disable_help_flag = true)]
    Model {
        /// Arguments of `xtask/models.py`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    Peers(Box<peers::Options>),
    Soak(soak::Options),
    /// Check the project's own rules; one line per violation
    Tidy,
    Valgrind(valgrind::Options),
}

fn main() -> ExitCode {
    let root = root();
    let (name, result) = match Chore::parse() {
        Chore::Aarch64 => ("aarch64", aarch64::run(&root)),
        Chore::BuiltIn => ("built-in", models::built_in(&root)),
        Chore::Dist { args } => {
            ("dist", command::script(&root, "dist.py", "dist/tools", DIST_PACKAGES, args))
        }
        Chore::Fuzz(options) => ("fuzz", fuzz::run(&root, &options)),
        Chore::Loom => ("loom", loom(&root)),
        Chore::Model { args } => ("model", models::run(&root, args)),
        Chore::Peers(options) => ("peers", peers::run(&root, &options)),
        Chore::Soak(options) => ("soak", soak::run(&root, &options)),
        Chore::Tidy => ("tidy", tidy::run(&root)),
        Chore::Valgrind(options) => ("valgrind", valgrind::run(&root, &options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{name}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// With `cfg(loom)`, the loom crate replaces the standard library's atomics and locks. That affects
/// all builds, so these have a separate folder.
fn loom(root: &Path) -> command::Result<()> {
    let args = ["test", "--release", "--target-dir", "target/loom", "-p", "troika-device"];
    let mut cargo = command::cargo(root, &args);
    command::run(cargo.args(["--lib", "timeline"]).env("RUSTFLAGS", "--cfg loom"), "the tests")
}

/// The workspace: the folder above this crate. Asks cargo at run time, since a compiled-in path may
/// be another checkout with the same build folder.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read() {
        let parse =
            |line: &str| Chore::try_parse_from(["xtask"].into_iter().chain(line.split(' ')));
        for good in [
            "aarch64",
            "built-in",
            "dist --all",
            "fuzz a --minutes 2 b",
            "fuzz --seconds 5",
            "model synthetic olmoe-1b-7b FILE --zipf 1",
            "model --help",
            "peers a b -p 8,16 --rounds 5 --ik y --sequences 4,8",
            "peers a --llama x --device gpu:llvmpipe -p 128 -n 16",
            "soak --kills 3 --seed 9 --sequences 0 --server 1 --troika t",
            "valgrind a --cases 9 b",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "fuzz --seconds",
            "fuzz --minutes 0",
            "fuzz -x",
            "peers --llama x -p 8",
            "peers f -p 8",
            "peers f --llama x -p a",
            "peers f --llama x -r 0",
            "peers f --device gpu --ik y",
            "peers f --llama",
            "soak --kills x",
            "soak --fast",
            "valgrind --cases 0",
            "other",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
