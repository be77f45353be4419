//! Sessions: prompt in, tokens and text out.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use troika_engine::sample::{Constraint, Logprobs, SampleParams, Sampler};
use troika_engine::{Admission, EngineHandle, PromptProgress, SeqId, SequenceInput, WantedLogits};
use troika_model::tokenizer::{Detokenizer, StopMatcher, Tokenizer};
use troika_plan::Phase;

use crate::error::Error;
use crate::final_norm::FinalNorm;
use crate::generate::{Finish, Generating, Times};
use crate::open::{Model, Opened};
use crate::session_state::{Ended, SessionState, Shared, lock};

/// What to generate.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Sampling parameters.
    pub params: SampleParams,
    /// The most tokens to generate; `None`: until a stop or the end of the context.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation; they are not part of the output.
    pub stop: Vec<String>,
    /// Continue after end-of-text tokens.
    pub ignore_eos: bool,
    /// Report each token's probability, and the probabilities of this many of the most likely ones.
    pub logprobs: Option<usize>,
    /// Control tokens whose spelling is part of the text; others are left out of it.
    pub keep_tokens: Vec<u32>,
}

/// Times and counts of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The part of the prompt that was already cached.
    pub cached_tokens: usize,
    /// The part that was computed: the rest, unless the prompt was cancelled.
    pub computed_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// From the request, with the prompt already tokenized, to the first token.
    pub ttft: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

impl Stats {
    /// Prompt tokens computed per second, until the first token.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.computed_tokens, self.ttft)
    }

    /// Tokens per second after the first.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }

    /// Mean time per token after the first; `None` if there is none.
    pub fn tpot(&self) -> Option<Duration> {
        let n = u32::try_from(self.generated_tokens.checked_sub(1)?).ok()?;
        self.decode.checked_div(n)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Generated tokens, without a final stop token.
    pub tokens: Vec<u32>,
    /// Their text, if the model has a tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// The text of [`Request::stop`] that ended it.
    pub stop_text: Option<String>,
    /// Times and counts.
    pub stats: Stats,
}

/// What the caller wants after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Continue.
    Continue,
    /// Stop now.
    Stop,
}

/// Receives each token with the text that it completes, possibly empty.
pub type OnToken<'a> = &'a mut dyn FnMut(u32, &str) -> Control;

/// Options of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// Sessions of higher priority are computed first; equal ones share the devices.
    pub priority: i32,
    /// Whose it is: prompts of equal priority take turns by client.
    pub client: u64,
    /// Computes everything itself: neither uses nor leaves cached pages of sessions with the same
    /// beginning. For measurements.
    pub fresh: bool,
}

/// A conversation with a model, or any growing text. Sessions of a model share its engine and are
/// computed together; they may be on different threads.
pub struct Session {
    opened: Arc<Opened>,
    seq: SeqId,
    state: Shared,
    text: Option<TextOutput>,
}

/// Stops a session's work, from any thread.
#[derive(Clone, Debug)]
pub struct SessionCanceller {
    handle: EngineHandle,
    seq: SeqId,
}

impl SessionCanceller {
    /// Ends the current generation with [`Finish::Cancelled`], at the latest after the current
    /// token or prompt chunk. Without a generation it does nothing.
    pub fn cancel(&self) {
        // A closed session has nothing to stop.
        let _ = self.handle.cancel(self.seq);
    }
}

/// A token with the text that it completes.
#[derive(Clone, Debug, PartialEq)]
pub struct TextPiece {
    /// The token.
    pub token: u32,
    /// Text, possibly empty: a character of several tokens comes with the last of them.
    pub text: String,
    /// If the request wants them and devices compute numbers.
    pub logprobs: Option<Logprobs>,
}

impl Model {
    /// Opens a session.
    ///
    /// # Errors
    /// The model is being closed.
    pub fn session(&self) -> Result<Session, Error> {
        self.session_with(SessionOptions::default())
    }

    /// Opens a session that is [fresh](SessionOptions::fresh).
    ///
    /// # Errors
    /// Those of [`Model::session`].
    pub fn fresh_session(&self) -> Result<Session, Error> {
        self.session_with(SessionOptions { fresh: true, ..SessionOptions::default() })
    }

