//! Which kernels serve which types of weights.

use troika_cpu::Isa;
use troika_cpu::kernels::multiply;
use troika_graph::{ActivationFormat, DType};

/// A type of weights, and how devices compute products with it.
#[derive(Clone, Debug)]
pub struct WeightType {
    /// The type.
    pub dtype: DType,
    /// Bits of a weight in files.
    pub bits: f32,
    /// What the CPU multiplies with on this machine, in words.
    pub cpu: &'static str,
    /// The layout on GPUs, and its bits; `None` in builds without GPUs.
    pub gpu: Option<(String, f32)>,
}

/// All types that weights can have.
pub fn weight_types() -> Vec<WeightType> {
    const COLS: usize = 1 << 16;
    let bits = |bytes: usize| 8.0 * bytes as f32 / COLS as f32;
    let of = |&dtype: &DType| {
        let activations = match dtype {
            d if d.is_quantized() => ActivationFormat::INT8,
            _ => ActivationFormat::F32,
        };
        let way = multiply(Isa::detect(), dtype, activations);
        let cpu = way.map_or("plain numbers, one by one", |way| way.words());
        #[cfg(feature = "gpu")]
        let gpu = troika_gpu::kernels::WeightFormat::of(dtype)
            .map(|format| (format!("{format:?}"), bits(format.row_bytes(COLS as u32))));
        #[cfg(not(feature = "gpu"))]
        let gpu = None;
        WeightType { dtype, bits: bits(dtype.row_bytes(COLS).unwrap_or(0)), cpu, gpu }
    };
    DType::WEIGHTS.iter().map(of).collect()
}
