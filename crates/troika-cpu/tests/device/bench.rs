//! A device with a queue.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use troika_cpu::{CpuDevice, CpuOptions};
use troika_device::*;

pub struct Bench {
    pub device: CpuDevice,
    pub queue: Box<dyn Queue>,
    pub done: Receiver<Completion>,
}

impl Bench {
    pub fn new(name: &str, threads: usize) -> Bench {
        Bench::with(CpuOptions { name: name.into(), threads, ..CpuOptions::default() })
    }

    pub fn with(options: CpuOptions) -> Bench {
        let device = CpuDevice::new(options).unwrap();
        let (send, done) = sync_channel(8);
        let queue = device.queue(3, Arc::new(RealClock::new()), send).unwrap();
        Bench { device, queue, done }
    }

    /// Submits a list, and waits for its end.
    pub fn complete(&mut self, list: CommandList) -> Completion {
        self.queue.submit(list).unwrap();
        self.done.recv().unwrap()
    }
}
