//! Calls as JSON objects, `{"name": .., "arguments": {..}}`, between markers, each by itself or in a
//! list.

use super::call::{Read, Stopped, Text, failed, tool_name};
use super::forms::CallFormat;
use super::output::Output;

/// Reads an object. Hands out the arguments as they come, once the name is known. With `only`,
/// only these names are calls, and only with arguments: for formats without a marker.
pub(super) async fn object(text: &Text, only: Option<&[String]>) -> Read<()> {
    text.expect('{').await?;
    let mut call = ObjectCall::default();
    loop {
        text.expect('"').await?;
        call.member(text, only).await?;
        match text.solid().await {
            Ok(',') => {}
            Ok('}') => break,
            Ok(c) => return failed(c),
            Err(stop) => {
                // Nothing but the last brace is missing.
                if stop == Stopped::Ended && call.started {
                    text.out(Output::end_call);
                }
                return Err(stop);
            }
        }
    }
    if !call.started {
        let Some(name) = call.name.filter(|_| call.early.is_some() || only.is_none()) else {
            return failed('}');
        };
        text.out(|out| {
            out.start_call(&name);
            out.arguments(call.early.as_deref().unwrap_or("{}"));
        });
    }
    text.out(Output::end_call);
    Ok(())
}

#[derive(Default)]
struct ObjectCall {
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    started: bool,
}

impl ObjectCall {
    /// Reads a member behind the quotation mark that opens its key.
    async fn member(&mut self, text: &Text, only: Option<&[String]>) -> Read<()> {
        let key = string(text).await?;
        text.expect(':').await?;
        let first = text.solid().await?;
        match key.as_str() {
            "name" | "tool_name" if first != '"' => failed(first),
            "name" | "tool_name" => {
                let name = string(text).await?;
                let known = only.is_none_or(|only| only.contains(&name));
                if name.is_empty() || !known || self.name.is_some() {
                    return failed('"');
                }
                self.name = Some(name);
                Ok(())
            }
            "arguments" | "parameters" => self.arguments(text, first).await,
            _ => text.json(first, |_| {}).await,
        }
    }

    async fn arguments(&mut self, text: &Text, first: char) -> Read<()> {
        if first != '{' || self.started || self.early.is_some() {
            return failed(first);
        }
        let Some(name) = &self.name else {
            let early = self.early.insert(String::new());
            return text.json(first, |json| early.push_str(json)).await;
        };
        text.out(|out| out.start_call(name));
        self.started = true;
        text.json(first, |json| text.out(|out| out.arguments(json))).await
    }
}

/// A string behind the quotation mark that opens it.
pub(super) async fn string(text: &Text) -> Read<String> {
    let mut json = String::new();
    text.json('"', |more| json.push_str(more)).await?;
    serde_json::from_str(&json).or_else(|_| failed('"'))
}

/// The name is the only key of the object.
const KEYED: &str = "{NAME: JSON}";

/// Reads objects or a list of them, and the marker that closes them.
pub(super) async fn read(text: &Text, form: &'static CallFormat) -> Read<()> {
    let (keyed, close) = (form.call == KEYED, form.closer());
    let first = text.solid().await?;
    text.unread(&first.to_string());
    if first == '[' {
        list(text, keyed).await?;
        if !close.is_empty() {
            text.out(|out| out.open(""));
            text.marker_after_call(&[close]).await?;
        }
        return Ok(());
    }
    loop {
        one(text, keyed).await?;
        if close.is_empty() || text.marker_after_call(&[close, "{"]).await? != Some("{") {
            return Ok(());
        }
        text.unread("{");
    }
}

/// Reads a list of calls.
pub(super) async fn list(text: &Text, keyed: bool) -> Read<()> {
    text.expect('[').await?;
    loop {
        one(text, keyed).await?;
        match text.solid().await? {
            ',' => {}
            ']' => return Ok(()),
            c => return failed(c),
        }
    }
}

async fn one(text: &Text, keyed: bool) -> Read<()> {
    if !keyed {
        return object(text, None).await;
    }
    text.expect('{').await?;
    text.expect('"').await?;
    let name = string(text).await?;
    text.expect(':').await?;
    text.arguments(tool_name(&name)?).await?;
    text.expect('}').await
}
