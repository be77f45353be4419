//! Linear layers of quantized checkpoints.
//!
//! Each format keeps, for a matrix of `n` outputs and `k` inputs, codes of four or eight bits and
//! scales of groups instead of `weight`. A value is `scale * (number(code) - zero) + bias`:
//!
//! | | GPTQ | AWQ `gemm` | AWQ `gemv` | compressed-tensors | MLX | FP8 | MXFP4 |
//! |---|---|---|---|---|---|---|---|
//! | codes | int32 `[k / 8, n]` | int32 `[k, n / 8]` | int32 `[n, k / 8]` | int32 `[n, k / 8]`, int8 | uint32 `[n, k / 8]` | e4m3 `[n, k]` | `[n, k / 2]` |
//! | scales | `[groups, n]` | `[groups, n]` | `[n, groups]` | `[n, groups]` | `[n, groups]` | per matrix, output or block | exponents `[n, groups]` |
//! | zero | codes `[groups, n]` | codes `[groups, n]` | codes `[n, groups]` | half, or codes `[n, groups]` | a float `bias` | none | none |
//!
//! (for eight bits with 4 instead of 8). Codes lie in an int32 with the lowest bits first, in AWQ
//! `gemm` in the order 0, 2, 4, 6, 1, 3, 5, 7. What has a type of blocks with the same values
//! becomes that; the rest is rounded, and [`Rounding`] says how.

pub(crate) mod codes;
mod find;
mod weight;

pub(crate) use find::{FoundPacked, find};
pub(crate) use weight::{PackedWeight, Parts, Rounding};

#[cfg(test)]
mod tests;
