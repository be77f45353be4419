//! Program order over several queues: what each runs, what it waits for, what others wait for.

/// An order that is fixed before anything runs. Each queue gets its tasks as one list; lists wait
/// for each other task by task. As all are in program order, there is no deadlock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub(super) devices: Vec<DeviceOrder>,
}

/// The part of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceOrder {
    /// Its tasks.
    pub tasks: Vec<u32>,
    /// Which of them (by place) waits until so many tasks of which other device are done.
    pub waits: Vec<(u32, usize, u64)>,
    /// After which number of its tasks someone waits.
    pub signals: Vec<u64>,
}

impl Order {
    /// The order of tasks on the given devices, each with the earlier tasks it waits for. What a
    /// queue knows anyway, from its own order or from what it waited for before, it does not wait
    /// for again.
    pub fn new(device: &[usize], waits_for: &[Vec<u32>]) -> Order {
        let count = device.iter().max().map_or(0, |d| d + 1);
        let mut devices = vec![DeviceOrder::default(); count];
        // How many tasks of each device are surely done when a task is, itself counted.
        let mut done: Vec<Vec<u64>> = Vec::with_capacity(device.len());
        for (task, &own) in device.iter().enumerate() {
            let place = devices[own].tasks.len();
            let mut known = match devices[own].tasks.last() {
                Some(&before) => done[before as usize].clone(),
                None => vec![0; count],
            };
            // The latest first: it may know of the others.
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

    /// More than any queue has tasks.
    pub(super) fn values(&self) -> u64 {
        self.devices.iter().map(|d| d.tasks.len() as u64).max().unwrap_or(0) + 1
    }
}
