//! Calls as JSON objects between markers, each by itself or in a list.

use super::call::{Read, Text, failed, tool_name};
use super::forms::CallFormat;
use super::object;

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
        return object::read(text, None).await;
    }
    text.expect('{').await?;
    text.expect('"').await?;
    let name = object::string(text).await?;
    text.expect(':').await?;
    text.arguments(tool_name(&name)?).await?;
    text.expect('}').await
}
