//! `cargo xtask peers`: compares Troika and its peers on the same files on this machine.
//!
//! They take turns (A B C A B C), so that a shared or warming machine treats all alike. The table
//! shows medians, and Troika's ratio to the best peer.

mod batched;
mod compare;
mod line;
mod options;
mod table;

use std::path::{Path, PathBuf};

pub use options::Options;

use crate::command::{Result, build_troika};

/// Measures, and prints the table. `root` is the workspace.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let peers = peers(options)?;
    let troika = options.troika.clone().map_or_else(|| build_troika(root), Ok)?;
    let each = options.files.iter().map(|file| compare::compare(&troika, &peers, file, options));
    let all: Vec<_> = each.collect::<Result<_>>()?;
    let names: Vec<&str> = peers.iter().map(|p| p.name).collect();
    print!("{}", table::markdown(&machine(), options.threads(), &names, &all));
    Ok(())
}

fn peers(options: &Options) -> Result<Vec<Peer>> {
    // All layers on the GPU, where the build has one.
    let all: &[&str] = if options.device.is_some() { &["-ngl", "99"] } else { &[] };
    let mut peers = Vec::new();
    if let Some(bin) = &options.llama {
        peers.push(Peer::new("llama.cpp", bin, [all, all])?);
    }
    if let Some(bin) = &options.ik {
        let ik = Peer { depths: false, ..Peer::new("ik", bin, [&[], &[]])? };
        let (args, batched_args) = (&["-rtr", "1"], &["-rtr"]);
        peers.push(ik.clone());
        peers.push(Peer { name: "ik, repacked", args, batched_args, ..ik });
    }
    Ok(peers)
}

/// Another engine, or a way to run it.
#[derive(Clone, Debug)]
struct Peer {
    name: &'static str,
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

impl Peer {
    /// The programs in a folder.
    fn new(
        name: &'static str,
        bin: &Path,
        [args, batched_args]: [&'static [&'static str]; 2],
    ) -> Result<Peer> {
        let bench = bin.join("llama-bench");
        if !bench.exists() {
            return Err(format!("there is no llama-bench in {}", bin.display()));
        }
        let batched = Some(bin.join("llama-batched-bench")).filter(|path| path.exists());
        Ok(Peer { name, bench, args, depths: true, batched, batched_args })
    }
}

/// The processor's name, if the system tells.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|l| l.strip_prefix("model name"));
    name.and_then(|l| l.split_once(':')).map_or("this machine", |l| l.1.trim()).to_string()
}
