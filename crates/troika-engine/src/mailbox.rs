//! What any thread may ask of an engine, and what the thread that steps it takes from there.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::EngineError;
use crate::input::{Admission, WantedLogits};
use crate::kv::{KvError, KvFit, SeqId};
use crate::schedule::{Canceller, JobId};

/// Something to do, in the order in which it was asked for.
#[derive(Debug)]
pub(crate) enum Request {
    Admit(SeqId, Admission),
    Append(SeqId, Vec<u32>, WantedLogits),
    Replace(SeqId, Vec<u32>, WantedLogits),
    Cancel(SeqId),
    Close(SeqId),
}

/// What is known of a sequence that is open.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Tokens, computed or not.
    len: usize,
    /// Whether some are to be computed.
    pending: bool,
    cancelled: bool,
    /// Whether the engine has taken the request to open it.
    taken: bool,
}

/// What is in flight in a place: whose rows, and how to end it.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub job: JobId,
    pub canceller: Canceller,
    pub seqs: Vec<SeqId>,
    /// Whether it is of several batches: then it ends as soon as one of its sequences is not wanted
    /// any more, and the others go on from the last batch that was done.
    pub several: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub requests: VecDeque<Request>,
    known: HashMap<SeqId, Known>,
    pub in_flight: Vec<InFlight>,
    ended: bool,
}

/// What tokens an engine takes.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub vocab: usize,
    pub cache: Arc<KvFit>,
    /// Of a sequence.
    pub most_tokens: usize,
}

impl Limits {
    pub fn new(vocab: usize, cache: KvFit) -> Limits {
        Limits { vocab, most_tokens: cache.most(), cache: Arc::new(cache) }
    }
}

/// Asks an engine for things, from any thread. What is asked for is done by the next
/// [`crate::Engine::step`], but that what a cancelled sequence alone has in flight is ended at once.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    inbox: Arc<Mutex<Inbox>>,
    limits: Limits,
}

impl EngineHandle {
    pub(crate) fn new(limits: Limits) -> EngineHandle {
        EngineHandle { inbox: Arc::default(), limits }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a sequence.
    ///
    /// # Errors
    /// A token that the model does not know; more tokens than the context or the cache can ever
    /// hold; an engine that is gone.
    pub fn admit(&self, admission: Admission) -> Result<SeqId, EngineError> {
        self.check(&admission.tokens, 0)?;
        let mut inbox = self.lock();
        if inbox.ended {
            return Err(EngineError::Ended);
        }
        let seq = SeqId::next();
        let pending = !admission.tokens.is_empty();
        let known = Known { len: admission.tokens.len(), pending, ..Known::default() };
        inbox.known.insert(seq, known);
        inbox.requests.push_back(Request::Admit(seq, admission));
        Ok(seq)
    }

    /// Appends tokens to a sequence that waits for them.
    ///
    /// # Errors
    /// No tokens; one that the model does not know; more than the context or the cache can hold; a
    /// sequence that was closed, or was fed and is not through yet.
    pub fn feed(
        &self,
        seq: SeqId,
        tokens: &[u32],
        logits: WantedLogits,
    ) -> Result<(), EngineError> {
        let mut inbox = self.lock();
        let known = self.may_feed(&mut inbox, seq, tokens)?;
        (known.len, known.pending) = (known.len + tokens.len(), true);
        inbox.requests.push_back(Request::Append(seq, tokens.to_vec(), logits));
        Ok(())
    }

    /// Has a sequence that waits consist of these tokens: what it has in common with those it has
    /// stays cached, but at least the last one is computed.
    ///
    /// # Errors
    /// As [`EngineHandle::feed`].
    pub fn replace(
        &self,
        seq: SeqId,
        tokens: Vec<u32>,
        logits: WantedLogits,
    ) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Empty);
        }
        self.check(&tokens, 0)?;
        let mut inbox = self.lock();
        let known = inbox.waiting(seq)?;
        (known.len, known.pending) = (tokens.len(), true);
        inbox.requests.push_back(Request::Replace(seq, tokens, logits));
        Ok(())
    }

    /// Ends what a sequence has to compute. It stays open, and consists of what was computed.
    /// Nothing happens to one that has nothing to compute.
    ///
    /// # Errors
    /// A sequence that was closed.
    pub fn cancel(&self, seq: SeqId) -> Result<(), EngineError> {
        let mut inbox = self.lock();
        let known = inbox.known.get_mut(&seq).ok_or(KvError::Closed(seq))?;
        if !known.pending || known.cancelled {
            return Ok(());
        }
        known.cancelled = true;
        inbox.requests.push_back(Request::Cancel(seq));
        inbox.end_cancelled(seq);
        Ok(())
    }

    /// Closes a sequence; what it has to compute is ended.
    ///
    /// # Errors
    /// A sequence that was closed before.
    pub fn close(&self, seq: SeqId) -> Result<(), EngineError> {
        let mut inbox = self.lock();
        let known = inbox.known.remove(&seq).ok_or(KvError::Closed(seq))?;
        if !known.taken {
            // The engine never hears of it, lest requests pile up while nobody steps.
            inbox.requests.retain(|request| request.seq() != seq);
            return Ok(());
        }
        inbox.requests.push_back(Request::Close(seq));
        inbox.end_cancelled(seq);
        Ok(())
    }

    /// Tokens of a sequence, computed or not; `None` when it is closed.
    pub fn len(&self, seq: SeqId) -> Option<usize> {
        self.lock().known.get(&seq).map(|known| known.len)
    }

    /// The most tokens that a sequence can have: the context, or what the cache can hold of one.
    pub fn most_tokens(&self) -> usize {
        self.limits.most_tokens
    }

    /// Whether a sequence has tokens to compute.
    pub fn is_pending(&self, seq: SeqId) -> bool {
        self.lock().known.get(&seq).is_some_and(|known| known.pending)
    }

    /// Sequences that are open.
    pub fn open_sequences(&self) -> usize {
        self.lock().known.len()
    }

    /// Whether a sequence can be fed.
    pub(crate) fn check_feed(&self, seq: SeqId, tokens: &[u32]) -> Result<(), EngineError> {
        self.may_feed(&mut self.lock(), seq, tokens).map(|_| ())
    }

    fn may_feed<'a>(
        &self,
        inbox: &'a mut Inbox,
        seq: SeqId,
        tokens: &[u32],
    ) -> Result<&'a mut Known, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Empty);
        }
        let known = inbox.waiting(seq)?;
        self.check(tokens, known.len)?;
        Ok(known)
    }

    fn check(&self, tokens: &[u32], cached: usize) -> Result<(), EngineError> {
        let Limits { vocab, cache, .. } = &self.limits;
        let vocab = *vocab;
        if let Some(&id) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(EngineError::Token { id, vocab });
        }
        Ok(cache.alone(cached + tokens.len())?)
    }

    /// Checks a token that a step was told to go on with, and counts it.
    pub(crate) fn go_on(&self, seq: SeqId, token: u32) -> Result<(), EngineError> {
        let mut inbox = self.lock();
        let Some(known) = inbox.known.get_mut(&seq) else {
            return Err(KvError::Closed(seq).into());
        };
        self.check(&[token], known.len)?;
        // It was pending all the time, so that nobody's cancellation was lost meanwhile.
        known.len += 1;
        Ok(())
    }
}

