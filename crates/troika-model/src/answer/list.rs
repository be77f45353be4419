//! Calls as a JSON list of objects, between markers or behind one.

use super::call::{Read, Text, failed};
use super::object;

/// Reads the list, and the marker that closes it, if the format has one.
pub(super) async fn read(text: &Text, close: Option<&'static str>) -> Read<()> {
    text.expect('[').await?;
    loop {
        object::read(text, None).await?;
        match text.solid().await? {
            ',' => {}
            ']' => break,
            c => return failed(c),
        }
    }
    if let Some(close) = close {
        text.out(|out| out.open(""));
        text.marker_after_call(&[close]).await?;
    }
    Ok(())
}
