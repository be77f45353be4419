//! Measures how long devices have work from the chunks of a graph.

use std::time::Duration;

use super::TaskGraph;

/// How long a device had work from a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The chunk.
    pub chunk: u32,
    /// Index of the device in the runner's list.
    pub device: usize,
    /// Sum over its tasks of the time from when each could begin to its end. A task can begin when
    /// its dependencies and the device's earlier tasks of this graph are done.
    pub time: Duration,
}

/// When the tasks of a graph ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Measure {
    pub begun: Duration,
    ends: Vec<Duration>,
    pub kept: Vec<Kept>,
}

impl Measure {
    pub fn new(begun: Duration, tasks: usize) -> Measure {
        Measure { begun, ends: vec![Duration::ZERO; tasks], kept: Vec::new() }
    }

    pub fn ended(&mut self, task: u32, end: Duration) {
        if let Some(known) = self.ends.get_mut(task as usize) {
            *known = end;
        }
    }

    /// Sums up the times when all tasks have ended.
    pub fn close(&mut self, graph: &TaskGraph) {
        let mut order: Vec<u32> = (0..graph.len() as u32).collect();
        order.sort_by_key(|t| (self.ends[*t as usize], *t));
        let devices = graph.dag.device.iter().max().map_or(0, |last| last + 1);
        let (mut free, mut ready) = (vec![self.begun; devices], vec![self.begun; self.ends.len()]);
        for task in order {
            let (i, end) = (task as usize, self.ends[task as usize]);
            let (device, chunk) = (graph.dag.device[i], graph.tasks[i].chunk);
            let time = end.saturating_sub(ready[i].max(free[device]));
            free[device] = free[device].max(end);
            for later in &graph.dag.dependents[i] {
                ready[*later as usize] = ready[*later as usize].max(end);
            }
            match self.kept.iter_mut().find(|k| (k.chunk, k.device) == (chunk, device)) {
                Some(known) => known.time += time,
                None => self.kept.push(Kept { chunk, device, time }),
            }
        }
    }
}
