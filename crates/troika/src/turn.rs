//! Processes that fill the memory do it one after another.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

/// A model that takes at least one part of so many of what is free waits for its turn.
const PART: u64 = 4;
/// After so long another process is taken to hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for the turn by a lock on a file in the folder, if weights of `needed` bytes are a large part
/// of those that are `free`. It is held while weights are read, so that the next process sees what this
/// one has taken. `None` where none is needed or to be had: then nothing waits.
pub(crate) fn turn(
    folder: &Path,
    needed: u64,
    free: Option<u64>,
    tell: &dyn Fn(&str),
) -> Option<File> {
    let path =
        free.filter(|free| needed > free / PART).map(|_| folder.join("troika-loads.lock"))?;
    // Another user's file cannot be written, but locked.
    let file = File::create_new(&path).or_else(|_| File::open(&path)).ok()?;
    let (start, mut told) = (Instant::now(), false);
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

    use super::turn;

    #[test]
    fn large_models_load_one_after_another() {
        let folder = tempfile::tempdir().unwrap();
        let first = turn(folder.path(), 3, Some(10), &|line| panic!("{line}"));
        // A small one does not wait, nor one of which nobody knows whether it is large.
        for free in [Some(100), None] {
            turn(folder.path(), 3, free, &|line| panic!("{line}"));
        }
        let (told, lines) = channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let told = move |line: &str| told.send(line.to_string()).unwrap();
                turn(folder.path(), 3, Some(10), &told);
            });
            assert!(lines.recv().unwrap().contains("waiting"));
            std::thread::sleep(Duration::from_millis(60));
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap();
        });
        let nowhere = folder.path().join("nowhere");
        turn(&nowhere, 3, Some(10), &|line| panic!("{line}"));
    }
}
