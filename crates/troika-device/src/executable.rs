//! What devices make of subgraphs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of an executable: no two of a process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExecutableId(u64);

/// What a device made of a subgraph. Dropping it frees it; a run that was submitted holds it.
pub struct Executable {
    id: ExecutableId,
    weight_bytes: u64,
    scratch_bytes: u64,
    home: Arc<dyn Executables>,
}

/// Where a device keeps its executables.
pub trait Executables: Send + Sync {
    /// Frees one; nobody will ask for it any more.
    fn free(&self, id: ExecutableId);
}

impl Executable {
    /// An executable of these sizes, with a new name that its device keeps it by.
    pub fn new(home: Arc<dyn Executables>, weight_bytes: u64, scratch_bytes: u64) -> Executable {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = ExecutableId(NEXT.fetch_add(1, Ordering::Relaxed));
        Executable { id, weight_bytes, scratch_bytes, home }
    }

    /// Its name.
    pub fn id(&self) -> ExecutableId {
        self.id
    }

    /// Bytes of packed weights made for this executable alone (shared ones not counted).
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Bytes of scratch memory a run needs.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.home.free(self.id);
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executable({})", self.id.0)
    }
}
