//! llama.cpp's `/completion` and `/infill`, which editors use.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::stream::iter;
use futures_util::{StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use troika::Request;
use troika::engine::sample::SampleParams;
use troika::model::answer::Delta;
use troika::model::tokenizer::Infill;

use super::chat::{timings, token_logprob};
use super::prompts::{Prompt, encode, fim, prompts};
use super::request::{choices, go_on, logprobs, max_tokens};
use crate::chat::{ChatEvent, EndReason, TokenLogprob, Usage};
use crate::completion::Generation;
use crate::fields::Fields;
use crate::json_request::{self, JsonRequest};
use crate::limits;
use crate::line_limit::LineLimit;
use crate::open_model::InUse;
use crate::problem::{Dialect, Problem};
use crate::sampling;
use crate::state::Server;
use crate::stream::{self, EventWriter};
use crate::turn::Turn;

/// Tokens around a place to be filled in: what llama.cpp reads at once.
const NEAR: usize = 2048;

/// Names of the most tokens of an answer.
const MOST: [&str; 3] = ["n_predict", "max_completion_tokens", "max_tokens"];

/// Goes on with prompts.
///
/// # Errors
/// What is wrong with the request.
pub async fn completion(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let host = server.model(call.model()?.as_deref()).await?;
    let given: Value = call.fields().need("prompt")?;
    let turn = Turn::new(&server, &host, call.client);
    let bytes = limits::size(&given);
    let prompts = turn.prepare(bytes, move |host| prompts(&given, host)).await?;
    answer(&turn, &call.fields(), &prompts).await
}

/// Fills in a place of a text.
///
/// # Errors
/// The model has no tokens for that, or what is wrong with the request.
pub async fn infill(
    State(server): State<Arc<Server>>,
    call: JsonRequest,
) -> Result<Response, Problem> {
    let host = server.model(call.model()?.as_deref()).await?;
    let around = Around::read(&call.fields())?;
    let predict = max_tokens(&call.fields(), &MOST)?.unwrap_or(0);
    let turn = Turn::new(&server, &host, call.client);
    let bytes = around.bytes();
    let prompt = turn.prepare(bytes, move |host| around.prompt(host, predict)).await?;
    answer(&turn, &call.fields(), &[prompt]).await
}

/// What is around a place.
struct Around {
    prefix: String,
    line: String,
    suffix: String,
    files: Vec<FileText>,
}

/// A part of another file.
#[derive(Deserialize)]
struct FileText {
    text: String,
    filename: Option<String>,
}

impl Around {
    fn read(fields: &Fields<'_>) -> Result<Around, Problem> {
        Ok(Around {
            prefix: fields.need("input_prefix")?,
            line: fields.get("prompt")?.unwrap_or_default(),
            suffix: fields.need("input_suffix")?,
            files: fields.get("input_extra")?.unwrap_or_default(),
        })
    }

    fn bytes(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.text.len()).sum();
        self.prefix.len() + self.line.len() + self.suffix.len() + files
    }

    fn prompt(self, host: &InUse, predict: usize) -> Result<Prompt, Problem> {
        let (fim, tokenizer) = fim(host).ok_or_else(|| {
            let why = "Infill is not supported by this model: it has no tokens for a text to be \
                       filled in; take a model for code";
            Problem::new(StatusCode::NOT_IMPLEMENTED, why)
        })?;
        host.model.check_text(self.bytes())?;
        // llama.cpp's name of a file without one.
        let named = |file: FileText| (file.filename.unwrap_or_else(|| "tmp".into()), file.text);
        let place = Infill {
            prefix: encode(&self.prefix, host, false)?,
            line: encode(&self.line, host, true)?,
            suffix: encode(&self.suffix, host, false)?,
            files: self.files.into_iter().map(named).collect(),
        };
        let context = host.model.context();
        let near = NEAR.min(context / 4 * 3);
        let beside = context.saturating_sub(near).saturating_sub(predict.saturating_mul(2));
        let told = |e: troika::model::tokenizer::TokenizerError| Problem::bad(e.to_string());
        let ids = fim.infill(tokenizer, &place, near, beside).map_err(told)?;
        let text = tokenizer.decode(&ids, false).map_err(told)?;
        Ok(Prompt { ids, text })
    }
}

/// How tokens are chosen, under llama.cpp's names.
pub fn settings(params: &SampleParams) -> Value {
    json!({
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
    })
}

