//! Which tokens may come next.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};
use llguidance::{CancellationHandle, Matcher};

use super::error::shorten;
use super::pool::Pool;

/// How long an answer waits for a mask. Usual ones take less than a millisecond, but the machine
/// may be busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most digits in a row of a number in JSON.
const DIGITS: usize = 18;

/// A compiled grammar, for as many answers as there are.
pub struct Grammar {
    /// In its first state. Copied for each answer, so that these share no lock.
    pub(super) matcher: Matcher,
    pub(super) env: TokEnv,
    pub(super) pool: Arc<Pool>,
    /// Whether it is of JSON, whose numbers have to end.
    pub(super) is_json: bool,
}

impl Grammar {
    /// Begins an answer. Its first mask is computed in the background.
    pub fn start(&self) -> Mask {
        let matcher = self.matcher.deep_clone();
        let trie = self.env.tok_trie();
        let mut mask = Mask {
            cancel: matcher.cancellation_handle(),
            state: State::Lost,
            pool: Arc::clone(&self.pool),
            env: self.is_json.then(|| Arc::clone(&self.env)),
            digits: 0,
            vocabulary: trie.vocab_size(),
            ends: words(&trie.eos_token_set(), trie.vocab_size()),
            error: None,
        };
        mask.compute(matcher, None);
        mask
    }
}

/// The state of one answer.
pub struct Mask {
    state: State,
    cancel: Option<CancellationHandle>,
    pool: Arc<Pool>,
    /// The tokens, if numbers have to end.
    env: Option<TokEnv>,
    /// Digits at the end of the text.
    digits: usize,
    vocabulary: usize,
    /// The mask that allows the answer to end and nothing else.
    ends: Vec<u32>,
    error: Option<String>,
}

enum State {
    Computing(Receiver<Computed>),
    Ready(Box<Computed>),
    /// Nothing can be computed any more: the answer must end.
    Lost,
}

struct Computed {
    matcher: Matcher,
    /// The mask, or none if any token may come.
    allowed: Option<Vec<u32>>,
    ended: bool,
    error: Option<String>,
}

impl Mask {
    /// The tokens that may come next, 32 to a word, the lowest bit first; none if any may. Those
    /// that end the answer are among them where it may end. Waits until they are computed.
    pub fn allowed(&mut self) -> Option<&[u32]> {
        self.wait();
        match &self.state {
            State::Ready(ready) => ready.allowed.as_deref(),
            State::Computing(_) | State::Lost => Some(&self.ends),
        }
    }

    /// Whether [`Mask::allowed`] answers at once.
    pub fn is_ready(&mut self) -> bool {
        let State::Computing(receiver) = &self.state else { return true };
        let computed = receiver.recv_timeout(Duration::ZERO);
        let is_ready = !matches!(computed, Err(RecvTimeoutError::Timeout));
        if is_ready {
            self.take(computed);
        }
        is_ready
    }

    /// Takes the token that came, and begins to compute what may follow.
    pub fn accept(&mut self, token: u32) {
        self.wait();
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Ready(ready) if ready.ended => self.state = State::Ready(ready),
            State::Ready(ready) => self.compute(ready.matcher, Some(token)),
            State::Computing(_) | State::Lost => {}
        }
    }

    /// Why the answer is no longer held to the grammar, but must end.
    pub fn error(&self) -> Option<String> {
        self.error.clone()
    }

    fn compute(&mut self, mut matcher: Matcher, token: Option<u32>) {
        let (sender, receiver) = channel();
        if let (Some(env), Some(token)) = (&self.env, token) {
            let bytes = env.tok_trie().token(token);
            let digits = bytes.iter().rev().take_while(|b| b.is_ascii_digit()).count();
            self.digits = digits + if digits == bytes.len() { self.digits } else { 0 };
        }
        let (vocabulary, digits, env) = (self.vocabulary, self.digits, self.env.clone());
        self.pool.submit(move || {
            let consumed = token.map_or(Ok(()), |token| matcher.consume_token(token));
            let mask = consumed.and_then(|()| matcher.compute_mask_or_eos());
            let (mut allowed, error) = match mask {
                Ok(mask) => (Some(words(&mask, vocabulary)), None),
                Err(error) => (None, Some(shorten(&error.to_string()))),
            };
            if let (Some(env), Some(allowed)) = (env.filter(|_| digits > 0), &mut allowed) {
                end_number(allowed, env.tok_trie(), digits);
            }
            let allowed = allowed.filter(|words| !all(words, vocabulary));
            let ended = matcher.is_stopped();
            // Fails if the answer was dropped meanwhile.
            drop(sender.send(Computed { matcher, allowed, ended, error }));
        });
        self.state = State::Computing(receiver);
    }

    fn wait(&mut self) {
        let State::Computing(receiver) = &self.state else { return };
        let computed = receiver.recv_timeout(PATIENCE);
        self.take(computed);
    }

    fn take(&mut self, computed: Result<Computed, RecvTimeoutError>) {
        self.state = match computed {
            Ok(Computed { error: Some(error), .. }) => self.lose(error),
            Ok(computed) => State::Ready(Box::new(computed)),
            Err(RecvTimeoutError::Timeout) => {
                self.stop();
                self.lose("the tokens that it allows take too long to find".to_owned())
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.lose("the tokens that it allows cannot be found".to_owned())
            }
        };
    }

    /// Ends what is being computed.
    fn stop(&self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }

    fn lose(&mut self, error: String) -> State {
        self.error = Some(error);
        State::Lost
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The words of a mask that hold tokens.
fn words(mask: &SimpleVob, vocabulary: usize) -> Vec<u32> {
    let mut words = mask.as_slice().to_vec();
    words.resize(vocabulary.div_ceil(32), 0);
    if let Some(last) = words.last_mut()
        && !vocabulary.is_multiple_of(32)
    {
        *last &= (1 << (vocabulary % 32)) - 1;
    }
    words
}

/// Forbids more digits in a number that has `digits` of them, if the text may continue otherwise.
/// Where a letter or a quote may come, the digits belong to a string.
fn end_number(allowed: &mut Vec<u32>, trie: &TokTrie, digits: usize) {
    let is = |id: u32| allowed[id as usize / 32] >> (id % 32) & 1 == 1;
    if [b"x", b"\""].iter().any(|text| trie.token_id_at_bytes(*text).is_none_or(is)) {
        return;
    }
    let mut rest = allowed.clone();
    for id in 0..trie.vocab_size() as u32 {
        let more = trie.token(id).iter().take_while(|b| b.is_ascii_digit()).count();
        if more > 0 && digits + more > DIGITS {
            rest[id as usize / 32] &= !(1 << (id % 32));
        }
    }
    if rest.iter().any(|word| *word != 0) {
        *allowed = rest;
    }
}

/// Whether all tokens are set.
fn all(words: &[u32], vocabulary: usize) -> bool {
    words.iter().map(|word| word.count_ones() as usize).sum::<usize>() == vocabulary
}
