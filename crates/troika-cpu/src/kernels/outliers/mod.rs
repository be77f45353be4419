//! The product of what clipping takes from its input. Of thousands of columns a few have such
//! values, so that it adds weight columns to results. The columns that have most of them lie in
//! memory as floats; others are read from the stored weight when a value needs them.

use std::ops::Range;

use troika_graph::blocks;

use crate::Isa;
use crate::kernels::int8::{CalibratedInput, PackedView};
use crate::kernels::linear::WeightView;
use crate::kernels::quantized::{BLOCK, GROUP, ROWS};
use crate::kernels::simd::{Kernel, Lanes, dispatch};
use crate::kernels::{Context, KernelError, elementwise, rows_per_part};

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
    /// The same as products read them, if these have panels of the type.
    pub packed: Option<PackedView<'a>>,
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

/// What clipping takes from the values of a row: columns, or places among the hot ones, with what is
/// taken.
#[derive(Clone, Default)]
struct RowOutliers {
    hot: Vec<(u32, f32)>,
    cold: Vec<(u32, f32)>,
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
    let (n, k, isa) = (weight.stored.rows, weight.stored.cols, cx.isa);
    let rows = x.len() / k.max(1);
    assert!(rows == y.len() / n.max(1), "a result per row");
    assert!(weight.hot.len() * n == weight.columns.len(), "a column of weights for each");
    let input = weight.input;
    let mut limits = vec![input.rounding.step * (input.rounding.most + 0.4); k];
    limits.iter_mut().zip(&input.factors).for_each(|(limit, factor)| *limit *= factor);
    let mut places = vec![None; k];
    weight.hot.iter().zip(0..).for_each(|(column, at)| places[*column as usize] = Some(at));
    let mut found = vec![RowOutliers::default(); rows];
    cx.run_rows(&mut found, 1, rows_per_part(k), |_, rows, found| {
        for (row, found) in rows.zip(found) {
            let x = &x[row * k..][..k];
            dispatch(isa, FindInRow { input, limits: &limits, places: &places, x, found });
        }
    })?;
    let cold = Cold::new(&found, k);
    let mut sums = Vec::new();
    if !cold.values.is_empty() {
        sums.resize(n.div_ceil(ROWS) * rows * ROWS, 0.0);
        cx.run_rows(&mut sums, rows * ROWS, 1, |_, panels, sums| {
            let (weight, cold, panel) = (&weight, &cold, panels.start);
            dispatch(isa, ColdPanel { weight, cold, panel, sums, isa });
        })?;
    }
    elementwise::each_row(cx, y, n, &|row, y| {
        let sums = sums.chunks_exact(rows * ROWS).map(|panel| &panel[row * ROWS..][..ROWS]);
        dispatch(isa, AddHot { weight: &weight, hot: &found[row].hot, y: &mut *y });
        for (y, sums) in y.chunks_mut(ROWS).zip(sums) {
            y.iter_mut().zip(sums).for_each(|(y, sum)| *y += sum);
        }
    })
}

/// Finds the outliers of a row.
struct FindInRow<'a> {
    input: &'a CalibratedInput,
    /// A magnitude of each column that those of outliers are above.
    limits: &'a [f32],
    /// The place of each column among the hot ones, if it is one.
    places: &'a [Option<u32>],
    x: &'a [f32],
    found: &'a mut RowOutliers,
}

impl Kernel for FindInRow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let FindInRow { input, limits, places, x, found } = self;
        for (i, (x, limits)) in x.chunks(32).zip(limits.chunks(32)).enumerate() {
            // As integers, by which a NaN is above all limits.
            let above = |(x, limit): (&f32, &f32)| x.to_bits() & 0x7fff_ffff > limit.to_bits();
            let bits = x.iter().zip(limits).enumerate();
            let mut bits = bits.fold(0_u32, |bits, (j, of)| bits | u32::from(above(of)) << j);
            while bits != 0 {
                let j = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let column = 32 * i + j;
                let factor = input.factors.get(column).copied().unwrap_or(1.0);
                let rest = factor * input.rounding.clipped(x[j] / factor);
                match places[column] {
                    _ if rest == 0.0 => {}
                    Some(at) => found.hot.push((at, rest)),
                    None => found.cold.push((column as u32, rest)),
                }
            }
        }
    }
}

