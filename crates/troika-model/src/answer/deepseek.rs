//! DeepSeek: calls in one pair of markers, each in a pair of its own, with the arguments fenced
//! (V3, R1) or bare (V3.1).

use super::call::{Read, Text, failed, tool_name};
use super::lark::Lark;
use super::tool::ToolSpec;

const OPEN: &str = "<｜tool▁calls▁begin｜>";
const CLOSE: &str = "<｜tool▁calls▁end｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```json";

/// Reads calls and the marker that closes them.
pub(super) async fn read(text: &Text) -> Read<()> {
    while text.marker(&[CALL, CLOSE]).await? == CALL {
        // The name, or a type before the name and a fence.
        let (head, _) = text.until(&[SEPARATOR]).await?;
        let (behind, brace) = text.until(&["{"]).await?;
        text.unread(brace);
        let fenced = behind.strip_suffix(FENCE).map(str::trim);
        if fenced.is_none() && !behind.is_empty() {
            return failed('{');
        }
        text.arguments(tool_name(fenced.unwrap_or(&head))?).await?;
        if fenced.is_some() {
            fence(text).await?;
        }
        if text.marker_after_call(&[CALL_END]).await?.is_none() {
            break;
        }
        text.out(|out| out.open(""));
    }
    Ok(())
}

/// Skips the fence behind arguments.
async fn fence(text: &Text) -> Read<()> {
    loop {
        let c = text.next().await?;
        if c != '`' && !c.is_whitespace() {
            text.unread(&c.to_string());
            return Ok(());
        }
        text.out(|out| out.open(""));
    }
}

/// The grammar of V3.1, or of those before it.
pub(super) fn grammar(
    lark: &mut Lark<'_>,
    tools: &[ToolSpec],
    parallel: bool,
    bare: bool,
) -> String {
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let (begin, end) = (lark.marker(CALL), lark.marker(CALL_END));
    let separator = lark.marker(SEPARATOR);
    let call = lark.each(tools, "call", |lark, tool| {
        let json = lark.arguments(tool);
        if bare {
            let name = lark.text(&tool.name);
            return format!("{begin} {name} {separator} {json} {end}");
        }
        let name = lark.text(&format!("{}\n```json\n", tool.name));
        format!(r#"{begin} "function" {separator} {name} {json} "\n```" {end}"#)
    });
    let between = if bare { "" } else { r#""\n""# };
    let calls = lark.repeated(&call, between, parallel);
    format!("{open} {calls} {close}")
}
