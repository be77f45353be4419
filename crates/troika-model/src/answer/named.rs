//! Calls as a name, a marker and JSON.

use super::call::{Read, Text, tool_name};
use super::forms::CallFormat;

/// Reads calls behind `opened`, and the marker that closes them.
pub(super) async fn read(text: &Text, form: &'static CallFormat, opened: &str) -> Read<()> {
    let (call, close) = (form.head(), form.close.as_str());
    let (_, rest) = form.call.split_once("NAME").unwrap_or_default();
    let (between, end) = rest.split_once("JSON").unwrap_or_default();
    let separator = between.find('<').map_or(between.trim(), |at| &between[at..]);
    if opened != call {
        text.marker(&[call]).await?;
    }
    loop {
        let (head, _) = text.until(&[separator]).await?;
        // An id may stand before the name, and a number behind it.
        let name = head.rsplit('>').next().unwrap_or_default();
        let name = name.strip_prefix("functions.").unwrap_or(name);
        let number = name.rsplit_once(':').filter(|_| between.starts_with(':'));
        text.arguments(tool_name(number.map_or(name, |(name, _)| name))?).await?;
        if text.marker_after_call(&[end.trim()]).await?.is_none() || close.is_empty() {
            return Ok(());
        }
        text.out(|out| out.open(""));
        if text.marker_after_call(&[call, close]).await? != Some(call) {
            return Ok(());
        }
    }
}
