//! How often each expert of each layer was chosen, as a picture in text.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Signs for multiples of the mean of a row: nothing, and up to each of [`LEVELS`], and more.
const SIGNS: [char; 8] = ['_', '.', ':', '-', '+', '*', '#', '@'];
const LEVELS: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0];

/// A sign for each expert of each layer, by how often it was chosen, and what signs mean; nothing
/// without layers.
pub fn heat_map(layers: &BTreeMap<usize, Vec<f64>>) -> String {
    let Some(last) = layers.keys().last() else {
        return String::new();
    };
    let mut out = String::from(
        "\nRows by expert, as multiples of the layer's mean: _ none, . to 1/4, : to 1/2, - to 1, \
         + to 2, * to 4, # to 8, @ more\n\n",
    );
    let width = last.to_string().len();
    for (layer, counts) in layers {
        let mean = counts.iter().sum::<f64>() / counts.len().max(1) as f64;
        let of_mean = |count: &f64| sign(if mean > 0.0 { count / mean } else { 0.0 });
        let signs: String = counts.iter().map(of_mean).collect();
        let _ = writeln!(out, "layer {layer:<width$} {signs}");
    }
    out
}

fn sign(multiple: f64) -> char {
    let level = LEVELS.iter().position(|level| multiple <= *level).unwrap_or(LEVELS.len());
    if multiple > 0.0 { SIGNS[level + 1] } else { SIGNS[0] }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::heat_map;

    #[test]
    fn signs_are_multiples_of_the_mean() {
        let counts = vec![0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 1.0, 0.0];
        let heat = heat_map(&BTreeMap::from([(1, counts)]));
        assert!(heat.ends_with("\nlayer 1 _.:-+*._\n"), "{heat}");
        let none = heat_map(&BTreeMap::from([(10, vec![1.0]), (9, vec![0.0; 3])]));
        assert!(none.ends_with("\nlayer 9  ___\nlayer 10 -\n"), "{none}");
        assert_eq!(heat_map(&BTreeMap::new()), "");
    }
}
