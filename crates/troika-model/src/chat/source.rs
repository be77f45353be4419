//! Changes of a template's text before it is compiled.

use super::namespace::SET;

/// Turns what minijinja does not know, or must not do itself, into what it does, keeping the signs
/// that control white space:
/// - `{% generation %}`, a mark for training that changes no text, becomes `{% if true %}`;
/// - `{% set ns.name = value %}` becomes a call of our namespaces' method.
///
/// Also returns the length of the longest tag.
///
/// Other tags, texts, comments and raw blocks are not changed. An assignment that were missed would
/// be an error: minijinja assigns only to namespaces of its own.
pub(super) fn plain_tags(source: &str) -> (String, usize) {
    let mut longest = 0;
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    // One pass, since a separate search for each kind of tag would reread the rest for every tag.
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let close = match tag.as_bytes().get(1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => "#}",
            _ => {
                out.push('{');
                rest = &tag[1..];
                continue;
            }
        };
        let Some(end) = tag_end(tag, close) else {
            (rest, longest) = (tag, longest.max(tag.len()));
            break;
        };
        let (tag, after) = tag.split_at(end);
        rest = after;
        longest = longest.max(if close == "#}" { 0 } else { end });
        let inner = tag[2..end - 2].trim_matches(['-', '+']).trim();
        match (close, inner) {
            ("%}", "generation") => out.push_str(&tag.replacen("generation", "if true", 1)),
            ("%}", "endgeneration") => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            ("%}", "raw") => {
                let (raw, after) = rest.split_at(rest.find("endraw").unwrap_or(rest.len()));
                out.extend([tag, raw]);
                rest = after;
            }
            ("%}", _) => match assignment(inner) {
                Some(call) => out.push_str(&tag.replacen(inner, &call, 1)),
                None => out.push_str(tag),
            },
            _ => out.push_str(tag),
        }
    }
    (out + rest, longest)
}

/// The end of a tag. Its closing sign in a string of the tag does not count, but in a comment.
fn tag_end(tag: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut bytes = tag.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        match (byte, quote) {
            (b'\'' | b'"', None) if close != "#}" => quote = Some(byte),
            (b'\\', Some(_)) => drop(bytes.next()),
            (_, Some(open)) if byte == open => quote = None,
            (_, None) if tag.as_bytes()[at..].starts_with(close.as_bytes()) => return Some(at + 2),
            _ => {}
        }
    }
    None
}

/// `set a.b = value` as a call.
fn assignment(inner: &str) -> Option<String> {
    let rest = inner.strip_prefix("set")?.strip_prefix(char::is_whitespace)?;
    let (target, value) = rest.split_once('=')?;
    let (object, name) = target.trim().rsplit_once('.')?;
    let is_name = |s: &str| s.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    let names = is_name(object) && is_name(name);
    names.then(|| format!("do {object}.{SET}('{name}', ({}))", value.trim()))
}
