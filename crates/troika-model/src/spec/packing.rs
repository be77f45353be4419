//! How the linear layers of a quantized checkpoint are stored.

/// The kind of a quantized checkpoint. Bits and groups of a layer follow from its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// GPTQ.
    Gptq {
        /// Whether zero points are stored minus one.
        less_one: bool,
    },
    /// AWQ, version `gemm`.
    Awq,
    /// AWQ, version `gemv`.
    AwqGemv {
        /// Number of inputs that share a scale: its tensors are longer than their groups.
        group: usize,
    },
    /// Floats of eight bits, with scales per matrix, output or block.
    Fp8(ScaleBlock),
    /// What the library compressed-tensors writes.
    CompressedTensors(ScaleBlock),
    /// Experts in MXFP4, as gpt-oss was published.
    Mxfp4,
    /// MLX.
    Mlx,
}

/// The part of a matrix that shares a scale, where scales form a matrix themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleBlock {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}
