//! Linear layers of GPTQ and AWQ checkpoints: four bits, a scale and a zero point per group.
//!
//! Both keep, for a matrix of `n` outputs and `k` inputs, `qweight`, `qzeros`, `scales` and, in
//! GPTQ, `g_idx` instead of `weight`; a value is `scale * (q - zero)`. Eight values share an int32:
//!
//! | | GPTQ | AWQ (`gemm`) |
//! |---|---|---|
//! | `qweight` | `[k / 8, n]`, along the inputs | `[k, n / 8]`, along the outputs |
//! | `qzeros` | `[k / group, n / 8]` | `[k / group, n / 8]` |
//! | `scales` | `[k / group, n]` | `[k / group, n]` |
//! | order in an int32 | lowest bits first | 0, 2, 4, 6, 1, 3, 5, 7 |
//! | stored zero point | less 1 (`checkpoint_format` `gptq`) or itself (`gptq_v2`) | itself |
//!
//! They become blocks with zero points ([`DType::Q4_G32`] and similar) of the largest length that
//! divides the group. Scales are rounded to f16 if they have another type.

use std::ops::Range;

use half::f16;
use troika_device::WeightBytes;
use troika_graph::{DType, blocks};
use troika_model::lower::WeightShape;
use troika_model::spec::{
    Checkpoint, Int4Config, Int4Layout, Recipe, StoredTensor, WeightRequirement,
};

use crate::bind::cut::aligned_with;
use crate::error::WeightError;

/// The place of each of eight columns in AWQ's int32.
const AWQ_PLACE: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Values in an int32.
const PACK: usize = 8;

/// A linear layer's tensors.
#[derive(Clone, Debug)]
pub(crate) struct Int4Weight {
    pub layout: Int4Layout,
    pub qweight: WeightBytes,
    pub qzeros: WeightBytes,
    pub scales: StoredTensor,
    /// Outputs of the layer.
    pub n: usize,
    /// Number of inputs that share a scale.
    pub group: usize,
    /// The selected outputs.
    pub taken: Vec<Range<usize>>,
}

/// A packed linear layer found in a checkpoint.
pub(crate) struct FoundInt4 {
    pub weight: Int4Weight,
    pub dtype: DType,
    /// The name of its `qweight`.
    pub tensor: String,
}

/// The layer for a recipe, if the checkpoint has it in packed form.
pub(crate) fn find(
    config: Int4Config,
    recipe: &Recipe,
    need: &WeightRequirement,
    files: &dyn Checkpoint,
) -> Result<Option<FoundInt4>, WeightError> {
    let Some(base) = recipe.tensor.strip_suffix("weight") else { return Ok(None) };
    let tensor = format!("{base}qweight");
    let Some(qweight) = files.tensor(&tensor) else { return Ok(None) };
    let get = |part: &str| {
        let name = format!("{base}{part}");
        let missing = || WeightError::Missing { file: files.origin(&tensor), tensor: name.clone() };
        files.tensor(&name).ok_or_else(missing)
    };
    let (qzeros, scales) = (get("qzeros")?, get("scales")?);
    let unsupported = |why: String| WeightError::Unsupported { file: files.origin(&tensor), why };
    if recipe.cols.is_some() || recipe.transpose {
        return Err(unsupported(format!(
            "a weight cut out of the columns of {tensor} is not read"
        )));
    }
    let (rows, cols) = qweight.matrix();
    let (k, n) = match config.layout {
        Int4Layout::Gptq { .. } => (rows.saturating_mul(PACK), cols),
        Int4Layout::Awq => (rows, cols.saturating_mul(PACK)),
    };
    let group = config.group.unwrap_or(k);
    let groups = k.checked_div(group).unwrap_or(0);
    let whole = group > 0 && k.is_multiple_of(group) && n.is_multiple_of(PACK);
    let fits = whole
        && recipe.result(n, k) == Some((need.rows, need.cols))
        && (qweight.dtype, qzeros.dtype) == (DType::I32, DType::I32)
        && scales.dtype.is_float()
        && qzeros.matrix() == (groups, n / PACK)
        && scales.matrix() == (groups, n);
    if !fits {
        return Err(WeightError::Shape {
            file: files.origin(&tensor),
            tensor,
            found: format!("{:?} in groups of {group}", qweight.shape),
            need: format!("packed four-bit values of [{}, {}]", need.rows, need.cols),
        });
    }
    let lengths = [DType::Q4_G128, DType::Q4_G64, DType::Q4_G32];
    let Some(dtype) = lengths.into_iter().find(|d| group.is_multiple_of(d.block_len())) else {
        return Err(unsupported(format!(
            "groups of {group} inputs in {tensor} are not read (multiples of 32 are)"
        )));
    };
    if let Some(order) = files.tensor(&format!("{base}g_idx"))
        && !in_order(order, k, group)
    {
        return Err(unsupported(format!(
            "{base}g_idx orders the inputs by activation (desc_act), which is not read; \
             take a checkpoint made with desc_act false"
        )));
    }
    let mut taken = recipe.rows.clone();
    if taken.is_empty() {
        taken.push(0..n);
    }
    let weight = Int4Weight {
        layout: config.layout,
        qweight: qweight.bytes.clone(),
        qzeros: qzeros.bytes.clone(),
        scales: scales.clone(),
        n,
        group,
        taken,
    };
    Ok(Some(FoundInt4 { weight, dtype, tensor }))
}

