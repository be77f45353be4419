//! The text of an answer, and what the readers of call formats have in common.
//!
//! A reader is an asynchronous function that waits for the next character. So a format reads as it
//! is written, and the text may be cut anywhere.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use troika_device::lock;

use super::json::{JsonScanner, Scan};
use super::output::Output;

/// No name of a tool and no other head of a call is longer.
const HEAD: usize = 512;
/// A text without a name after this many bytes does not count as a call.
const UNNAMED: usize = 16 << 10;

/// Why a call was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// This is not a call. The text is what no argument holds.
    Failed(String),
    /// The text has ended.
    Ended,
}

pub(super) type Read<T> = Result<T, Stopped>;

/// This is not a call, as `c` shows.
pub(super) fn failed<T>(c: char) -> Read<T> {
    Err(Stopped::Failed(c.to_string()))
}

#[derive(Default)]
struct TextState {
    input: VecDeque<char>,
    ended: bool,
    out: Output,
}

/// The text that has come and was not read yet, with what was found in it.
#[derive(Clone, Default)]
pub(super) struct Text(Arc<Mutex<TextState>>);

impl Text {
    pub(super) fn out<T>(&self, change: impl FnOnce(&mut Output) -> T) -> T {
        change(&mut lock(&self.0).out)
    }

    pub(super) fn push(&self, text: &str) {
        lock(&self.0).input.extend(text.chars());
    }

    pub(super) fn end(&self) {
        lock(&self.0).ended = true;
    }

    /// The next character, or nothing at the end.
    pub(super) async fn any(&self) -> Option<char> {
        poll_fn(|_| {
            let mut state = lock(&self.0);
            match state.input.pop_front() {
                None if !state.ended => Poll::Pending,
                next => Poll::Ready(next),
            }
        })
        .await
    }

    /// The next character of a call.
    pub(super) async fn next(&self) -> Read<char> {
        let c = self.any().await.ok_or(Stopped::Ended)?;
        let unnamed = self.out(|out| {
            out.record(c);
            out.unnamed()
        });
        if unnamed > UNNAMED { failed(c) } else { Ok(c) }
    }

    /// The next character that is not white space.
    pub(super) async fn solid(&self) -> Read<char> {
        loop {
            let c = self.next().await?;
            if !c.is_whitespace() {
                return Ok(c);
            }
        }
    }

    /// White space and this character.
    pub(super) async fn expect(&self, expected: char) -> Read<()> {
        let c = self.solid().await?;
        if c == expected { Ok(()) } else { failed(c) }
    }

    /// Text that is read again.
    pub(super) fn unread(&self, text: &str) {
        let mut state = lock(&self.0);
        for c in text.chars().rev() {
            state.out.forget();
            state.input.push_front(c);
        }
    }

    /// White space and one of these markers.
    pub(super) async fn marker(&self, markers: &[&'static str]) -> Read<&'static str> {
        let mut seen = String::new();
        loop {
            seen.push(self.next().await?);
            let rest = seen.trim_start();
            if let Some(marker) = markers.iter().find(|marker| **marker == rest) {
                return Ok(marker);
            }
            if !markers.iter().any(|marker| marker.starts_with(rest)) {
                return Err(Stopped::Failed(seen));
            }
        }
    }

    /// White space and one of these markers, or nothing before other text: the call is complete.
    pub(super) async fn marker_after_call(
        &self,
        markers: &[&'static str],
    ) -> Read<Option<&'static str>> {
        match self.marker(markers).await {
            Err(Stopped::Failed(seen)) => {
                self.unread(&seen);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Text up to one of these markers, and the marker.
    pub(super) async fn until(&self, markers: &[&'static str]) -> Read<(String, &'static str)> {
        let mut seen = String::new();
        while seen.len() <= HEAD {
            seen.push(self.next().await?);
            for marker in markers {
                if let Some(head) = seen.strip_suffix(marker) {
                    return Ok((head.trim().to_owned(), marker));
                }
            }
        }
        Err(Stopped::Failed(seen))
    }

    /// A JSON value from its first character.
    pub(super) async fn json(&self, first: char, mut take: impl FnMut(&str)) -> Read<()> {
        let mut scanner = JsonScanner::new();
        let mut c = first;
        loop {
            let scan = scanner.next(c);
            if matches!(scan, Scan::More | Scan::Done) {
                take(c.encode_utf8(&mut [0; 4]));
            }
            match scan {
                Scan::More => c = self.next().await?,
                Scan::Done => return Ok(()),
                Scan::DoneBefore => {
                    self.unread(c.encode_utf8(&mut [0; 4]));
                    return Ok(());
                }
                Scan::Bad => return failed(c),
            }
        }
    }

    /// The arguments of a call of this tool: an object.
    pub(super) async fn arguments(&self, tool: &str) -> Read<()> {
        self.expect('{').await?;
        self.out(|out| out.start_call(tool));
        self.json('{', |json| self.out(|out| out.arguments(json))).await?;
        self.out(Output::end_call);
        Ok(())
    }
}

/// The name of a tool, unless this is none.
pub(super) fn tool_name(name: &str) -> Read<&str> {
    let other = |c: char| c.is_whitespace() || matches!(c, '<' | '{' | '[' | '"');
    if name.is_empty() || name.contains(other) {
        return Err(Stopped::Failed(name.to_owned()));
    }
    Ok(name)
}
