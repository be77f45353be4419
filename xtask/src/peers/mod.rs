//! `cargo xtask peers`: compares Troika and its peers on the same files on this machine.
//!
//! They take turns (A B C A B C), so that a shared or warming machine treats all alike. The table
//! shows medians, and Troika's ratio to the best peer.

mod batched;
mod compare;
pub mod export;
pub mod gguf;
mod line;
mod llama;
mod options;
pub mod shapes;
mod table;

use std::path::{Path, PathBuf};

pub use options::Options;

use crate::command::{Result, build_troika, failed, whole};

/// Makes missing files, measures, and prints the table. `root` is the workspace.
///
/// # Errors
/// A tool is missing or fails, or a file cannot be written.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let dir = options.dir.clone().unwrap_or_else(|| root.join("target/peers"));
    let tools = match &options.llama {
        Some(bin) => llama::Tools::in_folder(bin)?,
        None => llama::build(&dir, options.device.is_some())?,
    };
    let models = options.models.clone().unwrap_or_else(|| dir.join("models"));
    std::fs::create_dir_all(&models).map_err(|e| failed("create", &models, &e))?;
    let files = match options.files.is_empty() {
        true => make_models(root, &models, options, &tools)?,
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
    let peers = peers(tools, options)?;
    let mut all = Vec::new();
    for file in &files {
        all.push(compare::compare(&troika, &peers, file, options)?);
    }
    let names: Vec<&str> = peers.iter().map(|p| p.name).collect();
    print!("{}", table::markdown(&machine(), options.threads(), &names, &all));
    Ok(())
}

/// The peers that are there.
fn peers(tools: llama::Tools, options: &Options) -> Result<Vec<Peer>> {
    let llama::Tools { bench, batched, .. } = tools;
    // All layers on the GPU, where the build has one.
    let all: &[&str] = if options.device.is_some() { &["-ngl", "99"] } else { &[] };
    let llama =
        Peer { name: "llama.cpp", bench, args: all, depths: true, batched, batched_args: all };
    let mut peers = vec![llama.clone()];
    if let Some(bin) = &options.ik {
        let (bench, batched) = (llama::bench(bin)?, llama::batched(bin));
        let ik = Peer { name: "ik", bench, depths: false, batched, ..llama };
        let (args, batched_args) = (&["-rtr", "1"], &["-rtr"]);
        peers.push(ik.clone());
        peers.push(Peer { name: "ik, repacked", args, batched_args, ..ik });
    }
    Ok(peers)
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
    /// Its `llama-batched-bench`, if it is built.
    batched: Option<PathBuf>,
    /// The arguments of that beyond the common ones.
    batched_args: &'static [&'static str],
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

/// The processor's name, if the system tells.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name"));
    name.and_then(|l| l.split_once(':')).map_or("this machine", |l| l.1.trim()).to_string()
}
