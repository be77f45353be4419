//! Which weights are quantized at load, and to which type.

use troika_graph::DType;
use troika_model::spec::{WeightRequirement, WeightRole};

/// The type in which float matrices are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatType {
    /// The type in the file.
    #[default]
    Auto,
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    BF16,
}

impl FloatType {
    /// `None`: that of the file.
    pub(crate) fn dtype(self) -> Option<DType> {
        match self {
            FloatType::Auto => None,
            FloatType::F32 => Some(DType::F32),
            FloatType::F16 => Some(DType::F16),
            FloatType::BF16 => Some(DType::BF16),
        }
    }
}

troika_model::named! {
    /// Quantization of float weights at load.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Quant {
        /// Weights keep the file's type.
        #[default]
        None = "none",
        /// Float matrices become bf16.
        Bf16 = "bf16",
        /// 8 bits, a scale per 32 ([`DType::Q8_0`]).
        Q8 = "q8",
        /// 4 bits, with a scale and a zero point per 32 ([`DType::Q4_G32`]). The head has 8 bits,
        /// since its errors reach the logits directly.
        Q4 = "q4",
        /// The same with a scale and a zero point per 64 ([`DType::Q4_G64`]), as in MLX. Rows that
        /// are no multiple of 64 have them per 32.
        Q4By64 = "q4-64",
    }
}

impl Quant {
    /// The type that a weight of type `dtype` becomes; `None`: it keeps its type.
    ///
    /// Norms, biases and the router are not quantized: they are small, and the router's choices are
    /// sensitive. Neither is the embedding, since only the rows of a prompt's tokens are read (a
    /// tied head is a weight of its own then). Latent attention's per-head matrices have no integer
    /// path.
    pub(crate) fn target(self, need: &WeightRequirement, dtype: DType) -> Option<DType> {
        let role = need.key.role;
        let per_head = matches!(role, WeightRole::KAbsorb | WeightRole::VUp);
        let small = need.rows <= 1 || matches!(role, WeightRole::Embed | WeightRole::Router);
        let target = match self {
            Quant::None => return None,
            Quant::Bf16 => DType::BF16,
            _ if per_head => return None,
            Quant::Q8 => DType::Q8_0,
            _ if role == WeightRole::Head => DType::Q8_0,
            Quant::Q4By64 if need.cols.is_multiple_of(64) => DType::Q4_G64,
            Quant::Q4 | Quant::Q4By64 => DType::Q4_G32,
        };
        let fits = need.cols.is_multiple_of(target.block_len());
        (!small && dtype.is_float() && dtype != target && fits).then_some(target)
    }
}

/// How to bind weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Type of float matrices.
    pub float: FloatType,
    /// Quantization of float matrices.
    pub quant: Quant,
}

impl From<FloatType> for BindOptions {
    fn from(float: FloatType) -> BindOptions {
        BindOptions { float, quant: Quant::None }
    }
}
