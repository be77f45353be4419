//! Says which experts a router will choose, before it runs.
//!
//! Each layer has one linear function of a state that is known earlier: the input of the router
//! before it. Its result says how likely each expert is. For the first layer with experts that is the
//! last router's input of the token before: the state that the token itself was chosen from.

use serde::{Deserialize, Serialize};
use troika_model::spec::ModelSpec;

use super::container::{FileKind, RoutingFileError};
use crate::identity::ModelId;

const FILE: FileKind = FileKind { magic: *b"TROIKARP", version: 1, what: "routing predictor" };

/// Predicts the experts of all layers that have some. A file's header is this as JSON, without the
/// matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingPredictor {
    /// The model.
    pub model: ModelId,
    /// In the model's order.
    pub layers: Vec<LayerPredictor>,
}

/// What a layer's prediction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PredictorSource {
    /// The input of the router of an earlier layer, for the same token.
    Layer(usize),
    /// The input of the last router, for the token before.
    TokenBefore(usize),
}

impl PredictorSource {
    /// The layer whose router's input is read.
    pub fn layer(self) -> usize {
        match self {
            PredictorSource::Layer(layer) | PredictorSource::TokenBefore(layer) => layer,
        }
    }
}

/// Predicts the experts of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPredictor {
    /// The layer.
    pub layer: usize,
    /// What it reads.
    pub source: PredictorSource,
    /// Experts of the layer.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Width of what it reads.
    pub hidden: usize,
    /// Columns between the two matrices of a low rank; 0: one matrix of full rank.
    pub rank: usize,
    /// Added to each expert's result.
    #[serde(skip)]
    pub bias: Vec<f32>,
    /// Of a low rank: a row of `hidden` columns for each of its columns; else nothing.
    #[serde(skip)]
    pub inner: Vec<f32>,
    /// A row for each expert, of `rank` columns, or `hidden` ones.
    #[serde(skip)]
    pub outer: Vec<f32>,
}

/// Memory of predictions, used again so that predicting requests none.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    inner: Vec<f32>,
    scores: Vec<f32>,
    experts: Vec<u16>,
}

impl LayerPredictor {
    /// Numbers of `bias`, `inner` and `outer`; `None` if no memory could hold them.
    fn sizes(&self) -> Option<[usize; 3]> {
        let cols = if self.rank == 0 { self.hidden } else { self.rank };
        let inner = self.rank.checked_mul(self.hidden)?;
        Some([self.experts, inner, self.experts.checked_mul(cols)?])
    }

    /// A score for each expert. A larger score means that the expert is more likely.
    pub fn scores<'a>(&self, hidden: &[f32], into: &'a mut Prediction) -> &'a [f32] {
        let Prediction { inner, scores, .. } = into;
        let x = if self.rank == 0 {
            hidden
        } else {
            inner.clear();
            inner.extend(self.inner.chunks_exact(self.hidden.max(1)).map(|row| dot(row, hidden)));
            &inner[..]
        };
        scores.clear();
        let rows = self.outer.chunks_exact(x.len().max(1)).zip(&self.bias);
        scores.extend(rows.map(|(row, bias)| dot(row, x) + bias));
        scores
    }
}

/// A product of two vectors, in eight sums that a compiler keeps in one register.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0_f32; 8];
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

impl RoutingPredictor {
    /// Bytes of the matrices by the header; `None` if no memory could hold them.
    fn matrix_bytes(&self) -> Option<usize> {
        self.layers.iter().try_fold(0_usize, |sum, layer| {
            let [bias, inner, outer] = layer.sizes()?;
            let numbers = bias.checked_add(inner)?.checked_add(outer)?;
            sum.checked_add(numbers.checked_mul(4)?)
        })
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// The bytes are not a predictor, or only a part of one.
    pub fn from_bytes(bytes: &[u8]) -> Result<RoutingPredictor, RoutingFileError> {
        let (mut predictor, numbers) = FILE.read(bytes, RoutingPredictor::matrix_bytes)?;
        let mut numbers = numbers.as_chunks().0.iter().map(|n| f32::from_le_bytes(*n));
        for layer in &mut predictor.layers {
            let [bias, inner, outer] = layer.sizes().unwrap_or_default();
            let mut take = |count| numbers.by_ref().take(count).collect::<Vec<f32>>();
            (layer.bias, layer.inner, layer.outer) = (take(bias), take(inner), take(outer));
            let mut all = layer.bias.iter().chain(&layer.inner).chain(&layer.outer);
            let counted = layer.top_k <= layer.experts && layer.experts <= usize::from(u16::MAX);
            if !counted || !all.all(|n| n.is_finite()) {
                return Err(FILE.damaged(format!("layer {} has impossible numbers", layer.layer)));
            }
        }
        Ok(predictor)
    }

    /// A file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let of = |l: &LayerPredictor| [&l.bias[..], &l.inner[..], &l.outer[..]].concat();
        let numbers = self.layers.iter().flat_map(of);
        FILE.bytes(self, &numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
    }

    /// Bytes of its numbers in memory.
    pub fn bytes(&self) -> usize {
        let of = |l: &LayerPredictor| l.bias.len() + l.inner.len() + l.outer.len();
        4 * self.layers.iter().map(of).sum::<usize>()
    }

    /// Checks that it is of a model.
    ///
    /// # Errors
    /// It is of another one.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), RoutingFileError> {
        FILE.check_model(&self.model, spec)?;
        for l in &self.layers {
            FILE.check_layer(spec, l.layer, l.experts, l.top_k)?;
            if l.hidden != spec.hidden {
                let has = format!("has states of {} numbers in layer {}", l.hidden, l.layer);
                return Err(FILE.foreign(has, format!("has {}", spec.hidden)));
            }
        }
        Ok(())
    }

    /// The predictor of a layer.
    pub fn layer(&self, layer: usize) -> Option<&LayerPredictor> {
        self.layers.iter().find(|l| l.layer == layer)
    }

    /// The layer that can be predicted once the input of a layer's router is known.
    pub fn after(&self, router: usize) -> Option<&LayerPredictor> {
        self.layers.iter().find(|l| l.source.layer() == router)
    }

    /// The `count` experts that a layer most likely chooses, the likeliest first, by the state that
    /// its [`PredictorSource`] names. None for a layer that is not predicted, or a state of another
    /// width.
    pub fn predict<'a>(
        &self,
        layer: usize,
        hidden: &[f32],
        count: usize,
        into: &'a mut Prediction,
    ) -> &'a [u16] {
        into.experts.clear();
        let Some(of) = self.layer(layer).filter(|of| of.hidden == hidden.len()) else {
            return &into.experts;
        };
        of.scores(hidden, into);
        let Prediction { scores, experts, .. } = into;
        experts.extend(0..of.experts as u16);
        let better = |a: &u16, b: &u16| {
            let [of_a, of_b] = [a, b].map(|e| scores[usize::from(*e)]);
            of_b.total_cmp(&of_a).then(a.cmp(b))
        };
        let count = count.min(experts.len());
        if 0 < count && count < experts.len() {
            experts.select_nth_unstable_by(count - 1, better);
        }
        experts.truncate(count);
        experts.sort_unstable_by(better);
        experts
    }
}
