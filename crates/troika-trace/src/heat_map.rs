//! How often each expert of each layer was chosen, as a picture.

use std::fmt::Write;

use crate::table::escaped;

/// A row for each layer, a cell for each expert.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// The rows.
    pub rows: Vec<HeatRow>,
}

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatRow {
    /// Its name.
    pub name: String,
    /// By expert: how often it was chosen.
    pub counts: Vec<f64>,
}

/// Signs for multiples of the mean of a row: nothing, and up to each of [`LEVELS`], and more.
const SIGNS: [char; 8] = ['_', '.', ':', '-', '+', '*', '#', '@'];
const LEVELS: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0];

impl HeatRow {
    /// The counts as multiples of their mean.
    fn multiples(&self) -> impl Iterator<Item = f64> {
        let mean = self.counts.iter().sum::<f64>() / self.counts.len().max(1) as f64;
        self.counts.iter().map(move |count| if mean > 0.0 { count / mean } else { 0.0 })
    }
}

impl HeatMap {
    /// A sign for each expert, and what signs mean; nothing without rows.
    pub fn text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut out = String::from(
            "\nRows by expert, as multiples of the layer's mean: _ none, . to 1/4, : to 1/2, - to 1, \
             + to 2, * to 4, # to 8, @ more\n\n",
        );
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        for row in &self.rows {
            let signs: String = row.multiples().map(sign).collect();
            let _ = writeln!(out, "{:width$} {signs}", row.name);
        }
        out
    }

    /// A heading and a table of coloured cells; nothing without rows.
    pub fn html(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let mut out = String::from(
            "<h2>Rows by expert</h2><p>Darker: more of the layer's rows. A cell's title has the \
             figures.</p><div class=\"wide\"><table class=\"heat\">",
        );
        for row in &self.rows {
            let _ = write!(out, "<tr><td>{}", escaped(&row.name));
            for (expert, (count, multiple)) in row.counts.iter().zip(row.multiples()).enumerate() {
                // Eight times the mean is as dark as it gets.
                let strength = ((multiple + 1.0).log2() / 9.0_f64.log2()).clamp(0.0, 1.0);
                let _ = write!(
                    out,
                    "<td style=\"background:rgba(160,30,20,{strength:.2});width:{:.0}px;height:14px;\
                     padding:0\" title=\"{}, expert {expert}: {count:.0} rows, {multiple:.2} times \
                     the mean\">",
                    (900.0 / row.counts.len() as f64).clamp(4.0, 40.0),
                    escaped(&row.name)
                );
            }
        }
        out.push_str("</table></div>");
        out
    }

    /// A page of the heat map alone, with a table in text below it.
    pub fn page(&self, title: &str, figures: &str) -> String {
        let title = escaped(title);
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{}</style><h1>{title}</h1>{}<pre>{}</pre></html>\n",
            crate::page::STYLE,
            self.html(),
            escaped(figures)
        )
    }
}

fn sign(multiple: f64) -> char {
    let level = LEVELS.iter().position(|level| multiple <= *level).unwrap_or(LEVELS.len());
    if multiple > 0.0 { SIGNS[level + 1] } else { SIGNS[0] }
}

#[cfg(test)]
mod tests {
    use super::{HeatMap, HeatRow};

    #[test]
    fn signs_and_colours_are_multiples_of_the_mean() {
        let counts = vec![0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 1.0, 0.0];
        let heat = HeatMap { rows: vec![HeatRow { name: "layer <1>".into(), counts }] };
        assert!(heat.text().ends_with("\nlayer <1> _.:-+*._\n"), "{}", heat.text());
        let page = heat.page("a & b", "x < y");
        assert!(page.contains("layer &lt;1&gt;, expert 5: 16 rows, 4.00 times the mean"), "{page}");
        assert!(page.contains("a &amp; b") && page.contains("x &lt; y"));
        let none = HeatMap { rows: vec![HeatRow { name: "l".into(), counts: vec![0.0; 3] }] };
        assert!(none.text().ends_with("l ___\n"));
        assert_eq!(
            (HeatMap::default().text(), HeatMap::default().html()),
            (String::new(), String::new())
        );
    }
}
