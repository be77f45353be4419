//! Weights as numbers that the host reads.

use troika_device::WeightSource;
use troika_graph::blocks;
use troika_model::spec::Key;
use troika_weights::WeightStore;

use crate::error::Error;

/// All numbers of a weight, row by row.
pub(crate) fn floats(store: &WeightStore, key: Key) -> Result<Vec<f32>, Error> {
    let data = store.weight(&key.to_string())?;
    let mut values = vec![0.0; data.rows * data.cols];
    blocks::dequantize(data.dtype, &data.bytes, &mut values);
    Ok(values)
}
