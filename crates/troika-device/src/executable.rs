//! What devices make of subgraphs: code, and loaded weights.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DeviceError;

/// The number of an executable, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExecutableId(u64);

/// Compiled code for all graphs of one shape ([`troika_graph::Subgraph::same_code`]), each with its
/// own [`Weights`]. Dropping it frees it; weights and submitted runs keep it alive.
pub struct Executable {
    id: ExecutableId,
    scratch_bytes: u64,
    made: Box<dyn Any + Send + Sync>,
}

impl Executable {
    /// Wraps a device's code, with a new number. The device finds it again by its type.
    pub fn new(made: impl Any + Send + Sync, scratch_bytes: u64) -> Executable {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = ExecutableId(NEXT.fetch_add(1, Ordering::Relaxed));
        Executable { id, scratch_bytes, made: Box::new(made) }
    }

    /// Its number.
    pub fn id(&self) -> ExecutableId {
        self.id
    }

    /// Bytes of scratch memory that a run needs.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// The device's code; `None` for another device's type.
    pub fn made<T: Any>(&self) -> Option<&T> {
        self.made.downcast_ref()
    }
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executable({})", self.id.0)
    }
}

/// A graph's weights in the form that an executable reads, with that executable: all that a run
/// needs besides memory. Dropping them frees what no other weights share; a submitted run keeps
/// them alive. They can be loaded again without compiling.
pub struct Weights {
    executable: Arc<Executable>,
    made: Box<dyn Any + Send + Sync>,
}

impl Weights {
    /// Wraps what a device loaded for its own executable.
    pub fn new(executable: &Arc<Executable>, made: impl Any + Send + Sync) -> Weights {
        Weights { executable: executable.clone(), made: Box::new(made) }
    }

    /// The executable that reads them, which is the only one a run can use.
    pub fn executable(&self) -> &Arc<Executable> {
        &self.executable
    }

    /// What a device loaded.
    ///
    /// # Errors
    /// It is of another type, or `is_own` says that another device of that type loaded it.
    pub fn made<T: Any>(
        &self,
        device: &str,
        is_own: impl FnOnce(&T) -> bool,
    ) -> Result<&T, DeviceError> {
        let own = self.made.downcast_ref().filter(|made| is_own(made));
        own.ok_or_else(|| DeviceError::Submission {
            task: format!("{self:?}"),
            why: format!("is none of device {device}"),
        })
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weights({:?})", self.executable)
    }
}
