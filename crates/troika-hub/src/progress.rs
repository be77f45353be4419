//! What is told while a model is fetched.

/// Events while a model is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Files are missing and will be fetched.
    Start {
        /// The model as the user named it.
        model: &'a str,
        /// Number of files.
        files: usize,
        /// Their total bytes, if the Hub tells.
        bytes: Option<u64>,
    },
    /// Progress of one file; bytes from earlier attempts count.
    File {
        /// Name in the repository.
        name: &'a str,
        /// Bytes fetched.
        done: u64,
        /// All bytes.
        total: u64,
    },
    /// A note for the user: a line of text.
    Note(&'a str),
}
