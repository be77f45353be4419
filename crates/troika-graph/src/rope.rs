//! Rotary position embedding.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Which elements a rotary embedding pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RopeStyle {
    /// Element `i` with `i + rotary_dim / 2` (GPT-NeoX, Hugging Face).
    Half,
    /// Element `2i` with `2i + 1` (the original paper; llama.cpp's permuted files).
    Interleaved,
}

/// Inverse frequencies and the factor that scales sine and cosine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeFreqs {
    /// `rotary_dim / 2` inverse frequencies (radians per position).
    pub inv_freq: Arc<[f32]>,
    /// Multiplies sine and cosine (`attention_factor`, mscale of yarn and longrope).
    pub factor: f32,
    /// Multiplies both further, more at later positions.
    #[serde(default)]
    pub growth: Option<Growth>,
}

impl RopeFreqs {
    /// What sine and cosine are multiplied with at a position.
    pub fn factor_at(&self, position: f32) -> f32 {
        self.factor * self.growth.map_or(1.0, |growth| growth.at(position))
    }
}

/// Queries that grow with their positions beyond the original context (Llama 4's
/// `attn_temperature_tuning`, Ministral 3): a factor of `1 + beta * ln(1 + floor(p / original))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// See above.
    pub beta: f32,
    /// Positions of the original context.
    pub original: usize,
}

impl Growth {
    fn at(self, position: f32) -> f32 {
        let times = (position / self.original as f32).floor();
        1.0 + self.beta * f64::from(times).ln_1p() as f32
    }
}

/// Rotary position embedding (RoFormer, eq. 34) on the heads of one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Width of a head in the value.
    pub head_dim: usize,
    /// First rotated element within a head.
    pub offset: usize,
    /// Rotated elements within a head (even).
    pub rotary_dim: usize,
    /// Pairing.
    pub style: RopeStyle,
    /// Frequencies for sequences up to `long.1` positions, or for all.
    pub freqs: RopeFreqs,
    /// longrope: other frequencies for sequences known to exceed this many positions.
    pub long: Option<(RopeFreqs, usize)>,
}
