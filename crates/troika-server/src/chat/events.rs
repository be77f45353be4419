//! What becomes of an answer: text, reasoning and calls of tools, as they come.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use troika::engine::PromptProgress;
use troika::engine::sample::Logprobs;
use troika::{Finish, Output, Stats, TextPiece};

use super::tools::Tools;
use crate::completion::{Answers, Progress};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::record::Record;
use troika::model::answer::{Delta, Reader};

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model or a stop text ended it.
    Stop,
    /// The number of tokens, or the context.
    Length,
    ToolCalls,
}

impl EndReason {
    /// OpenAI's word.
    pub const fn name(self) -> &'static str {
        match self {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
            EndReason::ToolCalls => "tool_calls",
        }
    }
}

/// A token with its probability, and the probabilities of others.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub token: u32,
    pub logprobs: Logprobs,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub prompt: usize,
    /// The part of them that was cached.
    pub cached: usize,
    /// Tokens of all answers, as far as they are text: an end of text does not count.
    pub completion: usize,
    /// The part of them that are thoughts, with their markers.
    pub reasoning: usize,
    /// Times and counts of the first answer.
    pub first: Stats,
}

/// News of an answer.
#[derive(Clone, Debug)]
pub enum ChatEvent {
    /// How far the prompt is read, and for how long. It comes before everything else: first with
    /// what was cached, at last with all.
    Prompt(PromptProgress, Duration),
    /// More of an answer; the list may be empty.
    More(usize, Vec<Delta>, Vec<TokenLogprob>),
    /// The end of an answer, and the stop text that ended it.
    End(usize, EndReason, Option<String>),
}

/// An answer as a whole.
#[derive(Clone, Debug, Default)]
pub struct ChoiceAnswer {
    pub content: String,
    /// What the model thought before.
    pub reasoning: String,
    /// Names and arguments of calls.
    pub calls: Vec<(String, String)>,
    /// Its tokens with their probabilities, if asked for.
    pub logprobs: Vec<TokenLogprob>,
    pub reason: Option<EndReason>,
    pub stop_text: Option<String>,
}

/// All answers to a request.
#[derive(Clone, Debug)]
pub struct ChatAnswer {
    pub choices: Vec<ChoiceAnswer>,
    pub usage: Usage,
}

/// An answer on its way.
struct Choice {
    reader: Reader,
    calls: usize,
    /// Whether the rest is not wanted.
    cut: bool,
    /// Whether the last text was a thought.
    thinks: bool,
    /// Tokens since then.
    held: usize,
}

impl Choice {
    /// Counts a token that gave these deltas. Returns the tokens that turn out to be of thoughts.
    fn count(&mut self, deltas: &[Delta]) -> usize {
        self.held += 1;
        let (Some(first), Some(last)) = (deltas.first(), deltas.last()) else { return 0 };
        let is_thought = |delta: &Delta| matches!(delta, Delta::Reasoning(_));
        // What gave no text before it were markers.
        let before = std::mem::take(&mut self.held) - 1;
        let of_thoughts = match (self.thinks, is_thought(first)) {
            (_, true) => before + 1,
            (true, false) => before,
            (false, false) => 0,
        };
        self.thinks = is_thought(last);
        of_thoughts
    }

    /// The deltas that are told: up to a second call, unless calls may be parallel.
    fn wanted(&mut self, mut deltas: Vec<Delta>, parallel: bool, forced: bool) -> Vec<Delta> {
        if forced {
            deltas.retain(|delta| !matches!(delta, Delta::Content(_)));
        }
        for (i, delta) in deltas.iter().enumerate() {
            if matches!(delta, Delta::CallStart { .. }) {
                self.calls += 1;
                if self.calls > 1 && !parallel {
                    self.cut = true;
                    deltas.truncate(i);
                    break;
                }
            }
        }
        deltas
    }
}

/// The news of all answers to a request. Dropping it cancels them.
pub struct ChatStream {
    metrics: Arc<Metrics>,
    /// What its line in the log tells.
    pub record: Arc<Record>,
    answers: Answers,
    choices: Vec<Choice>,
    parallel: bool,
    /// Whether text beside calls is white space between them, or a call that was cut off.
    forced: bool,
    /// What of the request is not honoured.
    pub left_out: BTreeSet<String>,
    /// Answers that have not ended.
    open: usize,
    pending: VecDeque<ChatEvent>,
    /// Tokens so far.
    pub usage: Usage,
}

