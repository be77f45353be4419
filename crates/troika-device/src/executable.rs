//! What devices make of subgraphs: code, and the weights that it runs with.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of an executable: no two of a process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExecutableId(u64);

/// What a device made of a subgraph's ops and shapes: code that runs every graph of the same shape
/// ([`troika_graph::Subgraph::same_code`]), each with its own [`Weights`]. Dropping it frees it;
/// weights and submitted runs hold it.
pub struct Executable {
    id: ExecutableId,
    scratch_bytes: u64,
    made: Box<dyn Any + Send + Sync>,
}

impl Executable {
    /// What a device made, with a new name. The device finds it again by its type.
    pub fn new(made: impl Any + Send + Sync, scratch_bytes: u64) -> Executable {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = ExecutableId(NEXT.fetch_add(1, Ordering::Relaxed));
        Executable { id, scratch_bytes, made: Box::new(made) }
    }

    /// Its name.
    pub fn id(&self) -> ExecutableId {
        self.id
    }

    /// Bytes of scratch memory a run needs.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// What the device made; `None` for another device's type.
    pub fn made<T: Any>(&self) -> Option<&T> {
        self.made.downcast_ref()
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executable({})", self.id.0)
    }
}

/// A graph's weights in the form in which an executable reads them, with that executable: all that
/// a run needs besides memory. Dropping them frees what no other weights share; a submitted run
/// holds them. They can be loaded again without compiling.
pub struct Weights {
    executable: Arc<Executable>,
    made: Box<dyn Any + Send + Sync>,
}

impl Weights {
    /// What a device loaded for an executable of its own.
    pub fn new(executable: &Arc<Executable>, made: impl Any + Send + Sync) -> Weights {
        Weights { executable: executable.clone(), made: Box::new(made) }
    }

    /// The executable that reads them. A run cannot have another one.
    pub fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// What the device loaded; `None` for another device's type.
    pub fn made<T: Any>(&self) -> Option<&T> {
        self.made.downcast_ref()
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weights({:?})", self.executable)
    }
}
