//! Requests to an engine from any thread, and how the thread that steps it takes them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use troika_plan::Phase;

use crate::error::EngineError;
use crate::input::{Admission, Next, PromptProgress, SequenceInput, WantedLogits};
use crate::schedule::{Canceller, JobId};
use troika_program::kv::{KvError, KvFit, SeqId};

/// What is requested of a sequence; requests are done in the order in which they were made.
#[derive(Debug)]
pub(crate) enum Request {
    Admit(Admission),
    /// It is new, beside another one.
    Fork(SeqId),
    Append(Vec<u32>, WantedLogits, Phase),
    Replace(Vec<u32>, WantedLogits),
    GoOn(Next),
    Cancel,
    Close,
}

/// What is known of an open sequence.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Tokens, computed or not.
    len: usize,
    /// Whether some tokens are still to be computed.
    pending: bool,
    cancelled: bool,
    /// Whether the engine has taken the request to open it.
    taken: bool,
    /// How far its prompt is read, once that has begun.
    reads: Option<PromptProgress>,
}

/// What is in flight in a slot: its sequences, and how to stop it.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub job: JobId,
    pub canceller: Canceller,
    pub seqs: Vec<SeqId>,
    /// Whether it consists of several batches. Then it stops as soon as one of its sequences is
    /// cancelled, and the others continue after the last finished batch.
    pub several: bool,
    /// Whether it stops when another prompt comes.
    pub yields: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub requests: VecDeque<(SeqId, Request)>,
    known: HashMap<SeqId, Known>,
    pub in_flight: Vec<InFlight>,
    ended: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub vocab: usize,
    pub cache: Arc<KvFit>,
    /// The most tokens of a sequence.
    pub most_tokens: usize,
}

impl Limits {
    pub fn new(vocab: usize, cache: KvFit) -> Limits {
        Limits { vocab, most_tokens: cache.most(), cache: Arc::new(cache) }
    }
}

/// Requests to an engine, from any thread. The next [`crate::Engine::step`] does them; only a
/// cancellation can stop work in flight at once.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    inbox: Arc<Mutex<Inbox>>,
    /// Notified of each request.
    asked: Arc<Condvar>,
    limits: Limits,
}

impl EngineHandle {
    pub(crate) fn new(limits: Limits) -> EngineHandle {
        EngineHandle { inbox: Arc::default(), asked: Arc::default(), limits }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, inbox: &mut Inbox, seq: SeqId, request: Request) {
        inbox.requests.push_back((seq, request));
        self.asked.notify_all();
    }

    /// Sleeps until there is something to do for [`crate::Engine::step`], or for `most`. Returns
    /// whether there is.
    pub fn wait_for_work(&self, most: Duration) -> bool {
        let idle = |inbox: &mut Inbox| {
            inbox.requests.is_empty() && !inbox.known.values().any(|known| known.pending)
        };
        let waited = self.asked.wait_timeout_while(self.lock(), most, idle);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Sleeps until there is a request, or for `most`.
    pub(crate) fn wait_for_request(&self, most: Duration) {
        let none = |inbox: &mut Inbox| inbox.requests.is_empty();
        drop(self.asked.wait_timeout_while(self.lock(), most, none));
    }

    /// Says what a sequence does next whose receiver answered [`Next::Later`]. One that was
    /// cancelled or closed meanwhile is left alone.
    pub fn go_on(&self, seq: SeqId, next: Next) {
        let mut inbox = self.lock();
        if inbox.known.contains_key(&seq) {
            self.ask(&mut inbox, seq, Request::GoOn(next));
        }
    }

    /// Opens a sequence.
    ///
    /// # Errors
    /// A token that the model does not know; more tokens than the context or the cache can ever
    /// hold; a closed engine.
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
        if pending {
            inbox.make_way();
        }
        self.ask(&mut inbox, seq, Request::Admit(admission));
        Ok(seq)
    }

