//! Requests that are wrong: valid ones, changed by a seed.

use serde_json::{Value, json};

use crate::random::Random;

/// A request as it goes over the wire, and what may be expected of it.
pub struct Mutant {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether it is HTTP, so that an answer must come and the connection may stay.
    pub is_http: bool,
}

/// Valid requests: path and body. None of them makes more than a token.
fn valid(model: &str) -> Vec<(&'static str, Value)> {
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "It was a dark night" },
    ]);
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "integer", "minimum": 1 }, "b": { "enum": ["x", "y"] } },
        "required": ["a"],
    });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": schema } });
    vec![
        (
            "/v1/chat/completions",
            json!({
                "model": model, "messages": messages, "max_tokens": 1, "temperature": 0.5, "seed": 1,
                "top_p": 0.9, "n": 1, "stop": ["."], "logprobs": true, "top_logprobs": 2,
                "logit_bias": { "5": 1 }, "presence_penalty": 0.1, "stream": false,
            }),
        ),
        (
            "/v1/chat/completions",
            json!({
                "model": model, "messages": messages, "max_tokens": 1, "tools": [tool],
                "tool_choice": "required",
            }),
        ),
        (
            "/v1/chat/completions",
            json!({
                "model": model, "messages": messages, "max_tokens": 1, "response_format": {
                    "type": "json_schema", "json_schema": { "name": "s", "schema": schema },
                },
            }),
        ),
        (
            "/v1/completions",
            json!({
                "model": model, "prompt": [5, 6, 7], "max_tokens": 1, "echo": true, "logprobs": 1,
            }),
        ),
        (
            "/v1/completions",
            json!({ "model": model, "prompt": ["The king", "A"], "max_tokens": 1 }),
        ),
        ("/v1/responses", json!({ "model": model, "input": messages, "max_output_tokens": 1 })),
        (
            "/v1/embeddings",
            json!({ "model": model, "input": ["The king"], "encoding_format": "float" }),
        ),
        (
            "/v1/messages",
            json!({
                "model": model, "messages": [messages[1]], "system": "Be brief.", "max_tokens": 1,
                "stop_sequences": ["."],
            }),
        ),
        (
            "/api/chat",
            json!({
                "model": model, "messages": messages, "stream": false, "keep_alive": "5m",
                "options": { "num_predict": 1, "temperature": 0.5, "seed": 1, "stop": ["."] },
            }),
        ),
        (
            "/api/generate",
            json!({
                "model": model, "prompt": "The king", "raw": true, "stream": false,
                "options": { "num_predict": 1, "top_k": 5 },
            }),
        ),
        ("/api/show", json!({ "model": model })),
        ("/tokenize", json!({ "content": "The king", "add_special": true })),
        ("/detokenize", json!({ "tokens": [5, 6, 7] })),
        ("/apply-template", json!({ "messages": messages })),
    ]
}

/// Numbers that no reader should take for granted.
const NUMBERS: &[&str] = &[
    "1e999",
    "-1e999",
    "1e-400",
    "-0",
    "18446744073709551616",
    "-9223372036854775809",
    "4294967296",
    "2147483648",
    "-1",
    "0.0000001",
    "NaN",
    "Infinity",
    "00",
    "1e",
    "0x10",
    "99999999999999999999999999",
];

/// Text that is none, or stands for something else.
const TEXTS: &[&str] = &[
    r#""\ud800""#,
    r#""\u0000""#,
    r#""<|endoftext|>""#,
    r#""<|im_end|>\n<|im_start|>system""#,
    r#""""#,
    r#""\q""#,
    "\"\u{202e}\"",
    r#""$ref""#,
    "\"a",
    r#""{{ 7 * 7 }}""#,
    r#""../../etc/passwd""#,
];

/// Requests of one seed.
pub struct Mutants {
    random: Random,
    host: String,
    valid: Vec<(&'static str, Value)>,
}

impl Mutants {
    /// Requests to this host, for this model.
    pub fn new(seed: u64, host: String, model: &str) -> Self {
        Self { random: Random(seed), host, valid: valid(model) }
    }

    /// The next request.
    pub fn next(&mut self) -> Mutant {
        let at = self.random.below(self.valid.len());
        let (path, mut body) = self.valid[at].clone();
        // Few, since each costs a connection.
        if self.random.below(50) == 0 {
            return self.not_http(path, &body.to_string());
        }
        let bytes = match self.random.below(8) {
            0 => self.flipped(&body),
            1 => self.cut(&body),
            2 => self.nested(&body),
            3 => self.raw(&body, NUMBERS),
            4 => self.raw(&body, TEXTS),
            5 => self.keys(&mut body),
            _ => {
                for _ in 0..=self.random.below(3) {
                    self.replace(&mut body);
                }
                body.to_string().into_bytes()
            }
        };
        Mutant { bytes: self.request("POST", path, bytes.len(), &bytes), is_http: true }
    }

    fn request(&self, method: &str, path: &str, length: usize, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n",
            self.host
        );
        [head.as_bytes(), body].concat()
    }

    fn flipped(&mut self, body: &Value) -> Vec<u8> {
        let mut bytes = body.to_string().into_bytes();
        for _ in 0..=self.random.below(8) {
            let at = self.random.below(bytes.len());
            bytes[at] = match self.random.below(3) {
                0 => bytes[at] ^ (1 << self.random.below(8)),
                1 => *self.random.pick(b"{}[]\",:0\\ \0\n"),
                _ => self.random.next() as u8,
            };
        }
        bytes
    }

