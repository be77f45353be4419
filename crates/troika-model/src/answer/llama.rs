//! Llama 3: `{"name": .., "parameters": {..}}` as the whole answer, or several with `;` between.

use std::sync::Arc;

use super::call::{CallParser, Progress};
use super::lark::Lark;
use super::object::{Member, ObjectCall};
use super::output::Output;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "{";
pub(super) const PYTHON: &str = "<|python_tag|>";

/// Objects one after another.
#[derive(Debug)]
pub(super) struct Llama {
    names: Arc<[String]>,
    object: Option<ObjectCall>,
    between: String,
}

impl Llama {
    pub(super) fn new(names: Arc<[String]>) -> Self {
        let object = Some(ObjectCall::only(Arc::clone(&names)));
        Self { names, object, between: String::new() }
    }

    fn between(&mut self, c: char, out: &mut Output) -> Progress {
        match c {
            ';' | ' ' | '\n' | '\r' | '\t' => {
                self.between.push(c);
                Progress::More
            }
            '{' if self.between.contains(';') => {
                self.between.clear();
                self.object = Some(ObjectCall::only(Arc::clone(&self.names)));
                self.next(c, out)
            }
            _ => {
                self.between.push(c);
                Progress::Spill(std::mem::take(&mut self.between))
            }
        }
    }
}

impl CallParser for Llama {
    fn next(&mut self, c: char, out: &mut Output) -> Progress {
        let Some(object) = &mut self.object else { return self.between(c, out) };
        match object.next(c, out) {
            Member::More => {}
            Member::Failed => return Progress::Failed(c.to_string()),
            Member::Done => {
                out.end_call();
                self.object = None;
            }
        }
        Progress::More
    }

    fn finish(&mut self, out: &mut Output) -> Option<String> {
        match &self.object {
            None => Some(String::new()),
            Some(object) if object.has_arguments() => {
                out.end_call();
                Some(String::new())
            }
            Some(_) => None,
        }
    }
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let object = lark.objects(tools, "parameters");
    lark.repeated(&object, r#""; ""#, parallel)
}
