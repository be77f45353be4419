//! Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

use super::call::{Read, Stopped, Text, tool_name};
use super::lark::Lark;
use super::members::Members;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";

/// Reads calls behind `opened`. Models forget the marker before the function now and then.
pub(super) async fn read(text: &Text, tools: &[ToolSpec], opened: &str) -> Read<()> {
    if opened != FUNCTION {
        text.marker(&[FUNCTION]).await?;
    }
    loop {
        let (name, _) = text.until(&[">"]).await?;
        let mut members = Members::start(text, tools, tool_name(&name)?);
        while text.marker(&[PARAMETER, FUNCTION_END]).await? == PARAMETER {
            let (key, end) = text.until(&[">"]).await?;
            if key.is_empty() || key.contains(['<', '\n']) {
                return Err(Stopped::Failed(key + end));
            }
            members.value(&key, PARAMETER_END, without_lines).await?;
        }
        members.end();
        if text.marker_after_call(&[FUNCTION, CLOSE]).await? != Some(FUNCTION) {
            return Ok(());
        }
    }
}

/// A value without the new lines next to its markers.
fn without_lines(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let call = lark.each(tools, "call", |lark, tool| {
        let head = lark.text(&format!("\n{FUNCTION}{}>\n", tool.name));
        let parameters = lark.members(tool, |lark, key, argument| {
            let head = lark.text(&format!("{PARAMETER}{key}>\n"));
            let value = lark.plain(argument, &format!("\n{PARAMETER_END}\n"), PARAMETER_END);
            format!("{head} {value}")
        });
        let tail = lark.text(&format!("{FUNCTION_END}\n"));
        format!("{open} {head} {parameters} {tail} {close}")
    });
    lark.repeated(&call, r#""\n""#, parallel)
}
