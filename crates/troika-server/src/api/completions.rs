//! OpenAI's `/v1/completions`: texts go on as they are, without a chat template.

use futures_util::StreamExt;
use futures_util::stream::iter;
use serde_json::{Map, Value, json};
use troika::engine::sample::Logprobs;

use super::Answer;
use super::chat::{AnswerForm, finite};
use super::prompts::{Prompt, prompts};
use super::request::{generation, logprobs, max_tokens};
use crate::chat::{ChatEvent, ChatStream, ChoiceAnswer, EndReason, Prepared, TokenLogprob, Usage};
use crate::completion::{Generation, prompt_logprobs};
use crate::fields::Fields;
use crate::json_request::{self, JsonRequest};
use crate::limits;
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::stream::{self, EventWriter};
use crate::turn::Turn;

/// OpenAI's default for the number of tokens.
const TOKENS: usize = 16;

/// What is asked for each of the prompts.
#[derive(Clone)]
struct Asked {
    generation: Generation,
    /// Whether the prompt is part of the answer.
    echo: bool,
    logprobs: Option<usize>,
}

pub async fn completions(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let fields = call.fields();
    let turn = Turn::new(&call, &host);
    let asked = asked(&fields, &turn).await?;
    let given = fields.value("prompt").cloned().unwrap_or_default();
    let suffix: Option<String> = fields.get("suffix")?.filter(|suffix: &String| !suffix.is_empty());
    if suffix.is_some() && asked.echo && asked.logprobs.is_some() {
        let why = "a prompt with a suffix has no probabilities of its own; leave echo out";
        return Err(Problem::field("suffix", why));
    }
    let bytes = limits::size(&given) + suffix.as_ref().map_or(0, String::len);
    let read = move |host: &InUse| match suffix {
        Some(suffix) => {
            prompts(&given, host)?.into_iter().map(|prompt| prompt.before(&suffix, host)).collect()
        }
        None => prompts(&given, host),
    };
    let prompts = turn.prepare(bytes, read).await?;
    let best_of = fields.get("best_of")?.unwrap_or(asked.generation.choices);
    if best_of != asked.generation.choices {
        return Err(Problem::field("best_of", "best_of cannot differ from n"));
    }
    let form = AnswerForm::new("cmpl-", &fields, &host, asked.logprobs.is_some())?;
    let n = asked.generation.choices;
    if fields.flag("stream")? {
        let [prompt] = prompts.as_slice() else {
            let why = "a stream is of one prompt; send several requests";
            return Err(Problem::field("stream", why));
        };
        let echoed = echoed(&turn, &asked, prompt).await?;
        let answers = begin(&turn, &asked, prompt).await?;
        let writer = CompletionWriter { form, n, at: vec![echoed.end; n], echoed };
        return Ok(stream::respond(answers, writer));
    }
    let part = |(i, prompt)| completed(turn.part(i), &asked, prompt);
    let answers: Vec<_> = prompts.iter().enumerate().map(part).collect();
    let mut answers = iter(answers).buffered(turn.server.options.parallel.max(1)).enumerate();
    let (mut all, mut sum) = (Vec::new(), Usage::default());
    while let Some((i, answer)) = answers.next().await {
        let (texts, used) = answer?;
        all.extend(texts.into_iter().enumerate().map(|(j, text)| text.json(i * n + j)));
        sum.prompt += used.prompt;
        sum.cached += used.cached;
        sum.completion += used.completion;
        if i == 0 {
            sum.first = used.first;
        }
    }
    Ok(json_request::json(&form.counted(COMPLETION, all.into(), &sum)))
}

async fn asked(fields: &Fields<'_>, turn: &Turn) -> Result<Asked, Problem> {
    let echo = fields.flag("echo")?;
    let top: Option<usize> = match fields.value("logprobs") {
        // llama.cpp's clients send the chat interface's form.
        Some(Value::Bool(yes)) => yes.then_some(0),
        _ => fields.get("logprobs")?,
    };
    let logprobs = top.map(|n| logprobs("logprobs", n)).transpose()?;
    let wanted = max_tokens(fields, &["max_tokens", "max_completion_tokens", "n_predict"])?;
    let given = fields.value("max_tokens").or(fields.value("n_predict"));
    let wanted = if given.is_none() { wanted.or(Some(TOKENS)) } else { wanted };
    let mut generation = generation(fields, turn, wanted, logprobs).await?;
    let request = &mut generation.request;
    // Whoever asks for a text's probabilities counts one more token, even if it is an end of text.
    let measures = echo && logprobs.is_some() && request.max_tokens.is_some_and(|n| n <= 1);
    request.ignore_eos |= measures;
    Ok(Asked { generation, echo, logprobs })
}

/// Starts the answers to a prompt.
async fn begin(turn: &Turn, asked: &Asked, prompt: &Prompt) -> Result<ChatStream, Problem> {
    let generation = Generation { prompt: prompt.ids.clone(), ..asked.generation.clone() };
    Prepared::plain(generation).start(turn).await
}

/// The prompt as a part of the answer, if that is asked for.
async fn echoed(turn: &Turn, asked: &Asked, prompt: &Prompt) -> Result<CompletionText, Problem> {
    let with_logprobs = asked.logprobs.is_some();
    let mut text = CompletionText { with_logprobs, ..CompletionText::default() };
    if !asked.echo {
        return Ok(text);
    }
    text.text.clone_from(&prompt.text);
    let Some(top) = asked.logprobs else { return Ok(text) };
    let known = prompt_logprobs(turn, &prompt.ids, top).await?;
    // Nothing precedes the first token.
    let all = std::iter::once(None).chain(known.into_iter().map(Some));
    for (id, logprobs) in prompt.ids.iter().zip(all) {
        text.add(&turn.host, *id, logprobs.as_ref());
    }
    Ok(text)
}

