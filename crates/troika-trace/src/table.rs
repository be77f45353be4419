//! Tables, in text and for a page.

use std::fmt::Write;

/// Some columns of text, then columns of numbers.
pub(crate) struct Table {
    pub title: &'static str,
    /// The names of columns of text, the first one for names.
    pub texts: Vec<&'static str>,
    pub numbers: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Whether names have their colours of the timeline.
    pub coloured: bool,
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

    /// A heading and the table; nothing without rows.
    pub fn html(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut out = format!("<h2>{}</h2><table><tr>", self.title);
        for head in self.texts.iter().chain(&self.numbers) {
            let _ = write!(out, "<th>{head}");
        }
        for row in &self.rows {
            out.push_str("<tr>");
            for (i, cell) in row.iter().enumerate() {
                let cell_of = if i < self.texts.len() { "<td>" } else { "<td class=\"n\">" };
                out.push_str(cell_of);
                if self.coloured && i == 0 {
                    let _ = write!(out, "<i style=\"background:{}\"></i>", colour(cell));
                }
                out.push_str(&escaped(cell));
            }
        }
        out.push_str("</table>");
        out
    }
}

/// A colour that is the same for the same name, without the digits of layers and chunks.
pub(crate) fn colour(name: &str) -> String {
    let letters = name.bytes().filter(|b| !b.is_ascii_digit());
    let hash = letters.fold(7_u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    format!("hsl({},{}%,{}%)", hash % 360, 45 + hash / 360 % 25, 48 + hash / 9000 % 15)
}

pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}
