//! The ops. They are plain data that devices match on, not methods of a trait.
//!
//! Every value is row-major `[rows, cols]`; "row" is one token of the forward batch.

use serde::{Deserialize, Serialize};

use crate::activation_format::ActivationFormat;
use crate::product_form::ProductForm;
use crate::rope::Rope;
use crate::weight::WeightRef;

/// Element-wise activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU with the error function.
    Gelu,
    /// GELU by its tanh approximation (`gelu_pytorch_tanh`, `gelu_new`).
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// xIELU: `alpha_p x^2 + x / 2` above 0, else `alpha_n (exp(min(x, -1e-6)) - 1 - x) + x / 2`.
    Xielu {
        /// Factor of the positive side.
        alpha_p: f32,
        /// Factor of the negative side.
        alpha_n: f32,
    },
    /// gpt-oss: `min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + 1)`.
    /// Gated only.
    ClampedSwiglu {
        /// Slope inside the sigmoid.
        alpha: f32,
        /// Clamp bound.
        limit: f32,
    },
}

/// Sliding window: a query at position `p` sees keys at `p - len < q <= p`.
pub type Window = Option<usize>;

/// What a sequence keeps in a state. States of one kind keep the same positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateKind {
    /// A row for each position that the window sees, as keys and values are. Any number of
    /// positions can be kept.
    Paged(Window),
    /// One row that every position changes, as recurrences have. A sequence keeps its checkpoints at
    /// the last two ends of pages, and one within a page: where a chunk or a prompt ended, or rows
    /// began that may be taken back. A prefix of whole pages has one at its end.
    Fixed,
}

impl StateKind {
    /// Positions back that a sequence needs of it: from the end of the page before on, so that a
    /// check that is not accepted goes back to a checkpoint.
    pub const fn window(self, page_len: usize) -> Window {
        match self {
            StateKind::Paged(window) => window,
            StateKind::Fixed => Some(page_len.saturating_add(1)),
        }
    }

    /// Rows of a page.
    pub const fn page_rows(self, page_len: usize) -> usize {
        match self {
            StateKind::Paged(_) => page_len,
            StateKind::Fixed => 1,
        }
    }

    /// Whether old positions are forgotten.
    pub fn forgets(self) -> bool {
        self != StateKind::Paged(None)
    }
}

/// A sum over all positions, in which each counts `decay` times as much as the next:
/// `s = decay * s + x`, `y = s`. Input: rows; state: one row, of kind [`StateKind::Fixed`]; output:
/// rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecayingSum {
    /// Elements of a row.
    pub width: usize,
    /// What a sum keeps of itself from one position to the next.
    pub decay: f32,
    /// Page group, as in [`KvAppend`].
    pub page_group: usize,
}

/// A causal convolution of each column by itself: `y = act(bias + sum_t weight[:, t] * x[t - taps + 1])`,
/// where the last tap meets the row itself. Input: rows, or with gates `[b, c, x]` side by side, of
/// which `b * x` is convolved and the result multiplied by `c` (LFM2). State: one row, of kind
/// [`StateKind::Fixed`], of the last `taps - 1` inputs, the oldest first. Output: rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShortConv {
    /// `[width, taps]`.
    pub weight: WeightRef,
    /// `[1, width]`.
    pub bias: Option<WeightRef>,
    /// Columns.
    pub width: usize,
    /// Positions that a result depends on.
    pub taps: usize,
    /// Whether results go through SiLU.
    pub silu: bool,
    /// Whether the input has gates.
    pub gated: bool,
    /// Page group, as in [`KvAppend`].
    pub page_group: usize,
}

impl ShortConv {
    /// Columns of its input, `None` on overflow.
    pub fn input(&self) -> Option<usize> {
        self.width.checked_mul(if self.gated { 3 } else { 1 })
    }

    /// Columns of its state, `None` on overflow or without a tap before the last.
    pub fn state(&self) -> Option<usize> {
        self.taps.checked_sub(1).filter(|n| *n > 0)?.checked_mul(self.width)
    }
}

