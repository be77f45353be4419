//! The plain reference.

use troika_graph::{Rope, RopeFreqs, RopeStyle};

/// Rotates one head at a position, in f64 from the f32 angle on.
pub fn head(rope: &Rope, freqs: &RopeFreqs, pos: i32, x: &[f32], y: &mut [f32]) {
    y.copy_from_slice(x);
    let half = rope.rotary_dim / 2;
    for i in 0..half {
        let angle = f64::from(pos as f32 * freqs.inv_freq[i]);
        let (sin, cos) = angle.sin_cos();
        let (sin, cos) = (sin * f64::from(freqs.factor), cos * f64::from(freqs.factor));
        let (a, b) = match rope.style {
            RopeStyle::Half => (i, i + half),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (a, b) = (a + rope.offset, b + rope.offset);
        let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
        y[a] = (xa * cos - xb * sin) as f32;
        y[b] = (xb * cos + xa * sin) as f32;
    }
}
