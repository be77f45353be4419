//! Tools that a model may or must call.

use serde_json::{Value, json};

use crate::fields::Fields;
use crate::grammar::Constrain;
use crate::problem::Problem;
use crate::turn::Turn;
use troika::model::answer::{Format, SpecialToken, ToolSpec};

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Never.
    None,
    /// If the model wants to.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// The tools of a conversation.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The tools.
    pub list: Vec<ToolSpec>,
    /// Whether they are called.
    pub choice: ToolChoice,
    /// Whether several may be called at once.
    pub parallel: bool,
}

impl Default for Tools {
    fn default() -> Tools {
        Tools { list: Vec::new(), choice: ToolChoice::Auto, parallel: true }
    }
}

/// A function that the model may call, from fields `name`, `description` and a schema.
///
/// # Errors
/// It has no name, or a schema that is no object.
pub fn tool(fields: &Fields<'_>, schema: &str) -> Result<ToolSpec, Problem> {
    let name: String = fields.need("name")?;
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 128 || !name.chars().all(good) {
        let why = format!("the tool name {name:?} has to be of letters, digits, _ - and .");
        return Err(Problem::field("tools", why));
    }
    let parameters = fields.value(schema).cloned().unwrap_or(Value::Null);
    if !parameters.is_null() && !parameters.is_object() {
        let why = format!("the {schema} of the tool {name} has to be a JSON schema, an object");
        return Err(Problem::field("tools", why));
    }
    let description = fields.get("description")?.unwrap_or_default();
    Ok(ToolSpec { name, description, parameters })
}

impl Tools {
    /// Tools with OpenAI's `tool_choice`.
    ///
    /// # Errors
    /// A choice that is not known, or of a tool that is not there.
    pub fn chosen(mut list: Vec<ToolSpec>, fields: &Fields<'_>) -> Result<Tools, Problem> {
        let choice = match fields.value("tool_choice") {
            None => ToolChoice::Auto,
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => ToolChoice::None,
                "auto" => ToolChoice::Auto,
                "required" => ToolChoice::Required,
                other => {
                    let why = format!("tool_choice {other:?} is none of none, auto and required");
                    return Err(Problem::field("tool_choice", why));
                }
            },
            Some(choice) if choice["type"] == "allowed_tools" => {
                // The responses interface has these outside, the chat interface inside.
                let allowed = choice.get("allowed_tools").unwrap_or(choice);
                let names: Vec<&str> = allowed["tools"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|t| t["function"]["name"].as_str().or(t["name"].as_str()))
                    .collect();
                list.retain(|tool| names.contains(&tool.name.as_str()));
                if allowed["mode"] == "required" { ToolChoice::Required } else { ToolChoice::Auto }
            }
            Some(choice) => {
                // The responses interface has the name outside, the chat interface inside.
                let named = choice["function"]["name"].as_str().or(choice["name"].as_str());
                let must = "tool_choice has to be a word or name a function";
                let named = named.filter(|_| choice["type"] == "function");
                let named = named.ok_or_else(|| Problem::field("tool_choice", must))?;
                ToolChoice::Named(named.to_string())
            }
        };
        let parallel = fields.get("parallel_tool_calls")?.unwrap_or(true);
        Tools { list, choice, parallel }.checked()
    }

    /// Checks that what has to be called is there.
    ///
    /// # Errors
    /// It is not.
    pub fn checked(self) -> Result<Tools, Problem> {
        let missing = match &self.choice {
            ToolChoice::Required if self.list.is_empty() => Some("any".to_string()),
            ToolChoice::Named(name) if !self.list.iter().any(|t| t.name == *name) => {
                Some(format!("{name:?}"))
            }
            _ => None,
        };
        match missing {
            Some(name) => {
                let why = format!("tool_choice asks for {name} of the tools, which has none such");
                Err(Problem::field("tool_choice", why))
            }
            None => Ok(self),
        }
    }

    /// The tool whose schema cannot be honoured, if calls are forced and there is one.
    pub async fn blame(&self, turn: &Turn) -> Option<Problem> {
        let forced = self.list.iter().filter(|t| self.forced() && t.parameters.is_object());
        for tool in forced {
            let schema = Constrain::JsonSchema(tool.parameters.clone());
            if let Err(problem) = turn.compile(schema).await {
                let why = format!("the parameters of the tool {}: {}", tool.name, problem.message);
                return Some(Problem { message: why, param: Some("tools".into()), ..problem });
            }
        }
        None
    }

    /// Whether the model is told of them.
    pub fn shown(&self) -> bool {
        self.choice != ToolChoice::None && !self.list.is_empty()
    }

    /// What templates are given.
    pub fn for_template(&self) -> Option<Value> {
        let tool = |t: &ToolSpec| {
            json!({"type": "function", "function": {
                "name": t.name,
                "description": t.description,
                "parameters": match &t.parameters {
                    Value::Null => json!({"type": "object", "properties": {}}),
                    schema => schema.clone(),
                },
            }})
        };
        self.shown().then(|| self.list.iter().map(tool).collect())
    }

    /// The tools whose calls are read from the answer.
    pub fn list_for_reader(&self) -> Vec<ToolSpec> {
        if self.shown() { self.list.clone() } else { Vec::new() }
    }

    /// Whether the answer has to be calls and nothing else.
    pub fn forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// Whether several may be called at once. A tool that is named is called once.
    pub fn several(&self) -> bool {
        self.parallel && !matches!(self.choice, ToolChoice::Named(_))
    }

    /// The grammar that forces a call, if one has to be.
    pub fn grammar(
        &self,
        format: &Format,
        opened: bool,
        special: &SpecialToken<'_>,
    ) -> Option<String> {
        let list: Vec<ToolSpec> = match &self.choice {
            ToolChoice::None | ToolChoice::Auto => return None,
            ToolChoice::Required => self.list.clone(),
            ToolChoice::Named(name) => {
                self.list.iter().filter(|t| t.name == *name).cloned().collect()
            }
        };
        Some(format.call_grammar(&list, self.several(), opened, special))
    }
}
