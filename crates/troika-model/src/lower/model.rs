//! The whole model: embedding, layers, head.

use std::collections::BTreeMap;

use troika_graph::{DType, Op};

use super::emit::Emit;
use super::lowerer::{At, Lowerer};
use super::{EdgeId, LowerOptions, Lowered, Result, SegmentKind, WeightShapes};
use crate::spec::{Ffn, Key, Mixer, ModelSpec, PerLayerInput, WeightRole};

/// Lowers a model to static subgraphs.
///
/// # Errors
/// A weight is not bound, or the spec is inconsistent.
pub fn lower(
    spec: &ModelSpec,
    weights: WeightShapes<'_>,
    options: LowerOptions,
) -> Result<Lowered> {
    let (lowered, kv) = (Lowered::default(), BTreeMap::new());
    let mut l = Lowerer { spec, options, weights, lowered, kv };
    l.edge("ids".into(), 1, DType::I32);
    l.edge("positions".into(), 1, DType::I32);
    let (mut x, own) = l.embed()?;
    for (index, layer) in spec.layers.iter().enumerate() {
        let at = At { index, layer };
        let predicted = spec.altup.map(|a| l.predict(at, a, x)).transpose()?;
        let (all, residual);
        (all, x, residual) = predicted.map_or((None, x, x), |[all, x, y]| (Some(all), x, y));
        let mixed = match &layer.mixer {
            Some(Mixer::Attention(a)) => l.attend(at, a, x, residual)?,
            Some(Mixer::DecayingSum(sum)) => l.decaying_sum(at, sum, x)?,
            Some(Mixer::ShortConv(conv)) => l.short_conv(at, *conv, x)?,
            Some(Mixer::Mamba2(m)) => l.mamba2(at, m, x, x)?,
            Some(Mixer::DeltaRule(delta)) => l.delta_rule(at, delta, x)?,
            None => x,
        };
        let beside = layer.beside.as_ref();
        let mixed = beside.map_or(Ok(mixed), |m| l.mamba2(at, m, x, mixed))?;
        x = match &layer.ffn {
            Some(Ffn::Dense(mlp)) => l.dense(at, mlp, x, mixed)?,
            Some(Ffn::Moe(moe)) => l.moe(at, moe, x, mixed)?,
            None => mixed,
        };
        if let (Some(p), Some(own)) = (layer.per_layer, own) {
            x = l.per_layer(at, p, [x, own], all)?;
        }
    }
    l.head(x)?;
    Ok(l.lowered)
}

impl Lowerer<'_> {
    /// The embedding, and the inputs of all layers beside it.
    fn embed(&mut self) -> Result<(EdgeId, Option<EdgeId>)> {
        let (hidden, scale) = (self.spec.hidden, self.spec.embed_scale);
        let (per_layer, layers) = (self.spec.per_layer_input(), self.spec.layers.len());
        let mut e = Emit::new(self, SegmentKind::Embed, None);
        let ids = e.input(Lowered::IDS);
        let table = e.weight(WeightRole::Embed)?;
        let x = e.graph.op("rows", Op::Embed { table, scale }, &[ids], hidden);
        let mut own = None;
        if let Some(p) = per_layer {
            let all = p.width.saturating_mul(layers);
            let (table, scale) = (e.weight(WeightRole::PerLayerEmbed)?, (p.width as f32).sqrt());
            let rows = e.graph.op("rows of layers", Op::Embed { table, scale }, &[ids], all);
            let y = e.linear(x, WeightRole::PerLayerIn, false)?;
            let y = e.scaled(y, (hidden as f32).sqrt().recip());
            let y = e.norm(y, p.norm, WeightRole::PerLayerInNorm, p.width)?;
            let y = e.add(y, rows, 1.0);
            let y = e.scaled(y, std::f32::consts::FRAC_1_SQRT_2);
            own = Some(e.output("inputs of layers", y, DType::F32));
        }
        let x = e.lowerer.spec.altup.map_or(Ok(x), |a| e.spread(a, x))?;
        Ok((e.pass_on("embedding", x)?, own))
    }

    /// What a layer adds from its own input, one of those of all layers. With AltUp `x` corrects the
    /// streams that were predicted; the last layer merges them.
    fn per_layer(
        &mut self,
        at: At<'_>,
        p: PerLayerInput,
        [x, own]: [EdgeId; 2],
        predicted: Option<EdgeId>,
    ) -> Result<EdgeId> {
        let mut e = Emit::new(self, SegmentKind::PerLayer, Some(at.index));
        let (mut x, own) = (e.input(x), e.input(own));
        let mut streams = None;
        if let Some((a, predicted)) = e.lowerer.spec.altup.zip(predicted) {
            let predicted = e.input(predicted);
            let (corrected, active) = e.correct(a, x, predicted)?;
            (streams, x) = (Some((a, corrected)), active);
        }
        let all = e.graph.cols(own);
        let slice = Op::SliceCols { group: all, start: at.index * p.width, len: p.width };
        let own = e.graph.op("own input", slice, &[own], p.width);
        let gate = e.linear(x, WeightRole::PerLayerGate, false)?;
        let y = e.graph.op("gated", Op::Gate(p.act), &[gate, own], p.width);
        let y = e.linear(y, WeightRole::PerLayerUp, false)?;
        let y = e.norm(y, p.norm, WeightRole::PerLayerNorm, 0)?;
        let mut y = match streams {
            Some((a, all)) => e.add_to_others(a, all, y),
            None => e.add(x, y, 1.0),
        };
        if let Some((a, _)) = streams.filter(|_| at.index + 1 == e.lowerer.spec.layers.len()) {
            y = e.merged(a, y)?;
        }
        let y = e.scaled(y, at.layer.out_scale);
        e.pass_on("output of layer", y)
    }

    fn head(&mut self, x: EdgeId) -> Result<()> {
        let spec = self.spec;
        let mut e = Emit::new(self, SegmentKind::Head, None);
        let x = e.input(x);
        let n = e.norm(x, spec.final_norm, WeightRole::FinalNorm, 0)?;
        // A quantized tied head is a separate weight.
        let own = !spec.tied || (e.lowerer.weights)(Key::model(WeightRole::Head)).is_some();
        let weight = e.weight(if own { WeightRole::Head } else { WeightRole::Embed })?;
        let bias = spec.head_bias.then_some(WeightRole::HeadBias);
        let y = e.product(n, weight, bias, e.activations(&[weight]))?;
        let mut y = e.scaled(y, spec.logit_scale);
        if let Some(cap) = spec.logit_softcap {
            y = e.graph.op("capped", Op::SoftCap { cap }, &[y], spec.vocab);
        }
        e.output("logits", y, DType::F32);
        e.finish()
    }
}
