//! How checkpoints of four-bit layers (GPTQ, AWQ) are to be read.

/// How a checkpoint's linear layers are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int4Config {
    /// Which.
    pub layout: Int4Layout,
    /// Inputs that share a scale; `None`: all of them.
    pub group: Option<usize>,
}

/// Order and meaning of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int4Layout {
    /// GPTQ.
    Gptq {
        /// Zero points are stored less one.
        less_one: bool,
    },
    /// AWQ, version `gemm`.
    Awq,
}
