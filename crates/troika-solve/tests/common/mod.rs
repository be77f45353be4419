//! Models without weights, and devices, that tests of the solver share.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::Caps;
use troika_graph::{ActivationFormat, DType};
use troika_model::lower::{LowerOptions, Lowered, WeightShape, lower};
use troika_model::spec::{Key, ModelSpec, weight_requirements};
use troika_model::{families, presets};
use troika_plan::PlanDevice;

/// The first layers of a preset.
pub fn spec(preset: &str, layers: usize) -> ModelSpec {
    let mut spec = families::from_config(&presets::config(preset).unwrap()).unwrap().spec;
    spec.layers.truncate(layers);
    spec
}

/// A model with matrices of `Q8_0`.
pub fn lowered(spec: &ModelSpec, max_rows: usize, max_kv: usize) -> Arc<Lowered> {
    let shapes: HashMap<Key, WeightShape> = weight_requirements(spec)
        .map(|r| {
            let dtype = if r.rows > 1 { DType::Q8_0 } else { DType::F32 };
            (r.key, WeightShape { rows: r.rows, cols: r.cols, dtype })
        })
        .collect();
    let options = LowerOptions { max_rows, max_kv, kv_dtype: DType::F16 };
    Arc::new(lower(spec, &|key| shapes.get(&key).copied(), options).unwrap())
}

/// A device, of static shapes if it has row buckets.
pub fn device(name: &str, row_buckets: &[usize]) -> PlanDevice {
    let caps = Caps {
        static_shapes: !row_buckets.is_empty(),
        row_buckets: row_buckets.to_vec(),
        numerics: "f32".into(),
        weight_dtypes: vec![DType::Q8_0],
        activation_formats: vec![ActivationFormat::INT8],
        queue_depth: 8,
        host_tasks: false,
        ..Caps::default()
    };
    PlanDevice { name: name.into(), caps }
}
