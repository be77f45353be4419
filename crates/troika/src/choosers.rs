//! Threads that choose tokens where a constraint has to be waited for. The engine goes on meanwhile.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use troika_engine::{EngineHandle, SeqId};

use crate::generate::{Given, choose};
use crate::session_state::{Shared, Steps, lock};

#[derive(Debug, Default)]
struct Queue {
    /// Sessions that wait for their next tokens.
    waiting: VecDeque<(SeqId, Shared)>,
    /// Threads that have nothing to do.
    idle: usize,
    ended: bool,
}

/// What the threads share.
#[derive(Debug)]
struct Common {
    queue: Mutex<Queue>,
    /// Notified of each session that waits.
    asked: Condvar,
    handle: EngineHandle,
    steps: Arc<Steps>,
}

/// The threads: as many as sessions ever waited at once, so that none holds up another one.
pub(crate) struct Choosers(Arc<Common>);

impl Choosers {
    /// No threads yet.
    pub fn new(handle: &EngineHandle, steps: &Arc<Steps>) -> Choosers {
        let (handle, steps) = (handle.clone(), steps.clone());
        let (queue, asked) = (Mutex::default(), Condvar::new());
        Choosers(Arc::new(Common { queue, asked, handle, steps }))
    }

    /// Chooses a session's next token on one of the threads, and tells the engine.
    pub fn choose(&self, seq: SeqId, state: Shared) {
        let mut queue = lock(&self.0.queue);
        queue.waiting.push_back((seq, state));
        if queue.waiting.len() <= queue.idle {
            return self.0.asked.notify_one();
        }
        drop(queue);
        let common = self.0.clone();
        let thread = std::thread::Builder::new().name("troika-choose".into());
        if thread.spawn(move || common.run()).is_err() {
            // Without another thread, all wait here.
            self.0.choose_first();
        }
    }
}

impl Drop for Choosers {
    fn drop(&mut self) {
        lock(&self.0.queue).ended = true;
        self.0.asked.notify_all();
    }
}

impl Common {
    fn run(&self) {
        loop {
            while self.choose_first() {}
            let mut queue = lock(&self.queue);
            queue.idle += 1;
            let none = |queue: &mut Queue| queue.waiting.is_empty() && !queue.ended;
            queue = self.asked.wait_while(queue, none).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
            if queue.ended {
                return;
            }
        }
    }

    /// Chooses for the session that has waited longest; whether there was one.
    fn choose_first(&self) -> bool {
        let next = lock(&self.queue).waiting.pop_front();
        let Some((seq, state)) = next else { return false };
        self.choose(seq, &state);
        self.steps.tell();
        true
    }

    fn choose(&self, seq: SeqId, state: &Shared) {
        let mut held = lock(state);
        let (request, Some(generating)) = (held.requests, &mut held.generating) else { return };
        let (began, top) = (generating.times.clock.now(), generating.logprobs);
        // Another thread that was asked for an earlier request may have chosen already.
        let sampler = generating.sampler.take_if(|_| !generating.row.is_empty());
        let Some(mut sampler) = sampler else { return };
        let mut row = std::mem::take(&mut generating.row);
        // Nobody waits for this session's state meanwhile.
        drop(held);
        let chosen =
            catch_unwind(AssertUnwindSafe(|| choose(&mut sampler, &Given::All(&row), top)));
        let mut held = lock(state);
        if held.requests != request || held.ended.is_some() {
            return;
        }
        let Some(generating) = &mut held.generating else { return };
        row.clear();
        (generating.sampler, generating.row) = (Some(sampler), row);
        match chosen {
            // Said while the state is held, so that it cannot reach a later request of the session.
            Ok(chosen) => self.handle.go_on(seq, generating.take_token(chosen, began)),
            // A constraint that panicked ends its answer; the session may be closed already.
            Err(_) => drop(self.handle.cancel(seq)),
        }
        let waker = held.waker.take();
        drop(held);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
