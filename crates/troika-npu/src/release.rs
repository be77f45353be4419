//! Gives back the pages of weights that a session has laid out anew.

#![allow(unsafe_code, reason = "advice for memory that a library has mapped")]

use std::path::Path;

/// Has the system drop the pages of a file that a session has mapped and the caller holds: the
/// session lays its weights out when it first runs, and reads the file no more. Elsewhere than on
/// Linux they stay.
#[cfg(target_os = "linux")]
pub(crate) fn release_mapped(folder: &Path) {
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
        // reading only: pages that are dropped are read from the file again. Only sessions map it,
        // and the caller holds the one that has, so that nothing else takes its place meanwhile.
        unsafe { libc::madvise(start, end - start as usize, libc::MADV_DONTNEED) };
    }
}

/// Has the system drop the pages of a file that a session has mapped: here they stay.
#[cfg(not(target_os = "linux"))]
pub(crate) fn release_mapped(_: &Path) {}
