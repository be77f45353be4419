//! One engine for all sessions of a model. It has no thread of its own: a session that waits steps
//! the engine for all sessions, unless another thread does so already.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::thread::{ThreadId, current};

use troika_engine::{Engine, EngineError, EngineHandle, Event, Next, SeqId};

use crate::choosers::Choosers;
use crate::error::Error;
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked was working on its own session only.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exclusive use of the engine for one thread. Dropping it wakes the threads that wait for the
/// engine.
pub struct EngineGuard<'a> {
    /// `None` once released.
    engine: Option<MutexGuard<'a, Engine>>,
    driver: &'a Driver,
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    #[expect(clippy::expect_used, reason = "it is released only when this is dropped")]
    fn deref(&self) -> &Engine {
        self.engine.as_deref().expect("the engine is held")
    }
}

impl DerefMut for EngineGuard<'_> {
    #[expect(clippy::expect_used, reason = "it is released only when this is dropped")]
    fn deref_mut(&mut self) -> &mut Engine {
        self.engine.as_deref_mut().expect("the engine is held")
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.driver.holder) = None;
        self.engine = None;
        self.driver.steps.tell();
    }
}

pub(crate) struct Driver {
    engine: Mutex<Engine>,
    /// The thread that holds the engine: if it waited for the engine, it would wait for ever.
    holder: Mutex<Option<ThreadId>>,
    pub handle: EngineHandle,
    sessions: Mutex<HashMap<SeqId, Shared>>,
    steps: Arc<Steps>,
    choosers: Choosers,
}

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

    /// Waits until there are more than `seen`.
    fn wait(&self, seen: u64) {
        let same = |count: &mut u64| *count == seen;
        drop(self.counted.wait_while(lock(&self.count), same));
    }
}

/// Receives logits in the engine's memory, on the thread that wants them.
pub(crate) type OwnRows<'a> = &'a mut dyn FnMut(usize, &mut [f32]);

impl Driver {
    pub fn new(engine: Engine) -> Driver {
        let (handle, steps) = (engine.handle().clone(), Arc::<Steps>::default());
        Driver {
            choosers: Choosers::new(&handle, &steps),
            handle,
            engine: Mutex::new(engine),
            holder: Mutex::default(),
            sessions: Mutex::default(),
            steps,
        }
    }

    /// Waits until the engine is free, then holds it.
    ///
    /// # Errors
    /// This thread holds it already.
    pub fn engine(&self) -> Result<EngineGuard<'_>, Error> {
        self.check_free()?;
        Ok(self.hold(lock(&self.engine)))
    }

    fn hold<'a>(&'a self, engine: MutexGuard<'a, Engine>) -> EngineGuard<'a> {
        *lock(&self.holder) = Some(current().id());
        EngineGuard { engine: Some(engine), driver: self }
    }

    /// Whether this thread holds the engine and is called back in the middle of a step.
    pub fn is_held_here(&self) -> bool {
        *lock(&self.holder) == Some(current().id())
    }

    /// Checks that this thread can wait for the engine.
    ///
    /// # Errors
    /// This thread holds it.
    pub fn check_free(&self) -> Result<(), Error> {
        if self.is_held_here() { Err(Error::EngineHeld) } else { Ok(()) }
    }

    pub fn add(&self, seq: SeqId, state: &Shared) {
        lock(&self.sessions).insert(seq, state.clone());
    }

    pub fn remove(&self, seq: SeqId) {
        lock(&self.sessions).remove(&seq);
    }

    /// Steps the engine, or waits while another thread does, until `ready` returns a value; it is
    /// called after each step. Logits of this thread's own session go to `own`.
    ///
    /// # Errors
    /// A fault of the engine; nothing to wait for; a thread that holds the engine already.
    pub fn until<T>(
        &self,
        mut ready: impl FnMut() -> Option<T>,
        mut own: Option<(SeqId, OwnRows<'_>)>,
    ) -> Result<T, Error> {
        loop {
            let seen = *lock(&self.steps.count);
            if let Some(found) = ready() {
                return Ok(found);
            }
            let engine = match self.engine.try_lock() {
                Ok(engine) => Some(engine),
                Err(TryLockError::Poisoned(engine)) => Some(engine.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            match engine {
                Some(engine) => {
                    let mut engine = self.hold(engine);
                    let own = own.as_mut().map(|(seq, rows)| {
                        let rows: OwnRows<'_> = &mut **rows;
                        (*seq, rows)
                    });
                    let went_on = self.step(&mut engine, own);
                    drop(engine);
                    if !went_on? {
                        // All requests are done: either it is ready, or it never will be.
                        return ready().ok_or(EngineError::Ended.into());
                    }
                }
                None => {
                    self.check_free()?;
                    self.steps.wait(seen);
                }
            }
        }
    }

    /// Does one step for all sessions.
    pub fn step(
        &self,
        engine: &mut Engine,
        mut own: Option<(SeqId, OwnRows<'_>)>,
    ) -> Result<bool, EngineError> {
        engine.step(&mut |event| {
            let seq = event.seq();
            let shared = lock(&self.sessions).get(&seq).cloned();
            let Some(shared) = shared else { return Next::Wait };
            let own = own.as_mut().filter(|(own, _)| *own == seq);
            let mut state = lock(&shared);
            let next = state.take_in(event, own.map(|(_, rows)| rows));
            if next == Next::Later {
                drop(state);
                self.choosers.choose(seq, shared);
                return next;
            }
            let waker = state.waker.take();
            // Whoever is woken may look at the state at once.
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
            next
        })
    }
}

impl SessionState {
    /// Begins another request.
    pub fn restart(&mut self, generating: Option<Generating>) {
        let requests = self.requests + 1;
        *self = SessionState { generating, requests, ..SessionState::default() };
    }

    /// Notes an event. Logits of a session that this thread feeds go to `own`.
    fn take_in(&mut self, event: Event<'_>, own: Option<&mut OwnRows<'_>>) -> Next {
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
