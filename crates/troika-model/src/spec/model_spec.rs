//! A model as its layers.

use serde::{Deserialize, Serialize};
use troika_graph::{Activation, Decay, Growth, RopeFreqs, RopeStyle, Score, Window};

/// A whole model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The family's name in `config.json` (`model_type`: `qwen3_moe`). For people only.
    pub family: String,
    /// Vocabulary rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The longest sequence the model was made for, in tokens.
    pub context: usize,
    /// A longer one that may be asked for, where the model leaves keys out by an index from `context`
    /// on (DeepSeek-V3.2): attention to all keys goes on, which is not what the model does there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense_context: Option<usize>,
    /// Factor of the embedding (Gemma: sqrt(hidden), rounded as in the model).
    pub embed_scale: f32,
    /// Streams that layers predict and correct.
    pub altup: Option<AltUp>,
    /// Layers, first to last.
    pub layers: Vec<Layer>,
    /// Norm before the head.
    pub final_norm: Norm,
    /// Whether the head's weight is the embedding table.
    pub tied: bool,
    /// Whether the head has a bias.
    pub head_bias: bool,
    /// Multiplies the logits.
    pub logit_scale: f32,
    /// `cap * tanh(logit / cap)`.
    pub logit_softcap: Option<f32>,
}

impl ModelSpec {
    /// The longest context that may be asked for.
    pub fn longest(&self) -> usize {
        self.dense_context.map_or(self.context, |dense| dense.max(self.context))
    }

    /// The input that each layer has beside the residual stream.
    pub fn per_layer_input(&self) -> Option<PerLayerInput> {
        self.layers.first().and_then(|layer| layer.per_layer)
    }
}

/// Normalisation of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Norm {
    /// Root mean square.
    Rms {
        /// Added to the mean square.
        eps: f32,
        /// Added to the weight (1 for Gemma checkpoints, 0 elsewhere and in GGUF).
        offset: f32,
    },
    /// Mean and variance.
    Layer {
        /// Added to the variance.
        eps: f32,
        /// Whether there is a bias.
        bias: bool,
    },
}

/// One layer: a mixer and a feed-forward around the residual stream `x`. Either may be absent.
///
/// Serial: `x += post(mixer(pre(x)))`, then `x += post(ffn(pre(x)))`.
/// Parallel: `x += mixer(n(x)) + ffn(n(x))` with `n = attn_pre`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Norm before the mixer (absent in post-norm models).
    pub attn_pre: Option<Norm>,
    /// Norm of the mixer's output, before it is added.
    pub attn_post: Option<Norm>,
    /// Norm before the feed-forward.
    pub ffn_pre: Option<Norm>,
    /// Norm of the feed-forward's output, before it is added.
    pub ffn_post: Option<Norm>,
    /// Whether mixer and feed-forward read the same normalised input.
    pub parallel: bool,
    /// Multiplies what the mixer adds.
    pub mixer_scale: f32,
    /// Multiplies what the feed-forward adds.
    pub ffn_scale: f32,
    /// What mixes positions.
    pub mixer: Option<Mixer>,
    /// What mixes beside the attention, from the same normalised input (Falcon-H1).
    pub beside: Option<Box<Mamba2>>,
    /// Feed-forward.
    pub ffn: Option<Ffn>,
    /// What the layer adds behind its feed-forward, from its own rows of the token.
    pub per_layer: Option<PerLayerInput>,
    /// Multiplies the layer's output.
    pub out_scale: f32,
}

/// An input of a layer beside the residual stream (Gemma 4): each token has a row for each layer.
/// `x += norm(up(act(gate(x)) * input))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerLayerInput {
    /// Its width.
    pub width: usize,
    /// Activation of the gate.
    pub act: Activation,
    /// The norm of what is added, and of what the embedding adds to the input.
    pub norm: Norm,
}

/// Gemma 3n's residual streams (AltUp, section 3): a layer computes one of them, and predicts and
/// corrects all. Beside its attention is a residual of low rank (LAuReL, section 2.1), and the
/// sum of both is divided by the root of two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AltUp {
    /// Streams, each as wide as the embedding.
    pub streams: usize,
    /// The one that layers compute.
    pub active: usize,
    /// Whether the active stream is scaled by column where a layer's own input meets it.
    pub scaled: bool,
    /// Rank of LAuReL.
    pub rank: usize,
    /// Norms of what coefficients follow from, and of what LAuReL adds.
    pub norm: Norm,
}

impl Layer {
    /// Its attention, if that is its mixer.
    pub fn attention(&self) -> Option<&Attn> {
        if let Some(Mixer::Attention(a)) = &self.mixer { Some(a) } else { None }
    }

