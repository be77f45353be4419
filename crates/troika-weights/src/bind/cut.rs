//! Cuts weights out of tensors and converts their type.

use std::ops::Range;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use troika_device::{OutOfMemory, WeightBytes, WeightData, WeightOwner, ZeroedBytes};
use troika_graph::{DType, blocks, quantize};
use troika_model::spec::{Cols, Recipe, StoredTensor};

use crate::bind::scheme::FloatType;

/// Rows handled at once, so that their columns stay in the cache while they are transposed.
const TILE: usize = 32;

/// New 64-byte aligned bytes, zeroed and then filled by `fill`.
pub(crate) fn aligned_with(
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Result<WeightBytes, OutOfMemory> {
    let mut bytes = ZeroedBytes::new(len)?.huge_pages();
    fill(&mut bytes);
    let owner: WeightOwner = Arc::new(bytes);
    Ok(WeightBytes::whole(owner))
}

/// Why a recipe cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CutError {
    /// It needs rows or columns that the tensor lacks.
    #[error("does not fit its tensor")]
    Misfit,
    /// There is no memory for a copy.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

/// The result of a recipe.
pub(crate) struct CutBytes {
    /// The type: the tensor's, or F32 if blocks had to be taken apart.
    pub dtype: DType,
    /// The bytes.
    pub bytes: WeightBytes,
    /// Whether it is a copy and not a view of the file.
    pub owned: bool,
}

/// Applies a recipe: a view if possible, else a copy.
pub(crate) fn cut(tensor: &StoredTensor, recipe: &Recipe) -> Result<CutBytes, CutError> {
    let CutBytes { dtype, bytes, owned } = selected(tensor, recipe)?;
    if !recipe.plus_one {
        return Ok(CutBytes { dtype, bytes, owned });
    }
    let numbers = bytes.len() / dtype.block_bytes() * dtype.block_len();
    let bytes = aligned_with(numbers.saturating_mul(4), |out| {
        let out: &mut [f32] = bytemuck::cast_slice_mut(out);
        blocks::dequantize(dtype, &bytes, out);
        out.iter_mut().for_each(|x| *x += 1.0);
    })?;
    Ok(CutBytes { dtype: DType::F32, bytes, owned: true })
}

fn selected(tensor: &StoredTensor, recipe: &Recipe) -> Result<CutBytes, CutError> {
    let (rows, cols) = tensor.matrix();
    let dtype = tensor.dtype;
    let row_bytes = dtype.row_bytes(cols).ok_or(CutError::Misfit)?;
    let bytes_of =
        |r: &Range<usize>| Some(r.start.checked_mul(row_bytes)?..r.end.checked_mul(row_bytes)?);
    let all = 0..rows;
    let ranges = recipe.rows_of(&all);
    if recipe.transpose || recipe.cols.is_some() {
        return rearranged(tensor, ranges, recipe);
    }
    if let [one] = ranges {
        let view = bytes_of(one).and_then(|r| tensor.bytes.slice(r)).ok_or(CutError::Misfit)?;
        let align = if dtype.is_quantized() { 1 } else { dtype.block_bytes() };
        if (view.as_ptr() as usize).is_multiple_of(align) {
            return Ok(CutBytes { dtype, bytes: view, owned: false });
        }
    }
    let parts = ranges.iter().map(|r| tensor.bytes.get(bytes_of(r)?));
    let parts: Vec<&[u8]> = parts.collect::<Option<_>>().ok_or(CutError::Misfit)?;
    let bytes = aligned_with(parts.iter().map(|p| p.len()).sum(), |out| {
        let mut at = 0;
        for part in &parts {
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    })?;
    Ok(CutBytes { dtype, bytes, owned: true })
}

/// Selects columns, transposes, or both. Tensors of quantized blocks become f32, since their blocks
/// do not stay whole.
fn rearranged(
    tensor: &StoredTensor,
    ranges: &[Range<usize>],
    recipe: &Recipe,
) -> Result<CutBytes, CutError> {
    let cols = tensor.matrix().1;
    let row_bytes = tensor.dtype.row_bytes(cols).ok_or(CutError::Misfit)?;
    let dtype = if tensor.dtype.is_quantized() { DType::F32 } else { tensor.dtype };
    let size = dtype.block_bytes();
    let picked = recipe.cols.unwrap_or(Cols { start: 0, len: cols, step: 1 });
    let taken = ranges.iter().try_fold(0usize, |n, r| n.checked_add(r.len()));
    let taken = taken.ok_or(CutError::Misfit)?;
    let len = taken.checked_mul(picked.len).and_then(|n| n.checked_mul(size));
    let len = len.ok_or(CutError::Misfit)?;
    if len == 0 {
        return Ok(CutBytes { dtype, bytes: aligned_with(0, |_| {})?, owned: true });
    }
    let rows: Vec<&[u8]> = ranges
        .iter()
        .flat_map(|r| r.clone())
        .map(|row| tensor.bytes.get(row * row_bytes..(row + 1) * row_bytes))
        .collect::<Option<_>>()
        .ok_or(CutError::Misfit)?;
    let height = TILE.min(rows.len());
    let bytes = aligned_with(len, |out| {
        let mut scratch = vec![0.0f32; (height * cols * size).div_ceil(4)];
        for (first, rows) in (0..).step_by(height).zip(rows.chunks(height)) {
            for (i, row) in rows.iter().enumerate() {
                if tensor.dtype.is_quantized() {
                    blocks::dequantize(tensor.dtype, row, &mut scratch[i * cols..][..cols]);
                } else {
                    let to: &mut [u8] = bytemuck::cast_slice_mut(&mut scratch);
                    to[i * row_bytes..][..row_bytes].copy_from_slice(row);
                }
            }
            let tile = RowTile { first, rows: rows.len(), cols, taken, picked };
            let from = bytemuck::cast_slice(&scratch);
            match size {
                2 => tile.place::<2>(from, out, recipe.transpose),
                _ => tile.place::<4>(from, out, recipe.transpose),
            }
        }
    })?;
    Ok(CutBytes { dtype, bytes, owned: true })
}

struct RowTile {
    /// Number of selected rows before it.
    first: usize,
    rows: usize,
    cols: usize,
    /// Number of all selected rows.
    taken: usize,
    /// The selected columns.
    picked: Cols,
}

impl RowTile {
    /// Writes the tile's elements, of `N` bytes each, to their places in the result.
    fn place<const N: usize>(&self, from: &[u8], out: &mut [u8], transpose: bool) {
        let (from, out) = (from.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
        for j in 0..self.picked.len {
            let col = self.picked.start + j * self.picked.step;
            for i in 0..self.rows {
                let row = self.first + i;
                let to = if transpose { j * self.taken + row } else { row * self.picked.len + j };
                out[to] = from[i * self.cols + col];
            }
        }
    }
}

/// Converts float matrices to the wanted type; vectors and quantized weights stay as they are.
/// Returns whether anything was converted.
pub(crate) fn convert(
    data: WeightData,
    float: FloatType,
) -> Result<(WeightData, bool), OutOfMemory> {
    let Some(dtype) = float.dtype() else { return Ok((data, false)) };
    let (row_bytes, to_bytes) = match (data.dtype.row_bytes(data.cols), dtype.row_bytes(data.cols))
    {
        (Some(from @ 1..), Some(to)) => (from, to),
        _ => return Ok((data, false)),
    };
    if data.rows <= 1 || data.dtype == dtype || !data.dtype.is_float() {
        return Ok((data, false));
    }
    let mut row = vec![0.0f32; data.cols];
    let bytes = aligned_with(data.rows * to_bytes, |out| {
        let rows = data.bytes.chunks_exact(row_bytes);
        for (from, to) in rows.zip(out.chunks_exact_mut(to_bytes)) {
            blocks::dequantize(data.dtype, from, &mut row);
            narrow(&row, dtype, to);
        }
    })?;
    Ok((WeightData { dtype, bytes, ..data }, true))
}

/// Rounds to a float type, to nearest with ties to even.
pub(crate) fn narrow(row: &[f32], dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::F16 => {
            let mut half = [f16::ZERO; 256];
            for (from, to) in row.chunks(256).zip(out.chunks_mut(512)) {
                half[..from.len()].convert_from_f32_slice(from);
                to.copy_from_slice(bytemuck::cast_slice(&half[..from.len()]));
            }
        }
        DType::BF16 => {
            for (from, to) in row.iter().zip(out.as_chunks_mut::<2>().0) {
                *to = bf16::from_f32(*from).to_le_bytes();
            }
        }
        _ => out.copy_from_slice(bytemuck::cast_slice(row)),
    }
}

/// Quantizes with the widest registers available. Results are bit-identical everywhere, since the
/// code is the same and no operations are fused.
pub(crate) fn quantize_row(dtype: DType, x: &[f32], out: &mut [u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was just detected.
        return unsafe { quantize_avx2(dtype, x, out) };
    }
    quantize::quantize(dtype, x, out)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_avx2(dtype: DType, x: &[f32], out: &mut [u8]) -> bool {
    quantize::quantize(dtype, x, out)
}
