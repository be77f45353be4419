//! llama.cpp's `/completion` and `/infill`, which editors use.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::stream::iter;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use troika::Request;
use troika::engine::sample::SampleParams;
use troika::model::tokenizer::{Infill, TokenizerError};

use super::Answer;
use super::chat::{prompt_progress, timings, token_logprob};
use super::prompts::{Prompt, fim, prompts};
use super::request::{choices, generation, logprobs, max_tokens};
use crate::chat::{ChatEvent, ChoiceAnswer, EndReason, Prepared, TokenLogprob, Usage};
use crate::completion::Generation;
use crate::fields::Fields;
use crate::json_request::{self, JsonRequest};
use crate::limits;
use crate::line_limit::LineLimit;
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::stream::{self, EventWriter};
use crate::turn::Turn;

/// Tokens around a place to be filled in: what llama.cpp reads at once.
const NEAR: usize = 2048;

/// Names of the most tokens of an answer.
const MOST: [&str; 3] = ["n_predict", "max_completion_tokens", "max_tokens"];

pub async fn completion(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let given: Value = call.fields().need("prompt")?;
    let turn = Turn::new(&call, &host);
    let bytes = limits::size(&given);
    let prompts = turn.prepare(bytes, move |host| prompts(&given, host)).await?;
    answer(&turn, &call.fields(), prompts).await
}

/// Fills in a place of a text, if the model has tokens for that.
pub async fn infill(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let fields = call.fields();
    let place = Infill {
        prefix: fields.need("input_prefix")?,
        line: fields.get("prompt")?.unwrap_or_default(),
        suffix: fields.need("input_suffix")?,
        files: fields.get("input_extra")?.unwrap_or_default(),
    };
    let predict = max_tokens(&fields, &MOST)?.unwrap_or(0);
    let turn = Turn::new(&call, &host);
    let prompt = turn.prepare(place.bytes(), move |host| around(&place, host, predict)).await?;
    answer(&turn, &fields, vec![prompt]).await
}

/// The prompt of a place, with room for twice the answer, as llama.cpp leaves it.
fn around(place: &Infill, host: &InUse, predict: usize) -> Result<Prompt, Problem> {
    let (fim, tokenizer) = fim(host).ok_or_else(|| {
        let why = "Infill is not supported by this model: it has no tokens for a text to be filled \
                   in; take a model for code";
        Problem::new(StatusCode::NOT_IMPLEMENTED, why)
    })?;
    host.model.check_text(place.bytes())?;
    let context = host.model.context();
    let near = NEAR.min(context / 4 * 3);
    let beside = context.saturating_sub(near).saturating_sub(predict.saturating_mul(2));
    let told = |e: TokenizerError| Problem::bad(e.to_string());
    let ids = fim.infill(tokenizer, place, near, beside).map_err(told)?;
    let text = tokenizer.decode(&ids, false).map_err(told)?;
    Ok(Prompt { ids, text })
}

/// How tokens are chosen, under llama.cpp's names.
pub fn settings(params: &SampleParams) -> Value {
    let mut settings = json!({
        "seed": params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repeat_penalty,
        // usize::MAX stands for all.
        "repeat_last_n": i64::try_from(params.repeat_last_n).unwrap_or(-1),
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
    });
    for (name, number) in params.chain.clone().numbers_mut() {
        settings[name] = json!(*number);
    }
    settings
}

/// Answers prompts, each `n` times.
async fn answer(turn: &Turn, fields: &Fields<'_>, prompts: Vec<Prompt>) -> Answer {
    let asked = Arc::new(Asked::read(fields, turn).await?);
    let n = choices(fields)?;
    let all = prompts.into_iter().flat_map(|prompt| (0..n).map(move |nth| (prompt.clone(), nth)));
    let one = |(index, (prompt, nth))| OnePart { asked: asked.clone(), prompt, nth, index };
    let mut all: Vec<OnePart> = all.enumerate().map(one).collect();
    if fields.flag("stream")? {
        let (Some(part), true) = (all.pop(), all.is_empty()) else {
            let why = "a stream is of one prompt and one answer; send several requests";
            return Err(Problem::field("stream", why));
        };
        let answers = Prepared::plain(part.generation()).start(turn).await?;
        let (parts, has_new_line, end) = (0, false, (None, None));
        return Ok(stream::respond(answers, GgmlWriter { part, parts, has_new_line, end }));
    }
    let whole = all.iter().map(|part| part.whole(turn.part(part.index)));
    let whole = iter(whole.collect::<Vec<_>>()).buffered(turn.server.options.parallel.max(1));
    let mut whole: Vec<Value> = whole.try_collect().await?;
    let whole = if whole.len() == 1 { whole.swap_remove(0) } else { whole.into() };
    Ok(json_request::json(&whole))
}

/// What is asked for each prompt.
struct Asked {
    generation: Generation,
    host: InUse,
    settings: Value,
    probabilities: usize,
    with_tokens: bool,
    with_progress: bool,
    fields: Vec<String>,
}

