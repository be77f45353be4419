//! Where an editor's text ends besides its stops.

use std::time::{Duration, Instant};

/// Ends a text within its lines, as llama.cpp's server does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineLimit {
    /// Spaces and tabs with which each line after the first has to begin.
    pub indent: usize,
    /// How long after the first token the next end of a line ends the text.
    pub time: Option<Duration>,
}

/// A text that grows within a limit.
#[derive(Debug)]
pub struct Lines {
    limit: LineLimit,
    /// White space of a line whose text has not begun.
    indent: Option<usize>,
    began: Option<Instant>,
}

impl Lines {
    /// An empty text.
    pub fn within(limit: LineLimit) -> Lines {
        Lines { limit, indent: None, began: None }
    }

    /// Takes more of the text. `Some`: it ends after so many bytes of this.
    pub fn end_in(&mut self, more: &str, now: Instant) -> Option<usize> {
        let began = *self.began.get_or_insert(now);
        for (at, c) in more.char_indices() {
            if let Some(indent) = &mut self.indent {
                if matches!(c, ' ' | '\t') {
                    *indent += 1;
                    continue;
                }
                if *indent < self.limit.indent {
                    return Some(at);
                }
            }
            self.indent = (c == '\n').then_some(0);
        }
        let late = self.limit.time.is_some_and(|time| now.duration_since(began) > time);
        (late && more.contains('\n')).then_some(more.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LineLimit, Lines};

    #[test]
    fn lines_are_as_deep_as_the_place() {
        let now = Instant::now();
        for (indent, text, want) in [
            (0, "a\nb\n\nc", "a\nb\n\nc"),
            (2, "a\n  b\n\t\tc", "a\n  b\n\t\tc"),
            (2, "a\n  b\n c", "a\n  b\n "),
            (2, "a\n  b\n\nc", "a\n  b\n"),
            (1, "  \n\u{a0}b", "  \n"),
        ] {
            // At once, and a character at a time.
            for parts in [vec![text], text.split_inclusive(|_| true).collect()] {
                let mut lines = Lines::within(LineLimit { indent, time: None });
                let mut got = String::new();
                for part in parts {
                    let end = lines.end_in(part, now);
                    got.push_str(&part[..end.unwrap_or(part.len())]);
                    if end.is_some() {
                        break;
                    }
                }
                assert_eq!(got, want, "{indent} {text:?}");
            }
        }
    }

    #[test]
    fn a_line_ends_a_text_that_takes_long() {
        let (now, time) = (Instant::now(), Some(Duration::from_millis(5)));
        let mut lines = Lines::within(LineLimit { indent: 0, time });
        assert_eq!(lines.end_in("a\n", now), None);
        assert_eq!(lines.end_in("b", now + Duration::from_millis(6)), None);
        assert_eq!(lines.end_in("c\nd", now + Duration::from_millis(6)), Some(3));
    }
}
