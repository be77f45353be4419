//! The weights of a model and their shapes: one list for binding and lowering.

use super::{
    AltUp, Attn, DeltaRule, Ffn, Key, Latent, Layer, Mamba2, Mixer, Mlp, ModelSpec, Moe, Norm,
    WeightRole, WeightRole as W,
};

/// A weight that the model needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightRequirement {
    /// Its key.
    pub key: Key,
    /// Output rows (1 for vectors).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

struct List {
    needs: Vec<WeightRequirement>,
    layer: Option<usize>,
}

impl List {
    fn push(&mut self, role: WeightRole, index: Option<usize>, rows: usize, cols: usize) {
        let key = Key { role, layer: self.layer, index };
        self.needs.push(WeightRequirement { key, rows, cols });
    }

    fn add(&mut self, role: WeightRole, rows: usize, cols: usize) {
        self.push(role, None, rows, cols);
    }

    fn add_if(&mut self, cond: bool, role: WeightRole, rows: usize, cols: usize) {
        if cond {
            self.add(role, rows, cols);
        }
    }

    fn linear(&mut self, bias: bool, role: WeightRole, rows: usize, cols: usize) {
        self.add(role, rows, cols);
        self.add_if(bias, role.bias(), 1, rows);
    }

    fn each(&mut self, n: usize, role: WeightRole, rows: usize, cols: usize) {
        (0..n).for_each(|i| self.push(role, Some(i), rows, cols));
    }

    fn norm(&mut self, norm: Option<Norm>, role: WeightRole, width: usize) {
        if let Some(norm) = norm {
            self.add(role, 1, width);
            let bias = matches!(norm, Norm::Layer { bias: true, .. });
            self.add_if(bias, role.bias(), 1, width);
        }
    }
}

/// All weights of a model in execution order, without a separate one for a tied head. They are
/// produced lazily, since a small file can describe more of them than fit into memory.
pub fn weight_requirements(spec: &ModelSpec) -> impl Iterator<Item = WeightRequirement> {
    let h = spec.hidden;
    let list = |layer| List { needs: Vec::new(), layer };
    let mut first = list(None);
    first.add(W::Embed, spec.vocab, h);
    if let Some(p) = spec.per_layer_input() {
        let all = p.width.saturating_mul(spec.layers.len());
        first.add(W::PerLayerEmbed, spec.vocab, all);
        first.add(W::PerLayerIn, all, h);
        first.norm(Some(p.norm), W::PerLayerInNorm, p.width);
    }
    let altup = spec.altup;
    let others = altup.map_or(0, |a| a.streams - 1);
    first.each(others, W::AltIn, h, h);
    let layers = spec.layers.iter().enumerate().flat_map(move |(i, layer)| {
        let mut l = list(Some(i));
        altup.iter().for_each(|a| altup_needs(&mut l, a, h));
        layer_needs(&mut l, layer, h);
        l.needs
    });
    let mut last = list(None);
    last.each(others, W::AltOut, h, h);
    last.norm(Some(spec.final_norm), W::FinalNorm, h);
    last.add_if(!spec.tied, W::Head, spec.vocab, h);
    last.add_if(spec.head_bias, W::HeadBias, 1, spec.vocab);
    first.needs.into_iter().chain(layers).chain(last.needs)
}

fn layer_needs(l: &mut List, layer: &Layer, h: usize) {
    l.norm(layer.attn_pre, W::AttnPre, h);
    match &layer.mixer {
        Some(Mixer::Attention(a)) => attn_needs(l, a, h),
        Some(Mixer::DecayingSum(s)) => {
            l.add(W::MixIn, s.width, h);
            l.add(W::MixOut, h, s.width);
        }
        Some(Mixer::ShortConv(c)) => {
            l.linear(c.bias, W::MixIn, 3 * h, h);
            l.linear(c.bias, W::MixConv, h, c.taps);
            l.linear(c.bias, W::MixOut, h, h);
        }
        Some(Mixer::Mamba2(m)) => mamba_needs(l, m, h),
        Some(Mixer::DeltaRule(d)) => delta_needs(l, d, h),
        None => {}
    }
    if let Some(m) = &layer.beside {
        mamba_needs(l, m, h);
    }
    l.norm(layer.attn_post, W::AttnPost, h);
    l.norm(layer.ffn_pre, W::FfnPre, h);
    match &layer.ffn {
        Some(Ffn::Dense(m)) => mlp_needs(l, m, h),
        Some(Ffn::Moe(m)) => moe_needs(l, m, h),
        None => {}
    }
    l.norm(layer.ffn_post, W::FfnPost, h);
    if let Some(p) = layer.per_layer {
        l.add(W::PerLayerGate, p.width, h);
        l.add(W::PerLayerUp, h, p.width);
        l.norm(Some(p.norm), W::PerLayerNorm, h);
    }
}

fn altup_needs(l: &mut List, a: &AltUp, h: usize) {
    l.add(W::AltRouter, a.streams, h);
    l.norm(Some(a.norm), W::AltRouterNorm, h);
    l.add(W::AltPredict, a.streams * a.streams, a.streams);
    l.add(W::AltCorrect, a.streams, a.streams);
    l.add_if(a.scaled, W::AltScale, 1, h);
    l.add(W::LaurelDown, a.rank, h);
    l.add(W::LaurelUp, h, a.rank);
    l.norm(Some(a.norm), W::LaurelNorm, h);
}

