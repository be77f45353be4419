//! Any config with any table of tensors is bound or refused, and bound weights can be read.
//!
//! Input: `{"config": {...}, "quant": 0, "tensors": {"NAME": ["F32", [2, 3]], ...}}`.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use troika_device::{WeightBytes, WeightSource};
use troika_graph::DType;
use troika_model::families::from_config;
use troika_model::spec::{weight_requirements, Checkpoint, Layer, StoredTensor};
use troika_weights::{BindOptions, FloatType, MappedCheckpoint, Quant, WeightStore};

/// The most bytes of all tensors together.
const MOST: usize = 4 << 20;

struct Table(BTreeMap<String, StoredTensor>);

impl Checkpoint for Table {
    fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.0.get(name)
    }
    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
    fn origin(&self, _: &str) -> String {
        "table".into()
    }
    fn unusable(&self, _: &str) -> Option<&str> {
        None
    }
}

impl MappedCheckpoint for Table {}

/// A tensor of zeros, like one from a file.
fn tensor(value: &Value, left: &mut usize) -> Option<StoredTensor> {
    let types = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::Q8_0, DType::Q4_K];
    let dtype = types.into_iter().find(|d| Some(d.name()) == value[0].as_str())?;
    let dims = value[1].as_array()?.iter();
    let shape: Vec<usize> = dims.map(|d| d.as_u64().map(|d| d as usize)).collect::<Option<_>>()?;
    let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let row = dtype.row_bytes(shape.last().copied().unwrap_or(1))?;
    let len = rows.checked_mul(row)?;
    *left = left.checked_sub(len)?;
    Some(StoredTensor { dtype, shape, bytes: WeightBytes::owned(vec![0; len]) })
}

fuzz_target!(|data: &[u8]| {
    let Ok(input) = serde_json::from_slice::<Value>(data) else { return };
    let Ok(model) = from_config(&input["config"]) else { return };
    // Long lists are valid, but too slow for the fuzzer.
    let long = |l: &Layer| {
        l.attention().is_some_and(|a| a.heads > 64) || l.moe().is_some_and(|m| m.experts > 64)
    };
    let spec = &model.spec;
    if spec.layers.len() > 8 || spec.layers.iter().any(long) {
        return;
    }
    let mut left = MOST;
    let table = input["tensors"].as_object().into_iter().flatten();
    let table = table.filter_map(|(name, v)| Some((name.clone(), tensor(v, &mut left)?))).collect();
    let number = input["quant"].as_u64().unwrap_or(0) as usize;
    let quant = [Quant::None, Quant::Bf16, Quant::Q8, Quant::Q4][number % 4];
    let float = [FloatType::Auto, FloatType::F32, FloatType::F16, FloatType::BF16][number / 4 % 4];
    let options = BindOptions { float, quant };
    let Ok(store) = WeightStore::bind(&model, &Table(table), options) else { return };
    let _ = store.scan_non_finite();
    let _ = store.report();
    for need in weight_requirements(spec) {
        if let Ok(data) = store.weight(&need.key.to_string()) {
            let row = data.dtype.row_bytes(data.cols).unwrap_or(0);
            assert_eq!(data.bytes.len(), row * data.rows);
        }
    }
});
