//! Feed-forward: dense, or router and experts.

use troika_graph::{Activation, ActivationFormat, DType, Experts, Op, Rescale, Router, ValueId};

use super::emit::Emit;
use super::lowerer::{At, Lowerer};
use super::{EdgeId, Result, SegmentKind};
use crate::spec::{Layer, Mlp, Moe, Norm, SharedExpert, WeightRole};

/// The norm before the feed-forward; a parallel block shares attention's.
fn pre_norm(layer: &Layer) -> (Option<Norm>, WeightRole) {
    if layer.parallel {
        (layer.attn_pre, WeightRole::AttnPre)
    } else {
        (layer.ffn_pre, WeightRole::FfnPre)
    }
}

impl Lowerer<'_> {
    /// Dense feed-forward. `x` is the layer's input, `mixed` the residual stream.
    pub fn dense(&mut self, at: At<'_>, mlp: &Mlp, x: EdgeId, mixed: EdgeId) -> Result<EdgeId> {
        let mut e = Emit::new(self, SegmentKind::Ffn, Some(at.index));
        let residual = e.input(mixed);
        let source = if at.layer.parallel && x != mixed { e.input(x) } else { residual };
        let (norm, role) = pre_norm(at.layer);
        let n = e.norm_if(source, norm, role)?;
        let y = mlp_ops(&mut e, mlp, DENSE, n)?;
        let y = e.norm_if(y, at.layer.ffn_post, WeightRole::FfnPost)?;
        let y = e.add(residual, y, at.layer.ffn_scale);
        let y = if at.layer.per_layer.is_none() { e.scaled(y, at.layer.out_scale) } else { y };
        e.pass_on("output", y)
    }

    /// Router and experts, as two segments.
    pub fn moe(&mut self, at: At<'_>, moe: &Moe, x: EdgeId, mixed: EdgeId) -> Result<EdgeId> {
        let mut e = Emit::new(self, SegmentKind::Router, Some(at.index));
        let source = e.input(if at.layer.parallel { x } else { mixed });
        let own = moe.norms.map(|norm| (Some(norm), WeightRole::ExpertPre));
        let (norm, role) = own.unwrap_or_else(|| pre_norm(at.layer));
        let n = e.norm_if(source, norm, role)?;
        let routed = match moe.norms {
            Some(norm) => {
                let routed = e.norm(source, norm, WeightRole::RouterNorm, 0)?;
                let width = e.graph.cols(source) as f32;
                e.scaled(routed, width.sqrt().recip())
            }
            None => n,
        };
        let logits = e.float_linear(routed, WeightRole::Router, moe.router_bias)?;
        let op = Router {
            experts: moe.experts,
            top_k: moe.top_k,
            score: moe.score,
            normalize: moe.normalize,
            scale: moe.scale,
            groups: moe.groups,
            bias: e.weight_if(moe.choice_bias, WeightRole::ExpertChoice)?,
            expert_scales: e.weight_if(moe.expert_scales, WeightRole::ExpertScales)?,
        };
        let (ids, weights) = e.graph.router(op, logits);
        // Without a norm the router's input is already an edge.
        let normed = norm.map(|_| e.output("ffn input", n, DType::F32));
        let ids = e.output("expert ids", ids, DType::I32);
        let weights = e.output("expert weights", weights, DType::F32);
        e.finish()?;
        let n = normed.unwrap_or(if at.layer.parallel { x } else { mixed });
        self.experts(at, moe, [n, ids, weights, mixed])
    }

    fn experts(
        &mut self,
        at: At<'_>,
        moe: &Moe,
        [n, ids, weights, residual]: [EdgeId; 4],
    ) -> Result<EdgeId> {
        let mut e = Emit::new(self, SegmentKind::Experts, Some(at.index));
        let same = n == residual;
        let n = e.input(n);
        let ids = e.input(ids);
        let weights = e.input(weights);
        let residual = if same { n } else { e.input(residual) };
        let count = moe.experts;
        let up = e.weights(true, count, WeightRole::ExpertUp)?;
        // max(u, 0)^2 = relu(u) * u.
        let (gate, act) = match moe.gated {
            true => (e.weights(true, count, WeightRole::ExpertGate)?, moe.act),
            false => (up.clone(), Activation::Relu),
        };
        let down = e.weights(true, count, WeightRole::ExpertDown)?;
        // Gates, ups and downs may have unlike types.
        let [activations, of_up, of_down] = [&gate, &up, &down].map(|list| e.activations(list));
        let same = activations == of_up && activations == of_down;
        let activations = if same { activations } else { ActivationFormat::F32 };
        let op = Experts {
            gate,
            up,
            down,
            activations,
            gate_bias: e.weights(moe.bias, count, WeightRole::ExpertGateBias)?,
            up_bias: e.weights(moe.bias, count, WeightRole::ExpertUpBias)?,
            down_bias: e.weights(moe.bias, count, WeightRole::ExpertDownBias)?,
            act,
        };
        let cols = e.graph.cols(n);
        let y = e.graph.op("experts", Op::Experts(op), &[n, ids, weights], cols);
        let mut y = e.norm_if(y, moe.norms, WeightRole::ExpertPost)?;
        if let Some(shared) = moe.shared {
            let SharedExpert { inter, gated, bias } = shared;
            let mlp =
                Mlp { inter, act: moe.act, gated: moe.gated, bias, gate_scale: 1.0, above: None };
            let input = match moe.norms {
                Some(_) => e.norm_if(residual, at.layer.ffn_pre, WeightRole::FfnPre)?,
                None => n,
            };
            let s = mlp_ops(&mut e, &mlp, SHARED, input)?;
            let mut s = e.norm_if(s, moe.norms, WeightRole::SharedPost)?;
            if gated {
                let g = e.linear(n, WeightRole::SharedOutGate, false)?;
                s = e.graph.op("gated", Op::SigmoidGate, &[s, g], cols);
            }
            y = e.add(y, s, 1.0);
        }
        let y = e.norm_if(y, at.layer.ffn_post, WeightRole::FfnPost)?;
        let y = e.add(residual, y, at.layer.ffn_scale);
        let y = if at.layer.per_layer.is_none() { e.scaled(y, at.layer.out_scale) } else { y };
        e.pass_on("output", y)
    }
}

/// The projections of a feed-forward: gate, up and down.
const DENSE: [WeightRole; 3] = [WeightRole::Gate, WeightRole::Up, WeightRole::Down];
const SHARED: [WeightRole; 3] =
    [WeightRole::SharedGate, WeightRole::SharedUp, WeightRole::SharedDown];

fn mlp_ops(
    e: &mut Emit<'_, '_>,
    m: &Mlp,
    [gate, up, down]: [WeightRole; 3],
    n: ValueId,
) -> Result<ValueId> {
    let up = e.linear(n, up, m.bias)?;
    let inner = if m.gated {
        let gate = e.linear(n, gate, m.bias)?;
        let mut gate = e.scaled(gate, m.gate_scale);
        if let Some(deviations) = m.above {
            let op = Op::Rescale(Rescale::Largest { deviations });
            gate = e.graph.op("largest", op, &[gate], m.inter);
        }
        e.graph.op("inner", Op::Gate(m.act), &[gate, up], m.inter)
    } else {
        e.graph.op("inner", Op::Activate(m.act), &[up], m.inter)
    };
    e.linear(inner, down, m.bias)
}
