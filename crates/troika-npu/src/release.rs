//! Gives back the pages of weights that a session has laid out anew.

#![allow(unsafe_code, reason = "advice for memory that a library has mapped")]

use std::path::Path;

use ort::session::Session;

/// Has the system drop the pages of files in a folder that a session has mapped: it lays its weights
/// out when it first runs, and reads the files no more. Elsewhere than on Linux they stay.
#[cfg(target_os = "linux")]
pub(crate) fn release_mapped(_: &Session, folder: &Path) {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let folder = folder.to_string_lossy();
    let of_file = maps.lines().filter(|line| line.contains(&*folder));
    for line in of_file {
        let mut words = line.split(' ');
        let (range, rights) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let ends = range.split_once('-');
        let ends = ends.and_then(|(a, b)| {
            Some((usize::from_str_radix(a, 16).ok()?, usize::from_str_radix(b, 16).ok()?))
        });
        let Some((start, end)) = ends.filter(|_| rights.starts_with("r--")) else { continue };
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is a mapping of a file of this process alone, which nobody writes, for
        // reading only: pages that are dropped are read from the file again. The session that has
        // mapped it is borrowed, so that nothing else takes its place meanwhile.
        unsafe { libc::madvise(start, end - start as usize, libc::MADV_DONTNEED) };
    }
}

/// Has the system drop the pages of files that a session has mapped: here they stay.
#[cfg(not(target_os = "linux"))]
pub(crate) fn release_mapped(_: &Session, _: &Path) {}
