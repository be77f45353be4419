//! Rust source as a flat list of tokens, comments included.
//!
//! `proc-macro2` reads the code but drops plain comments, which some rules need: they are found
//! between two of its tokens. It turns documentation into attributes, whose source is a comment
//! again.

use std::ops::Range;

use proc_macro2::{LexError, Spacing, TokenStream, TokenTree};

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Identifier or keyword.
    Ident,
    /// Any string literal, with its quotes and prefix.
    Str,
    /// A line of a comment, documentation included.
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

/// Cuts Rust source into tokens.
///
/// # Errors
/// The text is not Rust: an open literal or comment, or mismatched brackets.
pub fn lex(text: &str) -> Result<Vec<Token>, LexError> {
    let mut code = Vec::new();
    flatten(text, text.parse()?, &mut code);
    let mut lexer = Lexer { text, at: 0, line: 1, tokens: Vec::with_capacity(code.len()) };
    for (kind, range) in code {
        lexer.comments_until(range.start);
        lexer.push(kind, range);
    }
    lexer.comments_until(text.len());
    Ok(lexer.tokens)
}

/// The tokens of code and documentation in source order.
fn flatten(text: &str, stream: TokenStream, out: &mut Vec<(Kind, Range<usize>)>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let range = tree.span().byte_range();
        match tree {
            TokenTree::Ident(_) => out.push((Kind::Ident, range)),
            TokenTree::Literal(_) => {
                let kind =
                    if text[range.clone()].contains('"') && !text[range.clone()].ends_with('\'') {
                        Kind::Str
                    } else {
                        Kind::Other
                    };
                out.push((kind, range));
            }
            TokenTree::Punct(_) if text[range.clone()].starts_with('/') && range.len() > 1 => {
                // Documentation: `#`, `!` if it is an inner one, and a bracket group, all with the
                // comment's location.
                while trees.next_if(|t| t.span().byte_range() == range).is_some() {}
                out.push((Kind::Comment, range));
            }
            TokenTree::Punct(p) if p.as_char() == '\'' && p.spacing() == Spacing::Joint => {
                let end = trees.next().map_or(range.end, |name| name.span().byte_range().end);
                out.push((Kind::Other, range.start..end));
            }
            TokenTree::Punct(_) => out.push((Kind::Punct, range)),
            TokenTree::Group(group) => {
                out.push((Kind::Punct, group.span_open().byte_range()));
                flatten(text, group.stream(), out);
                out.push((Kind::Punct, group.span_close().byte_range()));
            }
        }
    }
}

/// Inserts comments between tokens of code and counts lines.
struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    fn push(&mut self, kind: Kind, range: Range<usize>) {
        let Range { start, end } = range;
        self.tokens.push(Token { kind, start, end, line: self.line });
        self.step(end);
    }

    fn step(&mut self, to: usize) {
        self.line += self.text[self.at..to].matches('\n').count();
        self.at = to;
    }

    /// Only white space and comments can be between two tokens.
    fn comments_until(&mut self, end: usize) {
        let gap = self.at..end;
        for line in self.text[gap].split_inclusive('\n') {
            let (from, comment) = (self.at, line.trim());
            if !comment.is_empty() {
                let start = from + line.len() - line.trim_start().len();
                self.step(start);
                self.push(Kind::Comment, start..start + comment.len());
            }
            self.step(from + line.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str, usize)> {
        lex(text).expect("Rust").iter().map(|t| (t.kind, &text[t.start..t.end], t.line)).collect()
    }

    #[test]
    fn code_is_told_from_strings_and_comments() {
        let got = kinds(
            "a /* x /* y */ */ \"q\\\"\" // end\nr#\"raw \" \"# b'\\'' &'a b'\"' r#fn [1.5]\n\
             /// doc\n//! inner\n\n  // é\n// last",
        );
        let want = [
            (Kind::Ident, "a", 1),
            (Kind::Comment, "/* x /* y */ */", 1),
            (Kind::Str, "\"q\\\"\"", 1),
            (Kind::Comment, "// end", 1),
            (Kind::Str, "r#\"raw \" \"#", 2),
            (Kind::Other, "b'\\''", 2),
            (Kind::Punct, "&", 2),
            (Kind::Other, "'a", 2),
            (Kind::Other, "b'\"'", 2),
            (Kind::Ident, "r#fn", 2),
            (Kind::Punct, "[", 2),
            (Kind::Other, "1.5", 2),
            (Kind::Punct, "]", 2),
            (Kind::Comment, "/// doc", 3),
            (Kind::Comment, "//! inner", 4),
            (Kind::Comment, "// é", 6),
            (Kind::Comment, "// last", 7),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn what_is_no_rust_is_an_error() {
        for text in ["\"open", "/* open", "r##\"open\"#", "fn f( {"] {
            assert!(lex(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lines_count_through_long_tokens() {
        assert_eq!(kinds("\"a\nb\"\n/* c\nd */ e").last(), Some(&(Kind::Ident, "e", 4)));
    }
}