    /// Opens a session with options.
    ///
    /// # Errors
    /// Those of [`Model::session`].
    pub fn session_with(&self, options: SessionOptions) -> Result<Session, Error> {
        let admission = Admission {
            priority: options.priority,
            client: options.client,
            shares: !options.fresh,
            ..Admission::default()
        };
        Ok(Session::open(&self.opened, self.opened.driver.handle.admit(admission)?))
    }

    /// Computes for all sessions until one of them can continue; for several sessions on one
    /// thread. `false` when none has anything to compute.
    ///
    /// # Errors
    /// A fault of the engine, or a call in the middle of a step. Errors of a session are reported
    /// by that session.
    pub fn step(&self) -> Result<bool, Error> {
        let driver = &self.opened.driver;
        let mut engine = driver.engine()?;
        Ok(driver.step(&mut engine, None)?)
    }

    /// The prompts that are being read, of all sessions.
    pub fn prompts(&self) -> Vec<PromptProgress> {
        self.opened.driver.handle.prompts()
    }

    /// Sleeps until a session has something to compute, or for `most`. Returns whether one has. A
    /// thread that calls this and [`Model::step`] in turns serves all sessions that are polled.
    pub fn wait_for_work(&self, most: Duration) -> bool {
        self.opened.driver.handle.wait_for_work(most)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let driver = &self.opened.driver;
        driver.remove(self.seq);
        // The next step frees its pages, or closing the model does.
        let _ = driver.handle.close(self.seq);
    }
}

impl Session {
    fn open(opened: &Arc<Opened>, seq: SeqId) -> Session {
        let state = Shared::default();
        opened.driver.add(seq, &state);
        Session { opened: opened.clone(), seq, state, text: None }
    }

    /// Opens a session beside this one. Started with the same tokens, it begins with the whole
    /// pages that this one has cached by now: for several answers to a prompt, or several ways to
    /// continue one that is in the midst of its generation.
    ///
    /// # Errors
    /// The model is being closed.
    pub fn fork(&self) -> Result<Session, Error> {
        Ok(Session::open(&self.opened, self.opened.driver.handle.fork(self.seq)?))
    }

    /// Cancels this session's generation from another thread.
    pub fn canceller(&self) -> SessionCanceller {
        SessionCanceller { handle: self.opened.driver.handle.clone(), seq: self.seq }
    }

