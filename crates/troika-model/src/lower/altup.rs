//! AltUp: a prediction and a correction of streams around each layer, which computes one of them.

use troika_graph::{DType, Op, ValueId};

use super::emit::Emit;
use super::lowerer::Lowerer;
use super::{EdgeId, LowerError, SegmentKind};
use crate::spec::{AltUp, Layer, WeightRole};

/// What is predicted for a layer.
pub(super) struct Predicted {
    /// All streams.
    pub all: EdgeId,
    /// The active one, the layer's input.
    pub active: EdgeId,
    /// What the mixer's result is added to: the active one and LAuReL of its norm.
    pub residual: EdgeId,
}

impl Lowerer<'_> {
    /// Predicts all streams from the `streams` behind the layer before.
    pub(super) fn predict(
        &mut self,
        index: usize,
        layer: &Layer,
        a: AltUp,
        streams: EdgeId,
    ) -> Result<Predicted, LowerError> {
        let mut e = Emit::new(self, SegmentKind::Streams, Some(index));
        let x = e.input(streams);
        let active = e.stream(a, x, a.active);
        let c = e.coefficients(a, active, WeightRole::AltPredict)?;
        let cols = e.graph.cols(x);
        let all = e.graph.op("predicted", Op::Mix { streams: a.streams }, &[x, c], cols);
        let active = e.stream(a, all, a.active);
        let n = e.norm_if(active, layer.attn_pre, WeightRole::AttnPre)?;
        let y = e.linear(n, WeightRole::LaurelDown, false)?;
        let y = e.linear(y, WeightRole::LaurelUp, false)?;
        let y = e.norm(y, a.norm, WeightRole::LaurelNorm, 0)?;
        let y = e.add(n, y, 1.0);
        let residual = e.add(active, y, 1.0);
        let predicted = Predicted {
            all: e.output("predicted streams", all, DType::F32),
            active: e.output("predicted", active, DType::F32),
            residual: e.output("residual", residual, DType::F32),
        };
        e.finish()?;
        Ok(predicted)
    }
}

impl Emit<'_, '_> {
    /// The stream of a number.
    pub fn stream(&mut self, a: AltUp, all: ValueId, i: usize) -> ValueId {
        let len = self.graph.cols(all) / a.streams;
        self.cols(all, i * len, len)
    }

    fn cols(&mut self, x: ValueId, start: usize, len: usize) -> ValueId {
        let group = self.graph.cols(x);
        self.graph.op("stream", Op::SliceCols { group, start, len }, &[x], len)
    }

    fn joined(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let cols = self.graph.cols(a) + self.graph.cols(b);
        self.graph.op("streams", Op::ConcatCols { groups: 1 }, &[a, b], cols)
    }

    /// Coefficients of streams, `coefs(tanh(router(norm(x)) / hidden))`.
    fn coefficients(
        &mut self,
        a: AltUp,
        x: ValueId,
        role: WeightRole,
    ) -> Result<ValueId, LowerError> {
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
    ) -> Result<ValueId, LowerError> {
        let weight = self.model_weight(role, i)?;
        let y = self.linear_with(x, weight, None)?;
        let cols = self.graph.cols(y);
        Ok(self.graph.op("as large", Op::MatchRms { least: 1e-5 }, &[y, like], cols))
    }

    /// All streams, from the embedding.
    pub fn spread(&mut self, a: AltUp, x: ValueId) -> Result<ValueId, LowerError> {
        let mut all = x;
        for i in 1..a.streams {
            let y = self.projected(x, x, WeightRole::AltIn, i - 1)?;
            all = self.joined(all, y);
        }
        Ok(all)
    }

    /// The mean of the streams behind the last layer.
    pub fn merged(&mut self, a: AltUp, all: ValueId) -> Result<ValueId, LowerError> {
        let first = self.stream(a, all, 0);
        let mut sum = first;
        for i in 1..a.streams {
            let x = self.stream(a, all, i);
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
    ) -> Result<(ValueId, ValueId), LowerError> {
        let active = self.stream(a, predicted, a.active);
        let news = self.add(x, active, -1.0);
        let c = self.coefficients(a, x, WeightRole::AltCorrect)?;
        let cols = self.graph.cols(predicted);
        let news = self.graph.op("news", Op::Mix { streams: 1 }, &[news, c], cols);
        let all = self.add(predicted, news, 1.0);
        let mut active = self.stream(a, all, a.active);
        if a.scaled {
            let (weight, cols) = (self.weight(WeightRole::AltScale)?, self.graph.cols(active));
            active = self.graph.op("scaled", Op::ScaleCols { weight }, &[active], cols);
        }
        Ok((all, active))
    }

    /// Adds `y` to all streams but the first.
    pub fn add_to_others(&mut self, a: AltUp, all: ValueId, y: ValueId) -> ValueId {
        let len = self.graph.cols(y);
        let first = self.stream(a, all, 0);
        let others = self.cols(all, len, (a.streams - 1) * len);
        let each = (2..a.streams).fold(y, |each, _| self.joined(each, y));
        let others = self.add(others, each, 1.0);
        self.joined(first, others)
    }
}
