//! The product of what clipping takes from its input. Of thousands of columns a few have such
//! values, so that it adds weight columns to results. The columns that have most of them lie in
//! memory as floats; others are read from the stored weight when a value needs them.

use std::sync::{Mutex, PoisonError};

use troika_graph::blocks;

use crate::kernels::int8::CalibratedInput;
use crate::kernels::linear::WeightView;
use crate::kernels::{Context, KernelError, elementwise};

/// How many of a layer's outliers the columns in memory have to have (llm.npu, section 3.3: fewer
/// than 3 % of the columns have more than 80 % of them).
const HOT_SHARE: f64 = 0.8;
/// The most columns in memory.
const MOST_HOT: f64 = 0.03;

/// A weight `[n, k]` for its outliers.
#[derive(Clone, Copy, Debug)]
pub struct OutlierWeights<'a> {
    /// What is clipped.
    pub input: &'a CalibratedInput,
    /// The columns in memory, ascending.
    pub hot: &'a [u32],
    /// Their weights: `n` floats each.
    pub columns: &'a [f32],
    /// All weights as stored.
    pub stored: WeightView<'a>,
}

/// Which columns to hold in memory, by their numbers of outliers: the fewest that have most of
/// them.
pub fn hot_columns(counts: &[f32]) -> Vec<u32> {
    let mut columns: Vec<u32> = (0..counts.len() as u32).collect();
    let count = |c: u32| f64::from(counts[c as usize]);
    columns.sort_by(|a, b| count(*b).total_cmp(&count(*a)).then(a.cmp(b)));
    let all: f64 = counts.iter().copied().map(f64::from).sum();
    let most = (counts.len() as f64 * MOST_HOT).ceil() as usize;
    let mut had = 0.0;
    let hot = columns.into_iter().take(most).take_while(|c| {
        let more = count(*c) > 0.0 && had < all * HOT_SHARE;
        had += count(*c);
        more
    });
    let mut hot: Vec<u32> = hot.collect();
    hot.sort_unstable();
    hot
}

/// A column of a stored weight, in f32.
pub fn column(weight: WeightView<'_>, column: usize, to: &mut [f32]) {
    let (block, bytes) = (weight.dtype.block_len(), weight.dtype.block_bytes());
    let mut values = [0.0_f32; 256];
    let (row, at) = (weight.row_bytes(), column / block * bytes);
    for (j, to) in to.iter_mut().enumerate() {
        let from = &weight.bytes[j * row + at..][..bytes];
        blocks::dequantize(weight.dtype, from, &mut values[..block]);
        *to = values[column % block];
    }
}

/// A value of a column that is not in memory.
#[derive(Clone, Copy)]
struct Cold {
    column: usize,
    row: usize,
    /// What clipping takes from it.
    rest: f32,
}

/// `y = (x - clip(x)) * W^T`, where columns that are divided for clipping are multiplied again.
///
/// # Errors
/// A panic of a part.
pub fn outliers(
    cx: &mut Context<'_>,
    weight: OutlierWeights<'_>,
    x: &[f32],
    y: &mut [f32],
) -> Result<(), KernelError> {
    let (n, k) = (weight.stored.rows, weight.stored.cols);
    assert!(x.len() / k.max(1) == y.len() / n.max(1), "a result per row");
    assert!(weight.hot.len() * n == weight.columns.len(), "a column of weights for each");
    let cold = Mutex::new(Vec::new());
    elementwise::each_row(cx, y, n, &|row, y| {
        y.fill(0.0);
        let mut here = Vec::new();
        for (column, x) in x[row * k..(row + 1) * k].iter().enumerate() {
            let factor = weight.input.factors.get(column).copied().unwrap_or(1.0);
            let rest = factor * weight.input.rounding.clipped(x / factor);
            if rest == 0.0 {
                continue;
            }
            match weight.hot.binary_search(&(column as u32)) {
                Ok(at) => {
                    let hot = &weight.columns[at * n..(at + 1) * n];
                    y.iter_mut().zip(hot).for_each(|(y, w)| *y += rest * w);
                }
                Err(_) => here.push(Cold { column, row, rest }),
            }
        }
        cold.lock().unwrap_or_else(PoisonError::into_inner).extend(here);
    })?;
    let cold = cold.into_inner().unwrap_or_else(PoisonError::into_inner);
    if cold.is_empty() { Ok(()) } else { add_cold(cx, weight.stored, cold, y) }
}

/// Adds what cold columns make. A block of stored weights is expanded once for all rows of `y`.
fn add_cold(
    cx: &mut Context<'_>,
    stored: WeightView<'_>,
    mut cold: Vec<Cold>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let (n, rows) = (stored.rows, y.len() / stored.rows.max(1));
    let (block, bytes) = (stored.dtype.block_len(), stored.dtype.block_bytes());
    // The same order of sums, whichever thread found them first.
    cold.sort_unstable_by_key(|c| (c.column, c.row));
    let mut sums = vec![0.0; n * rows];
    elementwise::each_row(cx, &mut sums, rows, &|j, sums| {
        let mut values = [0.0_f32; 256];
        for of_block in cold.chunk_by(|a, b| a.column / block == b.column / block) {
            let at = j * stored.row_bytes() + of_block[0].column / block * bytes;
            let from = &stored.bytes[at..at + bytes];
            blocks::dequantize(stored.dtype, from, &mut values[..block]);
            for c in of_block {
                sums[c.row] += c.rest * values[c.column % block];
            }
        }
    })?;
    elementwise::each_row(cx, y, n, &|row, y| {
        y.iter_mut().enumerate().for_each(|(j, y)| *y += sums[j * rows + row]);
    })
}
