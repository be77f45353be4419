//! Large zeroed memory, straight from the system.

use std::ops::{Deref, DerefMut, Range};

use bytemuck::{Pod, Zeroable};
use memmap2::{MmapMut, MmapOptions};

/// From this size on, memory is mapped: for aligned memory, the heap would write the zeros itself
/// and so touch pages that are not used yet.
const MAPPED: usize = 256 << 10;

/// A cache line, which gives heap memory its alignment.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The system has no memory of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory: {bytes} bytes were asked for")]
pub struct OutOfMemory {
    /// Bytes requested.
    pub bytes: usize,
}

/// Zeroed, 64-byte aligned bytes. Large ones get their pages when first written.
pub struct ZeroedBytes {
    memory: Memory,
    len: usize,
}

enum Memory {
    /// A vector and not a box: pointers into it stay valid when it is moved.
    Heap(Vec<Line>),
    Mapped(MmapMut),
}

impl ZeroedBytes {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn new(len: usize) -> Result<ZeroedBytes, OutOfMemory> {
        if len >= MAPPED {
            return ZeroedBytes::in_pages(len);
        }
        let lines = bytemuck::allocation::try_zeroed_vec(len.div_ceil(64));
        let lines = lines.map_err(|()| OutOfMemory { bytes: len })?;
        Ok(ZeroedBytes { memory: Memory::Heap(lines), len })
    }

    /// Allocates `len` bytes in pages that nothing else shares.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn in_pages(len: usize) -> Result<ZeroedBytes, OutOfMemory> {
        let map = MmapOptions::new().len(len.max(1)).map_anon();
        let map = map.map_err(|_| OutOfMemory { bytes: len })?;
        Ok(ZeroedBytes { memory: Memory::Mapped(map), len })
    }

    /// Requests huge pages, where available. They make reading and first writing cheaper, but take
    /// MiBs at once: do not use them for memory that fills slowly.
    pub fn huge_pages(self) -> ZeroedBytes {
        self.huge_pages_from(0)
    }

    /// Like [`ZeroedBytes::huge_pages`], for the bytes from `start` on. Memory that fills slowly
    /// from its first byte then takes at most twice what is used.
    pub fn huge_pages_from(self, start: usize) -> ZeroedBytes {
        #[cfg(not(target_os = "linux"))]
        let _ = start;
        #[cfg(target_os = "linux")]
        if let Memory::Mapped(map) = &self.memory
            && start < self.len
        {
            // Huge pages are optional: ignore errors.
            let _ = map.advise_range(memmap2::Advice::HugePage, start, self.len - start);
        }
        self
    }

    /// Gives the whole pages of the system within these bytes back to it: they take no memory until
    /// they are written again. Other systems than Unix keep them.
    ///
    /// # Safety
    /// Nobody uses the bytes meanwhile. What they hold is lost.
    pub(super) unsafe fn give_back(&self, bytes: Range<usize>) {
        #[cfg(not(unix))]
        let _ = bytes;
        #[cfg(unix)]
        if let Memory::Mapped(map) = &self.memory {
            // SAFETY: it has no preconditions.
            let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
            let end = bytes.end.min(self.len).checked_div(page).unwrap_or(0) * page;
            let start = bytes.start.next_multiple_of(page.max(1));
            if start < end {
                // Elsewhere `DontNeed` does not free them.
                #[cfg(target_vendor = "apple")]
                let advice = memmap2::UncheckedAdvice::Free;
                #[cfg(not(target_vendor = "apple"))]
                let advice = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: nobody uses the bytes, by the caller; private anonymous pages come back
                // as zeros or as they were. An advice that is refused changes nothing.
                let _ = unsafe { map.unchecked_advise_range(advice, start, end - start) };
            }
        }
    }
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
            Memory::Mapped(map) => &map[..self.len],
        }
    }
}

impl DerefMut for ZeroedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Mapped(map) => &mut map[..self.len],
        }
    }
}

/// Returns free heap memory to the system, where the heap keeps it (as glibc does).
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
        for len in [0, 1, 65, MAPPED - 1, MAPPED, MAPPED + 1, (6 << 20) + 5] {
            let mut b = ZeroedBytes::new(len).unwrap().huge_pages();
            assert_eq!((b.len(), b.as_ptr() as usize % 64), (len, 0));
            assert!(b.iter().all(|&x| x == 0));
            b.fill(7);
            assert!(b.iter().all(|&x| x == 7));
        }
    }

    #[test]
    fn too_much_is_refused() {
        for bytes in [1 << 60, isize::MAX as usize, usize::MAX] {
            assert_eq!(ZeroedBytes::new(bytes).err(), Some(OutOfMemory { bytes }));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_not_written_takes_no_memory() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident();
        let mut b = ZeroedBytes::new(1 << 30).unwrap();
        b[12345] = 1;
        assert!(resident() < before + (64 << 20));
        // Nor do hundreds of buffers whose first bytes alone are used.
        let little = || {
            let mut b = ZeroedBytes::new(8 << 20).unwrap().huge_pages_from(2 << 20);
            b[12345] = 1;
            b
        };
        let _many: Vec<ZeroedBytes> = std::iter::repeat_with(little).take(200).collect();
        assert!(resident() < before + (64 << 20));
    }
}
