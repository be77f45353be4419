//! How often each expert of each layer was chosen, as a picture in text.

use std::fmt::Write;

/// A layer: a cell of the picture for each expert.
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

/// A sign for each expert of each layer, and what signs mean; nothing without layers.
pub fn heat_map(rows: &[HeatRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "\nRows by expert, as multiples of the layer's mean: _ none, . to 1/4, : to 1/2, - to 1, \
         + to 2, * to 4, # to 8, @ more\n\n",
    );
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    for row in rows {
        let signs: String = row.multiples().map(sign).collect();
        let _ = writeln!(out, "{:width$} {signs}", row.name);
    }
    out
}

fn sign(multiple: f64) -> char {
    let level = LEVELS.iter().position(|level| multiple <= *level).unwrap_or(LEVELS.len());
    if multiple > 0.0 { SIGNS[level + 1] } else { SIGNS[0] }
}

#[cfg(test)]
mod tests {
    use super::{HeatRow, heat_map};

    #[test]
    fn signs_are_multiples_of_the_mean() {
        let counts = vec![0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 1.0, 0.0];
        let heat = heat_map(&[HeatRow { name: "layer 1".into(), counts }]);
        assert!(heat.ends_with("\nlayer 1 _.:-+*._\n"), "{heat}");
        let none = heat_map(&[HeatRow { name: "l".into(), counts: vec![0.0; 3] }]);
        assert!(none.ends_with("l ___\n"));
        assert_eq!(heat_map(&[]), "");
    }
}
