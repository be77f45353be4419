//! Project chores, run as `cargo xtask COMMAND`.

mod aarch64;
mod fuzz;
mod loom;
mod peers;
mod soak;
mod tidy;
mod valgrind;

use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Project chores.

Usage: cargo xtask COMMAND

Commands:
  aarch64   build for 64-bit ARM; test kernels and models under QEMU
  built-in  write the model that is compiled into the command
  fuzz      mutated files for the parsers (fuzz --help)
  loom      how queues wait for each other, in all interleavings of threads
  tidy      check the project's own rules; one line per violation
  peers     time Troika, llama.cpp and ik_llama.cpp on the same files (peers --help)
  soak      kill the command while it writes its cache, fill its disk (soak --help)
  valgrind  the CPU kernels' tests under valgrind (valgrind --help)
  help      this text
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["aarch64"] => report("aarch64", aarch64::run(&root())),
        ["built-in"] => report("built-in", peers::export::run(&root())),
        ["built-in", "-h" | "--help"] => help(peers::export::HELP),
        ["tidy"] => run_tidy(),
        ["fuzz", .., "-h" | "--help"] => help(fuzz::HELP),
        ["fuzz", rest @ ..] => report("fuzz", fuzz::run(&root(), rest)),
        ["loom"] => report("loom", loom::run(&root())),
        ["loom", "-h" | "--help"] => help(loom::HELP),
        ["peers", .., "-h" | "--help"] => help(peers::HELP),
        ["peers", rest @ ..] => report("peers", peers::run(&root(), rest)),
        ["soak", .., "-h" | "--help"] => help(soak::HELP),
        ["soak", rest @ ..] => report("soak", soak::run(&root(), rest)),
        ["valgrind", .., "-h" | "--help"] => help(valgrind::HELP),
        ["valgrind", rest @ ..] => report("valgrind", valgrind::run(&root(), rest)),
        [] | ["help" | "-h" | "--help"] | ["aarch64" | "tidy", "-h" | "--help"] => help(HELP),
        _ => {
            eprint!("xtask: unknown command or argument: {}\n\n{HELP}", words.join(" "));
            ExitCode::from(2)
        }
    }
}

fn help(text: &str) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}

fn report(name: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run_tidy() -> ExitCode {
    let tree = match tidy::Tree::load(&root()) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    };
    let violations = tidy::check(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        println!("tidy: {} files, no violations", tree.files.len());
        ExitCode::SUCCESS
    } else {
        println!("tidy: {} files, {} violations", tree.files.len(), violations.len());
        ExitCode::FAILURE
    }
}

/// The workspace: the folder above this crate. Asks cargo at run time, since a compiled-in path may
/// be another checkout with the same build folder.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}
