//! Threads that compute masks while devices run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

type Closure = Box<dyn FnOnce() + Send>;

/// The threads. They end once nobody holds the pool.
#[derive(Debug)]
pub(super) struct Pool {
    sender: Sender<Closure>,
}

impl Pool {
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads.max(1) {
            let receiver = Arc::clone(&receiver);
            std::thread::Builder::new().name("grammar".to_owned()).spawn(move || run(&receiver))?;
        }
        Ok(Self { sender })
    }

    /// Runs this on a thread. If it is lost, what it would have sent does not come.
    pub(super) fn submit(&self, closure: impl FnOnce() + Send + 'static) {
        // The threads outlive the sender, so that this fails only when they could not be kept.
        drop(self.sender.send(Box::new(closure)));
    }
}

fn run(receiver: &Mutex<Receiver<Closure>>) {
    loop {
        // A poisoned lock means a panic in `recv`, which holds no state of ours.
        let next = receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv();
        let Ok(closure) = next else { return };
        // Who waits sees that the answer does not come. The thread goes on for the others.
        drop(catch_unwind(AssertUnwindSafe(closure)));
    }
}
