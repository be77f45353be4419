//! A weight source for tests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use troika_device::*;
use troika_graph::{ActivationFormat, DType, Op, WeightDecl, WeightRef};

/// A product without a bias.
pub fn linear(weight: WeightRef, activations: ActivationFormat) -> Op {
    Op::Linear { weight, bias: None, activations, form: None }
}

/// Weights in memory.
#[derive(Clone, Default)]
pub struct Store(HashMap<String, WeightData>);

#[allow(dead_code)] // not all tests that share this file
impl Store {
    pub fn add(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        f: impl Fn(usize) -> f32,
    ) -> WeightDecl {
        let floats: Vec<f32> = (0..rows * cols).map(f).collect();
        self.add_as(name, DType::F32, (rows, cols), bytemuck::cast_slice(&floats))
    }

    /// A weight of any type, with the bytes of its rows.
    pub fn add_as(
        &mut self,
        name: &str,
        dtype: DType,
        (rows, cols): (usize, usize),
        bytes: &[u8],
    ) -> WeightDecl {
        let data = WeightData { dtype, rows, cols, bytes: aligned(bytes) };
        self.0.insert(name.into(), data);
        WeightDecl::whole(name.into(), rows, cols, dtype)
    }
}

#[allow(dead_code)] // not all tests that share this file
impl Store {
    /// The names of all weights.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.0.keys().cloned().collect();
        names.sort();
        names
    }

    /// Replaces a weight by a modified one.
    pub fn edit(&mut self, name: &str, edit: impl FnOnce(&mut WeightData)) {
        edit(self.0.get_mut(name).unwrap());
    }

    /// Makes a weight's bytes empty while `short` is set.
    pub fn shrink(&mut self, name: &str, short: &Arc<AtomicBool>) {
        self.edit(name, |data| {
            data.bytes = WeightBytes::whole(Arc::new(Shrinking(data.bytes.clone(), short.clone())));
        });
    }
}

struct Shrinking(WeightBytes, Arc<AtomicBool>);
impl AsRef<[u8]> for Shrinking {
    fn as_ref(&self) -> &[u8] {
        if self.1.load(Ordering::Relaxed) { &[] } else { &self.0 }
    }
}

struct Aligned(Vec<u64>, usize);
impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}

pub fn aligned(bytes: &[u8]) -> WeightBytes {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    WeightBytes::whole(Arc::new(Aligned(words, bytes.len())))
}

impl WeightSource for Store {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        let missing = || DeviceError::Weight { name: name.into(), why: "is not there".into() };
        self.0.get(name).cloned().ok_or_else(missing)
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let data = self.weight(name)?;
        let mut bytes = vec![0; layout.bytes(data.rows).unwrap()];
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: aligned(&bytes), stored: false })
    }
}
