//! GLM-4.5: `<tool_call>name <arg_key>key</arg_key> <arg_value>value</arg_value> </tool_call>`, with
//! new lines between.

use super::call::{Read, Text, tool_name};
use super::lark::Lark;
use super::members::Members;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const KEY: &str = "<arg_key>";
pub(super) const KEY_END: &str = "</arg_key>";
pub(super) const VALUE: &str = "<arg_value>";
pub(super) const VALUE_END: &str = "</arg_value>";

/// Reads one call.
pub(super) async fn read(text: &Text, tools: &[ToolSpec]) -> Read<()> {
    let (name, mut marker) = text.until(&[KEY, CLOSE]).await?;
    let mut members = Members::start(text, tools, tool_name(&name)?);
    while marker == KEY {
        let (key, _) = text.until(&[KEY_END]).await?;
        text.marker(&[VALUE]).await?;
        members.value(&key, VALUE_END, |value| value).await?;
        marker = text.marker(&[KEY, CLOSE]).await?;
    }
    members.end();
    Ok(())
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let call = lark.each(tools, "call", |lark, tool| {
        let name = lark.text(&format!("{}\n", tool.name));
        let members = lark.members(tool, |lark, key, argument| {
            let head = lark.text(&format!("{KEY}{key}{KEY_END}\n{VALUE}"));
            let value = lark.plain(argument, VALUE_END, VALUE_END);
            format!(r#"{head} {value} "\n""#)
        });
        format!("{open} {name} {members} {close}")
    });
    lark.repeated(&call, r#""\n""#, parallel)
}
