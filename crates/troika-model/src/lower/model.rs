//! The whole model: embedding, layers, head.

use troika_graph::{DType, Op};

use super::emit::Emit;
use super::lowerer::Lowerer;
use super::{EdgeId, LowerError, LowerOptions, Lowered, SegmentKind, WeightShapes};
use crate::spec::{Ffn, Key, Mixer, ModelSpec, WeightRole};

/// Lowers a model to static subgraphs.
///
/// # Errors
/// A weight is not bound, or the spec is inconsistent.
pub fn lower(
    spec: &ModelSpec,
    weights: WeightShapes<'_>,
    options: LowerOptions,
) -> Result<Lowered, LowerError> {
    let mut l = Lowerer::new(spec, weights, options);
    l.edge("ids".into(), 1, DType::I32);
    l.edge("positions".into(), 1, DType::I32);
    let mut x = l.embed()?;
    for (i, layer) in spec.layers.iter().enumerate() {
        let mixed = match &layer.mixer {
            Some(Mixer::Attention(a)) => l.attend(i, layer, a, x)?,
            Some(Mixer::DecayingSum(sum)) => l.decaying_sum(i, layer, sum, x)?,
            Some(Mixer::ShortConv(conv)) => l.short_conv(i, layer, *conv, x)?,
            Some(Mixer::Mamba2(m)) => l.mamba2(i, layer, m, x, x)?,
            Some(Mixer::DeltaRule(delta)) => l.delta_rule(i, layer, delta, x)?,
            None => x,
        };
        let mixed = match &layer.beside {
            Some(m) => l.mamba2(i, layer, m, x, mixed)?,
            None => mixed,
        };
        x = match &layer.ffn {
            Some(Ffn::Dense(mlp)) => l.dense(i, layer, mlp, x, mixed)?,
            Some(Ffn::Moe(moe)) => l.moe(i, layer, moe, x, mixed)?,
            None => mixed,
        };
    }
    l.head(x)?;
    Ok(Lowered {
        segments: l.segments,
        edges: l.edges,
        states: l.states,
        page_groups: l.page_groups,
    })
}

impl Lowerer<'_> {
    fn embed(&mut self) -> Result<EdgeId, LowerError> {
        let (hidden, scale) = (self.spec.hidden, self.spec.embed_scale);
        let mut e = Emit::new(self, SegmentKind::Embed, None);
        let ids = e.input(Lowered::IDS);
        let table = e.weight(WeightRole::Embed)?;
        let x = e.graph.op("rows", Op::Embed { table, scale }, &[ids], hidden);
        e.pass_on("embedding", x)
    }

    fn head(&mut self, x: EdgeId) -> Result<(), LowerError> {
        let spec = self.spec;
        let mut e = Emit::new(self, SegmentKind::Head, None);
        let x = e.input(x);
        let n = e.norm(x, spec.final_norm, WeightRole::FinalNorm, 0)?;
        // A quantized tied head is a separate weight.
        let own = !spec.tied || (e.lowerer.weights)(Key::model(WeightRole::Head)).is_some();
        let weight = e.weight(if own { WeightRole::Head } else { WeightRole::Embed })?;
        let y = e.linear_with(n, weight, spec.head_bias.then_some(WeightRole::HeadBias))?;
        let mut y = e.scaled(y, spec.logit_scale);
        if let Some(cap) = spec.logit_softcap {
            y = e.graph.op("capped", Op::SoftCap { cap }, &[y], spec.vocab);
        }
        e.output("logits", y, DType::F32);
        e.finish()
    }
}
