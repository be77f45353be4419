//! Mistral: `[TOOL_CALLS][{..}, {..}]`, and since 2025 `[TOOL_CALLS]name[ARGS]{..}`.

use super::call::{CallParser, Progress};
use super::json::{JsonScanner, Scan};
use super::lark::Lark;
use super::list::ListCalls;
use super::output::Output;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "[TOOL_CALLS]";
pub(super) const ARGUMENTS: &str = "[ARGS]";
pub(super) const ID: &str = "[CALL_ID]";

/// No tool's name and identifier are longer.
const HEAD: usize = 512;

/// What follows the marker: which of the two it is shows at the first character.
#[derive(Debug)]
enum At {
    Start,
    List(ListCalls),
    Head(String),
    BeforeArguments(String),
    Arguments(JsonScanner),
}

#[derive(Debug)]
pub(super) struct Mistral {
    at: At,
}

impl Mistral {
    pub(super) fn new() -> Self {
        Self { at: At::Start }
    }

    fn head(&mut self, c: char, out: &mut Output) -> Progress {
        let At::Head(head) = &mut self.at else { return Progress::Failed(c.to_string()) };
        // Version 11 of the tokenizer writes the arguments right behind the name.
        let bare = c == '{';
        if !bare {
            head.push(c);
        }
        let before = if bare { Some(head.as_str()) } else { head.strip_suffix(ARGUMENTS) };
        let Some(before) = before else {
            let more = head.len() <= HEAD;
            return if more { Progress::More } else { Progress::Failed(c.to_string()) };
        };
        let name = before.split(ID).next().unwrap_or_default().trim().to_owned();
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Progress::Failed(c.to_string());
        }
        self.at = At::BeforeArguments(name);
        if bare { self.next(c, out) } else { Progress::More }
    }
}

impl CallParser for Mistral {
    fn next(&mut self, c: char, out: &mut Output) -> Progress {
        match &mut self.at {
            At::Start if c.is_whitespace() => Progress::More,
            At::Start if c == '[' => {
                let mut list = ListCalls::new("");
                let progress = list.next(c, out);
                self.at = At::List(list);
                progress
            }
            At::Start => {
                self.at = At::Head(String::new());
                self.head(c, out)
            }
            At::List(list) => list.next(c, out),
            At::Head(_) => self.head(c, out),
            At::BeforeArguments(_) if c.is_whitespace() => Progress::More,
            At::BeforeArguments(name) if c == '{' => {
                out.start_call(name);
                self.at = At::Arguments(JsonScanner::new());
                self.next(c, out)
            }
            At::BeforeArguments(_) => Progress::Failed(c.to_string()),
            At::Arguments(scanner) => match scanner.next(c) {
                Scan::More => {
                    out.arguments(c.encode_utf8(&mut [0; 4]));
                    Progress::More
                }
                Scan::Done => {
                    out.arguments(c.encode_utf8(&mut [0; 4]));
                    out.end_call();
                    Progress::Done
                }
                Scan::DoneBefore | Scan::Bad => Progress::Failed(c.to_string()),
            },
        }
    }

    fn finish(&mut self, out: &mut Output) -> Option<String> {
        match &mut self.at {
            At::List(list) => list.finish(out),
            _ => None,
        }
    }
}

pub(super) fn list_grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let open = lark.marker(OPEN);
    let list = lark.list(tools, parallel);
    format!("{open} {list}")
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let (open, arguments) = (lark.marker(OPEN), lark.marker(ARGUMENTS));
    let call = lark.each(tools, "call", |lark, tool| {
        let (name, json) = (lark.text(&tool.name), lark.arguments(tool));
        format!("{open} {name} {arguments} {json}")
    });
    lark.repeated(&call, "", parallel)
}
