//! What a session waits for, shared with the threads that step the engine or choose tokens.

use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;

pub(crate) use troika_device::lock;
use troika_engine::{Event, Next};

use crate::generate::{Generating, Given};

/// The results that a session waits for, written by the thread that steps the engine.
#[derive(Debug, Default)]
pub(crate) struct SessionState {
    /// A generation in progress.
    pub generating: Option<Generating>,
    /// How many requests the session made so far.
    pub requests: u64,
    /// Logits with their positions, handed out by another thread.
    pub rows: Vec<(usize, Vec<f32>)>,
    /// Tokens that were cached when the sequence began.
    pub cached: usize,
    /// How the current request ended.
    pub ended: Option<Ended>,
    /// Woken by the next event.
    pub waker: Option<Waker>,
}

/// How feeding a sequence ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// All tokens were computed.
    Through,
    Cancelled,
    Failed(crate::Error),
}

/// The state of a session, shared with the threads that step the engine.
pub(crate) type Shared = Arc<Mutex<SessionState>>;

/// Counts steps and tokens chosen elsewhere, for threads that wait while another one steps.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    count: Mutex<u64>,
    counted: Condvar,
}

impl Steps {
    /// Wakes the threads that wait for results or for the engine.
    pub fn tell(&self) {
        *lock(&self.count) += 1;
        self.counted.notify_all();
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        *lock(&self.count)
    }

    /// Waits until there are more than `seen`.
    pub fn wait(&self, seen: u64) {
        let same = |count: &mut u64| *count == seen;
        drop(self.counted.wait_while(lock(&self.count), same));
    }
}

/// Receives logits in the engine's memory, on the thread that wants them.
pub(crate) type OwnRows<'a> = &'a mut dyn FnMut(usize, &mut [f32]);

impl SessionState {
    /// Begins another request.
    pub fn restart(&mut self, generating: Option<Generating>) {
        let requests = self.requests + 1;
        *self = SessionState { generating, requests, ..SessionState::default() };
    }

    /// Notes an event. Logits of a session that this thread feeds go to `own`.
    pub fn take_in(&mut self, event: Event<'_>, own: Option<&mut OwnRows<'_>>) -> Next {
        match event {
            Event::Begun { cached, .. } => self.cached = cached,
            Event::Logits { position, logits, last, .. } => {
                if let Some(generating) = &mut self.generating {
                    return generating.choose_next(&Given::All(logits));
                }
                match own {
                    Some(rows) => {
                        for (earlier, mut row) in self.rows.drain(..) {
                            rows(earlier, &mut row);
                        }
                        rows(position, logits);
                    }
                    None => self.rows.push((position, logits.to_vec())),
                }
                if last {
                    self.ended = Some(Ended::Through);
                }
            }
            // Only generations ask for them.
            Event::TopK { top_k, .. } => {
                let generating = self.generating.as_mut();
                return generating.map_or(Next::Wait, |g| g.choose_next(&Given::TopK(top_k)));
            }
            Event::Fed { .. } => match &mut self.generating {
                Some(generating) => return generating.choose_next(&Given::Nothing),
                None => self.ended = Some(Ended::Through),
            },
            Event::Cancelled { .. } => self.ended = Some(Ended::Cancelled),
            Event::Failed { error, .. } => self.ended = Some(Ended::Failed(error.into())),
        }
        Next::Wait
    }
}
