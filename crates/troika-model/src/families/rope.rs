//! Rotary embeddings: frequencies for all scaling types, computed as in the transformers library
//! (`modeling_rope_utils.py`).

use std::f64::consts::PI;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};
use troika_graph::{RopeFreqs, RopeStyle};

use super::fields::{Fields, Result, bad, missing, unsupported};
use crate::spec::RopeSpec;

/// The fields of a rope, in either format.
pub(super) struct RopeConfig<'a> {
    /// `rope_parameters` or `rope_scaling`; else no fields.
    params: Fields<'a>,
    config: Fields<'a>,
    pub theta: f64,
    /// For Phi-3: `yarn` is an old name of longrope, and the original length has a default.
    pub phi3: bool,
}

/// The limit of rotated elements per head, so that lists of frequencies are short.
const MAX_ROTARY: usize = 1 << 16;

/// The original length of Phi-3 if its config does not say.
const PHI3_ORIGINAL: usize = 4096;

impl<'a> RopeConfig<'a> {
    /// Reads the new format (`rope_parameters`, possibly per layer type) or the old one
    /// (`rope_theta` + `rope_scaling`). `layer_type` selects among nested parameters.
    pub fn read(
        config: Fields<'a>,
        layer_type: Option<&str>,
        default_theta: f64,
    ) -> Result<RopeConfig<'a>> {
        let object = |f: &Fields<'a>, name: &str| Ok(f.object(name)?.filter(|p| !p.0.is_empty()));
        let mut params = config.first(&["rope_scaling", "rope_parameters"], object)?;
        if let (Some(p), Some(kind)) = (params, layer_type)
            && (p.get("full_attention").is_some() || p.get("sliding_attention").is_some())
        {
            params = p.object(kind)?;
        }
        RopeConfig::of(params, config, "rope_theta", default_theta)
    }

    /// Layers with a window: separate parameters in the new format, only a base in the old one.
    pub fn local(config: Fields<'a>, base: &str, default_theta: f64) -> Result<RopeConfig<'a>> {
        let nested = config.object("rope_parameters")?;
        let params = nested.map_or(Ok(None), |p| p.object("sliding_attention"))?;
        RopeConfig::of(params, config, base, default_theta)
    }

    /// With the base of the parameters, or else of a field of the config.
    fn of(
        params: Option<Fields<'a>>,
        config: Fields<'a>,
        base: &str,
        default_theta: f64,
    ) -> Result<RopeConfig<'a>> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let params = params.unwrap_or(Fields(&NONE));
        let theta = match params.positive("rope_theta")? {
            Some(t) => t,
            None => config.positive(base)?.unwrap_or(default_theta),
        };
        Ok(RopeConfig { params, config, theta, phi3: false })
    }

    fn need(&self, name: &str) -> Result<f64> {
        let none = || missing(format!("rope_parameters.{name}"));
        self.params.positive(name)?.ok_or_else(none)
    }

    fn kind(&self) -> Result<&'a str> {
        let kind = self.params.first(&["rope_type", "type"], Fields::text)?.unwrap_or("default");
        Ok(if self.phi3 && kind == "yarn" { "longrope" } else { kind })
    }

    /// `partial_rotary_factor` in either format.
    pub fn partial(&self, default: f64) -> Result<f64> {
        let of = |f: &Fields<'_>| f.number("partial_rotary_factor").transpose();
        let value = of(&self.params).or_else(|| of(&self.config)).transpose()?;
        match value.unwrap_or(default) {
            f if f > 0.0 && f <= 1.0 => Ok(f),
            f => Err(bad("partial_rotary_factor", f, "not in (0, 1]")),
        }
    }

    /// Positions of the original training, for types that extend them.
    fn original(&self, context: usize) -> Result<f64> {
        // Phi-3 has it outside of the rope object too, and prefers that one.
        let of = |f: &Fields<'_>| f.context("original_max_position_embeddings").transpose();
        let value = of(&self.config).or_else(|| of(&self.params)).transpose()?;
        Ok(value.unwrap_or(if self.phi3 { PHI3_ORIGINAL } else { context }) as f64)
    }

    /// A rope for heads of `head_dim`; a part of each head is rotated.
    pub fn build(
        &self,
        head_dim: usize,
        partial: f64,
        style: RopeStyle,
        context: usize,
    ) -> Result<RopeSpec> {
        // Whole heads in pairs, of which the first part turns.
        let whole = self.kind()? == "proportional";
        let dim = if whole { head_dim } else { (head_dim as f64 * partial) as usize };
        if dim == 0 || !dim.is_multiple_of(2) {
            return Err(bad("rotary dimension", dim, "not an even number of at least 2"));
        }
        if dim > MAX_ROTARY {
            return Err(bad("rotary dimension", dim, format!("more than {MAX_ROTARY}")));
        }
        let mut rope = self.scaled(dim, style, context)?;
        let fine = |f: &RopeFreqs| f.factor.is_finite() && f.inv_freq.iter().all(|x| x.is_finite());
        // Bases and factors may be extreme.
        if !fine(&rope.freqs) || rope.long.as_ref().is_some_and(|l| !fine(&l.0)) {
            let problem = "giving frequencies that are not finite";
            return Err(bad("rope_theta", format!("{:?}", self.theta), problem));
        }
        if whole {
            let turns = (head_dim as f64 * partial / 2.0) as usize;
            let freqs = rope.freqs.inv_freq.iter().enumerate();
            rope.freqs.inv_freq = freqs.map(|(i, f)| if i < turns { *f } else { 0.0 }).collect();
        }
        Ok(rope)
    }

    fn scaled(&self, dim: usize, style: RopeStyle, context: usize) -> Result<RopeSpec> {
        let mut theta = self.theta;
        // Hunyuan: a base that is stretched once.
        if let ("dynamic", Some(alpha)) = (self.kind()?, self.params.positive("alpha")?) {
            theta *= alpha.powf(dim as f64 / (dim as f64 - 2.0));
        }
        let plain: Vec<f64> =
            (0..dim / 2).map(|i| theta.powf(-(2.0 * i as f64) / dim as f64)).collect();
        let spec = |freqs: Vec<f64>, factor: f64| RopeSpec {
            rotary_dim: dim,
            style,
            freqs: to_freqs(&freqs, factor),
            long: None,
        };
        match self.kind()? {
            // Dynamic scaling starts beyond the model's context, which a plan never exceeds.
            "default" | "none" | "mrope" | "dynamic" => Ok(spec(plain, 1.0)),
            "proportional" if self.params.get("factor").is_none() => Ok(spec(plain, 1.0)),
            "linear" | "proportional" => {
                let factor = self.need("factor")?;
                Ok(spec(plain.iter().map(|f| f / factor).collect(), 1.0))
            }
            "llama3" => Ok(spec(self.llama3(&plain, context)?, 1.0)),
            "yarn" => {
                let (freqs, factor) = self.yarn(&plain, dim, context)?;
                Ok(spec(freqs, factor))
            }
            "longrope" | "su" => {
                let [freqs, long] = self.longrope(&plain, context)?;
                let long = Some((long, self.original(context)? as usize));
                Ok(RopeSpec { rotary_dim: dim, style, freqs, long })
            }
            other => Err(unsupported(
                format!("rope type {other}"),
                "default, linear, proportional, llama3, yarn, longrope",
            )),
        }
    }

    fn llama3(&self, plain: &[f64], context: usize) -> Result<Vec<f64>> {
        let factor = self.need("factor")?;
        let (low, high) = (self.need("low_freq_factor")?, self.need("high_freq_factor")?);
        let original = self.original(context)?;
        if high <= low {
            return Err(bad("high_freq_factor", high, format!("not above low_freq_factor {low}")));
        }
        let scale = |f: &f64| {
            let wavelen = 2.0 * PI / f;
            if wavelen < original / high {
                *f
            } else if wavelen > original / low {
                f / factor
            } else {
                let smooth = (original / wavelen - low) / (high - low);
                (1.0 - smooth) * f / factor + smooth * f
            }
        };
        Ok(plain.iter().map(scale).collect())
    }

    fn yarn_factor(&self, context: usize) -> Result<f64> {
        match self.params.number("factor")? {
            Some(_) => self.need("factor"),
            None => Ok(context as f64 / self.original(context)?),
        }
    }

    /// DeepSeek's factor of the attention scale under yarn (`mscale_all_dim`).
    pub fn yarn_scale(&self, context: usize) -> Result<f64> {
        let all = self.params.number("mscale_all_dim")?.unwrap_or(0.0);
        if self.kind()? == "default" || all == 0.0 {
            return Ok(1.0);
        }
        let m = mscale(self.yarn_factor(context)?, all);
        Ok(m * m)
    }

    fn yarn(&self, plain: &[f64], dim: usize, context: usize) -> Result<(Vec<f64>, f64)> {
        let factor = self.yarn_factor(context)?;
        let original = self.original(context)?;
        let attention = match (
            self.params.number("attention_factor")?,
            self.params.number("mscale")?.filter(|m| *m != 0.0),
            self.params.number("mscale_all_dim")?.filter(|m| *m != 0.0),
        ) {
            (Some(a), _, _) => a,
            (None, Some(m), Some(all)) => mscale(factor, m) / mscale(factor, all),
            _ => mscale(factor, 1.0),
        };
        let beta =
            |name, default| Ok(self.params.number(name)?.filter(|b| *b > 0.0).unwrap_or(default));
        let (fast, slow) = (beta("beta_fast", 32.0)?, beta("beta_slow", 1.0)?);
        let truncate = self.params.flag("truncate")?.unwrap_or(true);
        let correction = |rotations: f64| {
            dim as f64 * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
        };
        let (mut low, mut high) = (correction(fast), correction(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let freqs = plain.iter().enumerate().map(|(i, f)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / factor * ramp + f * (1.0 - ramp)
        });
        Ok((freqs.collect(), attention))
    }

    /// The frequencies of short and of long sequences.
    fn longrope(&self, plain: &[f64], context: usize) -> Result<[RopeFreqs; 2]> {
        let list = |name: &str| -> Result<Vec<f64>> {
            let list = self.params.numbers(name)?;
            let list = list.ok_or_else(|| missing(format!("rope_parameters.{name}")))?;
            if list.len() != plain.len() || list.iter().any(|f| *f <= 0.0) {
                let problem = format!("not {} positive numbers", plain.len());
                return Err(bad(name, format!("a list of {}", list.len()), problem));
            }
            Ok(list)
        };
        let lists = [list("short_factor")?, list("long_factor")?];
        let original = self.original(context)?;
        let factor = self.params.number("factor")?.unwrap_or(context as f64 / original);
        let attention = match self.params.number("attention_factor")? {
            Some(a) => a,
            None if factor <= 1.0 || original <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / original.ln()).sqrt(),
        };
        let divided = |list: Vec<f64>| -> Vec<f64> {
            plain.iter().zip(list).map(|(f, divisor)| f / divisor).collect()
        };
        Ok(lists.map(|list| to_freqs(&divided(list), attention)))
    }

    /// PhiMoE scales sine and cosine by `short_mscale` or `long_mscale`. In the transformers
    /// library it uses the short frequencies for all lengths.
    pub fn phimoe_mscale(&self, mut spec: RopeSpec, context: usize) -> Result<RopeSpec> {
        if self.kind()? == "default" {
            return Ok(spec);
        }
        let (short, long) =
            (self.params.number("short_mscale")?, self.params.number("long_mscale")?);
        let short = short.unwrap_or(f64::from(spec.freqs.factor)) as f32;
        let long = long.unwrap_or(f64::from(spec.freqs.factor)) as f32;
        spec.freqs.factor = short;
        let freqs = RopeFreqs { inv_freq: spec.freqs.inv_freq.clone(), factor: long, growth: None };
        spec.long = Some((freqs, self.original(context)? as usize));
        Ok(spec)
    }
}

fn mscale(scale: f64, mscale: f64) -> f64 {
    if scale <= 1.0 { 1.0 } else { 0.1 * mscale * scale.ln() + 1.0 }
}

fn to_freqs(freqs: &[f64], factor: f64) -> RopeFreqs {
    let inv_freq: Arc<[f32]> = freqs.iter().map(|f| *f as f32).collect();
    RopeFreqs { inv_freq, factor: factor as f32, growth: None }
}