/// Answers prompts, each `n` times.
async fn answer(turn: &Turn, fields: &Fields<'_>, prompts: &[Prompt]) -> Result<Response, Problem> {
    let asked = Asked::read(fields, turn).await?;
    let n = choices(fields)?;
    if fields.flag("stream")? {
        let ([prompt], 1) = (prompts, n) else {
            let why = "a stream is of one prompt and one answer; send several requests";
            return Err(Problem::field("stream", why));
        };
        let answers = go_on(turn, asked.generation(prompt, 0)).await?;
        let form = asked.form(prompt, 0);
        return Ok(stream::respond(answers, LlamaWriter { form, ..LlamaWriter::default() }));
    }
    let part = |index: usize| whole(turn.part(index), &asked, &prompts[index / n], index, n);
    let all: Vec<_> = (0..prompts.len() * n).map(part).collect();
    let mut all: Vec<Value> =
        iter(all).buffered(turn.server.options.parallel.max(1)).try_collect().await?;
    let all = if all.len() == 1 { all.swap_remove(0) } else { all.into() };
    Ok(json_request::json(&all))
}

/// The answer of an index, when it is complete.
async fn whole(
    turn: Turn,
    asked: &Asked,
    prompt: &Prompt,
    index: usize,
    n: usize,
) -> Result<Value, Problem> {
    let answer = go_on(&turn, asked.generation(prompt, index % n)).await?.collect().await?;
    let choice = answer.choices.into_iter().next().unwrap_or_default();
    let (form, end) = (asked.form(prompt, index), (choice.reason, choice.stop_text));
    Ok(form.last(&choice.content, &choice.logprobs, end, &answer.usage))
}

/// What is asked for each prompt.
struct Asked {
    generation: Generation,
    host: InUse,
    settings: Value,
    probabilities: usize,
    with_tokens: bool,
    fields: Vec<String>,
}

impl Asked {
    async fn read(fields: &Fields<'_>, turn: &Turn) -> Result<Asked, Problem> {
        fields.refuse(&[("post_sampling_probs", "probabilities are the model's own")])?;
        let host = turn.host.clone();
        let probabilities = match fields.get("n_probs")? {
            Some(n) => logprobs("n_probs", n)?,
            None => logprobs("logprobs", fields.get("logprobs")?.unwrap_or(0))?,
        };
        let with_tokens = fields.flag("return_tokens")?;
        let wanted = max_tokens(fields, &MOST)?;
        let max_tokens = turn.server.options.max_tokens.into_iter().chain(wanted).min();
        let params = sampling::params(fields, &host.model)?;
        let mut settings = settings(&params);
        let most = max_tokens.map_or(Value::from(-1), Value::from);
        (settings["n_predict"], settings["max_tokens"]) = (most.clone(), most);
        for name in ["stop", "ignore_eos", "stream", "n_probs", "json_schema", "samplers"] {
            settings[name] = fields.value(name).cloned().unwrap_or_default();
        }
        let request = Request {
            params,
            max_tokens,
            stop: fields.texts("stop")?,
            ignore_eos: fields.flag("ignore_eos")?,
            logprobs: (probabilities > 0 || with_tokens).then_some(probabilities),
            ..Request::default()
        };
        let time = fields.get::<i64>("t_max_predict_ms")?.filter(|ms| *ms > 0);
        let lines = LineLimit {
            indent: fields.get("n_indent")?.unwrap_or(0),
            time: time.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis),
        };
        let grammar = match super::constrain::read(fields)? {
            Some(constrain) => Some(turn.compile(constrain).await?),
            None => None,
        };
        let fresh = !fields.get("cache_prompt")?.unwrap_or(true);
        let lines = Some(lines);
        let generation =
            Generation { request, choices: 1, grammar, lines, fresh, ..Generation::default() };
        let fields = fields.get("response_fields")?.unwrap_or_default();
        Ok(Asked { generation, host, settings, probabilities, with_tokens, fields })
    }

    fn generation(&self, prompt: &Prompt, nth: usize) -> Generation {
        let mut generation = Generation { prompt: prompt.ids.clone(), ..self.generation.clone() };
        let seed = &mut generation.request.params.seed;
        *seed = seed.wrapping_add(nth as u64);
        generation
    }

    fn form(&self, prompt: &Prompt, index: usize) -> LlamaForm {
        let (host, settings) = (Some(self.host.clone()), self.settings.clone());
        let (prompt, fields) = (prompt.text.clone(), self.fields.clone());
        let Asked { probabilities, with_tokens, .. } = *self;
        LlamaForm { host, index, prompt, settings, probabilities, with_tokens, fields }
    }
}

