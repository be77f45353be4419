//! One engine for all sessions of a model. It has no thread of its own: a session that waits steps
//! the engine for all sessions, unless another thread does so already.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{ThreadId, current};

use troika_engine::{Engine, EngineError, EngineHandle, Next, SeqId};

use crate::choosers::Choosers;
use crate::error::Error;
use crate::session_state::{OwnRows, Shared, Steps, lock};

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

    /// Checks that this thread can wait for the engine: it does not hold it, called back in the middle
    /// of a step.
    pub fn check_free(&self) -> Result<(), Error> {
        let is_held_here = *lock(&self.holder) == Some(current().id());
        if is_held_here { Err(Error::EngineHeld) } else { Ok(()) }
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
            let seen = self.steps.count();
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
                    let own = own.as_mut().map(|(seq, rows)| (*seq, &mut **rows as OwnRows<'_>));
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
