//! Tokenizer and chat template of a model's files, and prompts made with them.

use std::time::Duration;

use serde_json::{Map, Value};
use troika_model::chat::{ChatInput, ChatPrompt, ChatTemplate, join_messages};
use troika_model::spec::GgufValue;
use troika_model::tokenizer::Tokenizer;
use troika_weights::FileSource;

use crate::error::Error;
use crate::open::Model;

type Loaded = (Option<Tokenizer>, Option<ChatTemplate>, Vec<String>);

/// Reads what is there. A tokenizer or template that cannot be used is a warning: the model still
/// runs on token ids.
pub(crate) fn load(source: &FileSource) -> Result<Loaded, Error> {
    let mut warnings = Vec::new();
    let (tokenizer, template) = match source {
        FileSource::HuggingFace { dir, .. } => {
            (Tokenizer::from_hf_dir(dir), ChatTemplate::from_hf_dir(dir))
        }
        FileSource::Gguf { meta, .. } => {
            let tokenizer = Tokenizer::from_gguf(meta).map(|read| {
                let (tokenizer, warning) = read?;
                warnings.extend(warning);
                Some(tokenizer)
            });
            let source = meta.get("tokenizer.chat_template").and_then(GgufValue::as_str);
            (tokenizer, source.map(ChatTemplate::new).transpose())
        }
    };
    let tokenizer = tokenizer.unwrap_or_else(|e| {
        warnings.push(format!("{e}; only token ids can be used"));
        None
    });
    warnings.extend(tokenizer.iter().flat_map(|t| t.warnings().iter().cloned()));
    let template = template.unwrap_or_else(|e| {
        warnings.push(format!("{e}; chat falls back to plain text"));
        None
    });
    Ok((tokenizer, template, warnings))
}

impl Model {
    fn need_tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.as_deref().ok_or_else(|| Error::NoTokenizer(self.name.clone()))
    }

    /// Text to ids, with the time it took.
    ///
    /// # Errors
    /// A model without a tokenizer, or what the tokenizer reports.
    pub fn tokenize(&mut self, text: &str) -> Result<(Vec<u32>, Duration), Error> {
        let start = self.clock.now();
        let ids = self.need_tokenizer()?.encode(text, true, true)?;
        self.record("tokenize", start);
        Ok((ids, self.clock.now() - start))
    }

    /// A conversation as a prompt, by the model's template; without one, the messages' texts
    /// joined by newlines. In messages, except the assistant's, control tokens are plain text
    /// unless `parse_special` says otherwise.
    ///
    /// # Errors
    /// What the template reports.
    pub fn chat_prompt(
        &self,
        messages: &[Value],
        extra: Map<String, Value>,
        today: Option<(i32, u32, u32)>,
        parse_special: bool,
    ) -> Result<ChatPrompt, Error> {
        let tokenizer = self.tokenizer.as_deref();
        let control = match tokenizer {
            Some(tokenizer) if !parse_special => tokenizer.control_tokens(),
            _ => Vec::new(),
        };
        let Some(template) = &self.template else {
            return Ok(join_messages(messages, &control)?);
        };
        let token = |id: Option<u32>| id.and_then(|id| tokenizer?.token(id)).unwrap_or_default();
        let input = ChatInput {
            messages: messages.to_vec(),
            add_generation_prompt: true,
            tools: None,
            bos_token: token(tokenizer.and_then(Tokenizer::bos)),
            eos_token: token(tokenizer.and_then(Tokenizer::eos)),
            today,
            extra,
            control,
        };
        Ok(template.render(&input)?)
    }

    /// Ids of a prompt made by [`Model::chat_prompt`]: templates write BOS themselves.
    ///
    /// # Errors
    /// As [`Model::tokenize`].
    pub fn tokenize_chat(&mut self, prompt: &ChatPrompt) -> Result<(Vec<u32>, Duration), Error> {
        let start = self.clock.now();
        let add_special = self.template.is_none();
        let tokenizer = self.need_tokenizer()?;
        let ids = tokenizer.encode_marked(&prompt.text, &prompt.plain, add_special)?;
        self.record("tokenize", start);
        Ok((ids, self.clock.now() - start))
    }
}
