//! Parts that most families share: the fields of a Llama-like decoder, and its layers.

use troika_graph::{Activation, RopeStyle, Window};

use super::fields::{Fields, Result, bad, unsupported};
use super::rope::RopeConfig;
use crate::spec::{Attn, Ffn, Layer, Mixer, Mlp, ModelSpec, Norm, QkNorm, RopeSpec};

/// The source of fields, for the few differences between formats.
pub(super) enum ConfigSource {
    HuggingFace,
    Gguf {
        /// Whether the converter permuted q and k so that rope pairs adjacent elements.
        interleaved: bool,
    },
}

impl ConfigSource {
    pub fn rope_style(&self) -> RopeStyle {
        match self {
            ConfigSource::Gguf { interleaved: true } => RopeStyle::Interleaved,
            _ => RopeStyle::Half,
        }
    }

    /// Gemma's checkpoints store norm weights minus one; GGUF files store them fully.
    pub fn gemma_offset(&self) -> f32 {
        match self {
            ConfigSource::HuggingFace => 1.0,
            ConfigSource::Gguf { .. } => 0.0,
        }
    }
}

/// Fields common to all families.
pub(super) struct Base<'a> {
    pub f: Fields<'a>,
    pub source: &'a ConfigSource,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub context: usize,
    pub vocab: usize,
    pub tied: bool,
    pub eps: f32,
    pub act: Activation,
    pub theta: f64,
    /// How rope pairs elements.
    pub style: RopeStyle,
    /// The rotated part of a head, if the config does not say.
    pub partial: f64,
}

/// A family's defaults for absent fields.
pub(super) struct Defaults {
    pub theta: f64,
    pub tied: bool,
    pub eps: f64,
    pub head_dim: Option<usize>,
    pub act: &'static str,
    pub context: usize,
}

impl Default for Defaults {
    fn default() -> Self {
        let (theta, eps, context) = (10_000.0, 1e-6, 2048);
        Defaults { theta, tied: false, eps, head_dim: None, act: "silu", context }
    }
}

/// The activation function with a given name.
pub(super) fn activation(name: &str) -> Result<Activation> {
    Ok(match name {
        "silu" | "swish" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "relu2" => Activation::ReluSquared,
        other => {
            let all = "silu, gelu, gelu_pytorch_tanh, gelu_new, relu, relu2";
            return Err(unsupported(format!("hidden_act {other:?}"), all));
        }
    })
}

/// A layer with the same norm before and after mixer and feed-forward.
pub(super) fn sandwich(norm: Norm, layer: Layer) -> Layer {
    let norm = Some(norm);
    Layer { attn_pre: norm, ffn_pre: norm, attn_post: norm, ffn_post: norm, ..layer }
}

/// The layers with the window where `sliding` says so.
pub(super) fn windowed(mut layers: Vec<Layer>, sliding: &[bool], window: Window) -> Vec<Layer> {
    for (layer, sliding) in layers.iter_mut().zip(sliding) {
        layer.attention_mut().into_iter().for_each(|a| a.window = window.filter(|_| *sliding));
    }
    layers
}

/// Ropes of layers without and with a window; `None`: these layers use no positions.
#[derive(Clone)]
pub(super) struct Ropes {
    pub global: Option<RopeSpec>,
    pub local: Option<RopeSpec>,
}

impl Ropes {
    /// Gives each layer the rope of its kind, and the window where `sliding` says so.
    pub fn give(&self, layers: &mut [Layer], sliding: &[bool], window: Option<usize>) {
        for (layer, sliding) in layers.iter_mut().zip(sliding) {
            let rope = if *sliding { &self.local } else { &self.global };
            let Some(attn) = layer.attention_mut() else { continue };
            (attn.rope, attn.window) = (rope.clone(), window.filter(|_| *sliding));
        }
    }
}

