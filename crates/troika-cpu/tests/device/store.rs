//! A weight source for tests.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::*;
use troika_graph::{DType, WeightDecl};

/// Weights in memory, all f32.
#[derive(Default)]
pub struct Store(HashMap<String, (usize, usize, Vec<f32>)>);

impl Store {
    pub fn add(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        f: impl Fn(usize) -> f32,
    ) -> WeightDecl {
        self.0.insert(name.into(), (rows, cols, (0..rows * cols).map(f).collect()));
        WeightDecl { name: name.into(), rows, cols, dtype: DType::F32 }
    }
}

struct Aligned(Vec<f32>);
impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl WeightSource for Store {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        let (rows, cols, data) = self
            .0
            .get(name)
            .ok_or_else(|| DeviceError::Weight { name: name.into(), why: "is not there".into() })?;
        let bytes = WeightBytes::whole(Arc::new(Aligned(data.clone())));
        Ok(WeightData { dtype: DType::F32, rows: *rows, cols: *cols, bytes })
    }

    fn packed(&self, name: &str, _: &str, pack: PackFn<'_>) -> Result<Packed, DeviceError> {
        let bytes = pack(&self.weight(name)?)?;
        let floats = bytemuck::pod_collect_to_vec(&bytes);
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(Aligned(floats))) })
    }
}
