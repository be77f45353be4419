//! Hermes and Qwen: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.

use super::call::{CallParser, Progress, Tail};
use super::lark::Lark;
use super::object::{Member, ObjectCall};
use super::output::Output;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// One object between two markers.
#[derive(Debug)]
pub(super) struct Hermes {
    object: ObjectCall,
    tail: Option<Tail>,
}

impl Hermes {
    pub(super) fn new() -> Self {
        Self { object: ObjectCall::new(), tail: None }
    }
}

impl CallParser for Hermes {
    fn next(&mut self, c: char, out: &mut Output) -> Progress {
        if let Some(tail) = &mut self.tail {
            return tail.next(c);
        }
        match self.object.next(c, out) {
            Member::More => {}
            Member::Failed => return Progress::Failed(c.to_string()),
            Member::Done => {
                out.end_call();
                self.tail = Some(Tail::new(CLOSE));
            }
        }
        Progress::More
    }

    fn finish(&mut self, out: &mut Output) -> Option<String> {
        match &mut self.tail {
            Some(tail) => Some(tail.finish()),
            None if self.object.has_arguments() => {
                out.end_call();
                Some(String::new())
            }
            None => None,
        }
    }
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let object = lark.objects(tools, "arguments");
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let call = lark.rule("call", &format!(r#"{open} "\n" {object} "\n" {close}"#));
    lark.repeated(&call, r#""\n""#, parallel)
}
