//! What is told to a client whose request is not served.

use axum::http::StatusCode;
use serde_json::{Value, json};
use troika::engine::{EngineError, KvError};

/// Whose forms a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, and what is Troika's own.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

/// Why a request is not served, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The status of the answer.
    pub status: StatusCode,
    /// What is wrong, and what to do.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// A name for programs, where clients know one.
    pub code: Option<&'static str>,
    /// Seconds after which it may be tried again.
    pub retry_after: Option<u64>,
}

impl Problem {
    /// A problem with a status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Problem {
        Problem { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A request that is wrong.
    pub fn bad(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field that is wrong.
    pub fn field(name: &str, message: impl Into<String>) -> Problem {
        Problem { param: Some(name.into()), ..Problem::bad(message) }
    }

    /// A fault of the server.
    pub fn fault(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// With a name for programs.
    pub fn with_code(self, code: &'static str) -> Problem {
        Problem { code: Some(code), ..self }
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

    /// Anthropic's name of the kind of problem.
    fn anthropic_kind(&self) -> &'static str {
        match self.status {
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            s if s.is_server_error() => "api_error",
            _ => self.kind(),
        }
    }

    /// The body of the answer.
    pub fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.kind(),
                "param": self.param,
                "code": self.code,
            }}),
            Dialect::Anthropic => json!({"type": "error", "error": {
                "type": self.anthropic_kind(),
                "message": self.message,
            }}),
            Dialect::Ollama => json!({"error": self.message}),
        }
    }
}

impl From<troika::Error> for Problem {
    fn from(error: troika::Error) -> Problem {
        use troika::Error as E;
        let message = error.to_string();
        match error {
            E::PromptTooLong { .. }
            | E::TextTooLong { .. }
            | E::Engine(EngineError::Kv(KvError::Context { .. } | KvError::Budget { .. })) => {
                Problem::bad(message).with_code("context_length_exceeded")
            }
            E::Param(wrong) => Problem::field(wrong.name, message),
            E::Chat(_) | E::EmptyPrompt | E::NoTokens | E::NoTextOfTemplate => {
                Problem::bad(message)
            }
            E::NoTokenizer(_) | E::Tokenizer(_) | E::Sample(_) => Problem::bad(message),
            E::Engine(EngineError::Token { .. }) => Problem::bad(message),
            _ => Problem::fault(message),
        }
    }
}