    /// Generates from token ids. A beginning that this or another session has cached is not
    /// computed again.
    ///
    /// # Errors
    /// An empty or too long prompt, unknown ids, a failing device, or damaged logits. The session
    /// remains usable.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        request: &Request,
        on_token: OnToken<'_>,
    ) -> Result<Output, Error> {
        self.start(prompt, request)?;
        while let Some(piece) = self.next_piece()? {
            if on_token(piece.token, &piece.text) == Control::Stop {
                self.stop()?;
                break;
            }
        }
        self.finish(Some(on_token))
    }

    /// Starts to generate; [`Session::next_piece`] returns the results.
    ///
    /// # Errors
    /// Those of [`Session::generate`] that are known at the start.
    pub fn start(&mut self, prompt: &[u32], request: &Request) -> Result<(), Error> {
        self.start_within(prompt, request, None)
    }

    /// Like [`Session::start`], with tokens that a constraint allows. It has to allow a stop token
    /// where the answer may end.
    ///
    /// # Errors
    /// Those of [`Session::start`].
    pub fn start_within(
        &mut self,
        prompt: &[u32],
        request: &Request,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<(), Error> {
        request.params.check()?;
        check_prompt(&self.opened, prompt)?;
        self.settle()?;
        self.text = None;
        let opened = &self.opened;
        let mut sampler = Sampler::new(request.params.clone());
        if let Some(tokenizer) = opened.text.tokenizer.clone() {
            sampler.spell(Box::new(move |id| tokenizer.token_bytes(id).unwrap_or_default()));
        }
        prompt.iter().for_each(|&t| sampler.accept(t));
        if let Some(constraint) = constraint {
            sampler.constrain(constraint);
        }
        let wanted = sampler.wanted_top_k().filter(|_| request.logprobs.is_none());
        let wanted = wanted.map_or(WantedLogits::Last, WantedLogits::TopK);
        let generating = Some(generating(opened, request, sampler, prompt.len()));
        lock(&self.state).restart(generating);
        self.text = Some(TextOutput::new(opened, request, prompt.len()));
        let asked = opened.driver.handle.replace(self.seq, prompt.to_vec(), wanted);
        if asked.is_err() {
            self.text = None;
            lock(&self.state).restart(None);
        }
        Ok(asked?)
    }

    /// Waits for the next token; `None` at the end. While waiting, this thread computes for all
    /// sessions, unless another one does.
    ///
    /// # Errors
    /// Those of [`Session::generate`].
    pub fn next_piece(&mut self) -> Result<Option<TextPiece>, Error> {
        if self.is_done() {
            return Ok(None);
        }
        let state = self.state.clone();
        let taken = self.opened.driver.until(|| take(&state), None)?;
        self.take_piece(taken)
    }

    /// The next token if it is ready; computes nothing.
    ///
    /// # Errors
    /// Those of [`Session::generate`].
    pub fn try_next(&mut self) -> Result<Option<TextPiece>, Error> {
        if self.is_done() {
            return Ok(None);
        }
        take(&self.state).map_or(Ok(None), |taken| self.take_piece(taken))
    }

    /// The next token if it is ready, `None` at the end; otherwise the caller is woken when there is
    /// news. It neither computes nor waits: another thread does ([`Model::wait_for_work`]), which
    /// a slow reader does not hold up.
    pub fn poll_piece(&mut self, cx: &Context<'_>) -> Poll<Result<Option<TextPiece>, Error>> {
        if self.is_done() {
            return Poll::Ready(Ok(None));
        }
        // Before looking, so that no event is missed.
        lock(&self.state).waker = Some(cx.waker().clone());
        take(&self.state).map_or(Poll::Pending, |taken| Poll::Ready(self.take_piece(taken)))
    }

    /// How far the prompt of the generation is read; `None` before that begins.
    pub fn progress(&self) -> Option<PromptProgress> {
        let state = lock(&self.state);
        let (total, cached) = (self.text.as_ref()?.output.stats.prompt_tokens, state.cached);
        match state.generating.as_ref()?.times.first {
            Some(_) => Some(PromptProgress { total, cached, done: total }),
            None => self.opened.driver.handle.reads(self.seq),
        }
    }

    /// Whether the generation has ended, so that [`Session::finish`] does not wait.
    pub fn is_done(&self) -> bool {
        self.text.as_ref().is_none_or(|t| t.stopped.is_some())
    }

    /// Waits for the end of the generation. Returns its output and figures.
    ///
    /// # Errors
    /// Those of [`Session::generate`]; no generation was started.
    pub fn finish(&mut self, mut on_token: Option<OnToken<'_>>) -> Result<Output, Error> {
        while let Some(piece) = self.next_piece()? {
            if let Some(on_token) = &mut on_token {
                on_token(piece.token, &piece.text);
            }
        }
        let Some(mut text) = self.text.take() else { return Err(Error::NothingBegun) };
        text.output.finish = text.stopped.unwrap_or(Finish::Stop);
        text.output.stop_text = text.stop.met().map(str::to_string);
        text.hand_out_rest(on_token);
        let state = lock(&self.state);
        let stats = &mut text.output.stats;
        stats.cached_tokens = state.cached;
        stats.generated_tokens = text.output.tokens.len();
        if let Some(generating) = &state.generating {
            let times = &generating.times;
            let end = times.last.max(times.first.unwrap_or(times.start));
            let first = times.first.unwrap_or_else(|| times.clock.now());
            // A cancelled prompt counts as far as it was computed.
            let known = times.first.map_or_else(|| self.len(), |_| stats.prompt_tokens);
            stats.computed_tokens = known.saturating_sub(stats.cached_tokens);
            (stats.ttft, stats.decode) = (first - times.start, end.saturating_sub(first));
        }
        Ok(text.output)
    }

    /// Ends the current generation as if the caller had stopped it.
    ///
    /// # Errors
    /// A fault of the engine.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.settle()?;
        if let Some(text) = &mut self.text {
            text.stopped.get_or_insert(Finish::Cancelled);
        }
        Ok(())
    }

    /// Appends tokens as a prompt and passes on logits with the position of the token they follow, without
    /// sampling; [`WantedLogits::TopK`] counts as [`WantedLogits::Last`]. In place of logits there may be
    /// [`WantedLogits::States`], here behind the model's final norm. Devices that model time
    /// only give none. `on_logits` may change the logits. It runs in the middle of an engine step:
    /// there, this thread cannot wait for other sessions of the model ([`Error::EngineHeld`]), but
    /// may cancel and drop them.
    ///
    /// # Errors
    /// No tokens, unknown ids, more tokens than the context, a failing device, or a call in the
    /// middle of a step. The session is then as before.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        logits: WantedLogits,
        on_logits: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), Error> {
        self.feed_as(Phase::Prefill, tokens, logits, on_logits)
    }

    /// Like [`Session::feed`], for tokens of either phase, however many they are.
    ///
    /// # Errors
    /// Those of [`Session::feed`].
    pub fn feed_as(
        &mut self,
        phase: Phase,
        tokens: &[u32],
        logits: WantedLogits,
        on_logits: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), Error> {
        let norm = self.begin_feed(phase, tokens, logits)?;
        self.end_feed(norm.as_ref(), on_logits)
    }

    /// Like [`Session::feed`], for several sessions of a model, which are computed together. Logits
    /// come with the session's place in the list.
    ///
    /// # Errors
    /// Those of [`Session::feed`], of the first session that has one.
    pub fn feed_all(
        fed: &mut [(&mut Session, &[u32])],
        logits: WantedLogits,
        on_logits: &mut dyn FnMut(usize, usize, &mut [f32]),
    ) -> Result<(), Error> {
        let begin = |(session, tokens): &mut (&mut Session, &[u32])| {
            session.begin_feed(Phase::Prefill, tokens, logits)
        };
        let norms = fed.iter_mut().map(begin).collect::<Result<Vec<_>, _>>()?;
        for (place, ((session, _), norm)) in fed.iter_mut().zip(&norms).enumerate() {
            session.end_feed(norm.as_ref(), &mut |at, row| on_logits(place, at, row))?;
        }
        Ok(())
    }

    /// Hands tokens to the engine. Returns the norm of the states, if these are wanted.
    fn begin_feed(
        &mut self,
        phase: Phase,
        tokens: &[u32],
        logits: WantedLogits,
    ) -> Result<Option<FinalNorm>, Error> {
        self.opened.driver.check_free()?;
        self.settle()?;
        self.text = None;
        lock(&self.state).restart(None);
        let driver = &self.opened.driver;
        let logits = logits.whole();
        let wanted = logits == WantedLogits::States;
        let norm = wanted.then(|| FinalNorm::read(&self.opened)).transpose()?;
        driver.handle.feed(&SequenceInput { seq: self.seq, tokens, logits, phase })?;
        Ok(norm)
    }

    /// Waits until the engine is through with them.
    fn end_feed(
        &mut self,
        norm: Option<&FinalNorm>,
        on_logits: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), Error> {
        let driver = &self.opened.driver;
        let state = self.state.clone();
        // Logits are passed on in the middle of a step: a panic must wait for its end.
        let mut panicked = None;
        let mut guarded = |position: usize, row: &mut [f32]| {
            if panicked.is_none() {
                norm.iter().for_each(|norm| norm.apply(row));
                panicked = catch_unwind(AssertUnwindSafe(|| on_logits(position, row))).err();
            }
        };
        let ended = driver.until(|| lock(&state).ended.take(), Some((self.seq, &mut guarded)));
        for (position, mut row) in std::mem::take(&mut lock(&self.state).rows) {
            guarded(position, &mut row);
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
        match ended? {
            Ended::Through => Ok(()),
            Ended::Cancelled => Err(Error::Cancelled),
            Ended::Failed(e) => Err(e),
        }
    }

    /// Number of tokens of the session.
    pub fn len(&self) -> usize {
        self.opened.driver.handle.len(self.seq).unwrap_or(0)
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stops current work and waits until the sequence can be fed again.
    fn settle(&mut self) -> Result<(), Error> {
        let handle = &self.opened.driver.handle;
        if !handle.is_pending(self.seq) {
            return Ok(());
        }
        self.opened.driver.check_free()?;
        // The sequence is open as long as the session is.
        handle.cancel(self.seq)?;
        let idle = || (!handle.is_pending(self.seq)).then_some(());
        self.opened.driver.until(idle, None)
    }

    /// Turns a token into text, and cancels the work if a stop text ends the answer.
    fn take_piece(&mut self, taken: Taken) -> Result<Option<TextPiece>, Error> {
        let Some(text) = &mut self.text else { return Ok(None) };
        match taken {
            Taken::Token(token, logprobs) => {
                let (piece, stopped) = text.push(token);
                if stopped {
                    text.stopped = Some(Finish::Stop);
                    self.opened.driver.handle.cancel(self.seq)?;
                }
                Ok(Some(TextPiece { token, text: piece, logprobs }))
            }
            Taken::End(Ok(finish)) => {
                text.stopped = Some(finish);
                Ok(None)
            }
            Taken::End(Err(e)) => {
                self.text = None;
                Err(e)
            }
        }
    }
}

/// An answer for a session.
enum Taken {
    Token(u32, Option<Logprobs>),
    End(Result<Finish, Error>),
}

fn take(state: &Shared) -> Option<Taken> {
    let SessionState { generating, ended, .. } = &mut *lock(state);
    let generating = generating.as_mut()?;
    if let Some((token, logprobs)) = generating.out.pop_front() {
        return Some(Taken::Token(token, logprobs));
    }
    if let Some(finish) = generating.finish.take() {
        return Some(Taken::End(finish));
    }
    Some(Taken::End(match ended.take()? {
        Ended::Failed(e) => Err(e),
        Ended::Cancelled | Ended::Through => Ok(Finish::Cancelled),
    }))
}

fn check_prompt(opened: &Opened, prompt: &[u32]) -> Result<(), Error> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let context = opened.context;
    if prompt.len() > context {
        let model = opened.spec.context;
        return Err(Error::PromptTooLong { prompt: prompt.len(), context, model });
    }
    Ok(())
}

