//! Sines and cosines of a row's angles, without calls, so that the compiler can use the lanes of
//! whatever instruction set is switched on. All steps are plain f64 arithmetic, so every machine
//! gives the same bits.

use troika_graph::RopeFreqs;

/// Adding and subtracting it rounds to a whole number, whose bits are then the lowest ones.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// Pi/2 in two parts (fdlibm): the first has 33 bits, so a whole number below 2^20 times it is
/// exact.
const HALF_PI: [f64; 2] = [1.570_796_326_734_125_6, 6.077_100_506_506_192e-11];

/// `sin` and `cos` of `x` with an error under 3e-9, for `|x|` up to a million.
#[inline(always)]
fn sin_cos(x: f64) -> (f64, f64) {
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let quadrant = shifted.to_bits();
    let n = shifted - ROUND;
    let r = (x - n * HALF_PI[0]) - n * HALF_PI[1];
    let z = r * r;
    // Taylor's series: |r| is at most pi/4.
    let sin = r + r * z * (-1.0 / 6.0 + z * (1.0 / 120.0 + z * (-1.0 / 5040.0 + z / 362_880.0)));
    let cos = 1.0
        + z * (-0.5
            + z * (1.0 / 24.0 + z * (-1.0 / 720.0 + z * (1.0 / 40_320.0 - z / 3_628_800.0))));
    let odd = (quadrant & 1).wrapping_neg();
    let (s, c) = (sin.to_bits(), cos.to_bits());
    let (s, c) = ((s & !odd) | (c & odd), (c & !odd) | (s & odd));
    let sin = s ^ ((quadrant & 2) << 62);
    let cos = c ^ ((quadrant.wrapping_add(1) & 2) << 62);
    (f64::from_bits(sin), f64::from_bits(cos))
}

/// Fills the cosines and sines of a position.
#[inline(always)]
pub(super) fn fill(freqs: &RopeFreqs, pos: f32, cos: &mut [f32], sin: &mut [f32]) {
    let factor = freqs.factor_at(pos);
    for ((f, cos), sin) in freqs.inv_freq.iter().zip(cos).zip(sin) {
        let (s, c) = sin_cos(f64::from(pos * f));
        (*sin, *cos) = (s as f32 * factor, c as f32 * factor);
    }
}

#[cfg(test)]
mod tests {
    use super::sin_cos;

    #[test]
    fn sines_and_cosines_are_those_of_the_library() {
        for i in 0..200_000 {
            let x = f64::from(i * 5 - 1000) * 0.999;
            let ((s, c), (ws, wc)) = (sin_cos(x), x.sin_cos());
            assert!((s - ws).abs() < 3e-9 && (c - wc).abs() < 3e-9, "{x}: {s} {c}, not {ws} {wc}");
        }
    }
}