/// Whether groups are runs of adjacent inputs, or `g_idx` was not filled in.
fn in_order(g_idx: &StoredTensor, k: usize, group: usize) -> bool {
    let words = g_idx.bytes.as_chunks::<4>().0;
    let in_place = |(i, w): (usize, &[u8; 4])| u32::from_le_bytes(*w) as usize == i / group;
    let empty = words.iter().all(|w| *w == [0; 4]);
    let ordered = words.len() == k && words.iter().enumerate().all(in_place);
    g_idx.dtype == DType::I32 && (empty || ordered)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(4 * at..4 * at + 4).and_then(|b| b.first_chunk());
    four.map_or(0, |b| u32::from_le_bytes(*b))
}

impl Int4Weight {
    /// The bytes of its tensors.
    pub fn tensors(&self) -> Vec<&WeightBytes> {
        vec![&self.qweight, &self.qzeros, &self.scales.bytes]
    }

    /// Some rows of the weight as blocks of the shape's type, and whether all scales are finite.
    pub fn rows(&self, shape: WeightShape, rows: Range<usize>) -> Option<(WeightBytes, bool)> {
        let row_bytes = shape.dtype.row_bytes(shape.cols)?;
        let outputs: Vec<usize> =
            self.taken.iter().flat_map(|r| r.clone()).skip(rows.start).take(rows.len()).collect();
        if outputs.len() != rows.len() {
            return None;
        }
        let mut finite = true;
        let made = aligned_with(outputs.len().checked_mul(row_bytes)?, |out| {
            finite = self.scales(shape, &outputs, out);
            self.values(shape, &outputs, out);
        });
        made.ok().map(|bytes| (bytes, finite))
    }

    /// Writes the scale and zero point of each block. Returns whether all scales are finite.
    fn scales(&self, shape: WeightShape, outputs: &[usize], out: &mut [u8]) -> bool {
        let mut finite = true;
        let (len, size) = (shape.dtype.block_len(), shape.dtype.block_bytes());
        let per_row = shape.cols / len;
        let item = self.scales.dtype.block_bytes();
        for (row, &n) in out.chunks_exact_mut(per_row * size).zip(outputs) {
            for (b, block) in row.chunks_exact_mut(size).enumerate() {
                let g = b * len / self.group;
                let (at, mut scale) = ((g * self.n + n) * item, [0.0]);
                if let Some(bytes) = self.scales.bytes.get(at..at + item) {
                    blocks::dequantize(self.scales.dtype, bytes, &mut scale);
                }
                let word = word(&self.qzeros, g * (self.n / PACK) + n / PACK);
                let scale = f16::from_f32(scale[0]);
                finite &= scale.is_finite();
                block[..2].copy_from_slice(&scale.to_le_bytes());
                block[2] = match self.layout {
                    // Zero less one was stored as 15.
                    Int4Layout::Gptq { less_one } => {
                        (word >> (n % PACK * 4)).wrapping_add(u32::from(less_one)) as u8 & 15
                    }
                    Int4Layout::Awq => (word >> (AWQ_PLACE[n % PACK] * 4)) as u8 & 15,
                };
            }
        }
        finite
    }