    /// Opens an empty sequence with the priority of another one. Fed with the same tokens, it
    /// starts from the whole pages that the other has computed by now, also of an answer that it
    /// is in the midst of; only the rest is computed again.
    ///
    /// # Errors
    /// The other one is closed; a closed engine.
    pub fn fork(&self, of: SeqId) -> Result<SeqId, EngineError> {
        let mut inbox = self.lock();
        if inbox.ended {
            return Err(EngineError::Ended);
        }
        if !inbox.known.contains_key(&of) {
            return Err(KvError::Closed(of).into());
        }
        let seq = SeqId::next();
        inbox.known.insert(seq, Known::default());
        self.ask(&mut inbox, seq, Request::Fork(of));
        Ok(seq)
    }

    /// Appends tokens to a sequence that waits for them.
    ///
    /// # Errors
    /// No tokens; an unknown token; more than the context or the cache can hold; a sequence that is
    /// closed or still has tokens to compute.
    pub fn feed(&self, input: &SequenceInput<'_>) -> Result<(), EngineError> {
        let SequenceInput { seq, tokens, logits, phase } = *input;
        let mut inbox = self.lock();
        let known = self.may_feed(&mut inbox, seq, tokens)?;
        (known.len, known.pending) = (known.len + tokens.len(), true);
        if phase == Phase::Prefill {
            inbox.make_way();
        }
        self.ask(&mut inbox, seq, Request::Append(tokens.to_vec(), logits, phase));
        Ok(())
    }

    /// Replaces the tokens of a waiting sequence. The common beginning stays cached, but at least
    /// the last token is computed.
    ///
    /// # Errors
    /// Those of [`EngineHandle::feed`].
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
        inbox.make_way();
        self.ask(&mut inbox, seq, Request::Replace(tokens, logits));
        Ok(())
    }

    /// Stops computing a sequence. It stays open with what was computed. A sequence without tokens
    /// to compute is left alone.
    ///
    /// # Errors
    /// The sequence is closed.
    pub fn cancel(&self, seq: SeqId) -> Result<(), EngineError> {
        let mut inbox = self.lock();
        let known = inbox.known.get_mut(&seq).ok_or(KvError::Closed(seq))?;
        if !known.pending || known.cancelled {
            return Ok(());
        }
        known.cancelled = true;
        self.ask(&mut inbox, seq, Request::Cancel);
        inbox.end_cancelled(seq);
        Ok(())
    }

    /// Closes a sequence and stops computing it.
    ///
    /// # Errors
    /// The sequence is closed already.
    pub fn close(&self, seq: SeqId) -> Result<(), EngineError> {
        let mut inbox = self.lock();
        let known = inbox.known.remove(&seq).ok_or(KvError::Closed(seq))?;
        if !known.taken {
            // The engine need not know of it. Otherwise requests would pile up while nobody steps.
            inbox.requests.retain(|(of, _)| *of != seq);
            return Ok(());
        }
        self.ask(&mut inbox, seq, Request::Close);
        inbox.end_cancelled(seq);
        Ok(())
    }

    /// Number of tokens of a sequence, computed or not; `None` when it is closed.
    pub fn len(&self, seq: SeqId) -> Option<usize> {
        self.lock().known.get(&seq).map(|known| known.len)
    }

    /// The most tokens of a sequence: the context, or what the cache can hold of one.
    pub fn most_tokens(&self) -> usize {
        self.limits.most_tokens
    }

    /// The most sequences of `tokens` tokens that the cache can hold at once.
    pub fn most_sequences(&self, tokens: usize) -> usize {
        self.limits.cache.most_sequences(tokens)
    }

    /// Whether a sequence has tokens to compute.
    pub fn is_pending(&self, seq: SeqId) -> bool {
        self.lock().known.get(&seq).is_some_and(|known| known.pending)
    }

    /// How far a sequence's prompt is read; `None` before it begins and behind its end.
    pub fn reads(&self, seq: SeqId) -> Option<PromptProgress> {
        self.lock().known.get(&seq)?.reads
    }

    /// The prompts that are being read.
    pub fn prompts(&self) -> Vec<PromptProgress> {
        let mut prompts: Vec<_> =
            self.lock().known.iter().filter_map(|(seq, k)| Some((*seq, k.reads?))).collect();
        prompts.sort_unstable_by_key(|(seq, _)| *seq);
        prompts.into_iter().map(|(_, progress)| progress).collect()
    }

    /// Number of open sequences.
    pub fn open_sequences(&self) -> usize {
        self.lock().known.len()
    }

    /// Checks that a sequence can be fed.
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
        let Limits { vocab, ref cache, .. } = self.limits;
        if let Some(&id) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(EngineError::Token { id, vocab });
        }
        Ok(cache.alone(cached + tokens.len())?)
    }

    /// Checks and counts the token with which a sequence of `len` tokens continues.
    pub(crate) fn append_token(
        &self,
        seq: SeqId,
        len: usize,
        token: u32,
    ) -> Result<(), EngineError> {
        let mut inbox = self.lock();
        let Some(known) = inbox.known.get_mut(&seq) else {
            return Err(KvError::Closed(seq).into());
        };
        self.check(&[token], len)?;
        // It stayed pending, so a cancellation in the meantime was not lost.
        (known.len, known.reads) = (len + 1, None);
        Ok(())
    }
}

