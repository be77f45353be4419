//! Generating: prompt in, tokens and text out.

use std::time::Duration;

use troika_engine::sample::{SampleParams, Sampler};
use troika_model::tokenizer::{Detokenizer, StopMatcher};

use crate::error::Error;
use crate::open::Model;

/// What to generate.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Sampling.
    pub params: SampleParams,
    /// Most tokens to generate; `None`: until a stop or the context's end.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation (not given out).
    pub stop: Vec<String>,
    /// Go on after end-of-text tokens.
    pub ignore_eos: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or stop text.
    Stop,
    /// The wanted number of tokens.
    Length,
    /// The context is full.
    Context,
    /// The caller asked to stop.
    Cancelled,
}

impl Finish {
    /// Short name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// Times and counts of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of which were still cached from before.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// From the request (prompt already tokenized) to the first token.
    pub ttft: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

impl Stats {
    /// Prompt tokens computed per second until the first token.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.ttft)
    }

    /// Tokens per second after the first.
    pub fn decode_rate(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.decode)
    }

    /// Mean time per token after the first.
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
    /// Generated tokens (a final stop token is not among them).
    pub tokens: Vec<u32>,
    /// Their text, when the model has a tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Figures.
    pub stats: Stats,
}

/// What the caller wants after a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// More.
    Continue,
    /// Stop now.
    Stop,
}

/// Receives each token with the text that became final with it (possibly empty).
pub type OnToken<'a> = &'a mut dyn FnMut(u32, &str) -> Control;

impl Model {
    /// Generates from token ids.
    ///
    /// # Errors
    /// An empty or too long prompt, unknown ids, a failing device, damaged logits.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        request: &Request,
        on_token: OnToken<'_>,
    ) -> Result<Output, Error> {
        request.params.check()?;
        self.check_prompt(prompt)?;
        let start = self.clock.now();
        let cached_tokens = self.sequence.keep_shared(&mut self.engine, prompt);
        let mut sampler = Sampler::new(request.params.clone());
        prompt.iter().for_each(|&t| sampler.accept(t));
        let mut run = TokenOutput {
            stop: StopMatcher::new(&request.stop),
            output: Output {
                tokens: Vec::new(),
                text: String::new(),
                finish: Finish::Length,
                stats: Stats { prompt_tokens: prompt.len(), cached_tokens, ..Stats::default() },
            },
        };
        let max = request.max_tokens.unwrap_or(usize::MAX);
        let mut logits = Vec::new();
        let mut feed: Vec<u32> = prompt[cached_tokens..].to_vec();
        let mut first = None;
        let tokenizer = self.tokenizer.clone();
        let mut detokenizer = tokenizer.as_ref().map(|t| t.detokenizer());
        while run.output.tokens.len() < max || first.is_none() {
            let wanted = self.computes.then_some(&mut logits);
            self.sequence.feed(&mut self.engine, &feed, wanted)?;
            if max == 0 {
                first = Some(self.clock.now());
                break;
            }
            let sampling = self.clock.now();
            let token = self.choose(&mut sampler, &logits, run.output.tokens.len())?;
            sampler.accept(token);
            self.record("sample", sampling);
            first.get_or_insert_with(|| self.clock.now());
            if !request.ignore_eos && self.defaults.stop_tokens.contains(&token) {
                run.output.finish = Finish::Stop;
                break;
            }
            run.output.tokens.push(token);
            if let Some(finish) = run.emit(token, detokenizer.as_mut(), on_token) {
                run.output.finish = finish;
                break;
            }
            if self.sequence.len() + 1 > self.context() {
                run.output.finish = Finish::Context;
                break;
            }
            feed.clear();
            feed.push(token);
        }
        let end = self.clock.now();
        let first = first.unwrap_or(end);
        let stats = &mut run.output.stats;
        (stats.ttft, stats.decode) = (first - start, end - first);
        stats.generated_tokens = run.output.tokens.len();
        run.finish(detokenizer, on_token);
        Ok(run.output)
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<(), Error> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let context = self.context();
        if prompt.len() > context {
            let model = self.spec.context;
            return Err(Error::PromptTooLong { prompt: prompt.len(), context, model });
        }
        Ok(())
    }

    /// The next token. Where devices only model time, it is counted up from those generated so
    /// far, past tokens that would end the text.
    fn choose(&self, sampler: &mut Sampler, logits: &[f32], count: usize) -> Result<u32, Error> {
        if self.computes {
            return Ok(sampler.sample(logits)?);
        }
        let stops = &self.defaults.stop_tokens;
        let others = (0..self.spec.vocab as u32).filter(|t| !stops.contains(t));
        let token = others.clone().nth(count % others.count().max(1));
        Ok(token.unwrap_or_default())
    }

    /// Computes tokens after the cached ones and returns the most likely next one: a forward batch
    /// of generation without sampling, for measurements.
    ///
    /// # Errors
    /// As [`Model::generate`].
    pub fn advance(&mut self, tokens: &[u32]) -> Result<u32, Error> {
        let mut logits = Vec::new();
        let wanted = self.computes.then_some(&mut logits);
        self.sequence.feed(&mut self.engine, tokens, wanted)?;
        let params = SampleParams { temperature: 0.0, ..SampleParams::default() };
        self.choose(&mut Sampler::new(params), &logits, self.sequence.len())
    }

    /// Forgets the cached sequence.
    pub fn reset(&mut self) {
        self.sequence.close(&mut self.engine);
    }
}

struct TokenOutput {
    stop: StopMatcher,
    output: Output,
}

impl TokenOutput {
    /// Hands out a token and its text; says why to end, if so.
    fn emit(
        &mut self,
        token: u32,
        detokenizer: Option<&mut Detokenizer<'_>>,
        on_token: OnToken<'_>,
    ) -> Option<Finish> {
        let piece = detokenizer.and_then(|d| d.push(token)).unwrap_or_default();
        let (text, stopped) = self.stop.push(&piece);
        self.output.text.push_str(&text);
        if on_token(token, &text) == Control::Stop {
            return Some(Finish::Cancelled);
        }
        stopped.then_some(Finish::Stop)
    }

    /// Hands out what was held back.
    fn finish(&mut self, detokenizer: Option<Detokenizer<'_>>, on_token: OnToken<'_>) {
        let rest = detokenizer.map(|mut d| d.finish()).unwrap_or_default();
        let mut text = self.stop.push(&rest).0;
        text.push_str(&self.stop.finish());
        if !text.is_empty()
            && let Some(&last) = self.output.tokens.last()
        {
            self.output.text.push_str(&text);
            on_token(last, &text);
        }
    }
}
