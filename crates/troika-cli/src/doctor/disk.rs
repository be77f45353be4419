//! Folders of caches, and how experts are read.

use std::io;
use std::path::{Path, PathBuf};

use super::finding::Finding;
use super::machine::{HostMachine, quoted};
use crate::output::bytes;

/// With less, only small models can be fetched.
const LITTLE: u64 = 4 << 30;

/// Where the Hub's models lie.
pub fn models(machine: &HostMachine) -> Vec<Finding> {
    let path = machine.hub.cache_dir.as_deref();
    vec![cache("model cache", path, "HF_HUB_CACHE", "troika rm MODEL")]
}

/// Where quantized weights, profiles and compiled graphs lie.
pub fn packed_weights(machine: &HostMachine) -> Vec<Finding> {
    let room = "troika cache prune --cache-mib 1024";
    vec![cache("cache", machine.cache.as_deref(), "TROIKA_CACHE_DIR", room)]
}

/// The folder of a cache. A variable names another, and a command makes room in this one.
fn cache(topic: &'static str, path: Option<&Path>, variable: &str, room: &str) -> Finding {
    let another = format!("export {variable}=FOLDER");
    let Some(path) = path else {
        let says = "this system names no folder for it";
        return Finding::missing(topic, says).mended_by(another);
    };
    let shown = path.display();
    let there = nearest(path);
    if !there.is_dir() {
        let says = format!("{} is no folder", there.display());
        return Finding::missing(topic, says).mended_by(another);
    }
    if let Err(e) = troika::can_write(&there.join("troika-doctor")) {
        let fix = match e.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("sudo chown -R \"$(id -un)\" {}", quoted(&there))
            }
            _ => another,
        };
        return Finding::missing(topic, format!("{shown} cannot be written: {e}")).mended_by(fix);
    }
    let Ok(stats) = fs4::statvfs(&there) else {
        return Finding::fine(topic, format!("{shown} can be written"));
    };
    let free = stats.available_space();
    let says = format!("{shown}: {} are free", bytes(free));
    if free < LITTLE {
        let says = format!("{says}; only small models fit");
        return Finding::improvable(topic, says).mended_by(room);
    }
    Finding::fine(topic, says)
}

/// The folder itself, or the nearest one above that is there.
fn nearest(path: &Path) -> PathBuf {
    let there = path.ancestors().find(|at| at.symlink_metadata().is_ok());
    there.filter(|at| !at.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
}

/// Experts of models larger than memory are read by the kernel's rings.
pub fn io_uring(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "io_uring";
    let Some(level) = machine.read("proc/sys/kernel/io_uring_disabled") else { return Vec::new() };
    vec![match level.as_str() {
        "0" => Finding::fine(TOPIC, "experts of models larger than memory are read by it"),
        _ => Finding::improvable(TOPIC, "it is switched off, and experts are read by threads")
            .mended_by("sudo sysctl kernel.io_uring_disabled=0"),
    }]
}