/// Adds what hot columns make of a row.
struct AddHot<'a> {
    weight: &'a OutlierWeights<'a>,
    hot: &'a [(u32, f32)],
    y: &'a mut [f32],
}

impl Kernel for AddHot<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let n = self.y.len();
        self.y.fill(0.0);
        for (at, rest) in self.hot {
            let column = &self.weight.columns[*at as usize * n..][..n];
            self.y.iter_mut().zip(column).for_each(|(y, w)| *y += rest * w);
        }
    }
}

/// The values of all rows in cold columns, in the order of columns: each block of these is expanded
/// once.
struct Cold {
    values: Vec<ColdValue>,
    /// Where those of each column begin.
    starts: Vec<usize>,
}

/// A value, by where its sums lie in a panel of them, and its weights in a block of columns.
#[derive(Clone, Copy, Default)]
struct ColdValue {
    sums: u32,
    weights: u32,
    /// What clipping takes from it.
    rest: f32,
}

impl Cold {
    fn new(found: &[RowOutliers], k: usize) -> Cold {
        let mut starts = vec![0; k + 1];
        let all = || found.iter().flat_map(|row| &row.cold);
        all().for_each(|(column, _)| starts[*column as usize + 1] += 1);
        (0..k).for_each(|column| starts[column + 1] += starts[column]);
        let (mut next, mut values) = (starts.clone(), vec![ColdValue::default(); starts[k]]);
        for (row, of) in found.iter().enumerate() {
            for &(column, rest) in &of.cold {
                let at = &mut next[column as usize];
                let weights = (column as usize % BLOCK * ROWS) as u32;
                values[*at] = ColdValue { sums: (row * ROWS) as u32, weights, rest };
                *at += 1;
            }
        }
        Cold { values, starts }
    }
}

/// What cold columns make for a panel of weight rows.
struct ColdPanel<'a> {
    weight: &'a OutlierWeights<'a>,
    cold: &'a Cold,
    panel: usize,
    /// Sums of each row.
    sums: &'a mut [f32],
    isa: Isa,
}

impl Kernel for ColdPanel<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (starts, k) = (&self.cold.starts, self.weight.stored.cols);
        let mut weights = vec![0.0; BLOCK * ROWS];
        for start in (0..k).step_by(BLOCK) {
            let block = start..k.min(start + BLOCK);
            let values = &self.cold.values[starts[block.start]..starts[block.end]];
            if values.is_empty() {
                continue;
            }
            self.expand(block, &mut weights);
            for v in values {
                let sums = &mut self.sums[v.sums as usize..][..ROWS];
                let weights = &weights[v.weights as usize..][..ROWS];
                let rest = V::splat(v.rest);
                for i in (0..ROWS).step_by(V::N) {
                    let w = V::from_slice(&weights[i..]);
                    w.fma(rest, V::from_slice(&sums[i..])).write_to(&mut sums[i..]);
                }
            }
        }
    }
}

impl ColdPanel<'_> {
    /// The panel's weights of a block of columns, column by column.
    fn expand(&self, block: Range<usize>, to: &mut [f32]) {
        let starts = &self.cold.starts;
        if let Some(packed) = self.weight.packed {
            for start in block.clone().step_by(GROUP) {
                if starts[start] < starts[start + GROUP] {
                    let to = &mut to[(start - block.start) * ROWS..][..GROUP * ROWS];
                    packed.unpack(self.isa, self.panel, start / GROUP, to);
                }
            }
            return;
        }
        let stored = self.weight.stored;
        let (row, mut values) = (stored.row_bytes(), [0.0_f32; BLOCK]);
        let at = |column: usize| column / stored.dtype.block_len() * stored.dtype.block_bytes();
        let rows = stored.bytes.chunks_exact(row.max(1)).skip(self.panel * ROWS).take(ROWS);
        for (r, row) in rows.enumerate() {
            let values = &mut values[..block.len()];
            blocks::dequantize(stored.dtype, &row[at(block.start)..at(block.end)], values);
            for (to, w) in to[r..].iter_mut().step_by(ROWS).zip(values) {
                *to = *w;
            }
        }
    }
}
