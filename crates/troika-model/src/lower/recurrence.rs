//! Mixers whose states have one row.

use troika_graph::{Activation, Op, StateKind, ValueId};

use super::emit::Emit;
use super::lowerer::{At, Lowerer};
use super::{EdgeId, Result, SegmentKind, StateId};
use crate::spec::{DecayingSum, Mamba2, ShortConv, WeightRole};

impl Lowerer<'_> {
    /// `s = decay * s + in(norm(x))`, `y = x + out(s)`.
    pub fn decaying_sum(&mut self, at: At<'_>, sum: &DecayingSum, x: EdgeId) -> Result<EdgeId> {
        let page_group = self.page_group(StateKind::Fixed);
        let (width, decay) = (sum.width, sum.decay);
        let state = self.state(at.name("sum"), width, page_group);
        let mut e = Emit::new(self, SegmentKind::Recurrence, Some(at.index));
        let x = e.input(x);
        let state = e.state(state);
        let n = e.norm_if(x, at.layer.attn_pre, WeightRole::AttnPre)?;
        let v = e.linear(n, WeightRole::MixIn, false)?;
        let op = Op::DecayingSum(troika_graph::DecayingSum { width, decay, page_group });
        let s = e.graph.stateful("sum", op, &[v], state, width);
        let y = e.linear(s, WeightRole::MixOut, false)?;
        let y = e.norm_if(y, at.layer.attn_post, WeightRole::AttnPost)?;
        let y = e.add(x, y, at.layer.mixer_scale);
        e.pass_on("after sum", y)
    }

    /// The state of a short convolution.
    pub fn last_inputs(&mut self, name: String, taps: usize, width: usize) -> StateId {
        let page_group = self.page_group(StateKind::Fixed);
        self.state(name, taps.saturating_sub(1).saturating_mul(width), page_group)
    }

    /// `y = x + out(c * conv(b * v))` with `[b, c, v] = in(norm(x))`.
    pub fn short_conv(&mut self, at: At<'_>, conv: ShortConv, x: EdgeId) -> Result<EdgeId> {
        let (page_group, width) = (self.page_group(StateKind::Fixed), self.spec.hidden);
        let ShortConv { taps, bias } = conv;
        let state = self.last_inputs(at.name("inputs"), taps, width);
        let mut e = Emit::new(self, SegmentKind::Recurrence, Some(at.index));
        let x = e.input(x);
        let state = e.state(state);
        let n = e.norm_if(x, at.layer.attn_pre, WeightRole::AttnPre)?;
        let v = e.linear(n, WeightRole::MixIn, bias)?;
        let op = troika_graph::ShortConv {
            weight: e.weight(WeightRole::MixConv)?,
            bias: e.weight_if(bias, WeightRole::MixConvBias)?,
            width,
            taps,
            silu: false,
            gated: true,
            page_group,
        };
        let s = e.graph.stateful("convolved", Op::ShortConv(op), &[v], state, width);
        let y = e.linear(s, WeightRole::MixOut, bias)?;
        let y = e.norm_if(y, at.layer.attn_post, WeightRole::AttnPost)?;
        let y = e.add(x, y, at.layer.mixer_scale);
        e.pass_on("after convolution", y)
    }

    /// Mamba-2 of the layer's input, added to `residual`.
    pub fn mamba2(
        &mut self,
        at: At<'_>,
        m: &Mamba2,
        x: EdgeId,
        residual: EdgeId,
    ) -> Result<EdgeId> {
        let page_group = self.page_group(StateKind::Fixed);
        let (inner, width) = (m.inner(), m.convolved());
        let inputs = self.last_inputs(at.name("inputs"), m.taps, width);
        let sums = inner.saturating_mul(m.state_size);
        let sums = self.state(at.name("scan"), sums, page_group);
        let mut e = Emit::new(self, SegmentKind::Recurrence, Some(at.index));
        let source = e.input(x);
        let residual = if residual == x { source } else { e.input(residual) };
        let (inputs, sums) = (e.state(inputs), e.state(sums));
        let n = e.norm_if(source, at.layer.attn_pre, WeightRole::AttnPre)?;
        let z = e.linear(n, WeightRole::MixGate, m.bias)?;
        let z = e.scaled(z, m.scales.z);
        let v = e.linear(n, WeightRole::MixIn, m.bias)?;
        let v = e.scaled_parts(v, m);
        let dt = e.linear(n, WeightRole::MixStep, m.bias)?;
        let dt = e.scaled(dt, m.scales.dt);
        let conv = troika_graph::ShortConv {
            weight: e.weight(WeightRole::MixConv)?,
            bias: e.weight_if(m.conv_bias, WeightRole::MixConvBias)?,
            width,
            taps: m.taps,
            silu: true,
            gated: false,
            page_group,
        };
        let v = e.graph.stateful("convolved", Op::ShortConv(conv), &[v], inputs, width);
        let scan = e.scan(m, page_group)?;
        let y = e.graph.stateful("scanned", Op::Mamba2(scan), &[v, dt], sums, inner);
        let y = e.gated(m, z, y)?;
        let y = e.linear(y, WeightRole::MixOut, m.bias)?;
        let y = e.norm_if(y, at.layer.attn_post, WeightRole::AttnPost)?;
        let scale = if at.layer.beside.is_some() { m.scale } else { at.layer.mixer_scale };
        let y = e.add(residual, y, scale);
        e.pass_on("after scan", y)
    }
}

impl Emit<'_, '_> {
    /// Multiplies `x`, `b` and `c`, which lie side by side, each by its factor.
    fn scaled_parts(&mut self, v: ValueId, m: &Mamba2) -> ValueId {
        let (s, group) = (m.scales, m.convolved());
        if [s.x, s.b, s.c] == [1.0; 3] {
            return v;
        }
        let mut part = |start: usize, len: usize, factor: f32| {
            let part = self.graph.op("part", Op::SliceCols { group, start, len }, &[v], len);
            self.scaled(part, factor)
        };
        let x = part(0, m.inner(), s.x);
        let b = part(m.inner(), m.shared(), s.b);
        let c = part(m.inner() + m.shared(), m.shared(), s.c);
        let op = || Op::ConcatCols { groups: 1 };
        let shared = self.graph.op("shared", op(), &[b, c], 2 * m.shared());
        self.graph.op("parts", op(), &[x, shared], group)
    }

    fn scan(&mut self, m: &Mamba2, page_group: usize) -> Result<troika_graph::Mamba2> {
        Ok(troika_graph::Mamba2 {
            heads: m.heads,
            head_dim: m.head_dim,
            groups: m.groups,
            state_size: m.state_size,
            a: self.weight(WeightRole::MixRate)?,
            a_log: m.a_log,
            d: self.weight(WeightRole::MixSkip)?,
            dt_bias: self.weight(WeightRole::MixStepShift)?,
            dt_min: m.dt_min,
            dt_max: m.dt_max,
            page_group,
        })
    }

    /// `silu(z) * y`, with its norm.
    fn gated(&mut self, m: &Mamba2, z: ValueId, y: ValueId) -> Result<ValueId> {
        let normed = |e: &mut Self, y, before| match m.norm {
            Some(n) if n.before_gate == before => e.norm(y, n.norm, WeightRole::MixNorm, n.group),
            _ => Ok(y),
        };
        let y = normed(self, y, true)?;
        let y = self.graph.op("gated", Op::Gate(Activation::Silu), &[z, y], m.inner());
        normed(self, y, false)
    }
}