impl Inbox {
    /// Takes the oldest request.
    pub fn take(&mut self) -> Option<(SeqId, Request)> {
        let (seq, request) = self.requests.pop_front()?;
        if let Request::Admit(_) | Request::Fork(_) = request
            && let Some(known) = self.known.get_mut(&seq)
        {
            known.taken = true;
        }
        Some((seq, request))
    }

    fn waiting(&mut self, seq: SeqId) -> Result<&mut Known, EngineError> {
        if self.ended {
            return Err(EngineError::Ended);
        }
        let known = self.known.get_mut(&seq).ok_or(KvError::Closed(seq))?;
        if known.pending { Err(EngineError::Twice(seq)) } else { Ok(known) }
    }

    /// Notes an open sequence without tokens.
    pub fn open(&mut self, seq: SeqId) {
        self.known.insert(seq, Known { taken: true, ..Known::default() });
    }

    /// Shortens an idle sequence to at most `len` tokens. Returns how many it had.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<usize, EngineError> {
        let known = self.waiting(seq)?;
        let before = known.len;
        known.len = before.min(len);
        Ok(before)
    }

    /// Notes that a sequence waits for tokens, and how many it has.
    pub fn idle(&mut self, seq: SeqId, len: usize) {
        if let Some(known) = self.known.get_mut(&seq) {
            *known = Known { len, taken: true, ..Known::default() };
        }
    }

    /// Notes how much of a prompt is in the cache, and when it begins, how much of it was before.
    pub fn read(&mut self, seq: SeqId, done: usize, begins: bool) {
        if let Some(known) = self.known.get_mut(&seq) {
            let cached = known.reads.map_or(done, |reads| reads.cached);
            if begins || known.reads.is_some() {
                known.reads = Some(PromptProgress { total: known.len, cached, done });
            }
        }
    }

    /// Stops a prompt that computes alone, since another one comes: then both take turns.
    fn make_way(&self) {
        self.in_flight.iter().filter(|f| f.yields).for_each(|f| f.canceller.cancel());
    }

    /// Refuses further requests.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Stops work in flight that includes a cancelled sequence. A single batch shared with other
    /// sequences continues: it takes no longer than a chunk.
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
    use troika_graph::StateKind;

    use super::{EngineHandle, Limits};
    use crate::input::{Admission, SequenceInput, WantedLogits};
    use troika_program::kv::{GroupLayout, KvCache, KvLayout};

    fn handle() -> EngineHandle {
        let groups = vec![GroupLayout { kind: StateKind::Paged(None), row_bytes: 1 }];
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
        // The engine knows this one, so it must hear of the closing.
        assert!(handle.lock().take().is_some());
        handle.feed(&SequenceInput::prompt(stays, &[1], WantedLogits::Last)).unwrap();
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
