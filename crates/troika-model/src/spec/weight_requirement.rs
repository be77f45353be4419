//! The weights of a model and their shapes: one list for binding and lowering.

use super::{
    AltUp, Attn, DeltaRule, Ffn, Key, Layer, Mamba2, Mixer, Mlp, ModelSpec, Moe, Norm, WeightRole,
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
    first.add(WeightRole::Embed, spec.vocab, h);
    if let Some(p) = spec.per_layer_input() {
        let all = p.width.saturating_mul(spec.layers.len());
        first.add(WeightRole::PerLayerEmbed, spec.vocab, all);
        first.add(WeightRole::PerLayerIn, all, h);
        first.norm(Some(p.norm), WeightRole::PerLayerInNorm, p.width);
    }
    let altup = spec.altup;
    let others = altup.map_or(0, |a| a.streams - 1);
    first.each(others, WeightRole::AltIn, h, h);
    let layers = spec.layers.iter().enumerate().flat_map(move |(i, layer)| {
        let mut l = list(Some(i));
        altup.iter().for_each(|a| altup_needs(&mut l, a, h));
        layer_needs(&mut l, layer, h);
        l.needs
    });
    let mut last = list(None);
    last.each(others, WeightRole::AltOut, h, h);
    last.norm(Some(spec.final_norm), WeightRole::FinalNorm, h);
    last.add_if(!spec.tied, WeightRole::Head, spec.vocab, h);
    last.add_if(spec.head_bias, WeightRole::HeadBias, 1, spec.vocab);
    first.needs.into_iter().chain(layers).chain(last.needs)
}

fn layer_needs(l: &mut List, layer: &Layer, h: usize) {
    l.norm(layer.attn_pre, WeightRole::AttnPre, h);
    match &layer.mixer {
        Some(Mixer::Attention(a)) => attn_needs(l, a, h),
        Some(Mixer::DecayingSum(s)) => {
            l.add(WeightRole::MixIn, s.width, h);
            l.add(WeightRole::MixOut, h, s.width);
        }
        Some(Mixer::ShortConv(c)) => {
            l.linear(c.bias, WeightRole::MixIn, 3 * h, h);
            l.linear(c.bias, WeightRole::MixConv, h, c.taps);
            l.linear(c.bias, WeightRole::MixOut, h, h);
        }
        Some(Mixer::Mamba2(m)) => mamba_needs(l, m, h),
        Some(Mixer::DeltaRule(d)) => delta_needs(l, d, h),
        None => {}
    }
    if let Some(m) = &layer.beside {
        mamba_needs(l, m, h);
    }
    l.norm(layer.attn_post, WeightRole::AttnPost, h);
    l.norm(layer.ffn_pre, WeightRole::FfnPre, h);
    match &layer.ffn {
        Some(Ffn::Dense(m)) => mlp_needs(l, m, h),
        Some(Ffn::Moe(m)) => moe_needs(l, m, h),
        None => {}
    }
    l.norm(layer.ffn_post, WeightRole::FfnPost, h);
    if let Some(p) = layer.per_layer {
        l.add(WeightRole::PerLayerGate, p.width, h);
        l.add(WeightRole::PerLayerUp, h, p.width);
        l.norm(Some(p.norm), WeightRole::PerLayerNorm, h);
    }
}

fn altup_needs(l: &mut List, a: &AltUp, h: usize) {
    l.add(WeightRole::AltRouter, a.streams, h);
    l.norm(Some(a.norm), WeightRole::AltRouterNorm, h);
    l.add(WeightRole::AltPredict, a.streams * a.streams, a.streams);
    l.add(WeightRole::AltCorrect, a.streams, a.streams);
    l.add_if(a.scaled, WeightRole::AltScale, 1, h);
    l.add(WeightRole::LaurelDown, a.rank, h);
    l.add(WeightRole::LaurelUp, h, a.rank);
    l.norm(Some(a.norm), WeightRole::LaurelNorm, h);
}

fn mamba_needs(l: &mut List, m: &Mamba2, h: usize) {
    l.linear(m.bias, WeightRole::MixGate, m.inner(), h);
    l.linear(m.bias, WeightRole::MixIn, m.convolved(), h);
    l.linear(m.bias, WeightRole::MixStep, m.heads, h);
    l.linear(m.conv_bias, WeightRole::MixConv, m.convolved(), m.taps);
    for role in [WeightRole::MixRate, WeightRole::MixSkip, WeightRole::MixStepShift] {
        l.add(role, 1, m.heads);
    }
    l.norm(m.norm.map(|n| n.norm), WeightRole::MixNorm, m.inner());
    l.linear(m.bias, WeightRole::MixOut, h, m.inner());
}