impl ChatStream {
    /// The news of answers to a prompt of so many tokens, one for each reader: only as many calls
    /// as there may be, and nothing but calls where these are forced.
    pub fn new(
        metrics: Arc<Metrics>,
        answers: Answers,
        readers: Vec<Reader>,
        tools: &Tools,
        prompt: usize,
    ) -> ChatStream {
        let choice = |reader| Choice { reader, calls: 0, cut: false, thinks: false, held: 0 };
        let record = Record::current();
        record.note(|told| told.prompt += prompt);
        ChatStream {
            metrics,
            record,
            answers,
            open: readers.len(),
            choices: readers.into_iter().map(choice).collect(),
            parallel: tools.several(),
            forced: tools.forced(),
            left_out: tools.left_out.clone(),
            pending: VecDeque::new(),
            usage: Usage { prompt, ..Usage::default() },
        }
    }

    /// The next news; `None` when all answers are complete.
    ///
    /// # Errors
    /// An answer failed; the others are cancelled.
    pub async fn next(&mut self) -> Option<Result<ChatEvent, Problem>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(Ok(event));
            }
            if self.open == 0 {
                return None;
            }
            match self.answers.recv().await {
                Some(Progress::Token(index, piece)) => self.token(index, piece),
                Some(Progress::End(index, output, rest)) => self.end(index, &output, &rest),
                Some(Progress::Prompt(progress, time)) => {
                    self.usage.cached = progress.cached;
                    self.pending.push_back(ChatEvent::Prompt(progress, time));
                }
                failed => {
                    self.open = 0;
                    self.answers.close();
                    let Some(Progress::Failed(problem)) = failed else {
                        let why = "the answer was given up; please report it";
                        return Some(Err(Problem::fault(why)));
                    };
                    return Some(Err(problem));
                }
            }
        }
    }

    fn token(&mut self, index: usize, piece: TextPiece) {
        self.record.token();
        let Some(choice) = self.choices.get_mut(index).filter(|c| !c.cut) else { return };
        let deltas = choice.reader.push(&piece.text);
        self.usage.reasoning += choice.count(&deltas);
        let deltas = choice.wanted(deltas, self.parallel, self.forced);
        let token = piece.token;
        let logprobs: Vec<TokenLogprob> =
            piece.logprobs.map(|logprobs| TokenLogprob { token, logprobs }).into_iter().collect();
        if !deltas.is_empty() || !logprobs.is_empty() {
            self.pending.push_back(ChatEvent::More(index, deltas, logprobs));
        }
    }

    fn end(&mut self, index: usize, output: &Output, rest: &str) {
        self.open -= 1;
        self.metrics.finished(&output.stats);
        self.usage.completion += output.stats.generated_tokens;
        if index == 0 {
            self.usage.cached = output.stats.cached_tokens;
            self.record.note(|told| told.cached += output.stats.cached_tokens);
            self.usage.first = output.stats;
        }
        let Some(choice) = self.choices.get_mut(index) else { return };
        if choice.thinks {
            self.usage.reasoning += choice.held;
        }
        if !choice.cut {
            let mut deltas = choice.reader.push(rest);
            deltas.extend(choice.reader.finish());
            let deltas = choice.wanted(deltas, self.parallel, self.forced);
            if !deltas.is_empty() {
                self.pending.push_back(ChatEvent::More(index, deltas, Vec::new()));
            }
        }
        let reason = match output.finish {
            // An answer that was cut off is not complete, whatever it holds.
            Finish::Length | Finish::Context | Finish::Budget | Finish::Cancelled => {
                EndReason::Length
            }
            _ if choice.calls > 0 => EndReason::ToolCalls,
            Finish::Stop => EndReason::Stop,
        };
        self.record.note(|told| told.why.insert(reason.name().into()));
        self.pending.push_back(ChatEvent::End(index, reason, output.stop_text.clone()));
    }

    /// Waits for all answers, or until one of them fails.
    pub async fn collect(mut self) -> Result<ChatAnswer, Problem> {
        let mut choices = vec![ChoiceAnswer::default(); self.choices.len()];
        while let Some(event) = self.next().await {
            match event? {
                ChatEvent::Prompt(..) => {}
                ChatEvent::More(index, deltas, logprobs) => {
                    let Some(choice) = choices.get_mut(index) else { continue };
                    deltas.into_iter().for_each(|delta| choice.add(delta));
                    choice.logprobs.extend(logprobs);
                }
                ChatEvent::End(index, reason, stop_text) => {
                    let Some(choice) = choices.get_mut(index) else { continue };
                    (choice.reason, choice.stop_text) = (Some(reason), stop_text);
                }
            }
        }
        Ok(ChatAnswer { choices, usage: self.usage })
    }
}

impl ChoiceAnswer {
    /// An answer of deltas.
    pub fn of(deltas: Vec<Delta>) -> ChoiceAnswer {
        let mut answer = ChoiceAnswer::default();
        deltas.into_iter().for_each(|delta| answer.add(delta));
        answer
    }

    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::CallStart { name, .. } => self.calls.push((name, String::new())),
            Delta::CallArguments { index, json } => {
                if let Some((_, arguments)) = self.calls.get_mut(index) {
                    arguments.push_str(&json);
                }
            }
        }
    }
}
