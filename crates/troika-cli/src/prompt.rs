//! Makes prompts by the flags of `troika run`.

use std::time::Duration;

use serde_json::{Value, json};
use troika::model::chat::local_time;
use troika::{Conversation, Model};

use crate::error::CliError;
use crate::flags::RunArgs;

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
