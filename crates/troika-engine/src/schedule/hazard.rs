//! Dependencies from what tasks read and write.

use std::collections::HashMap;

/// Finds, for tasks given in program order, the earlier tasks each must wait for: the last writer
/// of all it touches, and for what it writes, all readers since.
#[derive(Debug, Default)]
pub struct HazardTracker {
    buffers: HashMap<usize, Accesses>,
}

#[derive(Debug, Default)]
struct Accesses {
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl HazardTracker {
    /// Nothing accessed yet.
    pub fn new() -> HazardTracker {
        HazardTracker::default()
    }

    /// Adds a task that reads and writes the given buffers (by identity). Returns the tasks it
    /// depends on, ascending, without repeats.
    pub fn add(
        &mut self,
        task: u32,
        reads: impl IntoIterator<Item = usize>,
        writes: impl IntoIterator<Item = usize>,
    ) -> Vec<u32> {
        let mut deps = Vec::new();
        for buffer in reads {
            let a = self.buffers.entry(buffer).or_default();
            deps.extend(a.writer);
            a.readers.push(task);
        }
        for buffer in writes {
            let a = self.buffers.entry(buffer).or_default();
            deps.extend(a.writer.replace(task));
            deps.append(&mut a.readers);
        }
        deps.retain(|&d| d != task);
        deps.sort_unstable();
        deps.dedup();
        deps
    }
}

#[cfg(test)]
mod tests {
    use super::HazardTracker;

    #[test]
    fn orders_writes_and_reads() {
        let mut h = HazardTracker::new();
        assert!(h.add(0, [], [1]).is_empty());
        assert_eq!(h.add(1, [1], [2]), [0]);
        assert_eq!(h.add(2, [1], [3]), [0], "readers do not wait for readers");
        assert_eq!(h.add(3, [2], [1]), [0, 1, 2], "a writer waits for readers and the writer");
        assert_eq!(h.add(4, [3], [3]), [2], "a task does not wait for itself");
        assert_eq!(h.add(5, [3], []), [4]);
    }
}
