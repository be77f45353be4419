//! Texts to go on with, or to fill in.

use serde_json::Value;
use troika::model::tokenizer::{FimTokens, Tokenizer};

use crate::fields::whole;
use crate::limits::PROMPTS;
use crate::open_model::InUse;
use crate::problem::Problem;

/// A text to go on with.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    pub ids: Vec<u32>,
    pub text: String,
}

impl Prompt {
    /// A text as it is.
    ///
    /// # Errors
    /// It is too long, or the model has no tokenizer.
    pub fn of_text(text: &str, host: &InUse) -> Result<Prompt, Problem> {
        host.model.check_text(text.len())?;
        let (ids, _) = host.model.tokenize(text)?;
        Ok(Prompt { ids, text: text.to_string() })
    }

    /// Of token ids, and texts among them as llama.cpp has it: only a text at the beginning has what
    /// the model expects there.
    fn of_ids(list: &[Value], host: &InUse) -> Result<Prompt, Problem> {
        let mut ids = Vec::new();
        for part in list {
            match part {
                Value::String(text) if ids.is_empty() => ids = Prompt::of_text(text, host)?.ids,
                Value::String(text) => ids.extend(encode(text, host, false, true)?),
                id => {
                    let id = whole(id).and_then(|id| u32::try_from(id).ok());
                    ids.push(id.ok_or_else(wrong)?);
                }
            }
        }
        check_ids("prompt", &ids, host)?;
        let decoded = host.model.tokenizer().and_then(|t| t.decode(&ids, false).ok());
        Ok(Prompt { ids, text: decoded.unwrap_or_default() })
    }

    /// The prompt for the text between this one and a suffix.
    ///
    /// # Errors
    /// The model has no tokens for that.
    pub fn before(self, suffix: &str, host: &InUse) -> Result<Prompt, Problem> {
        let (fim, tokenizer) = fim(host).ok_or_else(|| {
            let why = "the model has no tokens for a text to be filled in; leave suffix out";
            Problem::field("suffix", why)
        })?;
        let suffix = encode(suffix, host, false, false)?;
        // The beginning of the text comes before the prefix.
        let begins = tokenizer.begins().and_then(|id| self.ids.strip_prefix(&[id]));
        let prefix = begins.unwrap_or(&self.ids);
        Ok(Prompt { ids: fim.between(tokenizer, prefix, &suffix), ..self })
    }
}

/// The tokens that ask for the text between two others, with the tokenizer.
pub fn fim(host: &InUse) -> Option<(FimTokens, &Tokenizer)> {
    let tokenizer = host.model.tokenizer()?;
    Some((tokenizer.fim()?, tokenizer))
}

/// The tokens of a text, or of a part of one without those at its ends.
///
/// # Errors
/// It is too long, or the model has no tokenizer.
pub fn encode(
    text: &str,
    host: &InUse,
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<u32>, Problem> {
    host.model.check_text(text.len())?;
    let tokenizer = host.model.tokenizer();
    let tokenizer = tokenizer.ok_or_else(|| Problem::bad("the model has no tokenizer"))?;
    tokenizer.encode(text, add_special, parse_special).map_err(|e| Problem::bad(e.to_string()))
}

/// Checks that a model knows token ids.
pub fn check_ids(name: &str, ids: &[u32], host: &InUse) -> Result<(), Problem> {
    let vocab = host.model.spec().vocab;
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => {
            let why = format!("{name} has token id {id}, but the model has {vocab} tokens");
            Err(Problem::field(name, why))
        }
        None => Ok(()),
    }
}

fn wrong() -> Problem {
    Problem::field("prompt", "prompt has to be a text, token ids, or a list of such prompts")
}

/// The prompts: a text, texts, token ids, or lists of them.
///
/// # Errors
/// Something else, or too much of it.
pub fn prompts(given: &Value, host: &InUse) -> Result<Vec<Prompt>, Problem> {
    let one = |prompt: &Value| match prompt {
        Value::String(text) => Prompt::of_text(text, host),
        Value::Array(list) => Prompt::of_ids(list, host),
        _ => Err(wrong()),
    };
    match given {
        Value::Array(list) if list.is_empty() => Err(wrong()),
        Value::Array(list) if !list.iter().any(Value::is_number) => {
            if list.len() > PROMPTS {
                let n = list.len();
                let why = format!("{n} prompts are more than {PROMPTS}; send less at once");
                return Err(Problem::field("prompt", why));
            }
            list.iter().map(one).collect()
        }
        prompt => Ok(vec![one(prompt)?]),
    }
}
