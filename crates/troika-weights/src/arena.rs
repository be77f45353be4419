//! Memory for packed weights, in blocks of huge pages.
//!
//! Many matrices are smaller than a huge page (2 MiB) or end within one, so separate allocations
//! would partly use small pages. A block holds many of them without gaps.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use memmap2::{MmapOptions, MmapRaw};
use troika_device::lock;

/// Bytes of a block.
const BLOCK: usize = 64 << 20;
/// Larger weights have their own block, since they would waste too much of a shared one.
const LARGE: usize = BLOCK / 8;
/// Weights begin at multiples of this.
const ALIGN: usize = 64;

/// Blocks of memory that weights are allocated from.
#[derive(Default)]
pub(crate) struct Arena(Mutex<Option<ArenaBlock>>);

/// The current block, and how much of it is used.
struct ArenaBlock {
    map: Arc<MmapRaw>,
    used: usize,
}

impl Arena {
    /// Zeroed, 64-byte aligned memory; `None` if the system has none.
    pub fn take(&self, len: usize) -> Option<Room> {
        if len > LARGE {
            return Room::apart(len);
        }
        let mut current = lock(&self.0);
        let block = match current.take().filter(|b| b.used + len <= BLOCK) {
            Some(block) => block,
            None => ArenaBlock { map: map(BLOCK)?, used: 0 },
        };
        let range = block.used..block.used + len;
        let used = range.end.next_multiple_of(ALIGN);
        let room = Room { map: block.map.clone(), range };
        *current = Some(ArenaBlock { used, ..block });
        Some(room)
    }
}

/// A new, empty mapping.
fn map(len: usize) -> Option<Arc<MmapRaw>> {
    let map = MmapOptions::new().len(len.max(1)).map_anon().ok()?;
    #[cfg(target_os = "linux")]
    {
        // Huge pages are optional: ignore errors.
        let _ = map.advise(memmap2::Advice::HugePage);
        interleave(&map);
    }
    Some(Arc::new(map.into()))
}

/// Spreads the pages of a mapping over the nodes of memory of a machine with several sockets. Threads
/// of all sockets read all weights: pages of one node would leave the memory of the others idle.
#[cfg(target_os = "linux")]
fn interleave(map: &memmap2::MmapMut) {
    static NODES: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let read = || std::fs::read_to_string("/sys/devices/system/node/has_memory");
    let nodes = NODES.get_or_init(|| read().map_or(1, |list| nodes(&list)));
    if *nodes > 1 {
        let (address, len, bits) = (map.as_ptr(), map.len(), libc::c_ulong::from(u64::BITS) + 1);
        let mode = libc::c_long::from(libc::MPOL_INTERLEAVE);
        // SAFETY: the pages belong to the mapping, and the mask has the bits that it is said to have.
        // Where the call is refused, pages come from the node that first writes them.
        unsafe { libc::syscall(libc::SYS_mbind, address, len, mode, nodes, bits, 0) };
    }
}

/// The nodes up to the last one of a list such as `0-1,3`, as bits. The system leaves out others.
#[cfg(target_os = "linux")]
fn nodes(list: &str) -> u64 {
    let last = list.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u32>().ok());
    u64::MAX >> (u64::BITS - 1 - last.unwrap_or(0).min(u64::BITS - 1))
}

/// A part of a block with a single owner.
pub(crate) struct Room {
    map: Arc<MmapRaw>,
    range: Range<usize>,
}

impl Room {
    /// Memory like [`Arena::take`]'s, but with a mapping of its own, freed with it.
    pub fn apart(len: usize) -> Option<Room> {
        Some(Room { map: map(len)?, range: 0..len })
    }
}

impl AsRef<[u8]> for Room {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range lies inside of the map, which is initialised, and `Arena::take` hands
        // out each byte once: only a `&mut self` writes here.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(self.range.start), self.range.len())
        }
    }
}

impl AsMut<[u8]> for Room {
    fn as_mut(&mut self) -> &mut [u8] {
        let start = self.range.start;
        // SAFETY: as above; `&mut self` is the only way to these bytes.
        unsafe {
            std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(start), self.range.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_zero_aligned_and_apart() {
        let arena = Arena::default();
        let sizes = [0, 1, 63, 64, 65, LARGE, LARGE + 1, LARGE - 7, 3 * LARGE];
        let sizes: Vec<usize> = sizes.into_iter().cycle().take(30).collect();
        let mut rooms: Vec<Room> = sizes.iter().map(|&len| arena.take(len).unwrap()).collect();
        for (i, room) in rooms.iter_mut().enumerate() {
            assert_eq!((room.as_ref().len(), room.as_ref().as_ptr() as usize % 64), (sizes[i], 0));
            assert!(room.as_ref().iter().all(|&b| b == 0), "room {i} was written by another");
            room.as_mut().fill(i as u8 + 1);
        }
        for (i, room) in rooms.iter().enumerate() {
            assert!(room.as_ref().iter().all(|&b| b == i as u8 + 1), "room {i}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn nodes_of_memory_are_bits() {
        for (list, bits) in [("0\n", 1), ("0-1\n", 3), ("0,2-3", 15), ("", 1), ("0-99", u64::MAX)] {
            assert_eq!(nodes(list), bits, "{list:?}");
        }
        // This machine takes the call, whatever nodes it has.
        let map = MmapOptions::new().len(BLOCK).map_anon().unwrap();
        interleave(&map);
        assert!(map.iter().step_by(4096).all(|byte| *byte == 0));
    }

    #[test]
    fn too_much_is_refused() {
        assert!(Arena::default().take(1 << 60).is_none());
    }
}
