//! Program order over several queues: each queue's tasks, waits and signals.

/// An order fixed before anything runs. Each queue gets its tasks as one list; lists wait for each
/// other task by task. There is no deadlock, since all are in program order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub(super) devices: Vec<DeviceOrder>,
}

/// The part of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceOrder {
    /// Its tasks.
    pub tasks: Vec<u32>,
    /// (place of the waiting task, other device, how many of that device's tasks must be done).
    pub waits: Vec<(u32, usize, u64)>,
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
            let mut known = match devices[own].tasks.last() {
                Some(&before) => done[before as usize].clone(),
                None => vec![0; count],
            };
            // The latest first: its wait may imply the others.
            for &earlier in waits_for[task].iter().rev() {
                let other = device[earlier as usize];
                let reached = done[earlier as usize][other];
                if known[other] >= reached {
                    continue;
                }
                devices[own].waits.push((place as u32, other, reached));
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
    pub(super) fn values(&self) -> u64 {
        self.devices.iter().map(|d| d.tasks.len() as u64).max().unwrap_or(0) + 1
    }
}
