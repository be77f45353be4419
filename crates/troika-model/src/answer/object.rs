//! A call as a JSON object: `{"name": .., "arguments": {..}}`.

use std::sync::Arc;

use super::json::{JsonScanner, Scan};
use super::output::Output;

/// No tool's name and no member's key is longer.
const NAME: usize = 256;

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    More,
    Done,
    Failed,
}

/// The value of a member, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Name,
    Arguments,
    Other,
}

#[derive(Debug)]
enum At {
    Open,
    Key { first: bool },
    KeyText(JsonScanner),
    Colon(Meaning),
    Value(Meaning),
    Scanning(Meaning, JsonScanner),
    AfterValue,
    Done,
}

/// Reads the object. Hands out the arguments as they come, once the name is known.
#[derive(Debug)]
pub(super) struct ObjectCall {
    at: At,
    /// Only these names are calls, and only with arguments: for formats without a marker.
    only: Option<Arc<[String]>>,
    text: String,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    started: bool,
}

impl ObjectCall {
    pub(super) fn new() -> Self {
        Self {
            at: At::Open,
            only: None,
            text: String::new(),
            name: None,
            early: None,
            started: false,
        }
    }

    /// Takes only objects with arguments, for one of these tools.
    pub(super) fn only(names: Arc<[String]>) -> Self {
        Self { only: Some(names), ..Self::new() }
    }

    /// Whether nothing but the last brace is missing.
    pub(super) fn has_arguments(&self) -> bool {
        self.started && matches!(self.at, At::AfterValue)
    }

    pub(super) fn next(&mut self, c: char, out: &mut Output) -> Member {
        let blank = matches!(c, ' ' | '\n' | '\r' | '\t');
        match &mut self.at {
            At::KeyText(_) | At::Scanning(..) => self.scan(c, out),
            At::Done => Member::Failed,
            _ if blank => Member::More,
            At::Open if c == '{' => self.to(At::Key { first: true }),
            At::Key { .. } if c == '"' => self.begin(c, out, None),
            At::Key { first: true } if c == '}' => Member::Failed,
            At::Colon(meaning) if c == ':' => {
                let meaning = *meaning;
                self.to(At::Value(meaning))
            }
            At::Value(meaning) => {
                let meaning = *meaning;
                self.begin(c, out, Some(meaning))
            }
            At::AfterValue if c == ',' => self.to(At::Key { first: false }),
            At::AfterValue if c == '}' => self.end(out),
            _ => Member::Failed,
        }
    }

    fn to(&mut self, at: At) -> Member {
        self.at = at;
        Member::More
    }

    /// Begins a key, or the value of a member.
    fn begin(&mut self, c: char, out: &mut Output, meaning: Option<Meaning>) -> Member {
        let scanner = JsonScanner::new();
        self.text.clear();
        self.at = match meaning {
            None => At::KeyText(scanner),
            Some(Meaning::Name) if c != '"' => return Member::Failed,
            Some(Meaning::Arguments) if c != '{' => return Member::Failed,
            Some(Meaning::Arguments) if self.started || self.early.is_some() => {
                return Member::Failed;
            }
            Some(meaning) => At::Scanning(meaning, scanner),
        };
        if meaning == Some(Meaning::Arguments)
            && let Some(name) = &self.name
        {
            out.start_call(name);
            self.started = true;
        }
        self.scan(c, out)
    }

    fn scan(&mut self, c: char, out: &mut Output) -> Member {
        let (meaning, scan) = match &mut self.at {
            At::KeyText(scanner) => (None, scanner.next(c)),
            At::Scanning(meaning, scanner) => (Some(*meaning), scanner.next(c)),
            _ => return Member::Failed,
        };
        if scan == Scan::Bad {
            return Member::Failed;
        }
        if meaning == Some(Meaning::Arguments) && self.started {
            let mut utf8 = [0; 4];
            out.arguments(c.encode_utf8(&mut utf8));
        } else if scan != Scan::DoneBefore && meaning != Some(Meaning::Other) {
            self.text.push(c);
        }
        let limited = !matches!(meaning, Some(Meaning::Arguments | Meaning::Other));
        match scan {
            Scan::More if limited && self.text.len() > NAME => Member::Failed,
            Scan::More => Member::More,
            Scan::DoneBefore => {
                self.at = At::AfterValue;
                self.next(c, out)
            }
            _ => self.scanned(meaning),
        }
    }

    /// A key or a value is complete.
    fn scanned(&mut self, meaning: Option<Meaning>) -> Member {
        let text = std::mem::take(&mut self.text);
        match meaning {
            None => {
                let meaning = match serde_json::from_str::<String>(&text).as_deref() {
                    Ok("name") => Meaning::Name,
                    Ok("arguments" | "parameters") => Meaning::Arguments,
                    Ok(_) => Meaning::Other,
                    Err(_) => return Member::Failed,
                };
                return self.to(At::Colon(meaning));
            }
            Some(Meaning::Name) => match serde_json::from_str::<String>(&text) {
                Ok(name) if self.name.is_none() && self.takes(&name) => self.name = Some(name),
                _ => return Member::Failed,
            },
            Some(Meaning::Arguments) if !self.started => self.early = Some(text),
            Some(_) => {}
        }
        self.to(At::AfterValue)
    }

    fn takes(&self, name: &str) -> bool {
        !name.is_empty() && self.only.as_ref().is_none_or(|only| only.iter().any(|n| n == name))
    }

    fn end(&mut self, out: &mut Output) -> Member {
        if !self.started {
            let Some(name) = &self.name else { return Member::Failed };
            match &self.early {
                None if self.only.is_some() => return Member::Failed,
                early => {
                    out.start_call(name);
                    out.arguments(early.as_deref().unwrap_or("{}"));
                }
            }
        }
        self.at = At::Done;
        Member::Done
    }
}
