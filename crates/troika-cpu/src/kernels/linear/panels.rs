//! Weights packed for products: quantized ones as for activations in bytes ([`Layout`]); floats with
//! sixteen weight rows side by side, as lines of 64 bytes. A
//! line holds one column of f32; two of f16, one after the other; or two of bf16, as a pair for
//! each row.
//!
//! A row alone then reads one stream of memory instead of sixteen, and turns nothing: on two cores
//! of a Zen 5 that is the difference between two thirds of the memory's bandwidth and all of it;
//! with AVX2 on one core of a Cascade Lake, between 0.7 and all of it. Sums are added in the order
//! of all products (`linear`), so the bits are the same as with weights as they lie in a file.

use half::bf16;
use troika_graph::DType;

use super::WeightView;
use super::pack::pack_lanes;
use super::terms::{Halves, Pairs};
use super::weights::F32Row;
use crate::Isa;
use crate::kernels::quantized::Layout;
use crate::kernels::simd::{Kernel, Lanes, dispatch};

/// Weight rows of a panel.
pub const ROWS: usize = 16;
/// Bytes of a line.
pub(super) const LINE: usize = 64;

/// Columns of a line; `None` where there are no panels of a type.
fn line_cols(dtype: DType) -> Option<usize> {
    match dtype {
        DType::F32 => Some(1),
        DType::F16 | DType::BF16 => Some(2),
        _ => None,
    }
}

/// Whether weights of a type are best packed for products (on this instruction set).
pub fn serve(isa: Isa, dtype: DType) -> bool {
    dtype.is_quantized() || isa != Isa::Scalar && line_cols(dtype).is_some()
}

/// Bytes of a panel of rows of `cols` columns; 0 where there are no panels of a type.
pub fn panel_bytes(dtype: DType, cols: usize) -> usize {
    match line_cols(dtype) {
        Some(each) => cols.div_ceil(each) * LINE,
        None => Layout::new(dtype, ROWS, cols).map_or(0, |layout| layout.panel),
    }
}

/// Bytes of a packed weight; `None` when they overflow, or there are no panels of its type.
pub(crate) fn bytes(dtype: DType, rows: usize, cols: usize) -> Option<usize> {
    match line_cols(dtype) {
        Some(each) => cols.div_ceil(each).checked_mul(LINE)?.checked_mul(rows.div_ceil(ROWS)),
        None => Layout::new(dtype, rows, cols).map(|layout| layout.bytes()),
    }
}

/// Packs a weight as panels; rows behind the last one repeat it.
///
/// # Panics
/// If there are no panels of its type, `out` is not 4-byte aligned, or lengths do not fit.
pub fn pack_panels(isa: Isa, weight: WeightView<'_>, out: &mut [u8]) {
    weight.check();
    let need = bytes(weight.dtype, weight.rows, weight.cols);
    assert_eq!(Some(out.len()), need, "bytes of panels");
    if let Some(layout) = Layout::new(weight.dtype, weight.rows, weight.cols) {
        out.fill(0);
        return layout.pack_panels(weight.bytes, out);
    }
    dispatch(isa, Pack { weight, out: bytemuck::cast_slice_mut(out) });
}

struct Pack<'a> {
    weight: WeightView<'a>,
    out: &'a mut [f32],
}

impl Kernel for Pack<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let w = self.weight;
        let floats = panel_bytes(w.dtype, w.cols) / 4;
        for (i, to) in self.out.chunks_exact_mut(floats.max(1)).enumerate() {
            let n = i * ROWS;
            let rows = n..(n + ROWS).min(w.rows);
            // SAFETY: rows of this type, of a weight that was checked.
            unsafe {
                match w.dtype {
                    DType::F32 => pack_lanes::<V, F32Row>(&w, rows, to, ROWS),
                    _ => pack_lanes::<V, Pairs>(&w, rows, to, ROWS),
                }
            }
            if w.dtype == DType::F16 {
                to.as_chunks_mut::<ROWS>().0.iter_mut().for_each(separate);
            }
        }
    }
}

/// Pairs of columns, as lanes of rows, become the first column and then the second.
#[inline(always)]
fn separate(line: &mut [f32; ROWS]) {
    let pairs = line.map(f32::to_bits);
    for (i, to) in line.iter_mut().enumerate() {
        let (half, at) = (i / (ROWS / 2), i % (ROWS / 2) * 2);
        let column = |i: usize| pairs[i] >> (16 * half) & 0xffff;
        *to = f32::from_bits(column(at) | column(at + 1) << 16);
    }
}

/// How the lines of a panel are read.
pub(super) trait LineReader {
    /// Words of activations that a line meets.
    const WORDS: usize;

    /// What meets word `word`: of the rows from `lane` on.
    ///
    /// # Safety
    /// A line, and as many rows from `lane` on as there are lanes.
    unsafe fn word<V: Lanes>(line: *const u8, lane: usize, word: usize) -> V;
}

/// Columns of f32, and pairs of bf16 that are used as such.
impl LineReader for F32Row {
    const WORDS: usize = 1;
    #[inline(always)]
    unsafe fn word<V: Lanes>(line: *const u8, lane: usize, _: usize) -> V {
        // SAFETY: by the caller.
        unsafe { V::load(line.add(4 * lane).cast()) }
    }
}

/// Two columns of f16 per line.
pub(super) struct F16Columns;

impl LineReader for F16Columns {
    const WORDS: usize = 2;
    #[inline(always)]
    unsafe fn word<V: Lanes>(line: *const u8, lane: usize, word: usize) -> V {
        // SAFETY: by the caller.
        unsafe { V::load_f16(line.add(2 * (word * ROWS + lane)).cast()) }
    }
}

impl LineReader for Halves {
    const WORDS: usize = 2;
    #[inline(always)]
    unsafe fn word<V: Lanes>(line: *const u8, lane: usize, word: usize) -> V {
        // SAFETY: by the caller.
        unsafe {
            let pairs = V::load(line.add(4 * lane).cast());
            if word == 0 { pairs.bf16_low() } else { pairs.bf16_high() }
        }
    }
}

const _: () = assert!(2 * size_of::<bf16>() * ROWS == LINE);
