//! Makes prompts and generates by the flags of `troika run`: once for a prompt, or for each turn of a
//! chat.

use std::time::Duration;

use serde_json::{Value, json};
use troika::model::chat::local_time;
use troika::{Control, Conversation, Model, Output, Request, Session};

use crate::error::CliError;
use crate::flags::RunArgs;
use crate::interrupt::Interrupt;
use crate::output;

/// The system message, if any, as the start of a conversation.
pub fn system(args: &RunArgs) -> Vec<Value> {
    let message = |text| json!({"role": "system", "content": text});
    args.system_prompt.iter().map(message).collect()
}

/// Converts text to ids, through the model's chat template if it has one, unless told otherwise.
pub fn tokenize(
    model: &Model,
    args: &RunArgs,
    messages: &mut Vec<Value>,
    text: &str,
) -> Result<(Vec<u32>, Duration), CliError> {
    if args.raw || !model.has_template() {
        return Ok(model.tokenize(text)?);
    }
    messages.push(json!({"role": "user", "content": text}));
    let prompt = model.chat_prompt(&Conversation {
        now: Some(local_time()),
        parse_special: args.parse_special,
        ..Conversation::new(messages.clone())
    })?;
    Ok(model.tokenize_chat(&prompt)?)
}

/// The request that follows from the flags.
pub fn request(model: &Model, args: &RunArgs) -> Result<Request, CliError> {
    let params = args.sampling.resolve(model.defaults())?;
    let vocab = model.spec().vocab;
    if let Some((id, _)) = params.logit_bias.iter().find(|(id, _)| **id as usize >= vocab) {
        let why = format!("--logit-bias names token {id}, but the model has {vocab} tokens");
        return Err(CliError::Usage(why));
    }
    Ok(Request {
        params,
        max_tokens: usize::try_from(args.n_predict).ok(),
        stop: args.sampling.stop.clone(),
        ignore_eos: args.sampling.ignore_eos,
        ..Request::default()
    })
}

/// Generates, streaming the text unless JSON is wanted. `first` is called at the first token.
pub fn generate(
    model: &Model,
    session: &mut Session,
    args: &RunArgs,
    ids: &[u32],
    interrupt: &Interrupt,
    first: &mut dyn FnMut(),
) -> Result<Output, CliError> {
    let request = request(model, args)?;
    let ids_only = model.tokenizer().is_none();
    let (mut failed, mut first) = (None, Some(first));
    let _ends = interrupt.ends(session.canceller());
    let out = session.generate(ids, &request, &mut |token, text| {
        first.take().into_iter().for_each(|first| first());
        let piece = if ids_only { format!("{token} ") } else { text.to_string() };
        if !args.json && !piece.is_empty() {
            failed = output::answer(&piece).err();
        }
        if failed.is_some() || interrupt.pressed() { Control::Stop } else { Control::Continue }
    })?;
    failed.map_or(Ok(out), Err)
}
