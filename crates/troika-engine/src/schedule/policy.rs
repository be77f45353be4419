//! Which ready task an idle device takes. Pure functions.

/// A task that could run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Index in the task graph, which is program order.
    pub task: u32,
    /// Chunk of the prompt it belongs to.
    pub chunk: u32,
}

/// The order in which ready tasks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Program order: chunk after chunk, segment after segment.
    #[default]
    InOrder,
}

impl Policy {
    /// The position in `ready` of the task to run next; `None` when nothing is ready.
    pub fn pick(self, ready: &[Ready]) -> Option<usize> {
        match self {
            Policy::InOrder => ready.iter().enumerate().min_by_key(|(_, r)| r.task).map(|(i, _)| i),
        }
    }

    /// Whether tasks picked later could overtake ones already queued on a device; if not, a
    /// device's consecutive ready tasks go to its queue together.
    pub fn batches(self) -> bool {
        match self {
            Policy::InOrder => true,
        }
    }
}
