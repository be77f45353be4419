//! The tokens of fill in the middle.

/// The tokens that ask for the text between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FimTokens {
    /// Before the text that precedes.
    pub prefix: u32,
    /// Before the text that follows.
    pub suffix: u32,
    /// After both.
    pub middle: u32,
    /// Before a repository's name.
    pub repo: Option<u32>,
    /// Before a file's name.
    pub file: Option<u32>,
    /// Fills up.
    pub pad: Option<u32>,
}

impl FimTokens {
    /// All of them: none belongs to an answer.
    pub fn all(self) -> impl Iterator<Item = u32> {
        let all = [Some(self.prefix), Some(self.suffix), Some(self.middle)];
        all.into_iter().chain([self.repo, self.file, self.pad]).flatten()
    }
}
