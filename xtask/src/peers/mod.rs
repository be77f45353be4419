//! `cargo xtask peers`: compares Troika and its peers on the same files on this machine.
//!
//! They take turns (A B C A B C), so that a shared or warming machine treats all alike. The table
//! shows medians, and Troika's ratio to the best peer.

mod compare;
pub mod export;
mod gguf;
mod llama;
mod options;
mod shapes;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use options::Options;

/// A result whose error is a sentence.
type Result<T> = std::result::Result<T, String>;

pub use options::HELP;

/// Makes missing files, measures, and prints the table. `root` is the workspace.
///
/// # Errors
/// A tool is missing or fails, or a file cannot be written.
pub fn run(root: &Path, args: &[&str]) -> Result<()> {
    let options = Options::parse(args)?;
    let dir = options.dir.clone().unwrap_or_else(|| root.join("target/peers"));
    let tools = match &options.llama {
        Some(bin) => llama::Tools::in_folder(bin)?,
        None => llama::build(&dir)?,
    };
    let models = options.models.clone().unwrap_or_else(|| dir.join("models"));
    std::fs::create_dir_all(&models).map_err(|e| failed("create", &models, &e))?;
    let files = match options.files.is_empty() {
        true => make_models(root, &models, &options, &tools)?,
        false => options.files.clone(),
    };
    if options.only_make {
        files.iter().for_each(|f| println!("{}", f.display()));
        return Ok(());
    }
    let troika = match &options.troika {
        Some(path) => path.clone(),
        None => build_troika(root)?,
    };
    let mut peers = vec![Peer { name: "llama.cpp", bench: tools.bench, args: &[], depths: true }];
    if let Some(bin) = &options.ik {
        let bench = llama::bench(bin)?;
        peers.push(Peer { name: "ik", bench: bench.clone(), args: &[], depths: false });
        peers.push(Peer { name: "ik, repacked", bench, args: &["-rtr", "1"], depths: false });
    }
    let mut all = Vec::new();
    for file in &files {
        all.push(compare::compare(&troika, &peers, file, &options)?);
    }
    let names: Vec<&str> = peers.iter().map(|p| p.name).collect();
    print!("{}", table::markdown(&machine(), options.threads, &names, &all));
    Ok(())
}

/// Another engine, or a way to run it.
#[derive(Clone, Debug)]
struct Peer {
    /// Its name in the table.
    name: &'static str,
    /// Its `llama-bench`.
    bench: PathBuf,
    /// Its arguments beyond the common ones.
    args: &'static [&'static str],
    /// Whether it can measure at a depth.
    depths: bool,
}

/// The files of all requested shapes and types; makes missing ones.
fn make_models(
    root: &Path,
    models: &Path,
    options: &Options,
    tools: &llama::Tools,
) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for shape in &options.shapes {
        let base = models.join(format!("{shape}-bf16.gguf"));
        let wanted = |t: &String| models.join(format!("{shape}-{}.gguf", t.to_lowercase()));
        let paths: Vec<PathBuf> = options.types.iter().map(wanted).collect();
        if paths.iter().any(|p| !p.exists()) && !base.exists() {
            eprintln!("writing {}", base.display());
            if shape == export::BUILT_IN {
                let model = root.join("models").join(shape);
                whole(&base, |part| export::write(&model, part, gguf::Kind::BF16))?;
            } else {
                whole(&base, |part| shapes::write(shape, part))?;
            }
        }
        for (path, dtype) in paths.iter().zip(&options.types) {
            if !path.exists() {
                eprintln!("quantizing {}", path.display());
                whole(path, |part| tools.quantize(&base, part, dtype))?;
            }
        }
        files.extend(paths);
    }
    Ok(files)
}

/// Makes a file beside its place first, so that it is never incomplete.
fn whole(path: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let part = path.with_extension("gguf.part");
    let made = make(&part)
        .and_then(|()| std::fs::rename(&part, path).map_err(|e| failed("rename", &part, &e)));
    if made.is_err() {
        // Removing may fail because it was never created: the first error is reported.
        let _ = std::fs::remove_file(&part);
    }
    made
}

/// Builds the command. Returns its path, beside this program's own folder.
fn build_troika(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "-q", "--release", "-p", "troika-cli"]).current_dir(root);
    output(&mut build, "cargo build")?;
    let me = std::env::current_exe().map_err(|e| format!("cannot find my own path: {e}"))?;
    let target = me.parent().and_then(Path::parent);
    let path = target.map(|t| t.join("release").join("troika"));
    path.filter(|p| p.exists())
        .ok_or_else(|| "cannot find the built troika; name it with --troika".to_string())
}

/// Runs a tool and returns its output.
fn output(command: &mut Command, name: &str) -> Result<String> {
    let out = command.output().map_err(|e| format!("cannot run {name}: {e}"))?;
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let tail: Vec<&str> = text.trim_end().lines().rev().take(5).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        return Err(format!("{name} failed ({}): {}", out.status, tail.join("\n")));
    }
    String::from_utf8(out.stdout).map_err(|_| format!("{name} printed no text"))
}

fn failed(what: &str, path: &Path, e: &std::io::Error) -> String {
    format!("cannot {what} {}: {e}", path.display())
}

/// The processor's name, if the system tells.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name"));
    name.and_then(|l| l.split_once(':')).map_or("this machine", |l| l.1.trim()).to_string()
}
