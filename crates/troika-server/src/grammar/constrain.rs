//! What an answer can be held to, as a grammar of `llguidance`.

use std::fmt::Display;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::measure::too_large;
use super::schema::HeldSchema;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Constrain {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema allows.
    JsonSchema(Value),
    /// Text that a regular expression matches from its beginning to its end.
    Regex(String),
    /// Text of a grammar in the Lark dialect of `llguidance`.
    Lark(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A form after a thought, or instead of calls: the grammar in Lark names it `@form`.
    Within {
        form: Box<Constrain>,
        /// What is around it.
        lark: String,
    },
}

/// Bytes of a grammar's or a schema's text.
const LONGEST: usize = 256 << 10;

impl Constrain {
    /// The name that a sentence calls it by.
    fn kind(&self) -> &'static str {
        match self {
            Self::JsonObject => "JSON object",
            Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "grammar",
            Self::Choice(_) => "choice",
            Self::Within { form, .. } => form.kind(),
        }
    }

    /// The sentence that says why it cannot be honoured.
    pub(super) fn refused(&self, why: impl Display) -> String {
        format!("the {} cannot be honoured: {why}", self.kind())
    }

    /// Whether it has numbers of JSON, which have to end.
    pub(super) fn is_json(&self) -> bool {
        match self {
            Self::Lark(lark) => lark.contains("%json"),
            Self::Within { form, lark } => form.is_json() || lark.contains("%json"),
            _ => matches!(self, Self::JsonObject | Self::JsonSchema(_)),
        }
    }

    /// The grammar, if it is not too long and not too deep.
    pub(super) fn grammar(&self) -> Result<TopLevelGrammar, String> {
        match self {
            Self::JsonObject => self.schema(&json!({"type": "object"})),
            Self::JsonSchema(schema) => self.schema(schema),
            Self::Regex(regex) => self.regex(regex),
            Self::Lark(lark) => {
                self.measure(lark)?;
                Ok(TopLevelGrammar::from_lark(lark.clone()))
            }
            Self::Choice(choices) => {
                if choices.is_empty() {
                    return Err(self.refused("it lists no text, so give one or more"));
                }
                let choices: Vec<_> = choices.iter().map(|c| quoted(c)).collect();
                let lark = format!("start: CHOICE\nCHOICE: {}\n", choices.join(" | "));
                self.fits(&lark)?;
                Ok(TopLevelGrammar::from_lark(lark))
            }
            Self::Within { form, lark } => {
                self.measure(lark)?;
                let mut all = TopLevelGrammar::from_lark(lark.clone());
                let form = form.grammar()?.grammars.into_iter();
                all.grammars.extend(
                    form.map(|form| GrammarWithLexer { name: Some("form".to_owned()), ..form }),
                );
                Ok(all)
            }
        }
    }

    fn schema(&self, schema: &Value) -> Result<TopLevelGrammar, String> {
        self.fits(&schema.to_string())?;
        let HeldSchema { schema, left_out, .. } = HeldSchema::new(schema);
        if !left_out.is_empty() {
            let words = Vec::from_iter(left_out).join(", ");
            return Err(self.refused(format!("no grammar holds to {words}")));
        }
        let mut schema = match schema {
            Value::Object(schema) => schema,
            Value::Bool(true) => Map::new(),
            _ => return Err(self.refused("it is no object")),
        };
        // No white space but single blanks, so that a small model cannot pad for ever, whatever the
        // schema itself says of this to `llguidance`.
        let options =
            json!({"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"});
        schema.insert("x-guidance".to_owned(), options);
        Ok(TopLevelGrammar::from_json_schema(Value::Object(schema)))
    }

    fn regex(&self, regex: &str) -> Result<TopLevelGrammar, String> {
        self.fits(regex)?;
        let backslashes = regex.len() - regex.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            return Err(self.refused("it ends with a backslash"));
        }
        let inner = unanchored(regex);
        if inner.is_empty() {
            return Ok(TopLevelGrammar::from_lark("start: \"\"\n".to_owned()));
        }
        Ok(TopLevelGrammar::from_regex(inner))
    }

    fn fits(&self, text: &str) -> Result<(), String> {
        if text.len() <= LONGEST {
            return Ok(());
        }
        Err(self.refused(format!("it has {} bytes, and {LONGEST} are allowed", text.len())))
    }

    fn measure(&self, lark: &str) -> Result<(), String> {
        self.fits(lark)?;
        too_large(lark).map_or(Ok(()), |why| Err(self.refused(why)))
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The expression without `^` and `$` around it: all of the text must match anyway.
fn unanchored(regex: &str) -> &str {
    if alternates(regex) {
        return regex;
    }
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(inner) if (inner.len() - inner.trim_end_matches('\\').len()).is_multiple_of(2) => {
            inner
        }
        _ => regex,
    }
}

/// Whether the expression has alternatives outside of groups: an anchor belongs to one of these.
fn alternates(regex: &str) -> bool {
    let (mut depth, mut class, mut escaped) = (0_usize, false, false);
    for c in regex.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::unanchored;

    #[test]
    fn outer_anchors_go() {
        assert_eq!(unanchored("^ab$"), "ab");
        assert_eq!(unanchored("^(a|b)$"), "(a|b)");
        assert_eq!(unanchored("^a|b$"), "^a|b$");
        assert_eq!(unanchored(r"^a\$"), r"a\$");
        assert_eq!(unanchored(r"^a\\$"), r"a\\");
        assert_eq!(unanchored("[|]$"), "[|]");
    }
}
