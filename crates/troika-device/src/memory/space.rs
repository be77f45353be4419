//! Memory spaces: where bytes live.

use std::sync::atomic::{AtomicU32, Ordering};

/// Identifies a memory space: the host's memory, or a device's own. Each device lists the spaces
/// that it accesses without a copy ([`crate::Caps::spaces`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceId(u32);

impl SpaceId {
    /// Host memory.
    pub const HOST: SpaceId = SpaceId(0);

    /// A new space, distinct from all others in this process.
    pub fn unique() -> SpaceId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        SpaceId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
