//! Gemma 3n: Gemma 4's inputs of layers and shared keys, between streams that AltUp predicts and
//! corrects, and gates of which only the largest count.

use super::base::{Base, ConfigSource};
use super::fields::{Fields, Result, bad};
use super::gemma::read_newer;
use super::gemma4::with_own_inputs;
use crate::spec::{AltUp, Ffn, ModelSpec};

pub(super) fn gemma3n(f: Fields<'_>, source: &ConfigSource) -> Result<ModelSpec> {
    let mut b = read_newer(f, source, 32_768)?;
    // Tokens of pictures and sounds lie behind those that have an input of each layer.
    let all = if matches!(source, ConfigSource::HuggingFace) { 262_144 } else { b.vocab };
    b.vocab = b.vocab.min(f.size_opt("vocab_size_per_layer_input")?.unwrap_or(all));
    let sliding = b.sliding(|i| !(i + 1).is_multiple_of(5))?;
    let shared = f.count_opt("num_kv_shared_layers")?.unwrap_or(15);
    let width = f.size_opt("hidden_size_per_layer_input")?.unwrap_or(256);
    let mut m = with_own_inputs(&b, &sliding, shared, width)?;
    m.logit_softcap =
        f.or("final_logit_softcapping", Some(30.0), Fields::positive)?.map(|c| c as f32);
    m.altup = Some(altup(&b)?);
    for (layer, above) in m.layers.iter_mut().zip(deviations(&b)?) {
        // Beside attention's residual is LAuReL's.
        layer.mixer_scale = std::f32::consts::FRAC_1_SQRT_2;
        if let Some(Ffn::Dense(mlp)) = &mut layer.ffn {
            mlp.above = above;
        }
    }
    Ok(m)
}

fn altup(b: &Base<'_>) -> Result<AltUp> {
    let f = b.f;
    let streams = f.count_opt("altup_num_inputs")?.unwrap_or(4);
    if !(2..=16).contains(&streams) {
        return Err(bad("altup_num_inputs", streams, "not from 2 to 16"));
    }
    let active = f.count_opt("altup_active_idx")?.unwrap_or(0);
    if active >= streams {
        let problem = format!("not less than altup_num_inputs {streams}");
        return Err(bad("altup_active_idx", active, problem));
    }
    let scaled = f.flag("altup_correct_scale")?.unwrap_or(true);
    let rank = f.size_opt("laurel_rank")?.unwrap_or(64);
    Ok(AltUp { streams, active, scaled, rank, norm: b.rms() })
}

/// The standard deviations from the mean to the least gate that counts, for each layer: quantiles of
/// the normal distribution. GGUF files have these, configs the shares of gates that do not count.
fn deviations(b: &Base<'_>) -> Result<Vec<Option<f32>>> {
    if let Some(list) = b.f.each_layer("activation_sparsity_scale", b.layers)? {
        return Ok(list.iter().map(|v| v.as_f64().map(|z| z as f32)).collect());
    }
    let name = "activation_sparsity_pattern";
    let Some(list) = b.f.each_layer(name, b.layers)? else {
        let sparse = if b.layers > 10 { 10 } else { 0 };
        return Ok((0..b.layers).map(|i| (i < sparse).then(|| quantile(0.95))).collect());
    };
    let one = |v: &serde_json::Value| match v.as_f64() {
        Some(0.0) => Ok(None),
        Some(share) if share > 0.0 && share < 1.0 => Ok(Some(quantile(share))),
        _ => Err(bad(name, v, "not a list of shares from 0 to less than 1")),
    };
    list.iter().map(one).collect()
}

/// The normal distribution's quantile, by halving an interval. The distribution is summed as its
/// series (Marsaglia, Evaluating the Normal Distribution, section 2).
fn quantile(share: f64) -> f32 {
    let below = |z: f64| {
        let (mut sum, mut term, mut n) = (z, z, 1.0);
        while sum + term != sum {
            n += 2.0;
            term *= z * z / n;
            sum += term;
        }
        0.5 + sum * (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt()
    };
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if below(middle) < share { low = middle } else { high = middle }
    }
    low as f32
}

#[cfg(test)]
mod tests {
    #[test]
    fn quantiles_are_those_of_tables() {
        for (share, z) in
            [(0.5, 0.0), (0.95, 1.644_853_6), (0.25, -0.674_489_75), (0.999, 3.090_232_3)]
        {
            let found = super::quantile(share);
            assert!((found - z).abs() < 2e-7_f32.max(z.abs() * 2e-7), "{share}: {found}");
        }
    }
}
