//! Reports on weights: memory by class, cost of a token, quantization errors.

pub(crate) mod account;
pub(crate) mod cost;
pub(crate) mod quality;