impl<'a> Base<'a> {
    pub fn read(f: Fields<'a>, source: &'a ConfigSource, d: Defaults) -> Result<Base<'a>> {
        let hidden = f.size("hidden_size")?;
        let heads = f.count("num_attention_heads")?;
        let kv_heads = f.count_opt("num_key_value_heads")?.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let problem = format!("not a divisor of num_attention_heads {heads}");
            return Err(bad("num_key_value_heads", kv_heads, problem));
        }
        let head_dim = match f.size_opt("head_dim")?.or(d.head_dim) {
            Some(h) => h,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let problem =
                    format!("not a divisor of hidden_size {hidden}, and head_dim is absent");
                return Err(bad("num_attention_heads", heads, problem));
            }
        };
        let act = f.first(&["hidden_act", "hidden_activation"], Fields::text)?;
        // Where it says "vision", rows of pictures see each other, not those of text.
        if f.get("use_bidirectional_attention").is_none_or(|v| v != "vision") {
            f.refuse_flag("use_bidirectional_attention")?;
        }
        Ok(Base {
            f,
            source,
            hidden,
            heads,
            kv_heads,
            head_dim,
            layers: f.count("num_hidden_layers")?,
            context: f.context("max_position_embeddings")?.unwrap_or(d.context),
            vocab: f.size("vocab_size")?,
            tied: f.flag("tie_word_embeddings")?.unwrap_or(d.tied),
            eps: f.positive("rms_norm_eps")?.unwrap_or(d.eps) as f32,
            act: activation(act.unwrap_or(d.act))?,
            theta: d.theta,
            style: source.rope_style(),
            partial: 1.0,
        })
    }

    pub fn rms(&self) -> Norm {
        Norm::Rms { eps: self.eps, offset: 0.0 }
    }

    /// The rope that all layers share.
    pub fn rope(&self) -> Result<RopeSpec> {
        self.rope_of(&RopeConfig::read(self.f, None, self.theta)?)
    }

    pub fn rope_of(&self, config: &RopeConfig<'_>) -> Result<RopeSpec> {
        config.build(self.head_dim, config.partial(self.partial)?, self.style, self.context)
    }

    /// The ropes of layers without and with a window; the latter is not scaled unless the config
    /// says so for these layers.
    pub fn ropes(&self) -> Result<Ropes> {
        let global = RopeConfig::read(self.f, Some("full_attention"), self.theta)?;
        let global = Some(self.rope_of(&global)?);
        let local = RopeConfig::local(self.f, "rope_theta", self.theta)?;
        Ok(Ropes { global, local: Some(self.rope_of(&local)?) })
    }

    /// Norms of q and k before rope.
    pub fn qk_norm(&self, per_head: bool) -> QkNorm {
        QkNorm { norm: self.rms(), per_head, after_rope: false }
    }

    /// Plain attention with rope.
    pub fn attn(&self, rope: Option<RopeSpec>) -> Attn {
        Attn {
            heads: self.heads,
            kv_heads: self.kv_heads,
            k_dim: self.head_dim,
            v_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            rope,
            ..Attn::default()
        }
    }

    /// The same with or without biases, as the config says, or else as by `default`.
    pub fn biased_attn(&self, rope: Option<RopeSpec>, default: bool) -> Result<Attn> {
        let bias = self.f.flag("attention_bias")?.unwrap_or(default);
        Ok(Attn { qkv_bias: bias, o_bias: bias, ..self.attn(rope) })
    }

    /// The same with norms of queries and keys, and without biases by default.
    pub fn normed_attn(&self, rope: Option<RopeSpec>, per_head: bool) -> Result<Attn> {
        Ok(Attn { qk_norm: Some(self.qk_norm(per_head)), ..self.biased_attn(rope, false)? })
    }

    /// A gated feed-forward of the config's `intermediate_size`.
    pub fn mlp(&self) -> Result<Mlp> {
        let inter = self.f.size("intermediate_size")?;
        Ok(Mlp { inter, act: self.act, gated: true, bias: false, gate_scale: 1.0, above: None })
    }

    /// The same with biases if the config has an `mlp_bias`.
    pub fn biased_mlp(&self) -> Result<Mlp> {
        Ok(Mlp { bias: self.f.flag("mlp_bias")?.unwrap_or(false), ..self.mlp()? })
    }

    /// A pre-norm layer.
    pub fn layer(&self, attn: Attn, ffn: Ffn) -> Layer {
        Layer {
            attn_pre: Some(self.rms()),
            attn_post: None,
            ffn_pre: Some(self.rms()),
            ffn_post: None,
            parallel: false,
            mixer_scale: 1.0,
            ffn_scale: 1.0,
            mixer: Some(Mixer::Attention(Box::new(attn))),
            beside: None,
            ffn: Some(ffn),
            per_layer: None,
            out_scale: 1.0,
        }
    }

    /// The same with norms after mixer and feed-forward instead of before.
    pub fn post_norm(&self, layer: Layer) -> Layer {
        let (none, norm) = (None, Some(self.rms()));
        Layer { attn_pre: none, ffn_pre: none, attn_post: norm, ffn_post: norm, ..layer }
    }

    /// A model with the given layers. Whoever found its family gives it its name.
    pub fn model(&self, layers: Vec<Layer>) -> ModelSpec {
        ModelSpec {
            family: String::new(),
            vocab: self.vocab,
            hidden: self.hidden,
            context: self.context,
            dense_context: None,
            embed_scale: 1.0,
            altup: None,
            layers,
            final_norm: self.rms(),
            tied: self.tied,
            head_bias: false,
            logit_scale: 1.0,
            logit_softcap: None,
        }
    }

    /// A model of equal layers.
    pub fn alike(&self, attn: Attn, ffn: Ffn) -> ModelSpec {
        self.model(vec![self.layer(attn, ffn); self.layers])
    }

    /// Which layers use the sliding window: `layer_types`, or the family's rule.
    pub fn sliding(&self, rule: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
        self.kinds("layer_types", "sliding_attention", "full_attention", rule)
    }

    /// Which layers have the delta rule: `layer_types`, or the family's rule.
    pub fn linear(&self, rule: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
        self.kinds("layer_types", "linear_attention", "full_attention", rule)
    }

    /// Which layers have a dense feed-forward: `mlp_layer_types`, or the family's rule.
    pub fn dense(&self, rule: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
        self.kinds("mlp_layer_types", "dense", "sparse", rule)
    }

    /// Which layers are of the kind `yes`; the others must be of the kind `no`.
    fn kinds(
        &self,
        field: &str,
        yes: &str,
        no: &str,
        rule: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>> {
        let given = self.named_kinds(field, &[(no, false), (yes, true)])?;
        Ok(given.unwrap_or_else(|| (0..self.layers).map(rule).collect()))
    }

    /// The kinds of layers, from a list of their names; `None` if there is none.
    pub fn named_kinds<T: Copy>(&self, field: &str, names: &[(&str, T)]) -> Result<Option<Vec<T>>> {
        let Some(list) = self.f.each_layer(field, self.layers)? else { return Ok(None) };
        let kind = |(i, v): (usize, &serde_json::Value)| {
            let found = v.as_str().and_then(|name| names.iter().find(|(known, _)| *known == name));
            found.map(|(_, kind)| *kind).ok_or_else(|| {
                let all: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
                unsupported(format!("{field} of layer {i}: {v}"), all.join(", "))
            })
        };
        list.iter().enumerate().map(kind).collect::<Result<_>>().map(Some)
    }

    /// `sliding_window`, unless `use_sliding_window` is absent or false; null means none.
    pub fn optional_window(&self, default: Option<usize>) -> Result<Option<usize>> {
        if self.f.flag("use_sliding_window")? != Some(true) {
            return Ok(None);
        }
        self.f.or("sliding_window", default, Fields::window)
    }
}
