//! A Rust file for the rules: code without comments, with test code marked.

use proc_macro2::LexError;

use super::lex::{Kind, Token, lex};

/// A token of code.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// The token.
    pub token: Token,
    /// Whether it belongs to an item that is built for tests only.
    pub test: bool,
}

/// A Rust source file.
#[derive(Debug)]
pub struct SourceText {
    text: String,
    /// All tokens except comments.
    pub code: Vec<Code>,
    /// Comments, in order.
    pub comments: Vec<Token>,
}

impl SourceText {
    /// Parses Rust text; `test` marks all of it as test code.
    ///
    /// # Errors
    /// The text is not Rust.
    pub fn new(text: String, test: bool) -> Result<SourceText, LexError> {
        let (comments, code): (Vec<Token>, Vec<Token>) =
            lex(&text)?.into_iter().partition(|t| t.kind == Kind::Comment);
        let code = code.into_iter().map(|token| Code { token, test }).collect();
        let mut source = SourceText { text, code, comments };
        source.mark_tests();
        Ok(source)
    }

    /// The text of a token.
    pub fn text(&self, token: Token) -> &str {
        &self.text[token.start..token.end]
    }

    /// The text of the n-th token of code; empty past the end.
    pub fn word(&self, index: usize) -> &str {
        self.code.get(index).map_or("", |c| self.text(c.token))
    }

    /// Whether the code at an index consists of these words.
    pub fn reads(&self, index: usize, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(k, word)| self.word(index + k) == *word)
    }

    /// Code outside tests, with its index.
    pub fn plain_code(&self) -> impl Iterator<Item = (usize, Token)> + '_ {
        self.code.iter().enumerate().filter(|(_, c)| !c.test).map(|(k, c)| (k, c.token))
    }

    /// Whether a comment on this line, or up to `above` lines before it, contains one of the words.
    pub fn comment_above(&self, line: usize, above: usize, words: &[&str]) -> bool {
        self.comments.iter().any(|comment| {
            let text = self.text(*comment);
            let last = comment.line + text.matches('\n').count();
            comment.line <= line
                && last + above >= line
                && words.iter().any(|word| text.contains(word))
        })
    }

    /// Names of test-only modules in other files.
    pub fn test_modules(&self) -> Vec<&str> {
        (0..self.code.len())
            .filter(|k| self.code[*k].test && self.word(*k) == "mod" && self.word(k + 2) == ";")
            .map(|k| self.word(k + 1))
            .collect()
    }

    /// Index after the item that starts here: after its block or semicolon.
    fn item_end(&self, start: usize) -> usize {
        let (mut depth, mut at) = (0_i32, start);
        while at < self.code.len() {
            match self.word(at) {
                "{" | "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                "}" => {
                    depth -= 1;
                    if depth <= 0 {
                        return at + 1 + usize::from(self.word(at + 1) == ";");
                    }
                }
                ";" | "," if depth == 0 => return at + 1,
                _ => {}
            }
            at += 1;
        }
        at
    }

    /// Index after the attribute that starts here.
    fn attribute_end(&self, start: usize) -> usize {
        let mut depth = 0_i32;
        for at in start..self.code.len() {
            match self.word(at) {
                "[" => depth += 1,
                "]" if depth == 1 => return at + 1,
                "]" => depth -= 1,
                _ => {}
            }
        }
        self.code.len()
    }

    /// Whether this attribute excludes its item from normal builds.
    fn is_test_attribute(&self, start: usize, end: usize) -> bool {
        let words: Vec<&str> = (start..end).map(|k| self.word(k)).collect();
        match words.get(2) {
            Some(&"test") => true,
            Some(&"cfg") => words.contains(&"test") && !words.contains(&"not"),
            _ => false,
        }
    }

    fn mark_tests(&mut self) {
        let mut at = 0;
        while at < self.code.len() {
            if !self.reads(at, &["#", "["]) {
                at += 1;
                continue;
            }
            let end = self.attribute_end(at);
            if !self.is_test_attribute(at, end) {
                at = end;
                continue;
            }
            let mut item = end;
            while self.reads(item, &["#", "["]) {
                item = self.attribute_end(item);
            }
            let stop = self.item_end(item);
            for code in &mut self.code[at..stop] {
                code.test = true;
            }
            at = stop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        let source = SourceText::new(text.to_string(), false).expect("Rust");
        source.plain_code().map(|(_, t)| source.text(t)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn test_items_are_marked() {
        let text = "fn a() {} #[cfg(test)] #[allow(x)] mod tests { fn b() { c() } } fn d() {}";
        assert_eq!(plain(text), "fn a ( ) { } fn d ( ) { }");
        assert_eq!(plain("#[cfg(all(test, unix))] use a::{b, c}; x"), "x");
        assert_eq!(plain("#[test] fn t() -> u8 { [1, 2]; 3 } y"), "y");
        assert_eq!(plain("#[cfg(not(test))] fn z() {}"), "# [ cfg ( not ( test ) ) ] fn z ( ) { }");
    }

    #[test]
    fn modules_in_other_files_are_named() {
        let source =
            SourceText::new("#[cfg(test)] mod far; mod near;".to_string(), false).expect("Rust");
        assert_eq!(source.test_modules(), ["far"]);
    }
}
