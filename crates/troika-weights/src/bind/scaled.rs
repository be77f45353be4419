//! Rows of a tensor that are multiplied with a number.

use half::f16;
use troika_device::WeightBytes;
use troika_graph::{DType, blocks};
use troika_model::lower::WeightShape;
use troika_model::spec::{Checkpoint, Recipe, StoredTensor};

use crate::bind::cut::{narrow, quantize_row};
use crate::bind::packed::Rounding;
use crate::bind::scheme::FloatType;

/// Rows, and the number that they are multiplied with on demand.
pub(crate) struct ScaledRows {
    pub bytes: WeightBytes,
    pub dtype: DType,
    pub factor: f32,
}

/// The name of the tensor that a weight is multiplied with: in GGUF files one beside it, in
/// checkpoints of Gemma 4 one of the router. GGUF's router of Gemma 4 has a norm by such a name.
pub(crate) fn scale_name(tensor: &str) -> Option<String> {
    let router = tensor.strip_suffix("experts.down_proj");
    let of_router = router.map(|layer| format!("{layer}router.per_expert_scale"));
    let name = tensor.strip_suffix(".weight").filter(|name| !name.ends_with("ffn_gate_inp"));
    of_router.or_else(|| name.map(|name| format!("{name}.scale")))
}

/// The numbers of such a tensor; `None` if they change nothing, or there are none.
pub(crate) fn factors(name: &str, files: &dyn Checkpoint) -> Option<Vec<f32>> {
    let scale = files.tensor(name)?;
    if !scale.dtype.is_float() {
        return Some(Vec::new());
    }
    let mut factors = vec![0.0; scale.bytes.len() / scale.dtype.block_bytes()];
    blocks::dequantize(scale.dtype, &scale.bytes, &mut factors);
    // All experts of a layer have one type.
    factors.iter().any(|factor| *factor != 1.0).then_some(factors)
}

/// What the rows of a piece of a tensor are multiplied with: a number for the tensor, or one for each
/// expert.
pub(crate) fn factor(
    recipe: &Recipe,
    tensor: &StoredTensor,
    files: &dyn Checkpoint,
) -> Option<f32> {
    let plain = recipe.cols.is_none() && !recipe.transpose;
    let name = scale_name(&recipe.tensor).filter(|_| plain)?;
    let factors = factors(&name, files)?;
    let rows = tensor.matrix().0.checked_div(factors.len())?;
    let all = 0..tensor.matrix().0;
    let taken = recipe.rows_of(&all);
    let first = taken.first()?.start.checked_div(rows)?;
    let one = taken.iter().all(|r| r.start / rows == first && r.end <= (first + 1) * rows);
    factors.get(first).filter(|_| one).copied()
}

/// Where blocks have halves that all values are in proportion to, if that is so.
fn halves(dtype: DType) -> Option<Vec<usize>> {
    let minima = dtype.has_minimum().then_some(2);
    dtype.scale_at().map(|at| std::iter::once(at).chain(minima.map(|next| at + next)).collect())
}

impl ScaledRows {
    /// The type of the products.
    pub fn result(&self, float: FloatType) -> DType {
        match self.dtype {
            DType::NVFP4 => DType::F4_G16,
            dtype if dtype.is_float() => float.of(dtype),
            dtype if halves(dtype).is_some() => dtype,
            _ => float.of(DType::Q8_0),
        }
    }

    /// How products in a type differ from exact ones, unless another type was asked for.
    pub fn rounding(&self, to: DType) -> Rounding {
        match (self.dtype.is_float(), self.dtype == to || self.dtype == DType::NVFP4) {
            (true, false) => Rounding::None,
            (false, true) => Rounding::Scales(f32::powi(2.0, -11)),
            _ => Rounding::Values(to),
        }
    }

    /// Writes the products of some rows, as blocks or floats of the shape's type. Returns whether
    /// all are finite.
    pub fn multiply(&self, from: &[u8], shape: WeightShape, out: &mut [u8]) -> bool {
        let (WeightShape { cols, dtype, .. }, factor) = (shape, self.factor);
        if self.dtype == DType::NVFP4 {
            return blocks::scaled_nvfp4(from, factor, out);
        }
        let mut finite = true;
        if let Some(halves) = halves(dtype).filter(|_| dtype == self.dtype) {
            out.copy_from_slice(from);
            for block in out.chunks_exact_mut(dtype.block_bytes()) {
                for at in &halves {
                    let half = block.get_mut(*at..).and_then(|rest| rest.first_chunk_mut());
                    let Some(half) = half else { continue };
                    let product = f16::from_f32(f16::from_le_bytes(*half).to_f32() * factor);
                    finite &= product.is_finite();
                    *half = product.to_le_bytes();
                }
            }
            return finite;
        }
        let [from_row, to_row] = [self.dtype, dtype].map(|d| d.row_bytes(cols).unwrap_or(0).max(1));
        let mut row = vec![0.0f32; cols];
        for (from, to) in from.chunks_exact(from_row).zip(out.chunks_exact_mut(to_row)) {
            blocks::dequantize(self.dtype, from, &mut row);
            row.iter_mut().for_each(|x| *x *= factor);
            finite &= row.iter().all(|x| x.is_finite());
            match dtype.is_float() {
                true => narrow(&row, dtype, to),
                false => finite &= quantize_row(dtype, &row, to),
            }
        }
        finite
    }
}
