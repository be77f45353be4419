//! Least squares of relative errors with non-negative coefficients, by coordinate descent: six
//! coefficients, about a hundred equations.

use troika_time::TERMS;

/// Rounds of the descent. After about a hundred the error changes only in the fourth digit.
const ROUNDS: usize = 600;

/// The coefficients that fit the values best, and the remaining mean square error relative to the
/// values.
pub(super) fn relative(rows: &[([f64; TERMS], f64)]) -> ([f64; TERMS], f64) {
    let scaled: Vec<[f64; TERMS]> =
        rows.iter().map(|(f, t)| f.map(|x| x / t.max(f64::MIN_POSITIVE))).collect();
    // Scales columns to similar sizes, so that rounding affects them alike.
    let mut size = [0.0_f64; TERMS];
    for r in &scaled {
        (0..TERMS).for_each(|i| size[i] = size[i].max(r[i]));
    }
    let unit = |r: &[f64; TERMS], i: usize| if size[i] > 0.0 { r[i] / size[i] } else { 0.0 };
    // Normal equations.
    let mut square = [[0.0; TERMS]; TERMS];
    let mut right = [0.0; TERMS];
    for r in &scaled {
        for i in 0..TERMS {
            right[i] += unit(r, i);
            square[i].iter_mut().enumerate().for_each(|(j, s)| *s += unit(r, i) * unit(r, j));
        }
    }
    let mut x = [0.0_f64; TERMS];
    for _ in 0..ROUNDS {
        for i in 0..TERMS {
            if square[i][i] <= 0.0 {
                continue;
            }
            let others: f64 = (0..TERMS).filter(|j| *j != i).map(|j| square[i][j] * x[j]).sum();
            x[i] = ((right[i] - others) / square[i][i]).max(0.0);
        }
    }
    let error = |r: &[f64; TERMS]| (0..TERMS).map(|i| unit(r, i) * x[i]).sum::<f64>() - 1.0;
    let left = scaled.iter().map(|r| error(r).powi(2)).sum::<f64>() / scaled.len().max(1) as f64;
    let mut terms = [0.0; TERMS];
    (0..TERMS).filter(|i| size[*i] > 0.0).for_each(|i| terms[i] = x[i] / size[i]);
    (terms, left)
}

#[cfg(test)]
mod tests {
    use super::{TERMS, relative};

    #[test]
    fn what_made_the_values_is_found() {
        let truth = [100.0, 0.0, 2.0, 0.5, 0.0, 0.0];
        let rows: Vec<([f64; TERMS], f64)> = (1..40)
            .map(|i| {
                let (a, b) = (f64::from(i * i % 17), f64::from(i * 7 % 23));
                let f = [1.0, f64::from(i % 5), a, b, 0.0, 0.0];
                (f, f.iter().zip(truth).map(|(f, c)| f * c).sum())
            })
            .collect();
        let (terms, error) = relative(&rows);
        assert!(error < 1e-6, "{error} {terms:?}");
        for (got, want) in terms.iter().zip(truth) {
            assert!((got - want).abs() <= 0.01 * want + 0.05, "{terms:?}");
        }
    }

    #[test]
    fn no_coefficient_is_negative() {
        // Falls with the second feature.
        let rows: Vec<([f64; TERMS], f64)> = (1..20)
            .map(|i| ([1.0, f64::from(i), 0.0, 0.0, 0.0, 0.0], 100.0 - f64::from(i)))
            .collect();
        let (terms, _) = relative(&rows);
        assert!(terms.iter().all(|c| *c >= 0.0 && c.is_finite()), "{terms:?}");
        assert!((terms[0] - 90.0).abs() < 5.0, "{terms:?}");
        assert_eq!(relative(&[]).0, [0.0; TERMS]);
    }
}