fn delta_needs(l: &mut List, d: &DeltaRule, h: usize) {
    let roles = [WeightRole::Q, WeightRole::K, WeightRole::V];
    for (i, (role, width)) in roles.into_iter().zip([d.keys(), d.keys(), d.values()]).enumerate() {
        l.add(role, width, h);
        l.push(WeightRole::Taps, Some(i), width, d.taps);
    }
    for (rank, down, role, width) in [
        (d.decay_rank, WeightRole::DecayDown, WeightRole::Decay, d.decays()),
        (d.gate_rank, WeightRole::GateDown, WeightRole::AttnGate, d.values()),
    ] {
        l.add_if(rank.is_some(), down, rank.unwrap_or(h), h);
        l.add(role, width, rank.unwrap_or(h));
    }
    l.add(WeightRole::DecayBias, 1, d.decays());
    l.add(WeightRole::Beta, d.value_heads, h);
    l.add(WeightRole::DecayRate, 1, d.value_heads);
    l.add(WeightRole::HeadNorm, 1, d.value_dim);
    l.add(WeightRole::O, h, d.values());
}

fn attn_needs(l: &mut List, a: &Attn, h: usize) {
    match &a.latent {
        None => qkv_needs(l, a, h),
        Some(_) => latent_needs(l, a, h),
    }
    l.linear(a.o_bias, WeightRole::O, h, a.heads * a.v_dim);
    l.add_if(a.gate.is_some(), WeightRole::AttnGate, a.heads * a.v_dim, h);
    l.add_if(a.sinks, WeightRole::Sinks, 1, a.heads);
}

fn qkv_needs(l: &mut List, a: &Attn, h: usize) {
    let (q, k, v) = (a.heads * a.k_dim, a.kv_heads * a.k_dim, a.kv_heads * a.v_dim);
    l.linear(a.qkv_bias, WeightRole::Q, q, h);
    if a.has_kv() {
        l.linear(a.qkv_bias, WeightRole::K, k, h);
        l.linear(a.qkv_bias, WeightRole::V, v, h);
    }
    if let Some(n) = a.qk_norm {
        let widths = if n.per_head { (a.k_dim, a.k_dim) } else { (q, k) };
        l.norm(Some(n.norm), WeightRole::QNorm, widths.0);
        l.norm(Some(n.norm).filter(|_| a.has_kv()), WeightRole::KNorm, widths.1);
    }
}

fn latent_needs(l: &mut List, a: &Attn, h: usize) {
    let Some(m) = a.latent else { return };
    match m.q_rank {
        None => l.add(WeightRole::Q, a.heads * a.k_dim, h),
        Some(r) => {
            l.linear(m.bias, WeightRole::QDown, r, h);
            l.add(WeightRole::QDownNorm, 1, r);
            l.add(WeightRole::QUp, a.heads * a.k_dim, r);
        }
    }
    l.add(WeightRole::KvDown, m.kv_rank, h);
    l.add(WeightRole::KRope, m.rope, h);
    l.add_if(m.bias, WeightRole::KvDownBias, 1, m.kv_rank);
    l.add_if(m.bias, WeightRole::KRopeBias, 1, m.rope);
    l.add(WeightRole::KvDownNorm, 1, m.kv_rank);
    l.each(a.heads, WeightRole::KAbsorb, m.kv_rank, m.nope);
    l.each(a.heads, WeightRole::VUp, a.v_dim, m.kv_rank);
}

fn mlp_needs(l: &mut List, m: &Mlp, h: usize) {
    if m.gated {
        l.linear(m.bias, WeightRole::Gate, m.inter, h);
    }
    l.linear(m.bias, WeightRole::Up, m.inter, h);
    l.linear(m.bias, WeightRole::Down, h, m.inter);
}

fn moe_needs(l: &mut List, m: &Moe, h: usize) {
    for role in [
        WeightRole::RouterNorm,
        WeightRole::ExpertPre,
        WeightRole::ExpertPost,
        WeightRole::SharedPost,
    ] {
        l.norm(m.norms, role, h);
    }
    l.linear(m.router_bias, WeightRole::Router, m.experts, h);
    l.add_if(m.choice_bias, WeightRole::ExpertChoice, 1, m.experts);
    l.add_if(m.expert_scales, WeightRole::ExpertScales, 1, m.experts);
    for (role, bias, rows, cols) in [
        (WeightRole::ExpertGate, WeightRole::ExpertGateBias, m.inter, h),
        (WeightRole::ExpertUp, WeightRole::ExpertUpBias, m.inter, h),
        (WeightRole::ExpertDown, WeightRole::ExpertDownBias, h, m.inter),
    ] {
        if !m.gated && role == WeightRole::ExpertGate {
            continue;
        }
        l.each(m.experts, role, rows, cols);
        if m.bias {
            l.each(m.experts, bias, 1, rows);
        }
    }
    if let Some(s) = m.shared {
        l.add_if(m.gated, WeightRole::SharedGate, s.inter, h);
        l.add(WeightRole::SharedUp, s.inter, h);
        l.add(WeightRole::SharedDown, h, s.inter);
        l.add_if(s.bias && m.gated, WeightRole::SharedGateBias, 1, s.inter);
        l.add_if(s.bias, WeightRole::SharedUpBias, 1, s.inter);
        l.add_if(s.bias, WeightRole::SharedDownBias, 1, h);
        l.add_if(s.gated, WeightRole::SharedOutGate, 1, h);
    }
}
