//! A small Rust lexer: enough to tell code from comments and strings.

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Identifier or keyword.
    Ident,
    /// Any string literal, with its quotes and prefix.
    Str,
    /// Line or block comment, documentation included.
    Comment,
    /// One character of punctuation.
    Punct,
    /// Number, character or lifetime.
    Other,
}

/// A piece of source text.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Line of the first byte, counted from one.
    pub line: usize,
}

/// Cuts Rust source into tokens. Never fails: an open literal or comment ends with the text.
pub fn lex(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut tokens) = (0, 1, Vec::new());
    while at < bytes.len() {
        let (kind, end) = match next(text, at) {
            Some(piece) => piece,
            None => {
                line += usize::from(bytes[at] == b'\n');
                at += 1;
                continue;
            }
        };
        tokens.push(Token { kind, start: at, end, line });
        line += bytes[at..end].iter().filter(|b| **b == b'\n').count();
        at = end;
    }
    tokens
}

/// The token that starts here, or `None` for white space.
fn next(text: &str, at: usize) -> Option<(Kind, usize)> {
    let rest = &text[at..];
    let first = rest.chars().next()?;
    if first.is_whitespace() {
        // Multi-byte white space does not occur in practice; step over one byte of ASCII only.
        return if first.is_ascii() { None } else { Some((Kind::Other, at + first.len_utf8())) };
    }
    if rest.starts_with("//") {
        return Some((Kind::Comment, at + rest.find('\n').unwrap_or(rest.len())));
    }
    if rest.starts_with("/*") {
        return Some((Kind::Comment, at + block_comment(rest)));
    }
    if let Some(length) = string(rest) {
        return Some((Kind::Str, at + length));
    }
    if first == '\'' || rest.starts_with("b'") {
        let prefix = usize::from(first == 'b');
        return Some((Kind::Other, at + prefix + quote(&rest[prefix..])));
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if is_word(first) {
        let raw = if rest.starts_with("r#") { 2 } else { 0 };
        let word = rest[raw..].find(|c| !is_word(c)).unwrap_or(rest.len() - raw);
        let kind = if first.is_numeric() { Kind::Other } else { Kind::Ident };
        return Some((kind, at + raw + word));
    }
    Some((Kind::Punct, at + first.len_utf8()))
}

/// Length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    let bytes = rest.as_bytes();
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of a string literal that starts here, with `b`, `c` and `r#` prefixes.
fn string(rest: &str) -> Option<usize> {
    let marker = rest.find(|c| !matches!(c, 'b' | 'c' | 'r' | '#'))?;
    let prefix = &rest[..marker];
    let letters = prefix.trim_end_matches('#');
    let hashes = prefix.len() - letters.len();
    if !rest[marker..].starts_with('"') || !matches!(letters, "" | "b" | "c" | "r" | "br" | "cr") {
        return None;
    }
    let body = marker + 1;
    if letters.ends_with('r') {
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest[body..].find(&close).map_or(rest.len(), |at| body + at + close.len()));
    }
    if hashes > 0 {
        return None;
    }
    let mut escaped = false;
    for (at, c) in rest[body..].char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(body + at + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// Length of a character literal or a lifetime.
fn quote(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            let _escaped = chars.next();
            chars.find(|(_, c)| *c == '\'').map_or(rest.len(), |(at, _)| at + 1)
        }
        Some((at, c)) if rest[at + c.len_utf8()..].starts_with('\'') => at + c.len_utf8() + 1,
        _ => 1 + rest[1..].find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str, usize)> {
        lex(text).iter().map(|t| (t.kind, &text[t.start..t.end], t.line)).collect()
    }

    #[test]
    fn code_is_told_from_strings_and_comments() {
        let got = kinds("a /* x /* y */ */ \"q\\\"\" // end\nr#\"raw \" \"# b'\\'' 'a 'b' r#fn");
        let want = [
            (Kind::Ident, "a", 1),
            (Kind::Comment, "/* x /* y */ */", 1),
            (Kind::Str, "\"q\\\"\"", 1),
            (Kind::Comment, "// end", 1),
            (Kind::Str, "r#\"raw \" \"#", 2),
            (Kind::Other, "b'\\''", 2),
            (Kind::Other, "'a", 2),
            (Kind::Other, "'b'", 2),
            (Kind::Ident, "r#fn", 2),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn open_ends_do_not_loop() {
        for text in ["\"open", "/* open", "r##\"open\"#", "'", "'\\", "b'", "é\u{a0}\"\\"] {
            assert!(lex(text).iter().all(|t| t.end <= text.len()), "{text}");
        }
    }

    #[test]
    fn lines_count_through_long_tokens() {
        assert_eq!(kinds("\"a\nb\"\nc").last(), Some(&(Kind::Ident, "c", 3)));
    }
}
