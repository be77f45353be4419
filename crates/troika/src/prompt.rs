//! Prompts: texts and conversations as token ids.

use std::time::Duration;

use serde_json::{Map, Value};
use troika_model::chat::{ChatInput, ChatPrompt, join_messages};
use troika_model::tokenizer::Tokenizer;

use crate::error::Error;
use crate::open::Model;

impl Model {
    fn need_tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.opened
            .text
            .tokenizer
            .as_deref()
            .ok_or_else(|| Error::NoTokenizer(self.opened.name.clone()))
    }

    /// Converts text to ids. Also returns the time it took.
    ///
    /// # Errors
    /// There is no tokenizer, it fails, or the text yields no tokens.
    pub fn tokenize(&self, text: &str) -> Result<(Vec<u32>, Duration), Error> {
        let start = self.opened.clock.now();
        let ids = self.need_tokenizer()?.encode(text, true, true)?;
        if ids.is_empty() && !text.is_empty() {
            return Err(Error::NoTokens);
        }
        self.opened.record("tokenize", start);
        Ok((ids, self.opened.clock.now() - start))
    }

    /// Formats a conversation by the model's template; without one, joins the messages' texts by
    /// newlines. Control tokens in messages count as plain text, except in the assistant's messages
    /// or with `parse_special`.
    ///
    /// # Errors
    /// The template fails.
    pub fn chat_prompt(
        &self,
        messages: &[Value],
        extra: Map<String, Value>,
        today: Option<(i32, u32, u32)>,
        parse_special: bool,
    ) -> Result<ChatPrompt, Error> {
        let tokenizer = self.opened.text.tokenizer.as_deref();
        let control = match tokenizer {
            Some(tokenizer) if !parse_special => tokenizer.control_tokens(),
            _ => Vec::new(),
        };
        let Some(template) = &self.opened.text.template else {
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

    /// Converts a prompt of [`Model::chat_prompt`] to ids. Templates write BOS themselves.
    ///
    /// # Errors
    /// Those of [`Model::tokenize`], or a template that produces no text.
    pub fn tokenize_chat(&self, prompt: &ChatPrompt) -> Result<(Vec<u32>, Duration), Error> {
        let start = self.opened.clock.now();
        let add_special = self.opened.text.template.is_none();
        let tokenizer = self.need_tokenizer()?;
        if prompt.text.is_empty() && !add_special {
            return Err(Error::NoTextOfTemplate);
        }
        let ids = tokenizer.encode_marked(&prompt.text, &prompt.plain, add_special)?;
        if ids.is_empty() && !prompt.text.is_empty() {
            return Err(Error::NoTokens);
        }
        self.opened.record("tokenize", start);
        Ok((ids, self.opened.clock.now() - start))
    }
}