    /// Like [`Layer::attention`], to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut Attn> {
        if let Some(Mixer::Attention(a)) = &mut self.mixer { Some(a) } else { None }
    }

    /// Its dense feed-forward, if it has one.
    pub fn dense(&self) -> Option<&Mlp> {
        self.ffn.as_ref().and_then(|ffn| if let Ffn::Dense(mlp) = ffn { Some(mlp) } else { None })
    }

    /// Its experts, if it has any.
    pub fn moe(&self) -> Option<&Moe> {
        self.ffn.as_ref().and_then(|ffn| if let Ffn::Moe(moe) = ffn { Some(moe) } else { None })
    }
}

/// What mixes the positions of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Mixer {
    /// Attention.
    Attention(Box<Attn>),
    /// A decaying sum, the recurrence of tests.
    DecayingSum(DecayingSum),
    /// A gated short convolution.
    ShortConv(ShortConv),
    /// Mamba-2.
    Mamba2(Box<Mamba2>),
    /// The gated delta rule.
    DeltaRule(DeltaRule),
}

/// A gated short convolution (LFM2): `out(c * conv(b * x))` with `[b, c, x] = in(x)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShortConv {
    /// Positions that a result depends on.
    pub taps: usize,
    /// Whether projections and convolution have biases.
    pub bias: bool,
}

/// Mamba-2: `out(norm(scan(conv(in(x)), dt(x)), z(x)))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups of heads with a common `b` and `c`.
    pub groups: usize,
    /// State elements for each element of a head.
    pub state_size: usize,
    /// Positions that the convolution's results depend on.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections have biases.
    pub bias: bool,
    /// Whether files have the logarithms of rates.
    pub a_log: bool,
    /// The least step.
    pub dt_min: f32,
    /// The largest step.
    pub dt_max: f32,
    /// Norm of the result, with the gate `silu(z)`.
    pub norm: Option<GatedNorm>,
    /// Factors of what is projected.
    pub scales: MambaScales,
    /// Multiplies what it adds where it is beside an attention.
    pub scale: f32,
}

impl Mamba2 {
    /// Width of the result.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all `b`, and of all `c`.
    pub fn shared(&self) -> usize {
        self.groups * self.state_size
    }

    /// Width of what is convolved.
    pub fn convolved(&self) -> usize {
        self.inner() + 2 * self.shared()
    }
}

/// A norm beside a gate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatedNorm {
    /// The norm.
    pub norm: Norm,
    /// Columns normalised together.
    pub group: usize,
    /// Whether it comes before the gate.
    pub before_gate: bool,
}

/// Factors of Mamba-2's projections (Falcon-H1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the documentation
pub struct MambaScales {
    pub z: f32,
    pub x: f32,
    pub b: f32,
    pub c: f32,
    pub dt: f32,
}

/// A projection, its decaying sum over the positions, and a projection back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecayingSum {
    /// Elements of the sum.
    pub width: usize,
    /// What it keeps of itself from one position to the next.
    pub decay: f32,
}

/// The gated delta rule behind short convolutions of queries, keys and values: see
/// [`troika_graph::DeltaRule`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaRule {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple.
    pub value_heads: usize,
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Positions that a convolution's result depends on.
    pub taps: usize,
    /// Whether each row of a head's state has its own decay.
    pub by_channel: bool,
    /// Inner width of the projection to the decays, if there is one.
    pub decay_rank: Option<usize>,
    /// The same of the output's gate.
    pub gate_rank: Option<usize>,
    /// Activation of the output's gate.
    pub gate: Activation,
    /// Norm of each head's output, before the gate.
    pub norm: Norm,
    /// How decays follow from their projection.
    pub decay: Decay,
    /// The largest share of a new value.
    pub beta_scale: f32,
    /// Whether the rates of decay are stored as logarithms, else negated.
    pub rates_are_logs: bool,
    /// Whether heads of values with a common key head lie `key_heads` apart, not side by side.
    pub tiled: bool,
}

impl DeltaRule {
    /// Columns of queries, and of keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Columns of values.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Columns that decays follow from.
    pub fn decays(&self) -> usize {
        self.value_heads * if self.by_channel { self.key_dim } else { 1 }
    }
}

