//! The family of tests for recurrences: decaying sums, with attention in between.

use super::base::{Base, ConfigSource, Defaults};
use super::fields::{Fields, Result, bad};
use crate::spec::{DecayingSum, Ffn, Layer, Mixer, ModelSpec};

/// Layers of a decaying sum and a feed-forward; every `full_attention_interval`-th one attends.
pub(super) fn test_recurrent(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let b = Base::read(f, source, Defaults { context: 4096, ..Defaults::default() })?;
    let decay = f.positive("decay")?.unwrap_or(0.5) as f32;
    if decay >= 1.0 {
        return Err(bad("decay", decay, "not below 1"));
    }
    let sum = DecayingSum { width: f.size("state_size")?, decay };
    let every = f.count_opt("full_attention_interval")?.unwrap_or(0);
    let attends = b.layer(b.attn(Some(b.rope()?)), Ffn::Dense(b.mlp()?));
    let sums = Layer { mixer: Some(Mixer::DecayingSum(sum)), ..attends.clone() };
    let layer = |i: usize| if every > 0 && i % every == every - 1 { &attends } else { &sums };
    Ok(b.model((0..b.layers).map(|i| layer(i).clone()).collect()))
}