impl Request {
    fn seq(&self) -> SeqId {
        match self {
            Request::Admit(seq, _)
            | Request::Append(seq, ..)
            | Request::Replace(seq, ..)
            | Request::Cancel(seq)
            | Request::Close(seq) => *seq,
        }
    }
}

impl Inbox {
    /// The request that was made first.
    pub fn take(&mut self) -> Option<Request> {
        let request = self.requests.pop_front()?;
        if let Request::Admit(seq, _) = &request
            && let Some(known) = self.known.get_mut(seq)
        {
            known.taken = true;
        }
        Some(request)
    }

    fn waiting(&mut self, seq: SeqId) -> Result<&mut Known, EngineError> {
        if self.ended {
            return Err(EngineError::Ended);
        }
        let known = self.known.get_mut(&seq).ok_or(KvError::Closed(seq))?;
        if known.pending { Err(EngineError::Twice(seq)) } else { Ok(known) }
    }

    /// A sequence without tokens is open.
    pub fn open(&mut self, seq: SeqId) {
        self.known.insert(seq, Known { taken: true, ..Known::default() });
    }

    /// A sequence is to have no more than `len` tokens. Returns how many it had.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<usize, EngineError> {
        let known = self.waiting(seq)?;
        let before = known.len;
        known.len = before.min(len);
        Ok(before)
    }

    /// A sequence waits for tokens now, and has so many.
    pub fn idle(&mut self, seq: SeqId, len: usize) {
        if let Some(known) = self.known.get_mut(&seq) {
            *known = Known { len, pending: false, cancelled: false, taken: true };
        }
    }

    /// Nothing more is taken.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Ends what is in flight of a sequence that nobody wants any more. A single batch that others
    /// are in, too, goes on: it takes no longer than a chunk.
    pub fn end_cancelled(&self, seq: SeqId) {
        let unwanted = |seq: &SeqId| self.known.get(seq).is_none_or(|known| known.cancelled);
        for running in self.in_flight.iter().filter(|f| f.seqs.contains(&seq)) {
            let mut seqs = running.seqs.iter();
            let ends = if running.several { seqs.any(unwanted) } else { seqs.all(unwanted) };
            if ends {
                running.canceller.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EngineHandle, Limits};
    use crate::input::{Admission, WantedLogits};
    use crate::kv::{GroupLayout, KvCache, KvLayout};

    fn handle() -> EngineHandle {
        let groups = vec![GroupLayout { window: None, position_bytes: 1 }];
        let (page_len, context, chunk) = (4, 64, 8);
        let layout = KvLayout { page_len, context, chunk, groups, sequences: 2, budget: Some(40) };
        EngineHandle::new(Limits::new(100, KvCache::new(layout).unwrap().fit()))
    }

    #[test]
    fn sequences_that_come_and_go_without_a_step_leave_no_requests() {
        let handle = handle();
        let stays = handle.admit(Admission::default()).unwrap();
        for i in 0..1000 {
            let tokens = if i % 2 == 0 { vec![1, 2] } else { Vec::new() };
            let seq = handle.admit(Admission { tokens, ..Admission::default() }).unwrap();
            if i % 2 == 1 {
                handle.replace(seq, vec![1, 2, 3], WantedLogits::Last).unwrap();
            }
            handle.cancel(seq).unwrap();
            handle.close(seq).unwrap();
            assert_eq!(handle.lock().requests.len(), 1);
        }
        // One that the engine knows is closed there.
        assert!(handle.lock().take().is_some());
        handle.feed(stays, &[1], WantedLogits::Last).unwrap();
        handle.close(stays).unwrap();
        assert_eq!(handle.lock().requests.len(), 2);
        assert_eq!(handle.open_sequences(), 0);
    }

    #[test]
    fn what_the_cache_holds_of_a_sequence_is_known_beforehand() {
        let handle = handle();
        assert_eq!(handle.most_tokens(), 40);
        assert!(handle.check(&[1], 39).is_ok() && handle.check(&[1], 40).is_err());
    }
}
