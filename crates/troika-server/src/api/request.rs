//! What all chat interfaces have in common.

use serde_json::Value;
use troika::Request;

use crate::chat::{ChatRequest, ChatStream, Tools};
use crate::completion::Generation;
use crate::fields::Fields;
use crate::json_request::JsonRequest;
use crate::limits::{CHOICES, LOGPROBS};
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::sampling;
use crate::turn::Turn;

/// Names by which clients bound thoughts.
const BUDGETS: &[&str] = &[
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "max_thinking_tokens",
];

/// A request with its messages and tools, and otherwise what the fields say in OpenAI's or vLLM's
/// words.
///
/// # Errors
/// A field of another type, or out of range.
pub fn chat_request(
    fields: &Fields<'_>,
    host: &InUse,
    messages: Vec<Value>,
    tools: Tools,
) -> Result<ChatRequest, Problem> {
    let whole = fields.get::<String>("reasoning_format")?.is_some_and(|f| f == "none");
    Ok(ChatRequest {
        messages,
        tools,
        constrain: super::constrain::read(fields)?,
        params: sampling::params(fields, &host.model)?,
        max_tokens: max_tokens(fields, &["max_completion_tokens", "max_tokens", "n_predict"])?,
        stop: fields.texts("stop")?,
        ignore_eos: fields.flag("ignore_eos")?,
        choices: choices(fields)?,
        fresh: fresh(fields)?,
        logprobs: None,
        extra: super::thinking::variables(fields, host)?,
        thinking_budget: max_tokens(fields, BUDGETS)?,
        split_reasoning: !whole,
        whole_calls: !fields.flag("stream")?,
        continues: fields.flag("continue_final_message")?,
    })
}

/// The most tokens of an answer, by the first of several names that is there. As in llama.cpp, -1
/// and -2 mean what the context holds.
///
/// # Errors
/// It is not a whole number, or another one below 0.
pub fn max_tokens(fields: &Fields<'_>, names: &[&str]) -> Result<Option<usize>, Problem> {
    for name in names {
        if let Some(given) = fields.get::<i64>(name)? {
            if given < -2 {
                let why = format!("{name} is {given}; it has to be 0 or more, or -1 for no limit");
                return Err(Problem::field(name, why));
            }
            return Ok(usize::try_from(given).ok());
        }
    }
    Ok(None)
}

/// Whether the prompt is computed as a whole, whatever of it is cached: llama.cpp's `cache_prompt`
/// says no.
pub fn fresh(fields: &Fields<'_>) -> Result<bool, Problem> {
    Ok(fields.get("cache_prompt")? == Some(false))
}

/// How many answers, unless there are none or too many.
pub fn choices(fields: &Fields<'_>) -> Result<usize, Problem> {
    let n = fields.get("n")?.unwrap_or(1);
    if (1..=CHOICES).contains(&n) {
        return Ok(n);
    }
    Err(Problem::field("n", format!("n is {n}; it has to be from 1 to {CHOICES}")))
}

/// How many tokens' probabilities are asked for, unless they are too many.
pub fn logprobs(name: &str, n: usize) -> Result<usize, Problem> {
    if n <= LOGPROBS {
        return Ok(n);
    }
    Err(Problem::field(name, format!("{name} is {n}; it has to be from 0 to {LOGPROBS}")))
}

/// The same in the words of OpenAI's chat interface, where they are asked for.
pub fn top_logprobs(fields: &Fields<'_>) -> Result<Option<usize>, Problem> {
    if !fields.flag("logprobs")? {
        return Ok(None);
    }
    logprobs("top_logprobs", fields.get("top_logprobs")?.unwrap_or(0)).map(Some)
}

/// What is asked for each of the prompts that are to be gone on with, without its tokens.
///
/// # Errors
/// A field of another type, or out of range.
pub async fn generation(
    fields: &Fields<'_>,
    turn: &Turn,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
) -> Result<Generation, Problem> {
    let request = Request {
        params: sampling::params(fields, &turn.host.model)?,
        max_tokens: turn.server.options.max_tokens.into_iter().chain(max_tokens).min(),
        stop: fields.texts("stop")?,
        ignore_eos: fields.flag("ignore_eos")?,
        logprobs,
        ..Request::default()
    };
    let (choices, fresh) = (choices(fields)?, fresh(fields)?);
    let grammar = turn.grammar(super::constrain::read(fields)?).await?;
    Ok(Generation { request, choices, grammar, fresh, ..Generation::default() })
}

/// Starts the answers.
///
/// # Errors
/// The conversation cannot be rendered or honoured, or the queue is full.
pub async fn start(
    call: &JsonRequest,
    host: &InUse,
    request: ChatRequest,
) -> Result<ChatStream, Problem> {
    let turn = Turn::new(call, host);
    request.prepare(&turn).await?.start(&turn).await
}
