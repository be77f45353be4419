//! Memory spaces: where bytes live.

use std::sync::atomic::{AtomicU32, Ordering};

/// Identity of a memory space. The host's memory is one; a device with memory of its own is
/// another. Each device says which spaces it reads and writes without a copy
/// ([`crate::Caps::spaces`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(u32);

impl SpaceId {
    /// The host's memory.
    pub const HOST: SpaceId = SpaceId(0);

    /// A space that no other device of this process has.
    pub fn unique() -> SpaceId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        SpaceId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
