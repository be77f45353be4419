//! Phi-4-mini: `<|tool_call|>[{"name": .., "arguments": {..}}]<|/tool_call|>`.

use super::lark::Lark;
use super::tool::ToolSpec;

pub(super) const OPEN: &str = "<|tool_call|>";
pub(super) const CLOSE: &str = "<|/tool_call|>";

pub(super) fn grammar(lark: &mut Lark<'_>, tools: &[ToolSpec], parallel: bool) -> String {
    let (open, close) = (lark.marker(OPEN), lark.marker(CLOSE));
    let list = lark.list(tools, parallel);
    format!("{open} {list} {close}")
}
