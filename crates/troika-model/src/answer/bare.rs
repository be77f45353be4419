//! Calls without markers: an answer that is nothing but `{"name": .., "arguments": {..}}` with the
//! name of a given tool, several of these or a list of them, perhaps in a fence.
//!
//! More text may follow, and then there was no call. So a call is only known at the end of the text,
//! and is held until then.

use super::call::{Read, Stopped, Text, failed};
use super::objects;
use super::output::Output;

pub(super) const OPEN: &[&str] = &[LIST, FENCE, OBJECT];
const OBJECT: &str = "{";
const LIST: &str = "[";
const FENCE: &str = "```";
const LANGUAGE: &str = "json";

/// Reads the whole answer behind `opened`.
pub(super) async fn read(text: &Text, names: &[String], opened: &str) -> Read<()> {
    let mut opened = opened;
    let fenced = opened == FENCE;
    if fenced {
        opened = text.marker(&[LANGUAGE, OBJECT, LIST]).await?;
    }
    if opened == LANGUAGE {
        opened = text.marker(&[OBJECT, LIST]).await?;
    }
    let mut calls = Vec::new();
    let next = objects(text, names, opened == LIST, &mut calls).await;
    let end = match next {
        Ok(c) if fenced => {
            text.unread(&c.to_string());
            text.marker(&[FENCE]).await?;
            text.solid().await
        }
        next => next,
    };
    match end {
        Err(Stopped::Ended) if !calls.is_empty() => {}
        Err(stop) => return Err(stop),
        Ok(c) => return failed(c),
    }
    for (name, json) in calls {
        text.out(|out| {
            out.start_call(&name);
            out.arguments(&json);
            out.end_call();
        });
    }
    Ok(())
}

/// Reads objects, the first of which is opened unless this is a list. Returns what follows them. The
/// calls are kept once their text may end there.
async fn objects(
    text: &Text,
    names: &[String],
    list: bool,
    calls: &mut Vec<(String, String)>,
) -> Read<char> {
    let mut next = if list { text.solid().await? } else { '{' };
    let mut listed = Vec::new();
    while next == '{' {
        listed.push(object(text, names).await.inspect_err(|_| calls.clear())?);
        if !list {
            calls.append(&mut listed);
        }
        next = text.solid().await?;
        if list && next == ',' {
            next = text.solid().await?;
        } else if list && next == ']' {
            calls.append(&mut listed);
            return text.solid().await;
        }
    }
    Ok(next)
}

/// Reads an object behind its bracket: a known name and arguments, nothing else.
async fn object(text: &Text, names: &[String]) -> Read<(String, String)> {
    let (mut name, mut arguments) = (None, None);
    loop {
        text.expect('"').await?;
        let key = objects::string(text).await?;
        let is_name = match key.as_str() {
            "name" if name.is_none() => true,
            "arguments" | "parameters" if arguments.is_none() => false,
            _ => return failed('"'),
        };
        text.expect(':').await?;
        text.expect(if is_name { '"' } else { '{' }).await?;
        if is_name {
            let known = objects::string(text).await?;
            if !names.contains(&known) {
                return failed('"');
            }
            name = Some(known);
            text.out(Output::named);
        } else {
            let mut json = String::new();
            text.json('{', |more| json.push_str(more)).await?;
            arguments = Some(json);
        }
        match (text.solid().await?, name.take(), arguments.take()) {
            ('}', Some(name), Some(arguments)) => return Ok((name, arguments)),
            (',', old_name, old_arguments) => (name, arguments) = (old_name, old_arguments),
            (c, ..) => return failed(c),
        }
    }
}
