//! Llama 3: `{"name": .., "parameters": {..}}` as the whole answer, or several with `;` between.

use super::call::{Read, Stopped, Text};
use super::objects;

pub(super) const OPEN: &str = "{";
pub(super) const TAG: &str = "<|python_tag|>";

/// Reads objects one after another.
pub(super) async fn read(text: &Text, names: &[String]) -> Read<()> {
    loop {
        objects::object(text, Some(names)).await?;
        let mut between = String::new();
        let other = loop {
            match text.next().await {
                Ok(c) if c == ';' || c.is_whitespace() => between.push(c),
                Ok(c) => break c.to_string(),
                Err(Stopped::Ended) => return Ok(()),
                Err(stop) => return Err(stop),
            }
        };
        text.unread(&other);
        if other != OPEN || !between.contains(';') {
            text.unread(&between);
            return Ok(());
        }
    }
}
