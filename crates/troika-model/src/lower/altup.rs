//! AltUp: a prediction and a correction of streams around each layer, which computes one of them.

use troika_graph::{DType, Op, Rescale, ValueId};

use super::emit::Emit;
use super::lowerer::{At, Lowerer};
use super::{EdgeId, Result, SegmentKind};
use crate::spec::{AltUp, Key, WeightRole};

impl Lowerer<'_> {
    /// Predicts all streams from those behind the layer before. Returns them, the active one, which is
    /// the layer's input, and what the mixer's result is added to, with LAuReL's.
    pub fn predict(&mut self, at: At<'_>, a: AltUp, streams: EdgeId) -> Result<[EdgeId; 3]> {
        let mut e = Emit::new(self, SegmentKind::Streams, Some(at.index));
        let x = e.input(streams);
        let active = e.streams(x, a.active, 1);
        let c = e.coefficients(a, active, WeightRole::AltPredict)?;
        let cols = e.graph.cols(x);
        let all = e.graph.op("predicted", Op::Mix { streams: a.streams }, &[x, c], cols);
        let active = e.streams(all, a.active, 1);
        let n = e.norm_if(active, at.layer.attn_pre, WeightRole::AttnPre)?;
        let y = e.linear(n, WeightRole::LaurelDown, false)?;
        let y = e.linear(y, WeightRole::LaurelUp, false)?;
        let y = e.norm(y, a.norm, WeightRole::LaurelNorm, 0)?;
        let y = e.add(n, y, 1.0);
        let residual = e.add(active, y, 1.0);
        let residual = e.scaled(residual, at.layer.mixer_scale);
        let outputs = [("predicted streams", all), ("predicted", active), ("residual", residual)];
        let outputs = outputs.map(|(name, value)| e.output(name, value, DType::F32));
        e.finish()?;
        Ok(outputs)
    }
}

impl Emit<'_, '_> {
    /// `count` streams from the `first`.
    fn streams(&mut self, all: ValueId, first: usize, count: usize) -> ValueId {
        let (group, width) = (self.graph.cols(all), self.lowerer.spec.hidden);
        let (start, len) = (first * width, count * width);
        self.graph.op("streams", Op::SliceCols { group, start, len }, &[all], len)
    }

    fn joined(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let cols = self.graph.cols(a) + self.graph.cols(b);
        self.graph.op("joined", Op::ConcatCols { groups: 1 }, &[a, b], cols)
    }

    /// Coefficients of streams, `coefs(tanh(router(norm(x)) / hidden))`.
    fn coefficients(&mut self, a: AltUp, x: ValueId, role: WeightRole) -> Result<ValueId> {
        let scale = (self.graph.cols(x) as f32).recip();
        let n = self.norm(x, a.norm, WeightRole::AltRouterNorm, 0)?;
        let y = self.float_linear(n, WeightRole::AltRouter, false)?;
        let y = self.scaled(y, scale);
        let y = self.graph.op("routed", Op::SoftCap { cap: 1.0 }, &[y], a.streams);
        self.float_linear(y, role, false)
    }

    /// A projection of `x` by weight `i` of the model's, as large as `like`.
    fn projected(
        &mut self,
        x: ValueId,
        like: ValueId,
        role: WeightRole,
        i: usize,
    ) -> Result<ValueId> {
        let weight = self.weight_key(Key { role, layer: None, index: Some(i) })?;
        let y = self.product(x, weight, None, self.activations(&[weight]))?;
        let cols = self.graph.cols(y);
        let op = Op::Rescale(Rescale::Match { least: 1e-5 });
        Ok(self.graph.op("as large", op, &[y, like], cols))
    }

    /// All streams, from the embedding.
    pub fn spread(&mut self, a: AltUp, x: ValueId) -> Result<ValueId> {
        let mut all = x;
        for i in 1..a.streams {
            let y = self.projected(x, x, WeightRole::AltIn, i - 1)?;
            all = self.joined(all, y);
        }
        Ok(all)
    }

    /// The mean of the streams behind the last layer.
    pub fn merged(&mut self, a: AltUp, all: ValueId) -> Result<ValueId> {
        let first = self.streams(all, 0, 1);
        let mut sum = first;
        for i in 1..a.streams {
            let x = self.streams(all, i, 1);
            let y = self.projected(x, first, WeightRole::AltOut, i - 1)?;
            sum = self.add(sum, y, 1.0);
        }
        Ok(self.scaled(sum, (a.streams as f32).recip()))
    }

    /// Corrects predicted streams by what the layer made of the active one. Returns all, and the
    /// active one as the layer's own input meets it.
    pub fn correct(
        &mut self,
        a: AltUp,
        x: ValueId,
        predicted: ValueId,
    ) -> Result<(ValueId, ValueId)> {
        let active = self.streams(predicted, a.active, 1);
        let news = self.add(x, active, -1.0);
        let c = self.coefficients(a, x, WeightRole::AltCorrect)?;
        let cols = self.graph.cols(predicted);
        let news = self.graph.op("news", Op::Mix { streams: 1 }, &[news, c], cols);
        let all = self.add(predicted, news, 1.0);
        let mut active = self.streams(all, a.active, 1);
        if a.scaled {
            let (weight, cols) = (self.weight(WeightRole::AltScale)?, self.graph.cols(active));
            let op = Op::Rescale(Rescale::Columns(weight));
            active = self.graph.op("scaled", op, &[active], cols);
        }
        Ok((all, active))
    }

    /// Adds `y` to all streams but the first.
    pub fn add_to_others(&mut self, a: AltUp, all: ValueId, y: ValueId) -> ValueId {
        let first = self.streams(all, 0, 1);
        let others = self.streams(all, 1, a.streams - 1);
        let each = (2..a.streams).fold(y, |each, _| self.joined(each, y));
        let others = self.add(others, each, 1.0);
        self.joined(first, others)
    }
}