/// The selective scan of Mamba-2 (Transformers are SSMs, section 6): per head, with
/// `t = clamp(softplus(dt + dt_bias))`, `s = exp(t * a) * s + t * x * b`, `y = s * c + d * x`. Inputs:
/// rows `[x, b, c]` side by side, where `heads / groups` heads share a `b` and a `c`, and `dt` of each
/// head. State: one row, of kind [`StateKind::Fixed`], for each head and state element a number for
/// each column of the head. Output: rows as wide as `x`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Groups of heads.
    pub groups: usize,
    /// State elements of a column.
    pub state_size: usize,
    /// `[1, heads]`: `a`, below zero, or `ln(-a)`.
    pub a: WeightRef,
    /// Whether `a` is given by its logarithm.
    pub a_log: bool,
    /// `[1, heads]`.
    pub d: WeightRef,
    /// `[1, heads]`.
    pub dt_bias: WeightRef,
    /// The least step.
    pub dt_min: f32,
    /// The largest step.
    pub dt_max: f32,
    /// Page group, as in [`KvAppend`].
    pub page_group: usize,
}

impl Mamba2 {
    /// Columns of its results, `None` on overflow.
    pub fn inner(&self) -> Option<usize> {
        self.heads.checked_mul(self.head_dim)
    }

    /// Columns of its first input.
    pub fn input(&self) -> Option<usize> {
        let groups = self.groups.checked_mul(2)?.checked_mul(self.state_size)?;
        self.inner()?.checked_add(groups)
    }

    /// Columns of its state.
    pub fn state(&self) -> Option<usize> {
        self.inner()?.checked_mul(self.state_size)
    }
}

/// How a gated delta rule's decays follow from its input `x`, with a rate `r` above 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decay {
    /// `exp(-r * softplus(x))`.
    Softplus,
    /// `exp(least * sigmoid(r * x))`.
    Bounded {
        /// The smallest logarithm, below 0.
        least: f32,
    },
}

/// The gated delta rule (Gated Delta Networks, eq. 10; by channel: Kimi Linear, eq. 1). Each head of
/// values keeps a matrix `s` of `key_dim` rows and `value_dim` columns. At each position
/// `s = decay * s`, `s += k * beta * (v - k^T s)`, `y = q^T s`, where keys and queries have the
/// length 1, and queries are divided by `sqrt(key_dim)`. Inputs: values, queries, keys, what decays
/// follow from (`[rows, value_heads]`, or `key_dim` times as many), and what shares follow from
/// (`[rows, value_heads]`, `beta = beta_scale * sigmoid(x)`). State: one row, of kind
/// [`StateKind::Fixed`]. Output: rows of the width of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaRule {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple.
    pub value_heads: usize,
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Whether heads of values with a common key head lie `key_heads` apart, not side by side.
    pub tiled: bool,
    /// The rates of decay, `[1, value_heads]`.
    pub rates: WeightRef,
    /// Whether they are stored as logarithms, else negated.
    pub rates_are_logs: bool,
    /// How decays follow from their input.
    pub decay: Decay,
    /// Whether each row of a head's state has its own decay.
    pub by_channel: bool,
    /// The most that `beta` can be.
    pub beta_scale: f32,
    /// Page group, as in [`KvAppend`].
    pub page_group: usize,
}

impl DeltaRule {
    /// Columns of its state, `None` on overflow.
    pub fn state(&self) -> Option<usize> {
        self.value_heads.checked_mul(self.key_dim)?.checked_mul(self.value_dim)
    }
}

/// Writes rows of keys or values into the paged cache at the forward batch's positions. Input:
/// rows; state: the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvAppend {
    /// Elements of one cached row (`kv_heads * dim`).
    pub width: usize,
    /// Page group: layers that keep the same positions share one table.
    pub page_group: usize,
}

/// Scaled dot-product attention over the paged cache.
/// Input: queries `[rows, heads * k_dim]`; states: key cache and, unless `value_in_key`, value
/// cache. Output: `[rows, heads * v_dim]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads (GQA: `heads` is a multiple).
    pub kv_heads: usize,
    /// Width of a query and key head.
    pub k_dim: usize,
    /// Width of a value head.
    pub v_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Sliding window, if any.
    pub window: Window,
    /// `cap * tanh(score / cap)` before the mask (Gemma 2).
    pub softcap: Option<f32>,
    /// Per-head logits that only enter the softmax's denominator (gpt-oss): `[1, heads]`.
    pub sinks: Option<WeightRef>,
    /// Whether the value is the key's first `v_dim` elements (latent attention, absorbed form).
    pub value_in_key: bool,
    /// Page group, as in [`KvAppend`].
    pub page_group: usize,
    /// The format of queries and attention weights in products with keys and values: F32, or Bf16
    /// with BF16 caches.
    #[serde(default)]
    pub activations: ActivationFormat,
}

/// A matrix product per head: `y[:, h] = x[:, h] * w[h]^T`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadLinear {
    /// One `[n, k]` weight per head.
    pub weights: Vec<WeightRef>,
}

