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

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let data = self.weight(name)?;
        let mut floats = vec![0.0; layout.bytes(data.rows).unwrap().div_ceil(4)];
        pack(&data, bytemuck::cast_slice_mut(&mut floats))?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(Aligned(floats))) })
    }
}
