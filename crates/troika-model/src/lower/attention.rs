//! Attention's three segments: norm + QKV, attention over the cache, output projection.

use troika_graph::{
    ActivationFormat, Attention, DType, Growth, HeadLinear, KvAppend, Op, Rope, RopeFreqs,
    StateKind, ValueId,
};

use super::emit::Emit;
use super::lowerer::{At, KvEdges, Lowerer};
use super::{EdgeId, LowerError, Lowered, Result, SegmentKind};
use crate::spec::{Attn, HeadGate, Latent, Norm, RopeSpec, WeightRole};

fn rope_op(spec: &RopeSpec, head_dim: usize) -> Op {
    Op::Rope(Rope {
        head_dim,
        offset: 0,
        rotary_dim: spec.rotary_dim,
        style: spec.style,
        freqs: spec.freqs.clone(),
        long: spec.long.clone(),
    })
}

impl Lowerer<'_> {
    /// Attention as a layer's mixer. `x` is the layer's input; returns `residual` with the result
    /// added.
    pub fn attend(&mut self, at: At<'_>, a: &Attn, x: EdgeId, residual: EdgeId) -> Result<EdgeId> {
        let q = self.qkv(at, a, x)?;
        let from = a.kv_from.unwrap_or(at.index);
        let what = || format!("layer {}: keys and values of layer {from} are not there", at.index);
        let kv = self.kv.get(&from).copied().ok_or_else(|| LowerError::Spec(what()))?;
        let o = self.attention(at, a, q, kv)?;
        self.attn_out(at, a, o, residual)
    }

    /// Norm, projections, q/k norm and rope. Returns the edge of q, and keeps those of k and
    /// (unless latent) v.
    fn qkv(&mut self, at: At<'_>, a: &Attn, x: EdgeId) -> Result<EdgeId> {
        let mut e = Emit::new(self, SegmentKind::Qkv, Some(at.index));
        let x = e.input(x);
        let positions = e.input(Lowered::POSITIONS);
        let n = e.norm_if(x, at.layer.attn_pre, WeightRole::AttnPre)?;
        let (q, kv) = match &a.latent {
            None => plain_qkv(&mut e, a, n, positions)?,
            Some(latent) => latent_qkv(&mut e, a, latent, n, positions)?,
        };
        let q = e.output("q", q, DType::F32);
        if let Some((k, v)) = kv {
            let k = e.output("k", k, DType::F32);
            let v = v.map(|v| e.output("v", v, DType::F32));
            e.lowerer.kv.insert(at.index, (k, v));
        }
        e.finish()?;
        Ok(q)
    }

    /// Appends to the cache and computes attention.
    fn attention(&mut self, at: At<'_>, a: &Attn, q: EdgeId, (k, v): KvEdges) -> Result<EdgeId> {
        let page_group = self.page_group(StateKind::Paged(a.window));
        let (k_width, v_width) = a.cache_widths();
        let mut kept = vec![(k, k_width, self.state(at.name("k cache"), k_width, page_group))];
        if let Some((v, width)) = v.zip(v_width) {
            kept.push((v, width, self.state(at.name("v cache"), width, page_group)));
        }
        let bf16 = self.options.kv_dtype == DType::BF16;
        let mut e = Emit::new(self, SegmentKind::Attention, Some(at.index));
        let q = e.input(q);
        let mut caches = Vec::new();
        for (edge, width, state) in kept {
            let (x, cache) = (e.input(edge), e.state(state));
            e.graph.node(Op::KvAppend(KvAppend { width, page_group }), &[x], &[cache], &[]);
            caches.push(cache);
        }
        let sinks = e.weight_if(a.sinks, WeightRole::Sinks)?;
        let (kv_heads, k_dim, v_dim) = match &a.latent {
            // Absorbed form: one shared head whose value is the compressed part of the key.
            Some(l) => (1, l.kv_rank + l.rope, l.kv_rank),
            None => (a.kv_heads, a.k_dim, a.v_dim),
        };
        let op = Attention {
            heads: a.heads,
            kv_heads,
            k_dim,
            v_dim,
            scale: a.scale,
            window: a.window,
            softcap: a.softcap,
            sinks,
            value_in_key: a.latent.is_some(),
            page_group,
            activations: if bf16 { ActivationFormat::Bf16 } else { ActivationFormat::F32 },
        };
        let o = e.graph.attention(op, q, &caches);
        e.pass_on("attention", o)
    }

    /// Output projection, post-norm and residual.
    fn attn_out(&mut self, at: At<'_>, a: &Attn, o: EdgeId, x: EdgeId) -> Result<EdgeId> {
        let mut e = Emit::new(self, SegmentKind::AttnOut, Some(at.index));
        let mut o = e.input(o);
        let x = e.input(x);
        if a.latent.is_some() {
            let weights = e.weights(true, a.heads, WeightRole::VUp)?;
            let op = Op::HeadLinear(HeadLinear { weights });
            o = e.graph.op("values", op, &[o], a.heads * a.v_dim);
        }
        if let Some(HeadGate { act, .. }) = a.gate {
            let n = e.norm_if(x, at.layer.attn_pre, WeightRole::AttnPre)?;
            let gate = e.linear(n, WeightRole::AttnGate, false)?;
            o = e.graph.op("gated", Op::Gate(act), &[gate, o], a.heads * a.v_dim);
        }
        let y = e.linear(o, WeightRole::O, a.o_bias)?;
        let y = e.norm_if(y, at.layer.attn_post, WeightRole::AttnPost)?;
        let y = e.add(x, y, at.layer.mixer_scale);
        e.pass_on("after attention", y)
    }
}

