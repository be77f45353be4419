//! What is quantized at load, and to what.

use troika_graph::DType;
use troika_model::spec::{WeightRequirement, WeightRole};

/// Which type float matrices are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatType {
    /// As the file has them.
    #[default]
    Auto,
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    BF16,
}

/// Quantization of float weights at load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Quant {
    /// Weights stay as the file has them.
    #[default]
    None,
    /// Float matrices become bf16.
    Bf16,
    /// 8 bits, a scale per 32 ([`DType::Q8_0`]).
    Q8,
    /// 4 bits, a scale and a zero point per 32 ([`DType::Q4_G32`]); the head has 8 bits, because
    /// its errors reach the logits directly.
    Q4,
}

impl Quant {
    /// Name, as flags spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Quant::None => "none",
            Quant::Bf16 => "bf16",
            Quant::Q8 => "q8",
            Quant::Q4 => "q4",
        }
    }

    /// The type a weight of type `dtype` becomes; `None`: it stays.
    ///
    /// Norms, biases and the router stay: they are small, and the router's choices are sensitive.
    /// So does the embedding, of which only the rows of a prompt's tokens are ever read (a tied
    /// head is a weight of its own then). The heads' matrices of latent attention have no integer
    /// path.
    pub(crate) fn target(self, need: &WeightRequirement, dtype: DType) -> Option<DType> {
        let role = need.key.role;
        let per_head = matches!(role, WeightRole::KAbsorb | WeightRole::VUp);
        let small = need.rows <= 1 || matches!(role, WeightRole::Embed | WeightRole::Router);
        let target = match self {
            Quant::None => return None,
            Quant::Bf16 => DType::BF16,
            _ if per_head => return None,
            Quant::Q4 if role != WeightRole::Head => DType::Q4_G32,
            Quant::Q8 | Quant::Q4 => DType::Q8_0,
        };
        let fits = need.cols.is_multiple_of(target.block_len());
        (!small && dtype.is_float() && dtype != target && fits).then_some(target)
    }
}

/// How weights are bound.
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
