//! Choosing tokens: the part of generation that happens where the logits are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use troika_device::Clock;
use troika_engine::Next;
use troika_engine::sample::{Logprobs, SampleError, Sampler};
use troika_trace::{Span, Tracer};

use crate::error::Error;

troika_model::named! {
    /// Why a generation ended, with short names for reports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Finish {
        /// A stop token or stop text was generated.
        Stop = "stop",
        /// The requested number of tokens was generated.
        Length = "length",
        /// The context is full.
        Context = "context",
        /// The KV cache's budget has no room for more tokens of the sequence.
        Budget = "budget",
        /// The caller asked to stop.
        Cancelled = "cancelled",
    }
}

/// A generation in progress: chooses the next token and decides when to end.
#[derive(Debug)]
pub(crate) struct Generating {
    /// `None` while it chooses on another thread.
    pub sampler: Option<Sampler>,
    /// The logits that are left to choose from there; empty if none are.
    pub row: Vec<f32>,
    /// How many tokens' [`Logprobs`] are wanted besides the chosen one's.
    pub logprobs: Option<usize>,
    /// Tokens that end the text.
    pub stop_tokens: Vec<u32>,
    /// The most tokens to generate.
    pub max: usize,
    /// The most tokens of the sequence.
    pub context: usize,
    /// The most tokens of the sequence that the cache can hold.
    pub holds: usize,
    /// Tokens that it has.
    pub len: usize,
    /// Where devices model time only: the size of the vocabulary.
    pub counted: Option<usize>,
    pub times: Times,
    /// Number of tokens chosen so far.
    pub chosen: usize,
    /// Tokens that the session has not taken yet.
    pub out: VecDeque<(u32, Option<Logprobs>)>,
    /// Why it ended, if it has.
    pub finish: Option<Result<Finish, Error>>,
}

/// Timestamps, and the trace that records them.
pub(crate) struct Times {
    pub clock: Arc<dyn Clock>,
    pub tracer: Tracer,
    pub start: Duration,
    pub first: Option<Duration>,
    /// When the last token was chosen.
    pub last: Duration,
}

impl std::fmt::Debug for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Times").field("start", &self.start).finish_non_exhaustive()
    }
}

/// What a step gave of the logits after a token.
pub(crate) enum Given<'a> {
    /// All, in the engine's memory.
    All(&'a [f32]),
    /// The largest, with their tokens.
    TopK(&'a [(u32, f32)]),
    /// None: devices model time only.
    Nothing,
}

/// A token that was chosen.
pub(crate) struct Chosen {
    pub token: u32,
    pub logprobs: Option<Logprobs>,
}

/// Chooses a token, and with it the probabilities of the `top` most likely ones.
pub(crate) fn choose(
    sampler: &mut Sampler,
    logits: &Given<'_>,
    top: Option<usize>,
) -> Result<Chosen, SampleError> {
    let token = match logits {
        Given::All(logits) => sampler.sample(logits)?,
        Given::TopK(top_k) => sampler.sample_top_k(top_k)?,
        Given::Nothing => return Err(SampleError::NoFinite),
    };
    sampler.accept(token);
    let logprobs = match logits {
        Given::All(logits) => top.map(|top| Logprobs::of(logits, token, top)),
        _ => None,
    };
    Ok(Chosen { token, logprobs })
}

impl Generating {
    /// Chooses the next token here, unless it has to wait for a constraint.
    pub fn choose_next(&mut self, logits: &Given<'_>) -> Next {
        if self.finish.is_some() {
            return Next::Wait;
        }
        let began = self.times.clock.now();
        if self.max == 0 {
            self.times.first = Some(began);
            self.times.last = began;
            self.finish = Some(Ok(Finish::Length));
            return Next::Wait;
        }
        let counted = self.counted.map(|vocab| self.count_up(vocab));
        let Some(sampler) = &mut self.sampler else { return Next::Wait };
        if let (Given::All(logits), None) = (logits, counted)
            && !sampler.is_ready()
        {
            self.row.clear();
            self.row.extend_from_slice(logits);
            return Next::Later;
        }
        let chosen = match counted {
            Some(token) => Ok(Chosen { token, logprobs: None }),
            None => choose(sampler, logits, self.logprobs),
        };
        self.take_token(chosen, began)
    }

    /// Notes a token that was chosen, and says how to go on.
    pub fn take_token(&mut self, chosen: Result<Chosen, SampleError>, began: Duration) -> Next {
        let Chosen { token, logprobs } = match chosen {
            Ok(chosen) => chosen,
            Err(e) => {
                self.finish = Some(Err(e.into()));
                return Next::Wait;
            }
        };
        let now = self.times.clock.now();
        if self.times.tracer.enabled() {
            let (name, lane) = ("sample".into(), "host".into());
            self.times.tracer.record(Span { name, lane, start: began, end: now, args: Vec::new() });
        }
        self.times.first.get_or_insert(now);
        self.times.last = now;
        if self.stop_tokens.contains(&token) {
            self.finish = Some(Ok(Finish::Stop));
            return Next::Wait;
        }
        self.chosen += 1;
        self.out.push_back((token, logprobs));
        if self.chosen >= self.max {
            self.finish = Some(Ok(Finish::Length));
        } else if self.len + 1 > self.context {
            self.finish = Some(Ok(Finish::Context));
        } else if self.len + 1 > self.holds {
            self.finish = Some(Ok(Finish::Budget));
        }
        match self.finish {
            Some(_) => Next::Wait,
            None => {
                self.len += 1;
                Next::Append(token)
            }
        }
    }

    /// Where nothing is computed: counts up from the number of tokens so far, skipping tokens that
    /// would end the text.
    fn count_up(&self, vocab: usize) -> u32 {
        let others = (0..vocab as u32).filter(|t| !self.stop_tokens.contains(t));
        others.clone().nth(self.chosen % others.count().max(1)).unwrap_or_default()
    }
}
