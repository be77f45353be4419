//! Writes the grammars of forced calls, in the Lark dialect of `llguidance`.

use serde_json::{Value, json};

use super::convert::{Argument, alone, object};
use super::tool::ToolSpec;

/// The id of a special token by its text, if the vocabulary has it.
pub type SpecialToken<'a> = dyn Fn(&str) -> Option<u32> + 'a;

/// Any text.
const ANY: &str = "/(?s:.*)/";
/// Text without `<|`: where a text has more markers than the one that ends it.
pub(super) const UNMARKED: &str = "/([^<]|<+[^|<])*/";

/// A grammar that grows.
pub(super) struct Lark<'a> {
    rules: Vec<String>,
    token: &'a SpecialToken<'a>,
}

impl<'a> Lark<'a> {
    pub(super) fn new(token: &'a SpecialToken<'a>) -> Self {
        Self { rules: Vec::new(), token }
    }

    /// The grammar that begins with `start`.
    pub(super) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}\n", self.rules.join("\n"))
    }

    /// Adds a rule and returns its name.
    pub(super) fn rule(&mut self, name: &str, body: &str) -> String {
        self.with_suffix(name, "", body)
    }

    fn with_suffix(&mut self, name: &str, suffix: &str, body: &str) -> String {
        let name = format!("{name}_{}", self.rules.len());
        self.rules.push(format!("{name}{suffix}: {body}"));
        name
    }

    /// A text as it is.
    pub(super) fn text(&self, text: &str) -> String {
        Value::from(text).to_string()
    }

    /// A marker: a token where it is a special one, else text.
    pub(super) fn marker(&self, text: &str) -> String {
        match (self.token)(text) {
            Some(id) => format!("<[{id}]>"),
            None => self.text(text),
        }
    }

    /// Text with markers in it: those that are special tokens are tokens. `№` is a number.
    pub(super) fn marked(&self, text: &str) -> String {
        if let Some((before, id, after)) = self.special(text) {
            return format!("{} <[{id}]> {}", self.marked(before), self.marked(after));
        }
        let parts = text.split('№').map(|part| match part {
            "" => String::new(),
            part => self.text(part),
        });
        parts.collect::<Vec<_>>().join(" /[0-9]+/ ")
    }

    /// The first special token in a text, with what is around it.
    fn special<'t>(&self, text: &'t str) -> Option<(&'t str, u32, &'t str)> {
        for (start, _) in text.match_indices(['<', '[', '｜']) {
            for (at, last) in text[start..].match_indices(['>', ']', '｜']) {
                let end = start + at + last.len();
                if let Some(id) = (self.token)(&text[start..end]) {
                    return Some((&text[..start], id, &text[end..]));
                }
            }
        }
        None
    }

    /// Any text up to a marker that may have special tokens in it, and the marker.
    fn until_marked(&mut self, name: &str, marker: &str) -> String {
        let Some((before, id, after)) = self.special(marker) else {
            return self.until(name, ANY, marker);
        };
        let before = before.replace('/', "\\/");
        let body = format!("/(?s:.*){before}/ <[{id}]> {}", self.marked(after));
        self.rule(name, &body)
    }

    /// Text of this pattern up to the first marker, and the marker.
    pub(super) fn until(&mut self, name: &str, text: &str, marker: &str) -> String {
        match (self.token)(marker) {
            Some(id) => self.rule(name, &format!("{text} <[{id}]>")),
            None => {
                let suffix = format!("[suffix={}]", self.text(marker));
                self.with_suffix(name, &suffix, text)
            }
        }
    }

    /// A thought. The prompt may have its opening marker.
    pub(super) fn thought(&mut self, open: &str, close: &str, opened: bool) -> String {
        let text = self.until("thought", ANY, close);
        let after = r#"("\n" "\n"?)?"#;
        if opened {
            return format!("{text} {after}");
        }
        let open = self.marker(open);
        let rule = self.rule("thinking", &format!("{open} {text} {after}"));
        format!("{rule}?")
    }

    /// `call`, or one or more of them.
    pub(super) fn repeated(&mut self, call: &str, between: &str, parallel: bool) -> String {
        if parallel { format!("{call} ({between} {call})*") } else { call.to_owned() }
    }

    /// A rule that is one of the tools, each by `body`.
    pub(super) fn each(
        &mut self,
        tools: &[ToolSpec],
        name: &str,
        body: impl Fn(&mut Self, &ToolSpec) -> String,
    ) -> String {
        let mut names = Vec::new();
        for tool in tools {
            let body = body(self, tool);
            names.push(self.rule(&format!("{name}_tool"), &body));
        }
        self.rule(name, &names.join(" | "))
    }

    /// A tool's arguments one by one: those it must have, those it may have, in their order.
    pub(super) fn members(
        &mut self,
        tool: &ToolSpec,
        body: impl Fn(&mut Self, &str, Argument<'_>) -> String,
    ) -> String {
        let members = self.member_rules(tool, body);
        let marked = |(rule, must)| if must { rule } else { format!("{rule}?") };
        members.into_iter().map(marked).collect::<Vec<_>>().join(" ")
    }

    /// The same with commas between them.
    pub(super) fn separated(
        &mut self,
        tool: &ToolSpec,
        comma: &str,
        body: impl Fn(&mut Self, &str, Argument<'_>) -> String,
    ) -> String {
        let comma = self.text(comma);
        // What may follow: where there was no member yet, and where there was one.
        let (mut first, mut later) = (String::new(), String::new());
        for (member, must) in self.member_rules(tool, body).into_iter().rev() {
            let begins = format!("{member} {later}");
            first = match (must, first.as_str()) {
                (true, _) => begins,
                (false, "") => format!("({begins})?"),
                (false, rest) => format!("({begins} | {rest})"),
            };
            let option = if must { "" } else { "?" };
            later = self.rule("rest", &format!("({comma} {member}){option} {later}"));
        }
        first
    }

    /// The rules of a tool's arguments, and whether there must be one.
    fn member_rules(
        &mut self,
        tool: &ToolSpec,
        body: impl Fn(&mut Self, &str, Argument<'_>) -> String,
    ) -> Vec<(String, bool)> {
        let root = &tool.parameters;
        let Some(Value::Object(properties)) = root.get("properties") else { return Vec::new() };
        let required = root.get("required").and_then(Value::as_array);
        let mut members = Vec::new();
        for (key, schema) in properties {
            let body = body(self, key, Argument { root, schema });
            let must = required.is_some_and(|r| r.iter().any(|name| name == key));
            members.push((self.rule("member", &body), must));
        }
        members
    }

    /// A value as plain text if it is a string, else as JSON, and what ends it. The text of a
    /// string ends with the first `marker`.
    pub(super) fn plain(&mut self, argument: Argument<'_>, end: &str, marker: &str) -> String {
        let literal = self.marked(end);
        if !argument.is_text() {
            return format!("{} {literal}", self.argument(argument));
        }
        if let Some(choices) = argument.choices() {
            let choices: Vec<_> = choices.iter().map(|c| self.text(c)).collect();
            return format!("({}) {literal}", choices.join(" | "));
        }
        let text = self.until_marked("text", marker);
        let after = end.split_once(marker).map_or("", |(_, after)| after);
        format!("{text} {}", self.marked(after))
    }

    /// A tool's arguments as JSON.
    pub(super) fn arguments(&self, tool: &ToolSpec) -> String {
        self.json(object(&tool.parameters))
    }

    /// An argument as JSON.
    pub(super) fn argument(&self, argument: Argument<'_>) -> String {
        self.json(alone(argument))
    }

    /// JSON with no more white space than models write by themselves.
    fn json(&self, schema: Value) -> String {
        let mut schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(false) => return "%json false".to_owned(),
            _ => serde_json::Map::new(),
        };
        let options = json!({"whitespace_flexible": false, "item_separator": ", ?",
            "key_separator": ": ?", "coerce_one_of": true});
        schema.insert("x-guidance".to_owned(), options);
        format!("%json {}", Value::Object(schema))
    }
}
