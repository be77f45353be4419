//! Hermes and Qwen: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.

use super::call::{Read, Text};
use super::lark::Lark;
use super::object;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// Reads one object between two markers.
pub(super) async fn read(text: &Text) -> Read<()> {
    object::read(text, None).await?;
    text.marker_after_call(&[CLOSE]).await?;
    Ok(())
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let object = lark.objects(tools, "arguments");
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let call = lark.rule("call", &format!(r#"{open} "\n" {object} "\n" {close}"#));
    lark.repeated(&call, r#""\n""#, parallel)
}
