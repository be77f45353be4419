//! What the parsers of call formats have in common.

use super::output::Output;

/// What a character did to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The call goes on.
    More,
    /// The call and its markers are complete.
    Done,
    /// The call was complete before this text, which is none of it.
    Spill(String),
    /// This is not a call. The text is what no argument holds.
    Failed(String),
}

/// Reads calls of one format, from behind the marker that opens them.
pub(super) trait CallParser: Send {
    /// Takes the next character.
    fn next(&mut self, c: char, out: &mut Output) -> Progress;

    /// The text has ended. Returns text that does not belong to a call, or nothing if a call is
    /// unfinished.
    fn finish(&mut self, out: &mut Output) -> Option<String>;
}

/// A marker that ends calls, with white space before it, or something else.
#[derive(Debug)]
pub(super) struct Tail {
    marker: &'static str,
    seen: String,
}

impl Tail {
    pub(super) fn new(marker: &'static str) -> Self {
        Self { marker, seen: String::new() }
    }

    pub(super) fn next(&mut self, c: char) -> Progress {
        self.seen.push(c);
        let rest = self.seen.trim_start();
        if rest == self.marker {
            Progress::Done
        } else if self.marker.starts_with(rest) {
            Progress::More
        } else {
            Progress::Spill(std::mem::take(&mut self.seen))
        }
    }

    /// The beginning of a marker that did not come.
    pub(super) fn finish(&mut self) -> String {
        let seen = std::mem::take(&mut self.seen);
        if seen.trim().is_empty() { String::new() } else { seen }
    }
}
