//! Program order over several queues: each queue's tasks, waits and signals.

use std::slice::from_ref;
use std::sync::Arc;

use troika_device::{Access, ForwardBatch, Point, Wait};

use super::{Dag, HazardTracker};
use crate::tasks::{BufferName, NamedTask, NamedView, NamedWork};

/// An order fixed before anything runs. Each queue gets its tasks as one list; lists wait for each
/// other task by task. There is no deadlock, since all are in program order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// By device.
    pub devices: Vec<DeviceOrder>,
}

/// The part of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOrder {
    /// Its tasks.
    pub tasks: Vec<u32>,
    /// How many tasks of another device must be done before one of its tasks, by its place.
    pub waits: Vec<Wait>,
    /// Numbers of finished tasks at which this device signals, since another one waits for them.
    pub signals: Vec<u64>,
}

impl Order {
    /// Orders tasks on devices, each with the earlier tasks it waits for. Leaves out waits that
    /// follow from a queue's own order or from an earlier wait.
    pub fn new(device: &[usize], waits_for: &[Vec<u32>]) -> Order {
        let count = device.iter().max().map_or(0, |d| d + 1);
        let mut devices = vec![DeviceOrder::default(); count];
        // For each task: how many tasks of each device are surely done when it is, itself included.
        let mut done: Vec<Vec<u64>> = Vec::with_capacity(device.len());
        for (task, &own) in device.iter().enumerate() {
            let place = devices[own].tasks.len();
            let before = devices[own].tasks.last();
            let mut known = before.map_or_else(|| vec![0; count], |&b| done[b as usize].clone());
            // The latest first: its wait may imply the others.
            for &earlier in waits_for[task].iter().rev() {
                let other = device[earlier as usize];
                let reached = done[earlier as usize][other];
                if known[other] >= reached {
                    continue;
                }
                let on = Point { queue: other as u32, value: reached };
                devices[own].waits.push(Wait { task: place as u32, on });
                devices[other].signals.push(reached);
                for (k, d) in known.iter_mut().zip(&done[earlier as usize]) {
                    *k = (*k).max(*d);
                }
            }
            known[own] = place as u64 + 1;
            devices[own].tasks.push(task as u32);
            done.push(known);
        }
        for d in &mut devices {
            d.signals.sort_unstable();
            d.signals.dedup();
        }
        Order { devices }
    }

    /// A value above the number of tasks in any queue.
    pub fn values(&self) -> u64 {
        self.devices.iter().map(|d| d.tasks.len() as u64).max().unwrap_or(0) + 1
    }
}

/// Tasks in program order: which waits for which, and in which order queues run them.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// What waits for what.
    pub dag: Dag,
    /// The order, if it is fixed in advance: for several devices and one chunk.
    pub order: Option<Order>,
}

impl Schedule {
    /// Tasks on devices, each with the earlier tasks that it waits for.
    pub fn new(device: Vec<usize>, waits_for: &[Vec<u32>], one_chunk: bool) -> Schedule {
        let several = device.windows(2).any(|d| d[0] != d[1]);
        let order = (several && one_chunk).then(|| Order::new(&device, waits_for));
        Schedule { dag: Dag::new(device, waits_for), order }
    }

    /// Says that others become known when a task has run. The order is not fixed then.
    pub fn grow(&mut self, task: u32) {
        self.dag.grows[task as usize] = true;
        self.order = None;
    }

    /// Tasks by name, with the forward batch of each chunk.
    pub fn of_named(tasks: &[NamedTask], forwards: &[Arc<ForwardBatch>]) -> Schedule {
        let mut hazards = HazardTracker::default();
        let waits_for = tasks.iter().enumerate().map(|(i, task)| {
            let forward = &forwards[task.chunk as usize];
            hazards.begin(i as u32);
            let (reads, writes): (&[NamedView], &[NamedView]) = match &task.work {
                NamedWork::Run(run) => (&run.inputs, &run.outputs),
                NamedWork::Copy(copy) => (from_ref(&copy.from), from_ref(&copy.to)),
                NamedWork::Host(host) => (&host.reads, &host.writes),
            };
            for (views, access) in [(reads, Access::Read), (writes, Access::Write)] {
                views.iter().for_each(|v| hazards.memory(v.buffer.clone(), &v.rect(), access));
            }
            match &task.work {
                NamedWork::Run(run) if !run.states.is_empty() => {
                    let states = run.states.iter().map(|part| BufferName::State(*part));
                    hazards.states(states, &forward.slice(&task.rows));
                }
                NamedWork::Host(host) => {
                    host.parts.iter().for_each(|v| hazards.shared(v.buffer.clone(), &v.rect()));
                }
                NamedWork::Run(_) | NamedWork::Copy(_) => {}
            }
            hazards.end().to_vec()
        });
        let waits_for: Vec<Vec<u32>> = waits_for.collect();
        let one_chunk = tasks.windows(2).all(|t| t[0].chunk == t[1].chunk);
        Schedule::new(tasks.iter().map(|t| t.device).collect(), &waits_for, one_chunk)
    }
}