/// How router logits become expert weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Score {
    /// Softmax over all experts, then top-k.
    Softmax,
    /// Top-k of the logits, then softmax over the chosen (gpt-oss).
    TopKSoftmax,
    /// Sigmoid of each logit, then top-k (DeepSeek-V3 style).
    Sigmoid,
    /// PhiMoE's sparsemixer in inference form (GRIN-MoE, section 2): per choice, a softmax over
    /// the experts whose logit lies within `2 * eps` relative of the best. top_k must be 2.
    SparseMixer {
        /// `router_jitter_noise` of the config.
        eps: f32,
    },
}

/// Chooses experts. Input: logits `[rows, experts]`; outputs: ids `[rows, top_k]` (i32) and
/// weights `[rows, top_k]` (f32).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Router {
    /// Experts to choose from.
    pub experts: usize,
    /// Experts chosen per row.
    pub top_k: usize,
    /// Scoring.
    pub score: Score,
    /// Whether to divide the chosen weights by their sum.
    pub normalize: bool,
    /// Multiplies the weights (`routed_scaling_factor`).
    pub scale: f32,
    /// `(n_group, topk_group)`: only the best groups' experts may be chosen (DeepSeek-V2,
    /// group_limited_greedy: a group's score is its best expert's; DeepSeek-V3, section 2.1.2, with
    /// a bias: the sum of its two best).
    pub groups: Option<(usize, usize)>,
    /// Added to the scores that experts are chosen by, but not to their weights: `[1, experts]`.
    #[serde(default)]
    pub bias: Option<WeightRef>,
    /// Multiplies the weights of each expert, at last: `[1, experts]` (Gemma 4).
    #[serde(default)]
    pub expert_scales: Option<WeightRef>,
}

/// The experts' feed-forwards. Inputs: `x [rows, k]`, ids, weights (as from [`Router`]);
/// output `[rows, k]`: `sum_e weight_e * down_e(act(gate_e x) * up_e x)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Gate projections, `[inter, k]` each.
    pub gate: Vec<WeightRef>,
    /// Up projections, `[inter, k]` each.
    pub up: Vec<WeightRef>,
    /// Down projections, `[k, inter]` each.
    pub down: Vec<WeightRef>,
    /// Biases of gate, up and down (`[1, n]` each), empty when there are none.
    pub gate_bias: Vec<WeightRef>,
    /// See `gate_bias`.
    pub up_bias: Vec<WeightRef>,
    /// See `gate_bias`.
    pub down_bias: Vec<WeightRef>,
    /// Activation of the gate.
    pub act: Activation,
    /// The format of the projections' inputs. With an integer format, all gates and ups share one
    /// weight type, and so do all downs.
    #[serde(default)]
    pub activations: ActivationFormat,
}

impl Experts {
    /// All lists of weights: gates, ups, downs and their biases.
    pub fn lists(&self) -> [&Vec<WeightRef>; 6] {
        [&self.gate, &self.up, &self.down, &self.gate_bias, &self.up_bias, &self.down_bias]
    }

    /// The same with each list of weights replaced.
    pub(crate) fn with_lists(&self, mut list: impl FnMut(&[WeightRef]) -> Vec<WeightRef>) -> Self {
        Experts {
            gate: list(&self.gate),
            up: list(&self.up),
            down: list(&self.down),
            gate_bias: list(&self.gate_bias),
            up_bias: list(&self.up_bias),
            down_bias: list(&self.down_bias),
            act: self.act,
            activations: self.activations,
        }
    }
}

/// The feed-forwards of a group of experts, each on rows of its own, so that shapes are static
/// (NPUMoE, section 4.2). Input `x [experts * capacity, k]`: row `r` belongs to the group's expert
/// `r / capacity`. Output, of the same shape: `down_e(act(gate_e x) * up_e x)`, neither weighted nor
/// added up. Rows are independent, so rows without a token may hold anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpertGroup {
    /// The group's experts, in any order; not a slice.
    pub experts: Experts,
    /// Rows of each expert.
    pub capacity: usize,
}

/// What each row becomes, of the same width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Rescale {
    /// `x * weight`, with a weight of `[1, cols]`.
    Columns(WeightRef),
    /// Inputs x, like: `x * rms(like) / sqrt(max(mean(x^2), least))`.
    Match {
        /// The least mean square.
        least: f32,
    },
    /// `max(x - mean - deviations * std, 0)`: what is left are the largest, as many as of a normal
    /// distribution.
    Largest {
        /// Standard deviations from the mean to the least that is kept.
        deviations: f32,
    },
}