/// Keys, and values if they are apart.
type KeyValues = (ValueId, Option<ValueId>);

fn plain_qkv(
    e: &mut Emit<'_, '_>,
    a: &Attn,
    n: ValueId,
    positions: ValueId,
) -> Result<(ValueId, Option<KeyValues>)> {
    let mut q = e.linear(n, WeightRole::Q, a.qkv_bias)?;
    if !a.has_kv() {
        if let Some(norm) = a.qk_norm {
            q = e.norm(q, norm.norm, WeightRole::QNorm, a.k_dim)?;
        }
        return Ok((rotated(e, a, q, positions, a.growth), None));
    }
    let mut k = e.linear(n, WeightRole::K, a.qkv_bias)?;
    let mut v = e.linear(n, WeightRole::V, a.qkv_bias)?;
    if let Some(Norm::Rms { eps, offset }) = a.v_norm {
        let op = Op::RmsNorm { weight: None, eps, offset, group: a.v_dim };
        v = e.graph.op("norm", op, &[v], a.kv_heads * a.v_dim);
    }
    // OLMoE normalises before it clips; without a q/k norm the order does not matter.
    let after = a.qk_norm.is_some_and(|norm| norm.after_rope);
    if !after {
        qk_norms(e, a, &mut q, &mut k)?;
    }
    if let Some(limit) = a.clip_qkv {
        for t in [&mut q, &mut k, &mut v] {
            let cols = e.graph.cols(*t);
            *t = e.graph.op("clipped", Op::Clamp { limit }, &[*t], cols);
        }
    }
    let mut q = rotated(e, a, q, positions, a.growth);
    let mut k = rotated(e, a, k, positions, None);
    if after {
        qk_norms(e, a, &mut q, &mut k)?;
    }
    Ok((q, Some((k, Some(v)))))
}

fn rotated(
    e: &mut Emit<'_, '_>,
    a: &Attn,
    t: ValueId,
    positions: ValueId,
    growth: Option<Growth>,
) -> ValueId {
    let Some(rope) = &a.rope else { return t };
    // Without it queries and keys are rotated alike, and by one kernel.
    let growth = growth.filter(|growth| e.lowerer.options.max_kv > growth.original);
    let freqs = RopeFreqs { growth, ..rope.freqs.clone() };
    let cols = e.graph.cols(t);
    let op = rope_op(&RopeSpec { freqs, ..rope.clone() }, a.k_dim);
    e.graph.op("rotated", op, &[t, positions], cols)
}

fn qk_norms(e: &mut Emit<'_, '_>, a: &Attn, q: &mut ValueId, k: &mut ValueId) -> Result<()> {
    let Some(norm) = a.qk_norm else { return Ok(()) };
    let group = if norm.per_head { a.k_dim } else { 0 };
    *q = e.norm(*q, norm.norm, WeightRole::QNorm, group)?;
    *k = e.norm(*k, norm.norm, WeightRole::KNorm, group)?;
    Ok(())
}

/// Latent attention in absorbed form (DeepSeek-V2, section 2.1.2 and appendix C). The key expansion
/// is multiplied into the query, so the cache holds only the compressed row.
fn latent_qkv(
    e: &mut Emit<'_, '_>,
    a: &Attn,
    l: &Latent,
    n: ValueId,
    positions: ValueId,
) -> Result<(ValueId, Option<KeyValues>)> {
    let q = match l.q_rank {
        None => e.linear(n, WeightRole::Q, false)?,
        Some(_) => {
            let c = e.linear(n, WeightRole::QDown, l.bias)?;
            let c = e.norm(c, l.norm, WeightRole::QDownNorm, 0)?;
            e.linear(c, WeightRole::QUp, false)?
        }
    };
    let nope = Op::SliceCols { group: a.k_dim, start: 0, len: l.nope };
    let q_nope = e.graph.op("q nope", nope, &[q], a.heads * l.nope);
    let pe = Op::SliceCols { group: a.k_dim, start: l.nope, len: l.rope };
    let mut q_pe = e.graph.op("q pe", pe, &[q], a.heads * l.rope);
    let absorb =
        Op::HeadLinear(HeadLinear { weights: e.weights(true, a.heads, WeightRole::KAbsorb)? });
    let q_latent = e.graph.op("q latent", absorb, &[q_nope], a.heads * l.kv_rank);
    let c = e.linear(n, WeightRole::KvDown, l.bias)?;
    let c = e.norm(c, l.norm, WeightRole::KvDownNorm, 0)?;
    let mut k_pe = e.linear(n, WeightRole::KRope, l.bias)?;
    if let Some(rope) = &a.rope {
        q_pe = e.graph.op("q rotated", rope_op(rope, l.rope), &[q_pe, positions], a.heads * l.rope);
        k_pe = e.graph.op("k rotated", rope_op(rope, l.rope), &[k_pe, positions], l.rope);
    }
    let width = l.kv_rank + l.rope;
    let concat = Op::ConcatCols { groups: a.heads };
    let q = e.graph.op("q", concat, &[q_latent, q_pe], a.heads * width);
    let k = e.graph.op("k", Op::ConcatCols { groups: 1 }, &[c, k_pe], width);
    Ok((q, Some((k, None))))
}
