//! What a reader has found and not handed out yet.

/// A piece of an answer, in the order of the model's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text for the reader of the answer.
    Content(String),
    /// Text that the model wrote to itself.
    Reasoning(String),
    /// A call begins.
    CallStart {
        /// The call's place among the calls of this answer.
        index: usize,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// The call that they belong to.
        index: usize,
        /// The next characters of a JSON object.
        json: String,
    },
}

/// Adds a delta, joined with the last one if they belong together.
pub(super) fn append(deltas: &mut Vec<Delta>, delta: Delta) {
    match (deltas.last_mut(), delta) {
        (Some(Delta::Content(last)), Delta::Content(text))
        | (Some(Delta::Reasoning(last)), Delta::Reasoning(text)) => last.push_str(&text),
        (
            Some(Delta::CallArguments { index: last, json }),
            Delta::CallArguments { index, json: more },
        ) if *last == index => json.push_str(&more),
        (_, delta) => deltas.push(delta),
    }
}

/// Collects deltas. Keeps the text of a call that may yet turn out to be none.
#[derive(Debug, Default)]
pub(super) struct Output {
    deltas: Vec<Delta>,
    /// Whether calls are handed out only when complete.
    pub(super) whole: bool,
    held: Vec<Delta>,
    /// The text of the call so far, while it can still become content.
    raw: String,
    recording: bool,
    started: bool,
    /// Whether the call has a name, so that it may have any length.
    named: bool,
    calls: usize,
}

impl Output {
    pub(super) fn take(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }

    pub(super) fn text(&mut self, text: &str, thought: bool) {
        let delta = if thought { Delta::Reasoning } else { Delta::Content };
        if !text.is_empty() {
            append(&mut self.deltas, delta(text.to_owned()));
        }
    }

    /// What follows `raw` may be a call.
    pub(super) fn open(&mut self, raw: &str) {
        self.raw = raw.to_owned();
        (self.recording, self.started, self.named) = (true, false, false);
    }

    /// A character of a call, or of what may be one.
    pub(super) fn record(&mut self, c: char) {
        if self.recording {
            self.raw.push(c);
        }
    }

    /// A recorded character that will come again.
    pub(super) fn forget(&mut self) {
        if self.recording {
            self.raw.pop();
        }
    }

    /// Bytes kept of a call that has no name yet.
    pub(super) fn unnamed(&self) -> usize {
        if self.started || self.named { 0 } else { self.raw.len() }
    }

    /// The call has a name, but cannot start yet.
    pub(super) fn named(&mut self) {
        self.named = true;
    }

    pub(super) fn start_call(&mut self, name: &str) {
        let delta = Delta::CallStart { index: self.calls, name: name.to_owned() };
        self.started = true;
        if self.whole {
            self.held.push(delta);
        } else {
            self.deltas.push(delta);
            self.raw.clear();
            self.recording = false;
        }
    }

    pub(super) fn arguments(&mut self, json: &str) {
        if !json.is_empty() {
            let delta = Delta::CallArguments { index: self.calls, json: json.to_owned() };
            append(if self.whole { &mut self.held } else { &mut self.deltas }, delta);
        }
    }

    /// The call is complete. Another may follow in the same markers.
    pub(super) fn end_call(&mut self) {
        for delta in self.held.drain(..) {
            append(&mut self.deltas, delta);
        }
        self.calls += 1;
        self.open("");
    }

    /// Whether a call is complete.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// No call follows, or no more.
    pub(super) fn close(&mut self) {
        self.recording = false;
        self.raw.clear();
    }

    /// What was taken for a call is none: returns its text, unless a part is handed out already.
    pub(super) fn abandon(&mut self) -> Option<String> {
        self.held.clear();
        self.recording = false;
        if self.started && !self.whole {
            self.started = false;
            self.calls += 1;
            return None;
        }
        self.started = false;
        Some(std::mem::take(&mut self.raw))
    }
}
