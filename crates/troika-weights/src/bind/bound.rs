//! A bound weight, and the source of its rows.

use std::sync::atomic::AtomicBool;

use troika_graph::DType;
use troika_model::lower::WeightShape;
use troika_model::spec::{Key, WeightRequirement};

use super::scheme::Quant;
use super::source::ValueSource;
use super::synthetic;

/// A weight and its source.
pub(crate) struct Bound {
    pub key: Key,
    /// The shape that devices see.
    pub shape: WeightShape,
    pub source: ValueSource,
    /// The tensor it is cut from.
    pub tensor: String,
    /// Whether its plain rows were handed out.
    pub handed_out: AtomicBool,
}

impl Bound {
    pub fn new(key: Key, shape: WeightShape, source: ValueSource, tensor: String) -> Bound {
        Bound { key, shape, source, tensor, handed_out: AtomicBool::new(false) }
    }

    /// A random weight, quantized on demand if `quant` says so. Other weights are generated now or,
    /// with `lazy`, on demand.
    pub fn random(
        need: WeightRequirement,
        dtype: DType,
        seed: u64,
        quant: Quant,
        lazy: bool,
    ) -> Bound {
        let shape = |dtype| WeightShape { rows: need.rows, cols: need.cols, dtype };
        let target = quant.target(&need, dtype).filter(|_| !dtype.is_quantized());
        if let Some(target) = target.or_else(|| lazy.then_some(dtype)) {
            let source = ValueSource::Random { need, dtype, seed };
            return Bound::new(need.key, shape(target), source, need.key.to_string());
        }
        let data = synthetic::weight(need, dtype, seed);
        let source = ValueSource::Ready { bytes: data.bytes, owned: true };
        Bound::new(need.key, shape(data.dtype), source, need.key.to_string())
    }

    /// Bytes in the weight's type.
    pub fn bytes(&self) -> u64 {
        let row = self.shape.dtype.row_bytes(self.shape.cols).unwrap_or(0);
        (row * self.shape.rows) as u64
    }

    /// Whether it is a matrix that a mapped file holds as devices see it.
    pub fn stays_in_file(&self) -> bool {
        let in_file = matches!(self.source, ValueSource::Ready { owned: false, .. });
        in_file && self.shape.rows > 1
    }

    /// Number of elements.
    pub fn values(&self) -> u64 {
        (self.shape.rows * self.shape.cols) as u64
    }
}