impl Asked {
    async fn read(fields: &Fields<'_>, turn: &Turn) -> Result<Asked, Problem> {
        let host = turn.host.clone();
        let probabilities = fields.get("n_probs")?.or(fields.get("logprobs")?).unwrap_or(0);
        let probabilities = logprobs("n_probs", probabilities)?;
        let with_tokens = fields.flag("return_tokens")?;
        let told = (probabilities > 0 || with_tokens).then_some(probabilities);
        let generation = generation(fields, turn, max_tokens(fields, &MOST)?, told).await?;
        let Request { params, max_tokens, .. } = &generation.request;
        let mut settings = settings(params);
        settings["n_predict"] = max_tokens.map_or(Value::from(-1), Value::from);
        for name in ["stop", "ignore_eos", "stream", "n_probs", "json_schema", "samplers"] {
            settings[name] = fields.value(name).cloned().unwrap_or_default();
        }
        let time = fields.get::<i64>("t_max_predict_ms")?.and_then(|ms| u64::try_from(ms).ok());
        let time = time.filter(|ms| *ms > 0).map(Duration::from_millis);
        let lines = Some(LineLimit::new(fields.get("n_indent")?.unwrap_or(0), time));
        let generation = Generation { choices: 1, lines, ..generation };
        let with_progress = fields.flag("return_progress")?;
        let fields = fields.get("response_fields")?.unwrap_or_default();
        Ok(Asked { generation, host, settings, probabilities, with_tokens, with_progress, fields })
    }
}

/// One of the answers.
struct OnePart {
    asked: Arc<Asked>,
    prompt: Prompt,
    /// Which one to the same prompt.
    nth: usize,
    index: usize,
}

/// Why an answer ended, and the stop text that ended it.
type End = (Option<EndReason>, Option<String>);

impl OnePart {
    fn generation(&self) -> Generation {
        let prompt = self.prompt.ids.clone();
        let mut generation = Generation { prompt, ..self.asked.generation.clone() };
        let seed = &mut generation.request.params.seed;
        *seed = seed.wrapping_add(self.nth as u64);
        generation
    }

    async fn whole(&self, turn: Turn) -> Result<Value, Problem> {
        let answer = Prepared::plain(self.generation()).start(&turn).await?.collect().await?;
        let choice = answer.choices.into_iter().next().unwrap_or_default();
        let end = (choice.reason, choice.stop_text);
        Ok(self.last(&choice.content, &choice.logprobs, end, &answer.usage))
    }

    fn more(&self, text: &str, tokens: &[TokenLogprob]) -> Value {
        let ids = tokens.iter().filter(|_| self.asked.with_tokens).map(|l| l.token);
        // Answers have no slot of their own: -1 is any.
        let mut more = json!({
            "index": self.index, "content": text, "tokens": ids.collect::<Vec<u32>>(),
            "stop": false, "id_slot": -1, "tokens_evaluated": self.prompt.ids.len(),
        });
        if self.asked.probabilities > 0 && !tokens.is_empty() {
            let all = tokens.iter().map(|l| self.probability(l));
            more["completion_probabilities"] = all.collect();
        }
        more
    }

    fn probability(&self, of: &TokenLogprob) -> Value {
        let mut told = token_logprob(self.asked.host.model.tokenizer(), of);
        told["id"] = of.token.into();
        for (i, (id, _)) in of.logprobs.top.iter().enumerate() {
            told["top_logprobs"][i]["id"] = (*id).into();
        }
        told
    }

    fn last(&self, text: &str, tokens: &[TokenLogprob], end: End, usage: &Usage) -> Value {
        let (reason, stop_text) = end;
        let kind = match (reason, &stop_text) {
            (Some(EndReason::Length), _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let (host, all) = (&self.asked.host, usage.prompt + usage.completion);
        let mut last = self.more(text, tokens);
        for (name, value) in [
            ("stop", true.into()),
            ("model", host.name.clone().into()),
            ("tokens_predicted", usage.completion.into()),
            ("generation_settings", self.asked.settings.clone()),
            ("prompt", self.prompt.text.clone().into()),
            ("has_new_line", text.contains('\n').into()),
            ("truncated", (kind == "limit" && all >= host.model.context()).into()),
            ("stop_type", kind.into()),
            ("stopping_word", stop_text.unwrap_or_default().into()),
            ("tokens_cached", all.into()),
            ("timings", timings(usage)),
        ] {
            last[name] = value;
        }
        if self.asked.fields.is_empty() {
            return last;
        }
        // Fields within others have their whole path as a name.
        let field =
            |path: &String| Some((path.clone(), last.pointer(&format!("/{path}"))?.clone()));
        Value::Object(self.asked.fields.iter().filter_map(field).collect())
    }
}

struct GgmlWriter {
    part: OnePart,
    parts: usize,
    has_new_line: bool,
    end: End,
}

impl EventWriter for GgmlWriter {
    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::Prompt(progress, time) => {
                if self.part.asked.with_progress {
                    let mut more = self.part.more("", &[]);
                    more["prompt_progress"] = prompt_progress(progress, time);
                    stream::data(&more, out);
                }
            }
            ChatEvent::More(_, deltas, logprobs) => {
                let text = ChoiceAnswer::of(deltas).content;
                self.parts += 1;
                self.has_new_line |= text.contains('\n');
                let mut more = self.part.more(&text, &logprobs);
                more["tokens_predicted"] = self.parts.into();
                stream::data(&more, out);
            }
            ChatEvent::End(_, reason, stop_text) => self.end = (Some(reason), stop_text),
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut String) {
        let mut last = self.part.last("", &[], std::mem::take(&mut self.end), usage);
        if let Some(has) = last.get_mut("has_new_line") {
            *has = self.has_new_line.into();
        }
        stream::data(&last, out);
    }
}
