//! Mistral: `[TOOL_CALLS][{..}, {..}]`, and since 2025 `[TOOL_CALLS]name[ARGS]{..}`.

use super::call::{Read, Text, tool_name};
use super::lark::Lark;
use super::objects;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";

/// Reads what follows the marker: which of the two it is shows at the first character.
pub(super) async fn read(text: &Text) -> Read<()> {
    let first = text.solid().await?;
    text.unread(&first.to_string());
    if first == '[' {
        return objects::list(text, false).await;
    }
    // Version 11 of the tokenizer writes the arguments right behind the name.
    let (head, end) = text.until(&[ARGUMENTS, "{"]).await?;
    if end == "{" {
        text.unread(end);
    }
    let name = head.split(ID).next().unwrap_or_default().trim();
    text.arguments(tool_name(name)?).await
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let (open, arguments) = (lark.marker(OPEN), lark.marker(ARGUMENTS));
    let call = lark.each(tools, "call", |lark, tool| {
        let (name, json) = (lark.text(&tool.name), lark.arguments(tool));
        format!("{open} {name} {arguments} {json}")
    });
    lark.repeated(&call, "", parallel)
}
