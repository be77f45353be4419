//! Which weights a model needs, and their shapes: the one list that binding and lowering share.

use super::{Attn, Ffn, Key, Layer, Mlp, ModelSpec, Moe, Norm, Slot};

/// A weight the model needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Which.
    pub key: Key,
    /// Output rows (1 for vectors).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

struct List {
    needs: Vec<Need>,
    layer: Option<usize>,
}

impl List {
    fn add(&mut self, slot: Slot, rows: usize, cols: usize) {
        self.needs.push(Need { key: Key { slot, layer: self.layer, index: None }, rows, cols });
    }

    fn add_if(&mut self, cond: bool, slot: Slot, rows: usize, cols: usize) {
        if cond {
            self.add(slot, rows, cols);
        }
    }

    fn each(&mut self, n: usize, slot: Slot, rows: usize, cols: usize) {
        for i in 0..n {
            let key = Key { slot, layer: self.layer, index: Some(i) };
            self.needs.push(Need { key, rows, cols });
        }
    }

    fn norm(&mut self, norm: Option<Norm>, slots: (Slot, Slot), width: usize) {
        if let Some(norm) = norm {
            self.add(slots.0, 1, width);
            self.add_if(matches!(norm, Norm::Layer { bias: true, .. }), slots.1, 1, width);
        }
    }
}

/// All weights of a model, in execution order, listed layer by layer as they are asked for: a
/// small file can describe more of them than fit into memory. A tied head needs no weight of its
/// own.
pub fn weight_needs(spec: &ModelSpec) -> impl Iterator<Item = Need> {
    let h = spec.hidden;
    let list = |layer| List { needs: Vec::new(), layer };
    let mut first = list(None);
    first.add(Slot::Embed, spec.vocab, h);
    let layers = spec.layers.iter().enumerate().flat_map(move |(i, layer)| {
        let mut l = list(Some(i));
        layer_needs(&mut l, layer, h);
        l.needs
    });
    let mut last = list(None);
    last.norm(Some(spec.final_norm), (Slot::FinalNorm, Slot::FinalNormBias), h);
    last.add_if(!spec.tied, Slot::Head, spec.vocab, h);
    last.add_if(spec.head_bias, Slot::HeadBias, 1, spec.vocab);
    first.needs.into_iter().chain(layers).chain(last.needs)
}

fn layer_needs(l: &mut List, layer: &Layer, h: usize) {
    l.norm(layer.attn_pre, (Slot::AttnPre, Slot::AttnPreBias), h);
    match &layer.attn.latent {
        None => attn_needs(l, &layer.attn, h),
        Some(_) => latent_needs(l, &layer.attn, h),
    }
    let a = &layer.attn;
    l.add(Slot::O, h, a.heads * a.v_dim);
    l.add_if(a.o_bias, Slot::OBias, 1, h);
    l.add_if(a.sinks, Slot::Sinks, 1, a.heads);
    l.norm(layer.attn_post, (Slot::AttnPost, Slot::AttnPostBias), h);
    l.norm(layer.ffn_pre, (Slot::FfnPre, Slot::FfnPreBias), h);
    match &layer.ffn {
        Ffn::Dense(m) => mlp_needs(l, m, h),
        Ffn::Moe(m) => moe_needs(l, m, h),
    }
    l.norm(layer.ffn_post, (Slot::FfnPost, Slot::FfnPostBias), h);
}

fn attn_needs(l: &mut List, a: &Attn, h: usize) {
    let (q, k, v) = (a.heads * a.k_dim, a.kv_heads * a.k_dim, a.kv_heads * a.v_dim);
    for (slot, bias, rows) in
        [(Slot::Q, Slot::QBias, q), (Slot::K, Slot::KBias, k), (Slot::V, Slot::VBias, v)]
    {
        l.add(slot, rows, h);
        l.add_if(a.qkv_bias, bias, 1, rows);
    }
    if let Some(n) = a.qk_norm {
        let widths = if n.per_head { (a.k_dim, a.k_dim) } else { (q, k) };
        l.norm(Some(n.norm), (Slot::QNorm, Slot::QNormBias), widths.0);
        l.norm(Some(n.norm), (Slot::KNorm, Slot::KNormBias), widths.1);
    }
}

fn latent_needs(l: &mut List, a: &Attn, h: usize) {
    let Some(m) = a.latent else { return };
    match m.q_rank {
        None => l.add(Slot::Q, a.heads * a.k_dim, h),
        Some(r) => {
            l.add(Slot::QDown, r, h);
            l.add_if(m.bias, Slot::QDownBias, 1, r);
            l.add(Slot::QDownNorm, 1, r);
            l.add(Slot::QUp, a.heads * a.k_dim, r);
        }
    }
    l.add(Slot::KvDown, m.kv_rank, h);
    l.add(Slot::KRope, m.rope, h);
    l.add_if(m.bias, Slot::KvDownBias, 1, m.kv_rank);
    l.add_if(m.bias, Slot::KRopeBias, 1, m.rope);
    l.add(Slot::KvDownNorm, 1, m.kv_rank);
    l.each(a.heads, Slot::KAbsorb, m.kv_rank, m.nope);
    l.each(a.heads, Slot::VUp, a.v_dim, m.kv_rank);
}

fn mlp_needs(l: &mut List, m: &Mlp, h: usize) {
    for (on, slot, bias) in [(m.gated, Slot::Gate, Slot::GateBias), (true, Slot::Up, Slot::UpBias)]
    {
        l.add_if(on, slot, m.inter, h);
        l.add_if(on && m.bias, bias, 1, m.inter);
    }
    l.add(Slot::Down, h, m.inter);
    l.add_if(m.bias, Slot::DownBias, 1, h);
}

fn moe_needs(l: &mut List, m: &Moe, h: usize) {
    l.add(Slot::Router, m.experts, h);
    l.add_if(m.router_bias, Slot::RouterBias, 1, m.experts);
    for (slot, bias, rows, cols) in [
        (Slot::ExpertGate, Slot::ExpertGateBias, m.inter, h),
        (Slot::ExpertUp, Slot::ExpertUpBias, m.inter, h),
        (Slot::ExpertDown, Slot::ExpertDownBias, h, m.inter),
    ] {
        l.each(m.experts, slot, rows, cols);
        if m.bias {
            l.each(m.experts, bias, 1, rows);
        }
    }
    if let Some(s) = m.shared {
        l.add(Slot::SharedGate, s.inter, h);
        l.add(Slot::SharedUp, s.inter, h);
        l.add(Slot::SharedDown, h, s.inter);
        l.add_if(s.bias, Slot::SharedGateBias, 1, s.inter);
        l.add_if(s.bias, Slot::SharedUpBias, 1, s.inter);
        l.add_if(s.bias, Slot::SharedDownBias, 1, h);
        l.add_if(s.gated, Slot::SharedOutGate, 1, h);
    }
}
