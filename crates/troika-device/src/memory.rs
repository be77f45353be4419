//! Large zeroed memory, straight from the system.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};
use memmap2::{MmapMut, MmapOptions};

/// From this size on, memory is mapped: the heap would write the zeros of aligned memory itself,
/// and so take pages that nobody uses yet.
const MAPPED: usize = 256 << 10;
/// What huge pages hold on most systems.
const HUGE_PAGE: usize = 2 << 20;

/// One cache line; gives memory from the heap its alignment.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed, 64-byte aligned bytes. Pages of large ones are taken when they are first written.
pub struct ZeroedBytes {
    memory: Memory,
    len: usize,
}

enum Memory {
    Heap(Box<[Line]>),
    Mapped(MmapMut),
}

impl ZeroedBytes {
    /// `len` bytes.
    ///
    /// # Panics
    /// If the system has no such memory, as allocations of the standard library do.
    pub fn new(len: usize) -> ZeroedBytes {
        ZeroedBytes::try_new(len).unwrap_or_else(|| {
            let lines = bytemuck::allocation::zeroed_slice_box(len.div_ceil(64));
            ZeroedBytes { memory: Memory::Heap(lines), len }
        })
    }

    /// `len` bytes; `None` when the system has no such memory.
    pub fn try_new(len: usize) -> Option<ZeroedBytes> {
        let memory = if len < MAPPED {
            let lines = bytemuck::allocation::try_zeroed_slice_box(len.div_ceil(64)).ok()?;
            Memory::Heap(lines)
        } else {
            Memory::Mapped(MmapOptions::new().len(len).map_anon().ok()?)
        };
        Some(ZeroedBytes { memory, len })
    }

    /// Asks for huge pages, where the system has them, from byte `from` on. They make reading
    /// and first writing cheaper, and take 2 MiB at once.
    pub fn huge_pages(self, from: usize) -> ZeroedBytes {
        if let Memory::Mapped(map) = &self.memory {
            advise_huge(map, from);
        }
        self
    }
}

#[cfg(target_os = "linux")]
fn advise_huge(map: &MmapMut, from: usize) {
    if let Some(len) = map.len().checked_sub(from).filter(|&len| len >= HUGE_PAGE) {
        // Without them everything works, too.
        let _ = map.advise_range(memmap2::Advice::HugePage, from, len);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_: &MmapMut, _: usize) {
    let _ = HUGE_PAGE;
}

impl AsRef<[u8]> for ZeroedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for ZeroedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Mapped(map) => map,
        }
    }
}

impl DerefMut for ZeroedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Mapped(map) => map,
        }
    }
}

/// Gives free memory of the heap back to the system, where the heap keeps it (glibc's does).
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it has no preconditions.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_aligned_and_of_the_length_asked_for() {
        for len in [0, 1, 65, MAPPED - 1, MAPPED, MAPPED + 1, 3 * HUGE_PAGE + 5] {
            let mut b = ZeroedBytes::new(len).huge_pages(HUGE_PAGE);
            assert_eq!((b.len(), b.as_ptr() as usize % 64), (len, 0));
            assert!(b.iter().all(|&x| x == 0));
            b.fill(7);
            assert!(b.iter().all(|&x| x == 7));
        }
    }

    #[test]
    fn too_much_is_refused() {
        assert!(ZeroedBytes::try_new(1 << 60).is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_not_written_takes_no_memory() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let mut b = ZeroedBytes::new(1 << 30);
        b[12345] = 1;
        assert!(resident() < before + (64 << 20));
    }
}