    /// Writes the values, with inputs in the outer loop as in the file.
    fn values(&self, shape: WeightShape, outputs: &[usize], out: &mut [u8]) {
        let (len, size) = (shape.dtype.block_len(), shape.dtype.block_bytes());
        let row_bytes = shape.cols / len * size;
        // Nibbles of 32 values are ordered as in Q4_0: first half low, second half high.
        let place = |k: usize| {
            let (block, i) = (k / len, k % len);
            (block * size + 3 + i / 32 * 16 + i % 16, i % 32 / 16 * 4)
        };
        match self.layout {
            Int4Layout::Gptq { .. } => {
                for k in (0..shape.cols).step_by(PACK) {
                    let (at, shift) = place(k);
                    for (row, &n) in outputs.iter().enumerate() {
                        let word = word(&self.qweight, k / PACK * self.n + n);
                        let to = &mut out[row * row_bytes + at..][..PACK];
                        for (j, o) in to.iter_mut().enumerate() {
                            *o |= ((word >> (4 * j)) as u8 & 15) << shift;
                        }
                    }
                }
            }
            Int4Layout::Awq => {
                for k in 0..shape.cols {
                    let (at, shift) = place(k);
                    for (row, &n) in outputs.iter().enumerate() {
                        let word = word(&self.qweight, k * (self.n / PACK) + n / PACK);
                        let q = (word >> (AWQ_PLACE[n % PACK] * 4)) as u8 & 15;
                        out[row * row_bytes + at] |= q << shift;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One group of 32 inputs and eight outputs with the given zero points and scale.
    fn layer(less_one: bool, zeros: u32, scale: f32) -> (Vec<u8>, bool) {
        let words = |n: usize, word: u32| WeightBytes::owned(word.to_le_bytes().repeat(n));
        let scales = StoredTensor {
            dtype: DType::F32,
            shape: vec![1, 8],
            bytes: WeightBytes::owned(scale.to_le_bytes().repeat(8)),
        };
        let weight = Int4Weight {
            layout: Int4Layout::Gptq { less_one },
            qweight: words(4 * 8, 0x7654_3210),
            qzeros: words(1, zeros),
            scales,
            n: 8,
            group: 32,
            taken: std::iter::once(0..8).collect(),
        };
        let shape = WeightShape { rows: 8, cols: 32, dtype: DType::Q4_G32 };
        let (bytes, finite) = weight.rows(shape, 0..8).unwrap();
        (bytes.to_vec(), finite)
    }

    #[test]
    fn zero_points_wrap_around() {
        let size = DType::Q4_G32.block_bytes();
        let zeros = |less_one, word| -> Vec<u8> {
            layer(less_one, word, 1.0).0.chunks(size).map(|block| block[2]).collect()
        };
        // All 15: adding one to the whole word would overflow.
        assert_eq!(zeros(true, u32::MAX), [0; 8]);
        assert_eq!(zeros(false, u32::MAX), [15; 8]);
        assert_eq!(zeros(true, 0xf765_4321), [2, 3, 4, 5, 6, 7, 8, 0]);
    }

    #[test]
    fn scales_that_are_no_numbers_or_too_large_are_told() {
        assert!(layer(true, 0, 1.0).1 && layer(true, 0, 65504.0).1);
        for scale in [f32::NAN, f32::INFINITY, 1e9, -1e9] {
            assert!(!layer(true, 0, scale).1, "{scale}");
        }
    }
}