/// What the parts of an answer say.
#[derive(Default)]
struct LlamaForm {
    host: Option<InUse>,
    index: usize,
    prompt: String,
    settings: Value,
    probabilities: usize,
    with_tokens: bool,
    fields: Vec<String>,
}

impl LlamaForm {
    fn part(&self, text: &str, tokens: &[TokenLogprob]) -> Value {
        let ids = tokens.iter().filter(|_| self.with_tokens).map(|l| l.token);
        let mut part = json!({
            "index": self.index,
            "content": text,
            "tokens": ids.collect::<Vec<u32>>(),
            "stop": false,
            // Any: answers have no place of their own.
            "id_slot": -1,
        });
        if self.probabilities > 0 && !tokens.is_empty() {
            part["completion_probabilities"] = tokens.iter().map(|l| self.probability(l)).collect();
        }
        part
    }

    fn probability(&self, of: &TokenLogprob) -> Value {
        let tokenizer = self.host.as_ref().and_then(|host| host.model.tokenizer());
        let mut told = token_logprob(tokenizer, of);
        told["id"] = of.token.into();
        for (i, (id, _)) in of.logprobs.top.iter().enumerate() {
            told["top_logprobs"][i]["id"] = (*id).into();
        }
        told
    }

    fn last(
        &self,
        text: &str,
        tokens: &[TokenLogprob],
        (reason, stop_text): (Option<EndReason>, Option<String>),
        usage: &Usage,
    ) -> Value {
        let kind = match (reason, &stop_text) {
            (Some(EndReason::Length), _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let all = usage.prompt + usage.completion;
        let context = self.host.as_ref().map_or(0, |host| host.model.context());
        let mut last = self.part(text, tokens);
        for (name, value) in [
            ("stop", true.into()),
            ("model", self.host.as_ref().map_or("", |host| &host.name).into()),
            ("tokens_predicted", usage.completion.into()),
            ("tokens_evaluated", usage.prompt.into()),
            ("generation_settings", self.settings.clone()),
            ("prompt", self.prompt.clone().into()),
            ("has_new_line", text.contains('\n').into()),
            ("truncated", (kind == "limit" && all >= context).into()),
            ("stop_type", kind.into()),
            ("stopping_word", stop_text.unwrap_or_default().into()),
            ("tokens_cached", all.into()),
            ("timings", timings(usage)),
        ] {
            last[name] = value;
        }
        self.chosen(last)
    }

    /// The fields that are wanted; those within others under their whole path.
    fn chosen(&self, all: Value) -> Value {
        if self.fields.is_empty() {
            return all;
        }
        let field = |path: &String| Some((path.clone(), all.pointer(&format!("/{path}"))?.clone()));
        Value::Object(self.fields.iter().filter_map(field).collect::<Map<_, _>>())
    }
}

/// Writes llama.cpp's chunks.
#[derive(Default)]
struct LlamaWriter {
    form: LlamaForm,
    /// Parts so far.
    parts: usize,
    has_new_line: bool,
    end: (Option<EndReason>, Option<String>),
}

impl EventWriter for LlamaWriter {
    fn begin(&mut self, out: &mut String) {
        // The head of the response goes out before the first token is there.
        out.push_str(": begun\n\n");
    }

    fn event(&mut self, event: ChatEvent, out: &mut String) {
        match event {
            ChatEvent::More(_, deltas, logprobs) => {
                let text = deltas.into_iter().filter_map(|delta| match delta {
                    Delta::Content(text) => Some(text),
                    _ => None,
                });
                let text: String = text.collect();
                self.parts += 1;
                self.has_new_line |= text.contains('\n');
                let mut part = self.form.part(&text, &logprobs);
                part["tokens_predicted"] = self.parts.into();
                stream::data(&part, out);
            }
            ChatEvent::End(_, reason, stop_text) => self.end = (Some(reason), stop_text),
        }
    }

    fn end(&mut self, usage: &Usage, out: &mut String) {
        let mut last = self.form.last("", &[], std::mem::take(&mut self.end), usage);
        if let Some(has) = last.get_mut("has_new_line") {
            *has = self.has_new_line.into();
        }
        stream::data(&last, out);
    }

    fn problem(&mut self, problem: &Problem, out: &mut String) {
        stream::data(&problem.body(Dialect::OpenAi), out);
    }
}
