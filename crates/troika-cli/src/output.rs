//! Writes the answer, and nothing else, to standard output.
//!
//! Text from a model's files (names of tensors, messages of a template) and generated text is
//! untrusted. A terminal would obey control characters in it: set its title, move the cursor,
//! rewrite earlier output. So all text is escaped here (`\u{1b}`), except generated text that goes
//! to a file or a pipe, which stays unchanged. JSON has escapes of its own (`\u001b`), so all JSON
//! goes through [`json_document`].

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Value;
use troika::npu::own_stdout;

use crate::error::CliError;

/// Characters that affect a terminal's display instead of being shown: controls (C0, DEL, C1), and
/// those that change the writing direction or break lines.
fn hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with some of its characters written in another way.
fn replaced(
    text: &str,
    which: impl Fn(char) -> bool,
    write: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(&which) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if which(c) { write(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

fn escaped(text: &str, spare: impl Fn(char) -> bool) -> Cow<'_, str> {
    replaced(text, |c| hostile(c) && !spare(c), |c, out| out.extend(c.escape_unicode()))
}

/// Text from a file or a server as part of a line: it cannot begin a new line.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// The command's own lines, which may quote untrusted text.
fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n' || c == '\t')
}

/// Generated text on a terminal. Writing from right to left is harmless here.
fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c == '\n' || c == '\t' || !c.is_control())
}

/// Standard output, once libraries may print there, too.
static OWN: OnceLock<File> = OnceLock::new();

/// Keeps what libraries print out of standard output. Where that cannot be, they print there.
pub fn keep_apart() {
    if OWN.get().is_none()
        && let Ok(own) = own_stdout()
    {
        let _ = OWN.set(own);
    }
}

fn put(text: &str) -> Result<(), CliError> {
    let all = |out: &mut dyn Write| out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match OWN.get() {
        Some(mut own) => all(&mut own),
        None => all(&mut io::stdout().lock()),
    }
    .map_err(CliError::Stdout)
}

/// Writes the command's own lines.
pub fn write(text: &str) -> Result<(), CliError> {
    put(&lines(text))
}

/// Writes generated text and flushes, so that it streams.
pub fn answer(text: &str) -> Result<(), CliError> {
    let terminal = OWN.get().map_or_else(|| io::stdout().is_terminal(), File::is_terminal);
    if terminal { put(&shown(text)) } else { put(text) }
}

/// Writes a JSON value on separate lines.
pub fn json(value: &Value) -> Result<(), CliError> {
    json_document(&format!("{value:#}\n"))
}

/// Writes a JSON value as one line among others.
pub fn json_line(value: &Value) -> Result<(), CliError> {
    json_document(&format!("{value}\n"))
}

/// Writes JSON that is text already, or a part of such a text.
pub fn json_document(json: &str) -> Result<(), CliError> {
    put(&json_text(json))
}

/// JSON as it is printed, and written to files that people look at. JSON escapes C0 itself; the
/// other characters that a terminal obeys can only be in strings, where JSON's own escapes stand
/// for the same text.
pub fn json_text(json: &str) -> Cow<'_, str> {
    replaced(
        json,
        |c| hostile(c) && c != '\n',
        |c, out| {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        },
    )
}

/// Tells the user something besides the answer. Failing to write it is not an error.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(lines(text).as_bytes());
}

/// A line besides the answer, which may quote untrusted text.
pub fn note_line(text: &str) {
    note(&format!("{}\n", printable(&shortened(text))));
}

/// Warnings, each in a line besides the answer.
pub fn warn(warnings: impl IntoIterator<Item = impl Display>) {
    warnings.into_iter().for_each(|warning| note_line(&format!("warning: {warning}")));
}

/// A message of readable length. Messages may quote long values from a model's files: keeps the
/// beginning and the end, where the advice is.
pub fn shortened(text: &str) -> Cow<'_, str> {
    const BEGINNING: usize = 1600;
    const END: usize = 400;
    if text.chars().nth(BEGINNING + END).is_none() {
        return Cow::Borrowed(text);
    }
    let at = |(at, _): (usize, char)| at;
    let first = text.char_indices().nth(BEGINNING).map_or(text.len(), at);
    let last = text.char_indices().nth_back(END - 1).map_or(0, at);
    Cow::Owned(format!("{} ... {}", &text[..first], &text[last..]))
}

/// A number of bytes for people.
pub fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 30 => format!("{:.2} GiB", n as f64 / (1u64 << 30) as f64),
        n if n >= 1 << 20 => format!("{:.2} MiB", n as f64 / (1u64 << 20) as f64),
        n => format!("{:.1} KiB", n as f64 / 1024.0),
    }
}

/// The last part of a path.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// How long ago something was, for people.
pub fn age(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::{hostile, json_text, lines, printable, shortened, shown};

    const TEXT: &str = "a\x1b]0;t\x07b\tc\nd\re\u{7f}\u{9b}2J\u{202e}é日";

    #[test]
    fn controls_are_shown_not_obeyed() {
        let common = r"a\u{1b}]0;t\u{7}b";
        assert_eq!(
            printable(TEXT),
            format!(r"{common}\u{{9}}c\u{{a}}d\u{{d}}e\u{{7f}}\u{{9b}}2J\u{{202e}}é日")
        );
        assert_eq!(lines(TEXT), format!("{common}\tc\nd{}", r"\u{d}e\u{7f}\u{9b}2J\u{202e}é日"));
        assert_eq!(shown(TEXT), format!("{common}\tc\nd{}\u{202e}é日", r"\u{d}e\u{7f}\u{9b}2J"));
    }

    #[test]
    fn long_messages_keep_their_ends() {
        let whole = "é".repeat(2000);
        assert_eq!(shortened(&whole), whole);
        let long = format!("file: {}; do this", "é".repeat(1_000_000));
        let short = shortened(&long);
        assert!(short.starts_with("file: é") && short.ends_with("é; do this"), "{short}");
        assert_eq!(short.chars().count(), 2005);
    }

    #[test]
    fn json_holds_the_same_value_without_controls() {
        let value = serde_json::json!({ TEXT: [TEXT] });
        for form in [format!("{value}"), format!("{value:#}")] {
            let text = json_text(&form);
            assert!(!text.contains(|c: char| hostile(c) && c != '\n'), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