/// One operation. Inputs and outputs are listed in the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// ids `[rows, 1]` -> `table[id] * scale`.
    Embed {
        /// `[vocab, hidden]`.
        table: WeightRef,
        /// Multiplies the looked-up row.
        scale: f32,
    },
    /// `x / sqrt(mean(x^2) + eps) * (offset + weight)`, over each group of `group` columns; the
    /// weight has `group` elements where the groups share it, else one for each column.
    RmsNorm {
        /// `[1, group]`, or as wide as the rows; `None`: no scale.
        weight: Option<WeightRef>,
        /// Added to the mean square.
        eps: f32,
        /// Added to the weight (1 for Gemma's checkpoints).
        offset: f32,
        /// Columns normalised together (the whole width, or head_dim).
        group: usize,
    },
    /// `(x - mean) / sqrt(var + eps) * weight + bias`, over each group of `group` columns.
    LayerNorm {
        /// `[1, group]`.
        weight: WeightRef,
        /// `[1, group]`.
        bias: Option<WeightRef>,
        /// Added to the variance.
        eps: f32,
        /// Columns normalised together.
        group: usize,
    },
    /// `y = x * weight^T + bias`; weight `[n, k]`.
    Linear {
        /// `[n, k]`.
        weight: WeightRef,
        /// `[1, n]`.
        bias: Option<WeightRef>,
        /// The format of `x`.
        #[serde(default)]
        activations: ActivationFormat,
        /// The form it is computed in; `None`: as it is.
        #[serde(default)]
        form: Option<ProductForm>,
    },
    /// What clipping takes from a product: `y = (x - clip(x)) * weight^T`, where `clip` limits
    /// magnitudes to a calibration's limit ([`crate::ScaleOrigin::Clipped`]) and leaves them as the
    /// format rounds them there (llm.npu, section 3.3). Few columns of `x` have any.
    Outliers {
        /// `[n, k]`.
        weight: WeightRef,
        /// The format of the clipped product.
        activations: ActivationFormat,
    },
    /// See [`HeadLinear`].
    HeadLinear(HeadLinear),
    /// Inputs: rows, positions `[rows, 1]`. See [`Rope`].
    Rope(Rope),
    /// See [`KvAppend`].
    KvAppend(KvAppend),
    /// See [`Attention`].
    Attention(Attention),
    /// See [`DecayingSum`].
    DecayingSum(DecayingSum),
    /// See [`ShortConv`].
    ShortConv(ShortConv),
    /// See [`Mamba2`].
    Mamba2(Mamba2),
    /// See [`DeltaRule`].
    DeltaRule(DeltaRule),
    /// `act(x)`.
    Activate(Activation),
    /// Inputs gate, up: `act(gate) * up`.
    Gate(Activation),
    /// `a + b`.
    Add,
    /// `x * factor`.
    Scale {
        /// The factor.
        factor: f32,
    },
    /// Clamps to `[-limit, limit]` (`clip_qkv`).
    Clamp {
        /// The bound.
        limit: f32,
    },
    /// `cap * tanh(x / cap)`.
    SoftCap {
        /// The cap.
        cap: f32,
    },
    /// Converts to the type of the result: f16 and bf16 are rounded to nearest, ties to even, and
    /// widened exactly. Other ops compute on f32; this one serves values of other types between
    /// subgraphs.
    Convert,
    /// Inputs x `[rows, n]`, g `[rows, 1]`: `x * sigmoid(g)` (shared expert gate).
    SigmoidGate,
    /// See [`Rescale`].
    Rescale(Rescale),
    /// Inputs x `[rows, n * w]`, c `[rows, m * n]`: `m` sums `y_i = x_(i mod n) + sum_j c_(i n + j) x_j`
    /// side by side, of `w` columns like each `x_j` (AltUp).
    Mix {
        /// How many `x_j` lie side by side (`n`).
        streams: usize,
    },
    /// Within each group of `group` columns keeps `len` columns from `start`.
    SliceCols {
        /// Group width of the input.
        group: usize,
        /// First kept column.
        start: usize,
        /// Kept columns.
        len: usize,
    },
    /// Inputs a `[rows, g * a_len]`, b `[rows, g * b_len]`: group-wise `[a, b]`.
    ConcatCols {
        /// Number of groups `g`.
        groups: usize,
    },
    /// See [`Router`].
    Router(Router),
    /// See [`Experts`].
    Experts(Experts),
    /// See [`ExpertGroup`].
    ExpertGroup(ExpertGroup),
}

impl Op {
    /// The form of a product.
    pub fn form(&self) -> Option<ProductForm> {
        if let Op::Linear { form, .. } = self { *form } else { None }
    }

