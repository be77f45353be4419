//! Which task waits for which: all the scheduler needs to know about tasks to decide.

/// Tasks by number, which is program order.
#[derive(Clone, Debug, Default)]
pub struct Dag {
    /// The device of each task.
    pub device: Vec<usize>,
    /// For each task, those that wait for it.
    pub dependents: Vec<Vec<u32>>,
    /// How many tasks each one waits for.
    pub waits: Vec<u32>,
    /// For each task, whether a task of another device waits for it.
    pub awaited: Vec<bool>,
    /// The device of all tasks, if it is the same for all.
    pub(super) only_device: Option<usize>,
    /// For each task, whether others become known when it has run. Whatever waits for it waits for
    /// these, too.
    pub grows: Vec<bool>,
}

impl Dag {
    /// Makes a graph of tasks on devices, each with the earlier tasks that it waits for.
    pub fn new(device: Vec<usize>, waits_for: &[Vec<u32>]) -> Dag {
        let mut dependents = vec![Vec::new(); device.len()];
        for (task, earlier) in waits_for.iter().enumerate() {
            for &e in earlier {
                dependents[e as usize].push(task as u32);
            }
        }
        let others = |(task, waiting): (usize, &Vec<u32>)| {
            waiting.iter().any(|&d| device[d as usize] != device[task])
        };
        let first = device.first().copied();
        Dag {
            awaited: dependents.iter().enumerate().map(others).collect(),
            waits: waits_for.iter().map(|w| w.len() as u32).collect(),
            only_device: first.filter(|&first| device.iter().all(|&d| d == first)),
            dependents,
            grows: vec![false; device.len()],
            device,
        }
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.device.len()
    }

    /// Whether there are no tasks.
    pub fn is_empty(&self) -> bool {
        self.device.is_empty()
    }
}
