//! Mistral: `[TOOL_CALLS][{..}, {..}]`, and since 2025 `[TOOL_CALLS]name[ARGS]{..}`.

use super::call::{Read, Text, tool_name};
use super::objects;

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
