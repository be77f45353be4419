//! What is kept of devices for the next start.

use std::sync::{Arc, Mutex};

use troika_device::lock;
use troika_weights::CacheFolder;

use crate::observer::OpenObserver;

/// How kernels of a GPU are checked, and what is kept of it.
#[derive(Clone, Debug, Default)]
pub struct GpuSettings {
    /// Whether kernels are compared with the CPU's before a model uses them on an adapter and
    /// driver for the first time. What computes something else is refused.
    pub check: bool,
    /// The folder that keeps what was found and what drivers compiled; `None`: not kept.
    pub cache: Option<CacheFolder>,
    /// What could not be read or kept, or is not used.
    pub notes: Notes,
}

/// Sentences for the user that no call returned.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    pub(crate) said: Arc<Mutex<Vec<String>>>,
    pub(crate) observer: Option<Arc<dyn OpenObserver>>,
}

impl Notes {
    /// Takes them.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.said))
    }

    /// Says a sentence, once.
    pub(crate) fn add(&self, note: String) {
        let mut all = lock(&self.said);
        if !all.contains(&note) {
            self.observer.iter().for_each(|observer| observer.notice(&note));
            all.push(note);
        }
    }
}

impl GpuSettings {
    /// What is kept, if there is a folder.
    pub(crate) fn kept(&self) -> Option<KeptOfDevices> {
        let (folder, notes) = (self.cache.clone()?, self.notes.clone());
        Some(KeptOfDevices { folder, notes })
    }
}

/// What is kept in the folder of packed weights.
#[derive(Clone, Debug)]
pub(crate) struct KeptOfDevices {
    pub folder: CacheFolder,
    pub notes: Notes,
}

impl KeptOfDevices {
    /// What is kept under a name. What is damaged counts as not there.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.folder.of_device(name).unwrap_or_else(|why| {
            self.notes.add(format!("what was kept of a GPU is made anew: {why}"));
            None
        })
    }

    /// Keeps bytes under a name. Failing costs the next start some time.
    pub fn keep(&self, name: &str, bytes: &[u8]) {
        if let Err(e) = self.folder.keep_of_device(name, bytes) {
            self.notes.add(format!("nothing is kept of a GPU for the next start: {e}"));
        }
    }
}
