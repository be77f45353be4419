//! What the checks look at.

use std::path::{Path, PathBuf};

use troika::{DeviceOptions, NpuSettings};
use troika_hub::HubOptions;

/// A machine with the user's settings.
#[derive(Clone, Debug, Default)]
pub struct HostMachine {
    /// The root of the file system.
    pub root: PathBuf,
    /// Settings of the Hub.
    pub hub: HubOptions,
    /// The folder for packed weights, if the system has one for caches.
    pub cache: Option<PathBuf>,
    /// Where NPU devices find what they need.
    pub npu: NpuSettings,
    /// The port of a server.
    pub port: u16,
    /// Whether memory is measured.
    pub measure: bool,
    /// Whether the Hub is asked.
    pub online: bool,
}

impl HostMachine {
    /// A place of the system.
    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A small file of the system without blanks around.
    pub fn read(&self, path: &str) -> Option<String> {
        Some(std::fs::read_to_string(self.at(path)).ok()?.trim().to_string())
    }

    /// What a folder of the system holds, in order.
    pub fn list(&self, path: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        all.sort();
        all
    }

    /// The options of the devices that commands use if no flag says otherwise.
    pub fn devices(&self) -> DeviceOptions {
        DeviceOptions { npu: self.npu.clone(), ..DeviceOptions::default() }
    }
}

/// A path as a shell reads it.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,@:".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
