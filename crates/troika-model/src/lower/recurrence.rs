//! Mixers whose state has one row.

use troika_graph::{Op, StateKind};

use super::emit::Emit;
use super::lowerer::Lowerer;
use super::{EdgeId, LowerError, SegmentKind};
use crate::spec::{DecayingSum, Layer, WeightRole};

impl Lowerer<'_> {
    /// `s = decay * s + in(norm(x))`, `y = x + out(s)`.
    pub(super) fn decaying_sum(
        &mut self,
        index: usize,
        layer: &Layer,
        sum: &DecayingSum,
        x: EdgeId,
    ) -> Result<EdgeId, LowerError> {
        let page_group = self.page_group(StateKind::Fixed);
        let (width, decay) = (sum.width, sum.decay);
        let state = self.state(format!("layer {index} sum"), width, page_group);
        let mut e = Emit::new(self, SegmentKind::Recurrence, Some(index));
        let x = e.input(x);
        let state = e.state(state);
        let n = e.norm_if(x, layer.attn_pre, WeightRole::AttnPre)?;
        let v = e.linear(n, WeightRole::MixIn, false)?;
        let op = Op::DecayingSum(troika_graph::DecayingSum { width, decay, page_group });
        let s = e.graph.stateful("sum", op, &[v], state, width);
        let y = e.linear(s, WeightRole::MixOut, false)?;
        let y = e.norm_if(y, layer.attn_post, WeightRole::AttnPost)?;
        let y = e.add(x, y, layer.mixer_scale);
        e.pass_on("after sum", y)
    }
}
