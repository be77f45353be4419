//! Processes that fill the memory do it one after another.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

/// A model that takes at least one part of so many of what is free waits for its turn.
const PART: u64 = 4;
/// After so long another process is taken to hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Held while weights are read: what is free is looked at after the process before has taken its
/// part. The system releases it when the process ends.
pub(crate) struct Turn {
    _file: Option<File>,
}

impl Turn {
    /// Waits for the turn by a lock on a file in the folder, if weights of `needed` bytes are a large
    /// part of those that are `free`. Without such a lock nothing waits.
    pub(crate) fn take(folder: &Path, needed: u64, free: Option<u64>, tell: &dyn Fn(&str)) -> Turn {
        let is_large = free.is_some_and(|free| needed > free / PART);
        Turn { _file: is_large.then(|| wait(&folder.join("troika-loads.lock"), tell)).flatten() }
    }
}

fn wait(path: &Path, tell: &dyn Fn(&str)) -> Option<File> {
    // Another user's file cannot be written, but locked.
    let file = File::create_new(path).or_else(|_| File::open(path)).ok()?;
    let start = Instant::now();
    let mut told = false;
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        if start.elapsed() > PATIENCE {
            return None;
        }
        if !std::mem::replace(&mut told, true) {
            tell("another process is loading a model: waiting until its memory is taken");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(file)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::Turn;

    #[test]
    fn large_models_load_one_after_another() {
        let folder = tempfile::tempdir().unwrap();
        let first = Turn::take(folder.path(), 3, Some(10), &|line| panic!("{line}"));
        // A small one does not wait, nor one of which nobody knows whether it is large.
        for free in [Some(100), None] {
            Turn::take(folder.path(), 3, free, &|line| panic!("{line}"));
        }
        let (told, lines) = channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let told = move |line: &str| told.send(line.to_string()).unwrap();
                Turn::take(folder.path(), 3, Some(10), &told);
            });
            assert!(lines.recv().unwrap().contains("waiting"));
            std::thread::sleep(Duration::from_millis(60));
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap();
        });
        let nowhere = folder.path().join("nowhere");
        Turn::take(&nowhere, 3, Some(10), &|line| panic!("{line}"));
    }
}
