//! The mixer of the gated delta rule.

use troika_graph::{Op, ShortConv, StateKind, WeightRef};

use super::emit::Emit;
use super::lowerer::{At, Lowerer};
use super::{EdgeId, Result, SegmentKind, StateId};
use crate::spec::{DeltaRule, WeightRole};

impl Lowerer<'_> {
    /// Convolutions of queries, keys and values, the delta rule, a norm of each head and its gate.
    pub fn delta_rule(&mut self, at: At<'_>, d: &DeltaRule, x: EdgeId) -> Result<EdgeId> {
        let page_group = self.page_group(StateKind::Fixed);
        let widths = [d.keys(), d.keys(), d.values()];
        let kept = ["q", "k", "v"]
            .into_iter()
            .zip(widths)
            .map(|(name, width)| self.last_inputs(at.name(&format!("last {name}")), d.taps, width));
        let kept: Vec<StateId> = kept.collect();
        let width = d.values().saturating_mul(d.key_dim);
        let rule = self.state(at.name("delta rule"), width, page_group);
        let mut e = Emit::new(self, SegmentKind::Recurrence, Some(at.index));
        let x = e.input(x);
        let n = e.norm_if(x, at.layer.attn_pre, WeightRole::AttnPre)?;
        let mut inputs = Vec::new();
        let taps = e.weights(true, widths.len(), WeightRole::Taps)?;
        for (i, role) in [WeightRole::Q, WeightRole::K, WeightRole::V].into_iter().enumerate() {
            let y = e.linear(n, role, false)?;
            let (weight, width, taps) = (taps[i], widths[i], d.taps);
            let (bias, silu, gated) = (None, true, false);
            let op = ShortConv { weight, bias, width, taps, silu, gated, page_group };
            let kept = e.state(kept[i]);
            inputs.push(e.graph.stateful("convolved", Op::ShortConv(op), &[y], kept, width));
        }
        inputs.rotate_right(1);
        let mut a = n;
        if d.decay_rank.is_some() {
            a = e.float_linear(n, WeightRole::DecayDown, false)?;
        }
        inputs.push(e.float_linear(a, WeightRole::Decay, true)?);
        inputs.push(e.float_linear(n, WeightRole::Beta, false)?);
        let rates = e.weight(WeightRole::DecayRate)?;
        let rule = e.state(rule);
        let op = Op::DeltaRule(op(d, rates, page_group));
        let y = e.graph.stateful("delta rule", op, &inputs, rule, d.values());
        let y = e.norm(y, d.norm, WeightRole::HeadNorm, d.value_dim)?;
        let mut gate = n;
        if d.gate_rank.is_some() {
            gate = e.linear(n, WeightRole::GateDown, false)?;
        }
        let gate = e.linear(gate, WeightRole::AttnGate, false)?;
        let y = e.graph.op("gated", Op::Gate(d.gate), &[gate, y], d.values());
        let y = e.linear(y, WeightRole::O, false)?;
        let y = e.norm_if(y, at.layer.attn_post, WeightRole::AttnPost)?;
        let y = e.add(x, y, at.layer.mixer_scale);
        e.pass_on("after delta rule", y)
    }
}

fn op(d: &DeltaRule, rates: WeightRef, page_group: usize) -> troika_graph::DeltaRule {
    troika_graph::DeltaRule {
        key_heads: d.key_heads,
        value_heads: d.value_heads,
        key_dim: d.key_dim,
        value_dim: d.value_dim,
        tiled: d.tiled,
        rates,
        rates_are_logs: d.rates_are_logs,
        decay: d.decay,
        by_channel: d.by_channel,
        beta_scale: d.beta_scale,
        page_group,
    }
}
