//! Tools that a model may or must call.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::fields::Fields;
use crate::grammar::{Constrain, HeldSchema};
use crate::problem::Problem;
use crate::turn::Turn;
use troika::model::answer::{Format, SpecialToken, ToolSpec};

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    None,
    /// If the model wants to.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

#[derive(Clone, Debug, Default)]
pub struct Tools {
    pub list: Vec<ToolSpec>,
    /// The tools by their names as templates are given them: with the members that the client sent.
    pub given: BTreeMap<String, Value>,
    pub choice: ToolChoice,
    /// Whether only one may be called at once.
    pub single: bool,
    /// What of the request is not honoured: types of tools, and keywords of schemas.
    pub left_out: BTreeSet<String>,
}

/// The name of a function or of its call, with the namespace that it may be in.
pub fn full_name(value: &Value) -> Value {
    // The chat interface has the name inside, the others outside.
    let value = value.get("function").unwrap_or(value);
    match (value["namespace"].as_str(), value["name"].as_str()) {
        (Some(namespace), Some(name)) => format!("{namespace}.{name}").into(),
        _ => value["name"].clone(),
    }
}

/// The arguments of a call; of one that was cut off, as far as they came.
pub fn arguments_so_far(text: &str) -> Value {
    if let Ok(whole) = serde_json::from_str(text) {
        return whole;
    }
    let (mut open, mut in_string, mut escaped) = (String::new(), false, false);
    // Where what precedes is complete, with what closes it.
    let mut good = (0, String::new());
    for (at, c) in text.char_indices() {
        match c {
            _ if std::mem::take(&mut escaped) => {}
            '\\' => escaped = in_string,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' | '[' => {
                open.insert(0, if c == '{' { '}' } else { ']' });
                good = (at + 1, open.clone());
            }
            '}' | ']' => {
                open.drain(..open.len().min(1));
                good = (at + 1, open.clone());
            }
            ',' => good = (at, open.clone()),
            _ => {}
        }
    }
    let quote = if in_string { "\"" } else { "" };
    let all = [format!("{text}{quote}{open}"), format!("{}{}", &text[..good.0], good.1)];
    all.iter().find_map(|closed| serde_json::from_str(closed).ok()).unwrap_or(json!({}))
}

