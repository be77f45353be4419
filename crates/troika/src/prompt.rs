//! Prompts: texts and conversations as token ids.

use std::time::Duration;

use serde_json::{Map, Value};
use troika_model::chat::{ChatInput, ChatPrompt, LocalTime, join_messages};
use troika_model::tokenizer::Tokenizer;

use crate::error::Error;
use crate::open::Model;

/// A conversation that a chat template turns into a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Messages: objects with `role`, `content` and any other fields that the template reads.
    pub messages: Vec<Value>,
    /// Tools that the model may call, as a list of JSON schemas.
    pub tools: Option<Value>,
    /// Other variables of the template (`enable_thinking`, ...).
    pub extra: Map<String, Value>,
    /// The time for templates that print one.
    pub now: Option<LocalTime>,
    /// Reads control tokens in messages as such. Otherwise they are plain text there, except in the
    /// assistant's messages.
    pub parse_special: bool,
    /// Whether to end with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
}

impl Conversation {
    /// Messages that wait for the assistant's answer, without tools or a time.
    pub fn new(messages: Vec<Value>) -> Conversation {
        Conversation {
            messages,
            tools: None,
            extra: Map::new(),
            now: None,
            parse_special: false,
            add_generation_prompt: true,
        }
    }
}

impl Model {
    fn need_tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer().ok_or_else(|| Error::NoTokenizer(self.opened.name.clone()))
    }

    /// Checks that a text of `bytes` bytes may fit the context: a context of the longest tokens has
    /// at least as many bytes. This keeps texts of strangers from taking memory and time for their
    /// tokens.
    ///
    /// # Errors
    /// It cannot fit.
    pub fn check_text(&self, bytes: usize) -> Result<(), Error> {
        let Some(tokenizer) = &self.opened.text.tokenizer else { return Ok(()) };
        let (context, longest) = (self.opened.context, tokenizer.longest_token());
        match bytes > self.longest_text() {
            true => Err(Error::TextTooLong { bytes, context, longest }),
            false => Ok(()),
        }
    }

    /// Bytes of the longest text that could fit the context.
    pub fn longest_text(&self) -> usize {
        let longest = self.tokenizer().map_or(usize::MAX, Tokenizer::longest_token);
        self.opened.context.saturating_mul(longest)
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
    /// newlines.
    ///
    /// # Errors
    /// The template fails.
    pub fn chat_prompt(&self, conversation: &Conversation) -> Result<ChatPrompt, Error> {
        let tokenizer = self.opened.text.tokenizer.as_deref();
        let control = match tokenizer {
            Some(tokenizer) if !conversation.parse_special => tokenizer.control_tokens(),
            _ => Vec::new(),
        };
        let Some(template) = &self.opened.text.template else {
            return Ok(join_messages(&conversation.messages, &control)?);
        };
        let token = |id: Option<u32>| id.and_then(|id| tokenizer?.token(id)).unwrap_or_default();
        let special = [
            ("bos_token", token(tokenizer.and_then(Tokenizer::bos))),
            ("eos_token", token(tokenizer.and_then(Tokenizer::eos))),
        ];
        let input = ChatInput {
            messages: conversation.messages.clone(),
            add_generation_prompt: conversation.add_generation_prompt,
            tools: conversation.tools.clone(),
            special: special.map(|(name, text)| (name.into(), text.into())).into_iter().collect(),
            now: conversation.now,
            extra: conversation.extra.clone(),
            control,
        };
        Ok(template.render(&input)?)
    }

    /// The source of the chat template that conversations with or without tools take; `None` if the
    /// model has none.
    pub fn template(&self, tools: bool) -> Option<&str> {
        Some(self.opened.text.template.as_ref()?.source(tools))
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
