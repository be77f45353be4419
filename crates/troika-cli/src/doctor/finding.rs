//! What a check finds.

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingState {
    /// As it should be.
    Fine,
    /// It works, and could work better.
    Improvable,
    /// It cannot be used.
    Missing,
}

impl FindingState {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            FindingState::Fine => "ok",
            FindingState::Improvable => "can be better",
            FindingState::Missing => "missing",
        }
    }
}

/// What a check finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub topic: &'static str,
    /// How it is.
    pub state: FindingState,
    /// What was seen.
    pub says: String,
    /// The command that mends it.
    pub fix: Option<String>,
    /// Whether models run without it.
    pub optional: bool,
}

impl Finding {
    /// Something that is as it should be.
    pub fn fine(topic: &'static str, says: impl Into<String>) -> Finding {
        let (says, state) = (says.into(), FindingState::Fine);
        Finding { topic, state, says, fix: None, optional: true }
    }

    /// Something that could be better.
    pub fn improvable(topic: &'static str, says: impl Into<String>) -> Finding {
        Finding { state: FindingState::Improvable, ..Finding::fine(topic, says) }
    }

    /// Something that cannot be used.
    pub fn missing(topic: &'static str, says: impl Into<String>) -> Finding {
        Finding { state: FindingState::Missing, ..Finding::fine(topic, says) }
    }

    /// With the command that mends it.
    pub fn mended_by(self, fix: impl Into<String>) -> Finding {
        Finding { fix: Some(fix.into()), ..self }
    }
}