    /// The weights that it reads.
    pub fn weights(&self) -> Vec<WeightRef> {
        match self {
            Op::Embed { table, .. } => vec![*table],
            Op::RmsNorm { weight, .. } => weight.iter().copied().collect(),
            Op::LayerNorm { weight, bias, .. } | Op::Linear { weight, bias, .. } => {
                std::iter::once(*weight).chain(*bias).collect()
            }
            Op::Outliers { weight, .. } | Op::Rescale(Rescale::Columns(weight)) => vec![*weight],
            Op::ShortConv(s) => std::iter::once(s.weight).chain(s.bias).collect(),
            Op::DeltaRule(d) => vec![d.rates],
            Op::HeadLinear(h) => h.weights.clone(),
            Op::Attention(a) => a.sinks.iter().copied().collect(),
            Op::Mamba2(m) => vec![m.a, m.d, m.dt_bias],
            Op::Router(r) => r.bias.into_iter().chain(r.expert_scales).collect(),
            Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
                e.lists().into_iter().flatten().copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// The page group of the states that it uses, and whether it changes them.
    pub fn page_group(&self) -> Option<(usize, bool)> {
        match self {
            Op::KvAppend(k) => Some((k.page_group, true)),
            Op::Attention(a) => Some((a.page_group, false)),
            Op::DecayingSum(s) => Some((s.page_group, true)),
            Op::ShortConv(s) => Some((s.page_group, true)),
            Op::Mamba2(m) => Some((m.page_group, true)),
            Op::DeltaRule(d) => Some((d.page_group, true)),
            _ => None,
        }
    }

    /// Whether it multiplies by the columns of a weight matrix.
    pub fn is_product(&self) -> bool {
        matches!(self, Op::Linear { .. } | Op::HeadLinear(_))
    }
}

/// The names of ops from one table. The match is exhaustive, so every op has a name, and every name
/// is in the list.
macro_rules! names {
    ($($op:pat => $name:literal,)*) => {
        impl Op {
            /// The names of all ops, each once.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Short name for traces, errors and lists of ops in files; one of [`Op::NAMES`].
            pub fn name(&self) -> &'static str {
                match self {
                    $($op => $name,)*
                }
            }
        }
    };
}

names! {
    Op::Embed { .. } => "embed",
    Op::RmsNorm { .. } => "rms_norm",
    Op::LayerNorm { .. } => "layer_norm",
    Op::Linear { .. } => "linear",
    Op::Outliers { .. } => "outliers",
    Op::HeadLinear(_) => "head_linear",
    Op::Rope(_) => "rope",
    Op::KvAppend(_) => "kv_append",
    Op::Attention(_) => "attention",
    Op::DecayingSum(_) => "decaying_sum",
    Op::ShortConv(_) => "short_conv",
    Op::Mamba2(_) => "mamba2",
    Op::DeltaRule(_) => "delta_rule",
    Op::Activate(_) => "activate",
    Op::Gate(_) => "gate",
    Op::Add => "add",
    Op::Scale { .. } => "scale",
    Op::Clamp { .. } => "clamp",
    Op::SoftCap { .. } => "soft_cap",
    Op::Convert => "convert",
    Op::SigmoidGate => "sigmoid_gate",
    Op::Rescale(_) => "rescale",
    Op::Mix { .. } => "mix",
    Op::SliceCols { .. } => "slice_cols",
    Op::ConcatCols { .. } => "concat_cols",
    Op::Router(_) => "router",
    Op::Experts(_) => "experts",
    Op::ExpertGroup(_) => "expert_group",
}

#[cfg(test)]
mod tests {
    use super::Op;

    /// The variants known to deserialization, a list that the compiler maintains.
    fn variants() -> Vec<String> {
        let error = serde_json::from_str::<Op>("\"NoSuchOp\"").unwrap_err().to_string();
        let (_, list) = error.split_once("expected one of").expect("a list of variants");
        list.split('`').skip(1).step_by(2).map(str::to_string).collect()
    }

    fn snake_case(variant: &str) -> String {
        let mut name = String::new();
        for c in variant.chars() {
            if c.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.extend(c.to_lowercase());
        }
        name
    }

    #[test]
    fn every_op_has_its_own_name_in_the_list() {
        let expected: Vec<String> = variants().iter().map(|v| snake_case(v)).collect();
        assert!(expected.iter().any(|name| name == "rms_norm"), "{expected:?}");
        assert_eq!(Op::NAMES, expected);
        assert!(Op::NAMES.contains(&Op::Add.name()));
    }
}
