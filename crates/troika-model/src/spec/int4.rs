//! The format of four-bit checkpoints (GPTQ, AWQ).

/// How a checkpoint's linear layers are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int4Config {
    /// The layout.
    pub layout: Int4Layout,
    /// Number of inputs that share a scale; `None`: all of them.
    pub group: Option<usize>,
}

/// Order and meaning of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int4Layout {
    /// GPTQ.
    Gptq {
        /// Whether zero points are stored minus one.
        less_one: bool,
    },
    /// AWQ, version `gemm`.
    Awq,
}
