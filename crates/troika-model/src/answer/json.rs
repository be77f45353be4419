//! A strict JSON scanner that takes one character at a time and keeps no text.

/// Objects and arrays inside each other. `serde_json` reads no more either.
const DEPTH: usize = 120;

/// What opens and closes an object.
const OPEN: char = '{';
const CLOSE: char = '}';

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The value goes on.
    More,
    /// The value ended with this character.
    Done,
    /// The value, a number, ended before this character.
    DoneBefore,
    /// No JSON value has this character here.
    Bad,
}

/// Which text may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    Text { key: bool, escape: Escape },
    Literal(&'static str),
    Number(Digits),
    Nothing,
}

/// Where in an escape a string is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    Hex(u8),
}

/// Where in a number the scanner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

/// The scanner of one value.
#[derive(Clone, Debug)]
pub(super) struct JsonScanner {
    /// Whether each open bracket is an object's.
    open: Vec<bool>,
    expect: Expect,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), expect: Expect::Value }
    }

    /// Takes the next character.
    pub(super) fn next(&mut self, c: char) -> Scan {
        match self.expect {
            Expect::Text { key, escape } => self.text(c, key, escape),
            Expect::Literal(rest) => self.literal(c, rest),
            Expect::Number(digits) => self.number(c, digits),
            Expect::Nothing => Scan::Bad,
            _ if matches!(c, ' ' | '\n' | '\r' | '\t') => Scan::More,
            Expect::Value => self.value(c),
            Expect::ValueOrEnd if c == ']' => self.close(false),
            Expect::ValueOrEnd => self.value(c),
            Expect::KeyOrEnd if c == CLOSE => self.close(true),
            Expect::Key | Expect::KeyOrEnd if c == '"' => {
                self.to(Expect::Text { key: true, escape: Escape::None })
            }
            Expect::Colon if c == ':' => self.to(Expect::Value),
            Expect::CommaOrEnd => self.comma_or_end(c),
            _ => Scan::Bad,
        }
    }

    fn to(&mut self, expect: Expect) -> Scan {
        self.expect = expect;
        Scan::More
    }

    fn ended(&mut self) -> Scan {
        if self.open.is_empty() {
            self.expect = Expect::Nothing;
            return Scan::Done;
        }
        self.to(Expect::CommaOrEnd)
    }

    fn close(&mut self, object: bool) -> Scan {
        if self.open.pop() == Some(object) { self.ended() } else { Scan::Bad }
    }

    fn value(&mut self, c: char) -> Scan {
        match c {
            OPEN | '[' if self.open.len() >= DEPTH => Scan::Bad,
            OPEN => {
                self.open.push(true);
                self.to(Expect::KeyOrEnd)
            }
            '[' => {
                self.open.push(false);
                self.to(Expect::ValueOrEnd)
            }
            '"' => self.to(Expect::Text { key: false, escape: Escape::None }),
            't' => self.to(Expect::Literal("rue")),
            'f' => self.to(Expect::Literal("alse")),
            'n' => self.to(Expect::Literal("ull")),
            '-' => self.to(Expect::Number(Digits::Minus)),
            '0' => self.to(Expect::Number(Digits::Zero)),
            '1'..='9' => self.to(Expect::Number(Digits::Whole)),
            _ => Scan::Bad,
        }
    }

    fn comma_or_end(&mut self, c: char) -> Scan {
        match (c, self.open.last()) {
            (',', Some(true)) => self.to(Expect::Key),
            (',', Some(false)) => self.to(Expect::Value),
            (CLOSE, _) => self.close(true),
            (']', _) => self.close(false),
            _ => Scan::Bad,
        }
    }

    fn text(&mut self, c: char, key: bool, escape: Escape) -> Scan {
        let escape = match (escape, c) {
            (Escape::None, '"') if key => return self.to(Expect::Colon),
            (Escape::None, '"') => return self.ended(),
            (Escape::None, '\\') => Escape::Backslash,
            (Escape::None, c) if c >= ' ' => Escape::None,
            (Escape::Backslash, 'u') => Escape::Hex(4),
            (Escape::Backslash, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Hex(1), c) if c.is_ascii_hexdigit() => Escape::None,
            (Escape::Hex(left), c) if c.is_ascii_hexdigit() => Escape::Hex(left - 1),
            _ => return Scan::Bad,
        };
        self.to(Expect::Text { key, escape })
    }

    fn literal(&mut self, c: char, rest: &'static str) -> Scan {
        match rest.strip_prefix(c) {
            Some("") => self.ended(),
            Some(rest) => self.to(Expect::Literal(rest)),
            None => Scan::Bad,
        }
    }

    fn number(&mut self, c: char, digits: Digits) -> Scan {
        use Digits::{Exponent, Fraction, Minus, Point, Power, Sign, Whole, Zero};
        let next = match (digits, c) {
            (Minus, '0') => Zero,
            (Minus | Whole, '0'..='9') => Whole,
            (Zero | Whole, '.') => Point,
            (Point | Fraction, '0'..='9') => Fraction,
            (Zero | Whole | Fraction, 'e' | 'E') => Exponent,
            (Exponent, '+' | '-') => Sign,
            (Exponent | Sign | Power, '0'..='9') => Power,
            (Zero | Whole | Fraction | Power, _) => return self.after_number(c),
            _ => return Scan::Bad,
        };
        self.to(Expect::Number(next))
    }

    fn after_number(&mut self, c: char) -> Scan {
        if self.ended() == Scan::Done { Scan::DoneBefore } else { self.next(c) }
    }
}

#[cfg(test)]
mod tests {
    use super::{JsonScanner, Scan};

    /// Whether the scanner takes the whole text as one value.
    fn takes(text: &str) -> bool {
        let mut scanner = JsonScanner::new();
        let end = text.chars().count() - 1;
        for (at, c) in text.chars().enumerate() {
            match scanner.next(c) {
                Scan::More => {}
                Scan::Done => return at == end,
                Scan::DoneBefore | Scan::Bad => return false,
            }
        }
        scanner.next('\n') == Scan::DoneBefore
    }

    #[test]
    fn takes_what_serde_json_takes_and_nothing_else() {
        let texts = [
            "{}",
            "[]",
            "[1, -0.5e+3, 0, 10]",
            r#"{"a": {"b": [true, false, null]}, "c": "\u00e9\"\\"}"#,
            "\"ü\"",
            "12",
            "-0",
            "01",
            "1.",
            "[1,]",
            r#"{"a" 1}"#,
            r#"{"a": 1,}"#,
            r#"{a: 1}"#,
            r#"{"a": tru}"#,
            r#"{"a": "\x"}"#,
            "{\"a\": \"\n\"}",
            "[}",
            "{]",
            "1e",
            "[1 2]",
            "--1",
            "+1",
            "nul",
        ];
        for text in texts {
            let parses = serde_json::from_str::<serde_json::Value>(text).is_ok();
            assert_eq!(takes(text), parses, "{text}");
        }
    }

    #[test]
    fn refuses_what_nests_too_deep() {
        let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(takes(&deep(100)));
        assert!(!takes(&deep(200)));
    }
}