/// The answers to a prompt, when they are complete.
async fn completed(
    turn: Turn,
    asked: &Asked,
    prompt: &Prompt,
) -> Result<(Vec<CompletionText>, Usage), Problem> {
    let (host, echoed) = (&turn.host, echoed(&turn, asked, prompt).await?);
    let n = asked.generation.choices;
    if asked.generation.request.max_tokens == Some(0) {
        let usage = Usage { prompt: prompt.ids.len(), ..Usage::default() };
        return Ok((vec![echoed; n], usage));
    }
    let parts_before = usize::from(asked.echo && asked.logprobs.is_some());
    let answer = begin(&turn.part(parts_before), asked, prompt).await?.collect().await?;
    let ends = &host.model.defaults().stop_tokens;
    let text = |choice: ChoiceAnswer| {
        let mut text = echoed.clone();
        text.text.push_str(&choice.content);
        let measured_end =
            asked.echo && choice.logprobs.last().is_some_and(|l| ends.contains(&l.token));
        text.reason = if measured_end { Some(EndReason::Stop) } else { choice.reason };
        choice.logprobs.iter().for_each(|l| text.add(host, l.token, Some(&l.logprobs)));
        text
    };
    Ok((answer.choices.into_iter().map(text).collect(), answer.usage))
}

/// A text with the probabilities of its tokens.
#[derive(Clone, Debug, Default)]
struct CompletionText {
    text: String,
    reason: Option<EndReason>,
    with_logprobs: bool,
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    offsets: Vec<usize>,
    /// Characters of all tokens so far.
    end: usize,
}

impl CompletionText {
    fn add(&mut self, host: &InUse, token: u32, logprobs: Option<&Logprobs>) {
        let tokenizer = host.model.tokenizer();
        let bytes = |id| tokenizer.and_then(|t| t.token_bytes(id)).unwrap_or_default();
        let text = |id| String::from_utf8_lossy(&bytes(id)).into_owned();
        let spelled = text(token);
        self.offsets.push(self.end);
        // A character in several tokens begins in the first of them.
        self.end += bytes(token).iter().filter(|byte| **byte & 0xc0 != 0x80).count();
        self.tokens.push(spelled.clone().into());
        let Some(logprobs) = logprobs else {
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
            return;
        };
        let chosen = finite(logprobs.chosen);
        self.token_logprobs.push(chosen.into());
        let mut top = Map::new();
        let others = logprobs.top.iter().map(|(id, l)| (text(*id), finite(*l)));
        // Tokens that are parts of characters can look alike: the most likely one counts.
        for (spelled, logprob) in others.chain([(spelled, chosen)]) {
            top.entry(spelled).or_insert(logprob.into());
        }
        self.top_logprobs.push(Value::Object(top));
    }

    fn json(&self, index: usize) -> Value {
        let logprobs = match self.with_logprobs {
            true => json!({
                "tokens": self.tokens,
                "token_logprobs": self.token_logprobs,
                "top_logprobs": self.top_logprobs,
                "text_offset": self.offsets,
            }),
            false => Value::Null,
        };
        json!({
            "index": index,
            "text": self.text,
            "logprobs": logprobs,
            "finish_reason": self.reason.map_or("length", EndReason::name),
        })
    }
}

/// The kind of object of an answer, whole or not.
const COMPLETION: &str = "text_completion";

struct CompletionWriter {
    form: AnswerForm,
    echoed: CompletionText,
    n: usize,
    /// Where each answer's next token begins.
    at: Vec<usize>,
}

impl CompletionWriter {
    fn chunk(&self, index: usize, text: &CompletionText, reason: Value, out: &mut String) {
        let mut choice = text.json(index);
        choice["finish_reason"] = reason;
        stream::data(&self.form.object(COMPLETION, json!([choice])), out);
    }

    fn more(&mut self, index: usize, text: String, logprobs: &[TokenLogprob], out: &mut String) {
        let (with_logprobs, end) = (self.form.logprobs, self.at[index]);
        let mut part = CompletionText { text, with_logprobs, end, ..CompletionText::default() };
        logprobs.iter().for_each(|l| part.add(&self.form.host, l.token, Some(&l.logprobs)));
        self.at[index] = part.end;
        self.chunk(index, &part, Value::Null, out);
    }
}

impl EventWriter for CompletionWriter {
    fn begin(&mut self, out: &mut String) {
        if !self.echoed.text.is_empty() {
            (0..self.n).for_each(|index| self.chunk(index, &self.echoed, Value::Null, out));
        } else {
            out.push_str(": begun\n\n");
        }
    }

    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::Prompt(progress, time) => {
                let mut nothing = CompletionText::default().json(0);
                nothing["finish_reason"] = Value::Null;
                self.form.progress((COMPLETION, nothing), (progress, time), out);
            }
            ChatEvent::More(index, deltas, logprobs) => {
                self.more(index, ChoiceAnswer::of(deltas).content, &logprobs, out);
            }
            ChatEvent::End(index, reason, _) => {
                self.chunk(index, &CompletionText::default(), reason.name().into(), out);
            }
        }
    }

    fn end(&mut self, all: &Usage, out: &mut String) {
        self.form.end(COMPLETION, all, out);
    }
}
