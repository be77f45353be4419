//! What is told to a client whose request is not served.

use axum::http::StatusCode;
use serde_json::{Value, json};
use troika::engine::{EngineError, KvError};

/// Whose forms a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, and what is Troika's own.
    OpenAi,
    Anthropic,
    Ollama,
}

/// The longest text in a sentence that the log takes for a name.
const LONGEST_NAME: usize = 64;

/// Why a request is not served, in one sentence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    pub status: StatusCode,
    /// What is wrong, and what to do.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// A name for programs, where clients know one.
    pub code: Option<&'static str>,
    /// Seconds after which it may be tried again.
    pub retry_after: Option<u64>,
    /// What the log says instead, where the sentence quotes what was asked.
    pub private: Option<String>,
    /// The tokens of a prompt that is too long, or the least that it can have, and the most that
    /// there may be.
    pub too_long: Option<Box<(usize, usize)>>,
}

impl Problem {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Problem {
        Problem { status, message: message.into(), ..Problem::default() }
    }

    /// A request that is wrong.
    pub fn bad(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn field(name: &str, message: impl Into<String>) -> Problem {
        Problem { param: Some(name.into()), ..Problem::bad(message) }
    }

    /// A fault of the server.
    pub fn fault(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub fn with_code(self, code: &'static str) -> Problem {
        Problem { code: Some(code), ..self }
    }

    /// The sentence up to the first text in it that may be of a prompt: one that is no name.
    pub fn for_log(&self) -> String {
        let sentence = self.private.as_ref().unwrap_or(&self.message);
        let is_name = |part: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
            part.len() <= LONGEST_NAME && part.chars().all(plain)
        };
        let line = sentence.lines().next().unwrap_or_default();
        let parts = line.split('"').enumerate();
        let parts = parts.take_while(|(i, part)| i % 2 == 0 || is_name(part));
        parts.map(|(_, part)| part).collect::<Vec<_>>().join("\"")
    }

    /// The sentence in the words that clients of an interface look for.
    fn words(&self, dialect: Dialect) -> String {
        let message = &self.message;
        match (self.too_long.as_deref(), dialect) {
            (Some((tokens, most)), Dialect::Anthropic) => {
                format!("prompt is too long: {tokens} tokens > {most} maximum; {message}")
            }
            (Some((tokens, most)), Dialect::OpenAi) => format!(
                "This model's maximum context length is {most} tokens. However, your messages \
                 resulted in {tokens} tokens: {message}"
            ),
            _ => message.clone(),
        }
    }

    /// OpenAI's name of the kind of problem.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            s if s.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_kind(&self) -> &'static str {
        match self.status {
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            s if s.is_server_error() => "api_error",
            _ => self.kind(),
        }
    }

    pub fn body(&self, dialect: Dialect) -> Value {
        let words = self.words(dialect);
        match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": words,
                "type": self.kind(),
                "param": self.param,
                "code": self.code,
            }}),
            Dialect::Anthropic => json!({"type": "error", "error": {
                "type": self.anthropic_kind(),
                "message": words,
            }}),
            Dialect::Ollama => json!({"error": words}),
        }
    }
}

impl From<troika::Error> for Problem {
    fn from(error: troika::Error) -> Problem {
        use troika::Error as E;
        let bad = Problem::bad(error.to_string());
        let too_long = |bad: Problem, tokens: usize, most: usize| Problem {
            too_long: Some(Box::new((tokens, most))),
            ..bad.with_code("context_length_exceeded")
        };
        match error {
            E::PromptTooLong { prompt, context, .. } => too_long(bad, prompt, context),
            // It has at least so many.
            E::TextTooLong { bytes, context, longest } => {
                too_long(bad, bytes.div_ceil(longest.max(1)), context)
            }
            E::Engine(EngineError::Kv(KvError::Context { .. } | KvError::Budget { .. })) => {
                bad.with_code("context_length_exceeded")
            }
            E::Param(wrong) => Problem { param: Some(wrong.name.into()), ..bad },
            // The template may quote messages.
            E::Chat(_) => {
                Problem { private: Some("the chat template refused the messages".into()), ..bad }
            }
            E::EmptyPrompt | E::NoTokens | E::NoTextOfTemplate | E::NoTokenizer(_) => bad,
            E::Tokenizer(_) | E::Sample(_) | E::Engine(EngineError::Token { .. }) => bad,
            _ => Problem { status: StatusCode::INTERNAL_SERVER_ERROR, ..bad },
        }
    }
}