fn mamba_needs(l: &mut List, m: &Mamba2, h: usize) {
    l.linear(m.bias, W::MixGate, m.inner(), h);
    l.linear(m.bias, W::MixIn, m.convolved(), h);
    l.linear(m.bias, W::MixStep, m.heads, h);
    l.linear(m.conv_bias, W::MixConv, m.convolved(), m.taps);
    for role in [W::MixRate, W::MixSkip, W::MixStepShift] {
        l.add(role, 1, m.heads);
    }
    l.norm(m.norm.map(|n| n.norm), W::MixNorm, m.inner());
    l.linear(m.bias, W::MixOut, h, m.inner());
}

fn delta_needs(l: &mut List, d: &DeltaRule, h: usize) {
    let roles = [W::Q, W::K, W::V];
    for (i, (role, width)) in roles.into_iter().zip([d.keys(), d.keys(), d.values()]).enumerate() {
        l.add(role, width, h);
        l.push(W::Taps, Some(i), width, d.taps);
    }
    for (rank, down, role, width) in [
        (d.decay_rank, W::DecayDown, W::Decay, d.decays()),
        (d.gate_rank, W::GateDown, W::AttnGate, d.values()),
    ] {
        l.add_if(rank.is_some(), down, rank.unwrap_or(h), h);
        l.add(role, width, rank.unwrap_or(h));
    }
    l.add(W::DecayBias, 1, d.decays());
    l.add(W::Beta, d.value_heads, h);
    l.add(W::DecayRate, 1, d.value_heads);
    l.add(W::HeadNorm, 1, d.value_dim);
    l.add(W::O, h, d.values());
}

fn attn_needs(l: &mut List, a: &Attn, h: usize) {
    match &a.latent {
        None => qkv_needs(l, a, h),
        Some(m) => latent_needs(l, a, m, h),
    }
    l.linear(a.o_bias, W::O, h, a.heads * a.v_dim);
    l.add_if(a.gate.is_some(), W::AttnGate, a.heads * a.v_dim, h);
    l.add_if(a.sinks, W::Sinks, 1, a.heads);
}

fn qkv_needs(l: &mut List, a: &Attn, h: usize) {
    let (q, k, v) = (a.heads * a.k_dim, a.kv_heads * a.k_dim, a.kv_heads * a.v_dim);
    l.linear(a.qkv_bias, W::Q, q, h);
    if a.has_kv() {
        l.linear(a.qkv_bias, W::K, k, h);
        l.linear(a.qkv_bias, W::V, v, h);
    }
    if let Some(n) = a.qk_norm {
        let widths = if n.per_head { (a.k_dim, a.k_dim) } else { (q, k) };
        l.norm(Some(n.norm), W::QNorm, widths.0);
        l.norm(Some(n.norm).filter(|_| a.has_kv()), W::KNorm, widths.1);
    }
}

fn latent_needs(l: &mut List, a: &Attn, m: &Latent, h: usize) {
    match m.q_rank {
        None => l.add(W::Q, a.heads * a.k_dim, h),
        Some(r) => {
            l.linear(m.bias, W::QDown, r, h);
            l.add(W::QDownNorm, 1, r);
            l.add(W::QUp, a.heads * a.k_dim, r);
        }
    }
    l.add(W::KvDown, m.kv_rank, h);
    l.add(W::KRope, m.rope, h);
    l.add_if(m.bias, W::KvDownBias, 1, m.kv_rank);
    l.add_if(m.bias, W::KRopeBias, 1, m.rope);
    l.add(W::KvDownNorm, 1, m.kv_rank);
    l.each(a.heads, W::KAbsorb, m.kv_rank, m.nope);
    l.each(a.heads, W::VUp, a.v_dim, m.kv_rank);
}

fn mlp_needs(l: &mut List, m: &Mlp, h: usize) {
    if m.gated {
        l.linear(m.bias, W::Gate, m.inter, h);
    }
    l.linear(m.bias, W::Up, m.inter, h);
    l.linear(m.bias, W::Down, h, m.inter);
}

fn moe_needs(l: &mut List, m: &Moe, h: usize) {
    for role in [W::RouterNorm, W::ExpertPre, W::ExpertPost, W::SharedPost] {
        l.norm(m.norms, role, h);
    }
    l.linear(m.router_bias, W::Router, m.experts, h);
    l.add_if(m.choice_bias, W::ExpertChoice, 1, m.experts);
    l.add_if(m.expert_scales, W::ExpertScales, 1, m.experts);
    for (role, bias, rows, cols) in [
        (W::ExpertGate, W::ExpertGateBias, m.inter, h),
        (W::ExpertUp, W::ExpertUpBias, m.inter, h),
        (W::ExpertDown, W::ExpertDownBias, h, m.inter),
    ] {
        if !m.gated && role == W::ExpertGate {
            continue;
        }
        l.each(m.experts, role, rows, cols);
        if m.bias {
            l.each(m.experts, bias, 1, rows);
        }
    }
    if let Some(s) = m.shared {
        l.add_if(m.gated, W::SharedGate, s.inter, h);
        l.add(W::SharedUp, s.inter, h);
        l.add(W::SharedDown, h, s.inter);
        l.add_if(s.bias && m.gated, W::SharedGateBias, 1, s.inter);
        l.add_if(s.bias, W::SharedUpBias, 1, s.inter);
        l.add_if(s.bias, W::SharedDownBias, 1, h);
        l.add_if(s.gated, W::SharedOutGate, 1, h);
    }
}