/// The beginning of a generation after a prompt of `len` tokens.
fn generating(opened: &Opened, request: &Request, sampler: Sampler, len: usize) -> Generating {
    let start = opened.clock.now();
    let stops = &opened.text.defaults.stop_tokens;
    Generating {
        sampler: Some(sampler),
        row: Vec::new(),
        logprobs: request.logprobs,
        stop_tokens: if request.ignore_eos { Vec::new() } else { stops.clone() },
        max: request.max_tokens.unwrap_or(usize::MAX),
        context: opened.context,
        holds: opened.driver.handle.most_tokens(),
        len,
        counted: (!opened.computes).then_some(opened.spec.vocab),
        times: Times {
            clock: opened.clock.clone(),
            tracer: opened.tracer.clone(),
            start,
            first: None,
            last: start,
        },
        chosen: 0,
        out: VecDeque::new(),
        finish: None,
    }
}

/// The text of a generation so far.
struct TextOutput {
    stop: StopMatcher,
    detokenizer: Option<Detokenizer<Arc<Tokenizer>>>,
    keep_tokens: Vec<u32>,
    output: Output,
    /// Why it ended, if it has.
    stopped: Option<Finish>,
}

impl TextOutput {
    fn new(opened: &Opened, request: &Request, prompt_tokens: usize) -> TextOutput {
        TextOutput {
            stop: StopMatcher::new(&request.stop),
            detokenizer: opened.text.tokenizer.clone().map(Detokenizer::new),
            keep_tokens: request.keep_tokens.clone(),
            output: Output {
                tokens: Vec::new(),
                text: String::new(),
                finish: Finish::Length,
                stop_text: None,
                stats: Stats { prompt_tokens, ..Stats::default() },
            },
            stopped: None,
        }
    }

    /// Adds a token. Returns the text that is final now, and whether a stop text ends it.
    fn push(&mut self, token: u32) -> (String, bool) {
        self.output.tokens.push(token);
        let keeps = self.keep_tokens.contains(&token);
        let piece = self.detokenizer.as_mut().and_then(|d| match keeps {
            true => Some(d.finish() + &d.tokenizer().token(token)?),
            false => d.push(token),
        });
        let (text, stopped) = self.stop.push(&piece.unwrap_or_default());
        self.output.text.push_str(&text);
        (text, stopped)
    }

    /// Passes on the text that was held back.
    fn hand_out_rest(&mut self, on_token: Option<OnToken<'_>>) {
        let rest = self.detokenizer.take().map(|mut d| d.finish()).unwrap_or_default();
        let mut text = self.stop.push(&rest).0;
        text.push_str(&self.stop.finish());
        if !text.is_empty()
            && let Some(&last) = self.output.tokens.last()
        {
            self.output.text.push_str(&text);
            if let Some(on_token) = on_token {
                on_token(last, &text);
            }
        }
    }
}
