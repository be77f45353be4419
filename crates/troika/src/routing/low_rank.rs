//! The best approximation of a matrix by two thin ones.

/// Rotations until a matrix is diagonal enough: each sweep squares what is left beside the diagonal.
const SWEEPS: usize = 12;

/// Factors of a matrix of `rows` rows: `[rows, rank]` and `[rank, cols]`. The second is the matrix
/// on the `rank` directions in which it is largest.
pub(super) fn factors(matrix: &[f32], rows: usize, rank: usize) -> (Vec<f32>, Vec<f32>) {
    let cols = matrix.len() / rows.max(1);
    let row = |i: usize| &matrix[i * cols..(i + 1) * cols];
    let mut products = vec![0.0_f64; rows * rows];
    for i in 0..rows {
        for j in 0..=i {
            let sum = row(i).iter().zip(row(j)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            (products[i * rows + j], products[j * rows + i]) = (sum, sum);
        }
    }
    let directions = directions(&mut products, rows);
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by(|a, b| products[b * rows + b].total_cmp(&products[a * rows + a]));
    order.truncate(rank);
    let rank = order.len();
    let mut outer = vec![0.0; rows * rank];
    let mut inner = vec![0.0; rank * cols];
    for (at, direction) in order.iter().enumerate() {
        let into = &mut inner[at * cols..(at + 1) * cols];
        for i in 0..rows {
            let part = directions[i * rows + direction] as f32;
            outer[i * rank + at] = part;
            into.iter_mut().zip(row(i)).for_each(|(sum, w)| *sum += part * w);
        }
    }
    (outer, inner)
}

/// The directions that a symmetric matrix stretches, as columns; the matrix becomes diagonal
/// (Jacobi's rotations).
fn directions(a: &mut [f64], n: usize) -> Vec<f64> {
    let mut v = vec![0.0; n * n];
    (0..n).for_each(|i| v[i * n + i] = 1.0);
    for _ in 0..SWEEPS {
        for p in 0..n {
            for q in p + 1..n {
                let off = a[p * n + q];
                if off.abs() < f64::EPSILON * (a[p * n + p] * a[q * n + q]).abs().sqrt() {
                    continue;
                }
                let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * off);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                rotate(a, [p, q, n], [c, t * c], true);
                rotate(&mut v, [p, q, n], [c, t * c], false);
            }
        }
    }
    v
}

/// Rotates columns `p` and `q`, and rows, too, of a symmetric matrix.
fn rotate(m: &mut [f64], [p, q, n]: [usize; 3], [c, s]: [f64; 2], rows: bool) {
    for k in 0..n {
        let (x, y) = (m[k * n + p], m[k * n + q]);
        (m[k * n + p], m[k * n + q]) = (c * x - s * y, s * x + c * y);
    }
    for k in (0..n).filter(|_| rows) {
        let (x, y) = (m[p * n + k], m[q * n + k]);
        (m[p * n + k], m[q * n + k]) = (c * x - s * y, s * x + c * y);
    }
}

#[cfg(test)]
mod tests {
    use super::factors;

    #[test]
    fn a_matrix_of_low_rank_is_its_factors() {
        let (rows, cols) = (7, 11);
        let matrix: Vec<f32> = (0..rows * cols)
            .map(|i| {
                let (r, c) = ((i / cols) as f32, (i % cols) as f32);
                (r + 1.0) * (c - 4.0) + (r * r - 9.0) * (c * 0.7).sin()
            })
            .collect();
        let (outer, inner) = factors(&matrix, rows, 2);
        assert_eq!((outer.len(), inner.len()), (rows * 2, 2 * cols));
        for (i, want) in matrix.iter().enumerate() {
            let (r, c) = (i / cols, i % cols);
            let got: f32 = (0..2).map(|k| outer[r * 2 + k] * inner[k * cols + c]).sum();
            assert!((got - want).abs() < 1e-3, "{r} {c}: {got} {want}");
        }
        assert_eq!(factors(&[], 0, 3), (vec![], vec![]));
    }
}
