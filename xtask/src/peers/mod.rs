//! `cargo xtask peers`: compares Troika and its peers on the same files on this machine.
//!
//! They take turns (A B C A B C), so that a shared or warming machine treats all alike. The table
//! shows medians, and Troika's ratio to the best peer.

mod batched;
mod compare;
mod line;
mod llama;
mod options;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use options::Options;

use crate::command::{Result, build_troika, failed, whole};
use crate::models;

/// Makes missing files, measures, and prints the table. `root` is the workspace.
///
/// # Errors
/// A tool is missing or fails, or a file cannot be written.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let dir = options.dir.clone().unwrap_or_else(|| root.join("target/peers"));
    let models = dir.join("models");
    std::fs::create_dir_all(&models).map_err(|e| failed("create", &models, &e))?;
    if options.files.is_empty() {
        write_models(root, &models, options)?;
    }
    let tools = match &options.llama {
        Some(bin) => llama::Tools::in_folder(bin)?,
        None => llama::build(&dir, options.device.is_some())?,
    };
    let files = match options.files.is_empty() {
        true => quantize(&models, options, &tools)?,
        false => options.files.clone(),
    };
    let troika = build_troika(root)?;
    let peers = peers(tools, options)?;
    let (mut all, measuring) = (Vec::new(), Arc::new(AtomicBool::new(true)));
    for _ in 0..options.beside {
        let measuring = measuring.clone();
        std::thread::spawn(move || while measuring.load(Ordering::Relaxed) {});
    }
    for file in &files {
        all.push(compare::compare(&troika, &peers, file, options)?);
    }
    measuring.store(false, Ordering::Relaxed);
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

/// The file of a shape and type.
fn file(models: &Path, shape: &str, dtype: &str) -> PathBuf {
    models.join(format!("{shape}-{}.gguf", dtype.to_lowercase()))
}

/// Writes models in bf16 that others are to be made of.
fn write_models(root: &Path, models: &Path, options: &Options) -> Result<()> {
    for shape in &options.shapes {
        let base = file(models, shape, "bf16");
        if base.exists() || options.types.iter().all(|t| file(models, shape, t).exists()) {
            continue;
        }
        eprintln!("writing {}", base.display());
        if shape == models::BUILT_IN {
            models::export(root, &base, "bf16")?;
        } else {
            let out = base.display().to_string();
            models::run(root, ["synthetic", shape, &out, "--type", "bf16"])?;
        }
    }
    Ok(())
}

/// The files of all requested shapes and types; makes missing ones of those in bf16.
fn quantize(models: &Path, options: &Options, tools: &llama::Tools) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for shape in &options.shapes {
        for dtype in &options.types {
            let path = file(models, shape, dtype);
            if !path.exists() {
                eprintln!("quantizing {}", path.display());
                let base = file(models, shape, "bf16");
                whole(&path, |part| tools.quantize(&base, part, dtype))?;
            }
            files.push(path);
        }
    }
    Ok(files)
}

/// The processor's name, if the system tells.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name"));
    name.and_then(|l| l.split_once(':')).map_or("this machine", |l| l.1.trim()).to_string()
}