/// A function that the model may call, from fields `name`, `description` and a schema.
fn tool(fields: &Fields<'_>, schema: &str, namespace: &str) -> Result<ToolSpec, Problem> {
    let name = format!("{namespace}{}", fields.need::<String>("name")?);
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

/// A tool as templates are given it: as it is, in the form of OpenAI's chat interface.
fn given(value: &Value, tool: &ToolSpec) -> Value {
    let mut outer = value.as_object().cloned().unwrap_or_default();
    let inner = match outer.get("function").and_then(Value::as_object) {
        Some(inner) => inner.clone(),
        None => std::mem::take(&mut outer),
    };
    let mut function = Map::new();
    for (name, member) in inner {
        match name.as_str() {
            "name" => drop(function.insert(name, tool.name.as_str().into())),
            // Anthropic's name. The second is for its cache.
            "input_schema" => drop(function.insert("parameters".into(), member)),
            "type" | "cache_control" => {}
            _ => drop(function.insert(name, member)),
        }
    }
    if tool.parameters.is_null() {
        function.insert("parameters".into(), json!({"type": "object", "properties": {}}));
    }
    outer.entry("type").or_insert("function".into());
    outer.insert("function".into(), function.into());
    outer.into()
}

impl Tools {
    /// The functions of a request, whose schemas have this name. Tools of other types are left out:
    /// only their vendor can run them.
    ///
    /// # Errors
    /// A function of another form.
    pub fn read(fields: &Fields<'_>, schema: &str) -> Result<Tools, Problem> {
        let mut tools = Tools::default();
        let list: Vec<Value> = fields.get("tools")?.unwrap_or_default();
        list.iter().try_for_each(|value| tools.add(value, schema, ""))?;
        Ok(tools)
    }

    fn add(&mut self, value: &Value, schema: &str, namespace: &str) -> Result<(), Problem> {
        match value["type"].as_str() {
            Some("namespace") => {
                let namespace = format!("{}.", value["name"].as_str().unwrap_or_default());
                let mut inner = value["tools"].as_array().into_iter().flatten();
                inner.try_for_each(|value| self.add(value, schema, &namespace))?;
            }
            // Anthropic calls its functions custom.
            Some(kind) if kind != "function" && (kind, schema) != ("custom", "input_schema") => {
                self.left_out.insert(kind.to_string());
            }
            _ => {
                let function = value.get("function").unwrap_or(value);
                let tool = tool(&Fields::within("tools", function)?, schema, namespace)?;
                self.given.insert(tool.name.clone(), given(value, &tool));
                self.list.push(tool);
            }
        }
        Ok(())
    }

    /// The tools with OpenAI's `tool_choice`.
    ///
    /// # Errors
    /// A choice that is not known, or of a tool that is not there.
    pub fn chosen(mut self, fields: &Fields<'_>) -> Result<Tools, Problem> {
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
                let names: Vec<Value> =
                    allowed["tools"].as_array().into_iter().flatten().map(full_name).collect();
                self.list.retain(|tool| names.contains(&tool.name.as_str().into()));
                if allowed["mode"] == "required" { ToolChoice::Required } else { ToolChoice::Auto }
            }
            Some(choice) => {
                let named = full_name(choice);
                let kind = choice["type"].as_str().filter(|kind| *kind != "function");
                let must = "tool_choice has to be a word or name a function";
                let named = kind.or(named.as_str());
                let named = named.ok_or_else(|| Problem::field("tool_choice", must))?;
                ToolChoice::Named(named.to_string())
            }
        };
        let single = fields.get("parallel_tool_calls")? == Some(false);
        Tools { choice, single, ..self }.checked()
    }

    /// Checks that what has to be called is there.
    pub fn checked(self) -> Result<Tools, Problem> {
        let missing = match &self.choice {
            ToolChoice::Required if self.list.is_empty() => "any".to_string(),
            ToolChoice::Named(name) if !self.list.iter().any(|t| t.name == *name) => {
                format!("{name:?}")
            }
            _ => return Ok(self),
        };
        let why = format!("tool_choice asks for {missing} of tools, but that is no function there");
        Err(Problem::field("tool_choice", why))
    }

    /// The tool whose schema cannot be honoured, if there is one.
    pub async fn blame(&self, turn: &Turn) -> Option<Problem> {
        let held = self.list.iter().filter(|t| self.shown() && t.parameters.is_object());
        for tool in held {
            let schema = Constrain::JsonSchema(HeldSchema::new(&tool.parameters).schema);
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
        let given = |tool: &ToolSpec| self.given.get(&tool.name).cloned();
        self.shown().then(|| self.list.iter().filter_map(given).collect())
    }

    /// Whether the answer has to be calls and nothing else.
    pub fn forced(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// Whether several may be called at once. A tool that is named is called once.
    pub fn several(&self) -> bool {
        !self.single && !matches!(self.choice, ToolChoice::Named(_))
    }

    /// What an answer must follow that has to be calls, or else is in a form. What it does not hold
    /// to is left out.
    pub fn constrain(
        &mut self,
        format: &Format,
        opened: bool,
        form: Option<Constrain>,
        special: &SpecialToken<'_>,
    ) -> Option<Constrain> {
        let forced = self.forced();
        if !forced && form.is_none() {
            return None;
        }
        let mut list: Vec<ToolSpec> = match &self.choice {
            ToolChoice::None => Vec::new(),
            ToolChoice::Auto | ToolChoice::Required => self.list.clone(),
            ToolChoice::Named(name) => {
                self.list.iter().filter(|t| t.name == *name).cloned().collect()
            }
        };
        for tool in list.iter_mut().filter(|tool| tool.parameters.is_object()) {
            let HeldSchema { schema, left_out, .. } = HeldSchema::new(&tool.parameters);
            tool.parameters = schema;
            self.left_out.extend(left_out.iter().map(|word| format!("{word} of {}", tool.name)));
        }
        if forced {
            let lark = format.call_grammar(&list, self.several(), opened, special);
            return Some(Constrain::Lark(lark));
        }
        let form = form?;
        Some(match format.form_grammar(&list, self.several(), opened, special) {
            Some(lark) => Constrain::Within { form: Box::new(form), lark },
            None => form,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ToolChoice, Tools, arguments_so_far};
    use crate::fields::Fields;

    fn read(body: &serde_json::Value, schema: &str) -> Tools {
        let fields = Fields::of(body.as_object().unwrap());
        Tools::read(&fields, schema).unwrap().chosen(&fields).unwrap()
    }

    #[test]
    fn functions_are_read_and_what_only_a_vendor_runs_is_left_out() {
        let vendors = [
            "web_search",
            "web_search_preview_2025_03_11",
            "local_shell",
            "mcp",
            "image_generation",
            "code_interpreter",
            "file_search",
            "computer_use_preview",
            "custom",
            "tool_search",
            "bash_20250124",
            "anything",
        ];
        let mut tools: Vec<_> = vendors.iter().map(|kind| json!({"type": kind})).collect();
        let plain = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
        tools.push(plain.clone());
        tools.push(json!({"type": "function", "function": {"name": "g"}}));
        let inner = json!([plain, {"type": "custom", "name": "c"}]);
        tools.push(json!({"type": "namespace", "name": "n", "tools": inner}));
        let tools = read(&json!({ "tools": tools }), "parameters");
        let names: Vec<&str> = tools.list.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["f", "g", "n.f"]);
        assert!(tools.list[0].parameters.is_object() && tools.list[2].parameters.is_object());
        assert!(tools.left_out.iter().map(String::as_str).eq({
            let mut sorted = vendors;
            sorted.sort_unstable();
            sorted
        }));
        assert_eq!(
            tools.for_template().unwrap(),
            json!([
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
                {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
                {"type": "function", "function": {"name": "n.f", "parameters": {"type": "object"}}},
            ])
        );
        let function = json!({"strict": true, "description": "d", "name": "f", "parameters": {"x": 1}, "y": null});
        let sent = json!([{"function": function, "type": "function", "more": 1}]);
        assert_eq!(
            read(&json!({ "tools": sent }), "parameters").for_template().unwrap().to_string(),
            sent.to_string()
        );
        let own = json!([{"type": "custom", "name": "f", "input_schema": {}}, {"name": "g"}]);
        let own = read(&json!({ "tools": own }), "input_schema");
        assert_eq!((own.list.len(), own.left_out.len()), (2, 0));
    }

    #[test]
    fn arguments_that_are_cut_off_end_where_they_can() {
        for (text, value) in [
            (r#"{"a": 1, "b": ["x", {"c": 2}]}"#, json!({"a": 1, "b": ["x", {"c": 2}]})),
            (r#"{"a": 1, "b": ["x\"y"#, json!({"a": 1, "b": ["x\"y"]})),
            (r#"{"a": [1, 2], "b"#, json!({"a": [1, 2]})),
            (r#"{"a": {"b": tr"#, json!({"a": {}})),
            (r#"{"a": "x\"#, json!({})),
            (r#"{"a": "}", "b": nul"#, json!({"a": "}"})),
            ("", json!({})),
        ] {
            assert_eq!(arguments_so_far(text), value, "{text}");
        }
    }

    #[test]
    fn a_choice_may_name_what_is_in_a_namespace_but_not_what_is_left_out() {
        let inner = json!([{"type": "function", "name": "f"}, {"type": "function", "name": "g"}]);
        let mut body = json!({"tools": [{"type": "namespace", "name": "n", "tools": inner},
            {"type": "web_search"}]});
        body["tool_choice"] = json!({"type": "function", "namespace": "n", "name": "f"});
        assert_eq!(read(&body, "parameters").choice, ToolChoice::Named("n.f".into()));
        let allowed = json!([{"type": "function", "namespace": "n", "name": "g"}]);
        body["tool_choice"] = json!({"type": "allowed_tools", "mode": "auto", "tools": allowed});
        assert_eq!(read(&body, "parameters").list[0].name, "n.g");
        for (choice, says) in [
            (json!({"type": "web_search"}), "\"web_search\""),
            (json!({"type": "function", "name": "f"}), "\"f\""),
            (json!("perhaps"), "perhaps"),
            (json!({}), "a word or name"),
        ] {
            body["tool_choice"] = choice;
            let fields = Fields::of(body.as_object().unwrap());
            let tools = Tools::read(&fields, "parameters").unwrap();
            let problem = tools.chosen(&fields).unwrap_err();
            assert!(problem.message.contains(says), "{}", problem.message);
        }
    }
}