    fn cut(&mut self, body: &Value) -> Vec<u8> {
        let mut bytes = body.to_string().into_bytes();
        let at = self.random.below(bytes.len());
        match self.random.below(3) {
            0 => bytes.extend_from_within(at..),
            1 => drop(bytes.drain(..at)),
            _ => bytes.truncate(at),
        }
        bytes
    }

    /// Another value, or one that is not closed, deep within arrays or objects.
    fn nested(&mut self, body: &Value) -> Vec<u8> {
        let depth = *self.random.pick(&[100, 130, 1000, 5000]);
        let (open, close) =
            *self.random.pick(&[("[", "]"), ("{\"a\":", "}"), ("{\"items\":", "}")]);
        let ends = if self.random.below(4) == 0 { 0 } else { depth };
        let deep = format!("{}1{}", open.repeat(depth), close.repeat(ends));
        self.splice(body, &deep)
    }

    fn raw(&mut self, body: &Value, of: &[&str]) -> Vec<u8> {
        let text = (*self.random.pick(of)).to_string();
        self.splice(body, &text)
    }

    /// Puts text, JSON or not, in the place of a value.
    fn splice(&mut self, body: &Value, text: &str) -> Vec<u8> {
        const MARK: &str = "\u{1}here\u{1}";
        let mut body = body.clone();
        *self.place(&mut body) = Value::String(MARK.into());
        let mark = Value::String(MARK.into()).to_string();
        body.to_string().replace(&mark, text).into_bytes()
    }

    /// A value somewhere inside.
    fn place<'a>(&mut self, value: &'a mut Value) -> &'a mut Value {
        let inside = match value {
            Value::Array(items) => items.len(),
            Value::Object(fields) => fields.len(),
            _ => 0,
        };
        // Deep ones are as good as those above them.
        if inside == 0 || self.random.below(4) == 0 {
            return value;
        }
        let at = self.random.below(inside);
        match value {
            Value::Array(items) => self.place(&mut items[at]),
            Value::Object(fields) => match fields.values_mut().nth(at) {
                Some(field) => self.place(field),
                None => unreachable!("there are as many fields as were counted"),
            },
            _ => unreachable!("others have nothing inside"),
        }
    }

    fn replace(&mut self, body: &mut Value) {
        let new = match self.random.below(9) {
            0 => Value::Null,
            1 => json!(self.random.below(2) == 0),
            2 => json!(self.random.next() as i64),
            3 => json!(-0.5),
            4 => json!([]),
            5 => json!({}),
            6 => json!(["a", 1, null, { "a": [] }]),
            7 => Value::String("é\u{0}雪".repeat(self.random.below(2000))),
            _ => json!(" "),
        };
        *self.place(body) = new;
    }

    /// Fields that are missing, twice there, or have other names.
    fn keys(&mut self, body: &mut Value) -> Vec<u8> {
        let Value::Object(fields) = body else { return b"[]".to_vec() };
        let names: Vec<String> = fields.keys().cloned().collect();
        let name = self.random.pick(&names).clone();
        match self.random.below(3) {
            0 => drop(fields.remove(&name)),
            1 => {
                let value = fields.remove(&name).unwrap_or_default();
                fields.insert(name.to_uppercase() + "\u{0}", value);
            }
            _ => {
                let value = self.random.pick(NUMBERS);
                let text = body.to_string();
                return format!("{{\"{name}\":{value},{}", &text[1..]).into_bytes();
            }
        }
        body.to_string().into_bytes()
    }

    fn not_http(&mut self, path: &str, body: &str) -> Mutant {
        let (host, n) = (self.host.clone(), body.len());
        let post = |headers: &str| format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
        let text = match self.random.below(12) {
            0 => format!("POST {path}\r\n\r\n{body}"),
            1 => format!("POST {path} HTTP/7.3\r\nHost: {host}\r\n\r\n"),
            2 => format!("PO ST {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            3 => post(&format!("Content-Length: {}\r\n", n + 9)) + body,
            4 => post(&format!("Content-Length: -{n}\r\n")) + body,
            5 => post("Content-Length: 5\r\nContent-Length: 6\r\n") + body,
            6 => post("Transfer-Encoding: chunked\r\n") + "fffffffffffffffff\r\n" + body,
            7 => post("Transfer-Encoding: chunked\r\n") + "5\r\n" + body,
            8 => post(&format!("X: {}\r\n", "a".repeat(300_000))) + body,
            9 => post(&"A: b\r\n".repeat(400)) + body,
            10 => format!("GET /%zz%00/..%2f{path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            _ => "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}".repeat(40),
        };
        Mutant { bytes: text.into_bytes(), is_http: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_what_is_sent() {
        let sent = |seed| {
            let mut mutants = Mutants::new(seed, "h".into(), "m");
            (0..200).map(|_| mutants.next().bytes).collect::<Vec<_>>()
        };
        assert_eq!(sent(1), sent(1));
        assert_ne!(sent(1), sent(2));
    }

    #[test]
    fn most_are_http_and_wrong() {
        let mut mutants = Mutants::new(1, "h".into(), "m");
        let (mut http, mut json) = (0, 0);
        for _ in 0..4000 {
            let mutant = mutants.next();
            http += usize::from(mutant.is_http);
            let body = mutant.bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4);
            let body = &mutant.bytes[body.unwrap_or(0)..];
            json += usize::from(serde_json::from_slice::<Value>(body).is_ok());
        }
        assert!((3800..4000).contains(&http), "{http}");
        assert!((1200..3200).contains(&json), "{json}");
    }
}
