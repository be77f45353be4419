//! The error function, after W. J. Cody, "Rational Chebyshev approximations for the error
//! function" (1969), in double precision.

const A: [f64; 5] = [
    3.161_123_743_870_565_6e0,
    1.138_641_541_510_501_6e2,
    3.774_852_376_853_02e2,
    3.209_377_589_138_469_5e3,
    1.857_777_061_846_031_5e-1,
];
const B: [f64; 4] = [
    2.360_129_095_234_412_1e1,
    2.440_246_379_344_441_7e2,
    1.282_616_526_077_372_3e3,
    2.844_236_833_439_171e3,
];
const C: [f64; 9] = [
    5.641_884_969_886_700_9e-1,
    8.883_149_794_388_376e0,
    6.611_919_063_714_163e1,
    2.986_351_381_974_001_3e2,
    8.819_522_212_417_691e2,
    1.712_047_612_634_070_6e3,
    2.051_078_377_826_071_5e3,
    1.230_339_354_797_997_2e3,
    2.153_115_354_744_038_5e-8,
];
const D: [f64; 8] = [
    1.574_492_611_070_983_5e1,
    1.176_939_508_913_125e2,
    5.371_811_018_620_098_6e2,
    1.621_389_574_566_690_2e3,
    3.290_799_235_733_459_6e3,
    4.362_619_090_143_247e3,
    3.439_367_674_143_721_6e3,
    1.230_339_354_803_749_4e3,
];
const P: [f64; 6] = [
    3.053_266_349_612_323_4e-1,
    3.603_448_999_498_044_4e-1,
    1.257_817_261_112_292_5e-1,
    1.608_378_514_874_227_7e-2,
    6.587_491_615_298_378e-4,
    1.631_538_713_730_209_8e-2,
];
const Q: [f64; 5] = [
    2.568_520_192_289_822e0,
    1.872_952_849_923_467_3e0,
    5.279_051_029_514_284e-1,
    6.051_834_131_244_132e-2,
    2.335_204_976_268_691_8e-3,
];
/// `1 / sqrt(pi)`.
const INV_SQRT_PI: f64 = 0.564_189_583_547_756_3;

/// `erf(x)` for `|x| <= 0.46875`.
fn erf_small(x: f64) -> f64 {
    let y = x * x;
    let (mut num, mut den) = (A[4] * y, y);
    for i in 0..3 {
        num = (num + A[i]) * y;
        den = (den + B[i]) * y;
    }
    x * (num + A[3]) / (den + B[3])
}

/// `1 - erf(x)`, for `x > 0.46875`.
fn erfc_large(x: f64) -> f64 {
    let tail = if x <= 4.0 {
        let (mut num, mut den) = (C[8] * x, x);
        for i in 0..7 {
            num = (num + C[i]) * x;
            den = (den + D[i]) * x;
        }
        (num + C[7]) / (den + D[7])
    } else {
        let y = 1.0 / (x * x);
        let (mut num, mut den) = (P[5] * y, y);
        for i in 0..4 {
            num = (num + P[i]) * y;
            den = (den + Q[i]) * y;
        }
        (INV_SQRT_PI - y * (num + P[4]) / (den + Q[4])) / x
    };
    tail * (-x * x).exp()
}

/// `1 + erf(x)`, accurate also where it is small.
fn one_plus_erf(x: f64) -> f64 {
    match x {
        _ if x.abs() <= 0.46875 => 1.0 + erf_small(x),
        _ if x < 0.0 => erfc_large(-x),
        _ => 2.0 - erfc_large(x),
    }
}

/// GELU with the error function.
pub fn gelu(x: f32) -> f32 {
    if x.is_infinite() {
        return x.max(0.0);
    }
    let x = f64::from(x);
    (0.5 * x * one_plus_erf(x * std::f64::consts::FRAC_1_SQRT_2)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `erf` by numeric integration (Simpson).
    fn erf(x: f64) -> f64 {
        let n = 4000;
        let h = x / f64::from(n);
        let f = |t: f64| (-t * t).exp();
        let inner: f64 =
            (1..n).map(|i| f(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        2.0 * INV_SQRT_PI * h / 3.0 * (f(0.0) + inner + f(x))
    }

    #[test]
    fn error_function_matches_its_integral() {
        for i in -120..=120 {
            let x = f64::from(i) * 0.05;
            let (got, want) = (one_plus_erf(x), 1.0 + erf(x));
            assert!((got - want).abs() < 1e-12, "{x}: {got} {want}");
        }
        // Far left, where 1 + erf is tiny: erfc(5) and erfc(3).
        assert!((one_plus_erf(-5.0) / 1.537_459_794_428_035e-12 - 1.0).abs() < 1e-9);
        assert!((one_plus_erf(-3.0) / 2.209_049_699_858_544e-5 - 1.0).abs() < 1e-12);
    }
}
