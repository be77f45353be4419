//! Calls as a JSON list of objects, between markers or behind one.

use super::call::{CallParser, Progress, Tail};
use super::object::{Member, ObjectCall};
use super::output::Output;

#[derive(Debug)]
enum At {
    Open,
    Object(ObjectCall),
    Between,
    Tail(Tail),
}

/// Reads the list, and the marker that closes it, if the format has one.
#[derive(Debug)]
pub(super) struct ListCalls {
    at: At,
    close: &'static str,
}

impl ListCalls {
    pub(super) fn new(close: &'static str) -> Self {
        Self { at: At::Open, close }
    }

    fn object(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Object(object) = &mut self.at else { return Progress::Failed(c.to_string()) };
        match object.next(c, out) {
            Member::More => {}
            Member::Failed => return Progress::Failed(c.to_string()),
            Member::Done => {
                out.end_call();
                self.at = At::Between;
            }
        }
        Progress::More
    }
}

impl CallParser for ListCalls {
    fn next(&mut self, c: char, out: &mut Output) -> Progress {
        match &mut self.at {
            At::Tail(tail) => tail.next(c),
            At::Object(_) => self.object(c, out),
            _ if c.is_whitespace() => Progress::More,
            At::Open if c == '[' => {
                self.at = At::Object(ObjectCall::new());
                Progress::More
            }
            At::Between if c == ',' => {
                self.at = At::Object(ObjectCall::new());
                Progress::More
            }
            At::Between if c == ']' && self.close.is_empty() => Progress::Done,
            At::Between if c == ']' => {
                self.at = At::Tail(Tail::new(self.close));
                out.open("");
                Progress::More
            }
            _ => Progress::Failed(c.to_string()),
        }
    }

    fn finish(&mut self, out: &mut Output) -> Option<String> {
        match &mut self.at {
            At::Between => Some(String::new()),
            At::Tail(tail) => Some(tail.finish()),
            At::Object(object) if object.has_arguments() => {
                out.end_call();
                Some(String::new())
            }
            At::Object(_) | At::Open => None,
        }
    }
}