/// Attention of a layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attn {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a query and key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
    /// Multiplies the scores (usually `k_dim^-0.5`).
    pub scale: f32,
    /// Whether the q, k, v projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub o_bias: bool,
    /// Clamp of q, k, v after projection.
    pub clip_qkv: Option<f32>,
    /// Norms of q and k.
    pub qk_norm: Option<QkNorm>,
    /// A gate of the heads' outputs, computed from the normalised input.
    pub gate: Option<HeadGate>,
    /// Rotary embedding; `None`: the layer uses no positions.
    pub rope: Option<RopeSpec>,
    /// Sliding window.
    pub window: Window,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// Queries grow beyond the original context; with rope on whole heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
    /// Attention sinks.
    pub sinks: bool,
    /// Latent attention (DeepSeek-V2, section 2.1); `k_dim = nope + rope`, `kv_heads = heads`.
    pub latent: Option<Latent>,
    /// The earlier layer whose keys and values it uses, if it has none of its own.
    pub kv_from: Option<usize>,
    /// Norm of values, without a weight.
    pub v_norm: Option<Norm>,
    /// Whether the projection of keys is that of values, too.
    pub v_is_k: bool,
}

impl Attn {
    /// Whether keys and values come from a projection of this layer.
    pub fn has_kv(&self) -> bool {
        self.kv_from.is_none()
    }

    /// Elements per position in the caches of keys and of values. Latent attention has one cache
    /// for the compressed part of both and the rotated part of the keys.
    pub fn cache_widths(&self) -> (usize, Option<usize>) {
        match &self.latent {
            Some(l) => (l.kv_rank + l.rope, None),
            None => (self.kv_heads * self.k_dim, Some(self.kv_heads * self.v_dim)),
        }
    }
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QkNorm {
    /// The norm.
    pub norm: Norm,
    /// Over each head (Qwen3), or over the whole projection (OLMoE).
    pub per_head: bool,
    /// Whether they come after rope (Hunyuan).
    pub after_rope: bool,
}

/// A gate of the heads' outputs: `act(gate(x)) * heads`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadGate {
    /// Its activation.
    pub act: Activation,
    /// Whether a head has one number, or one for each of its elements.
    pub per_head: bool,
    /// Whether its projection lies beside the queries', head by head.
    pub with_queries: bool,
}

/// Rotary embedding of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeSpec {
    /// Rotated elements of a head (the first ones; the last ones in latent attention).
    pub rotary_dim: usize,
    /// Pairing.
    pub style: RopeStyle,
    /// Frequencies.
    pub freqs: RopeFreqs,
    /// longrope's long frequencies, and the length beyond which they apply.
    pub long: Option<(RopeFreqs, usize)>,
}

/// Latent attention: keys and values come from one compressed row per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latent {
    /// Rank of the compressed query, if queries are compressed.
    pub q_rank: Option<usize>,
    /// Rank of the compressed keys and values.
    pub kv_rank: usize,
    /// Width of the part of a head without positions.
    pub nope: usize,
    /// Width of the rotated part, shared by all heads.
    pub rope: usize,
    /// Norm of the compressed rows (RMS).
    pub norm: Norm,
    /// Whether the projections to the compressed rows have biases.
    pub bias: bool,
}

/// Feed-forward of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ffn {
    /// One network for all tokens.
    Dense(Mlp),
    /// Experts.
    Moe(Moe),
}

/// A dense feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    /// Inner width.
    pub inter: usize,
    /// Activation.
    pub act: Activation,
    /// `down(act(gate(x)) * up(x))`, else `down(act(up(x)))`.
    pub gated: bool,
    /// Whether all its projections have biases.
    pub bias: bool,
    /// Multiplies the gate before its activation.
    pub gate_scale: f32,
    /// Only gates above the mean of a row and as many standard deviations count, and by what they
    /// have more than that.
    pub above: Option<f32>,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moe {
    /// Experts.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Inner width of an expert.
    pub inter: usize,
    /// Activation of an expert's gate.
    pub act: Activation,
    /// As [`Mlp::gated`]; else the activation is the squared ReLU.
    pub gated: bool,
    /// Whether the experts' projections have biases.
    pub bias: bool,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// Whether a bias of the scores chooses experts, but does not weigh them (DeepSeek-V3).
    pub choice_bias: bool,
    /// Whether the weights of each expert are multiplied with a number of its own.
    #[serde(default)]
    pub expert_scales: bool,
    /// Scoring.
    pub score: Score,
    /// Whether to divide the chosen weights by their sum.
    pub normalize: bool,
    /// Multiplies the chosen weights.
    pub scale: f32,
    /// `(n_group, topk_group)`.
    pub groups: Option<(usize, usize)>,
    /// An expert that every token uses.
    pub shared: Option<SharedExpert>,
    /// Norms of its own (Gemma 4): of what the router reads, before and behind the experts, and
    /// behind the shared expert, which reads the layer's normalised input.
    pub norms: Option<Norm>,
}

/// The shared expert, of the same form as the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedExpert {
    /// Inner width (all shared experts together).
    pub inter: usize,
    /// Whether its output is multiplied by `sigmoid(gate . x)` (Qwen2-MoE).
    pub gated: bool,
    /// Whether its projections have biases.
    pub bias: bool,
}
