//! What weights cost: memory by class, bytes and operations of a token, errors of quantization.

pub(crate) mod account;
pub(crate) mod cost;
pub(crate) mod quality;
