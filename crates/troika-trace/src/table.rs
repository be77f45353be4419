//! Tables in Markdown.

use std::fmt::Write;

/// Some columns of text, then columns of numbers.
pub(crate) struct Table {
    /// The names of columns of text, the first one for names.
    pub texts: Vec<&'static str>,
    pub numbers: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Markdown, with an empty line before it; nothing without rows.
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let heads: Vec<&str> = self.texts.iter().chain(&self.numbers).copied().collect();
        let lines = self.texts.iter().map(|_| "---").chain(self.numbers.iter().map(|_| "---:"));
        let lines: Vec<&str> = lines.collect();
        let mut out = format!("\n| {} |\n| {} |\n", heads.join(" | "), lines.join(" | "));
        for row in &self.rows {
            let _ = writeln!(out, "| {} |", row.join(" | "));
        }
        out
    }
}
