//! Cases from models: the segments of their first layers and their heads.

use std::path::Path;
use std::sync::Arc;

use troika::describe;
use troika::model::lower::{LowerOptions, lower};
use troika::weights::FloatType;
use troika_check::{DeviceCase, MAX_ROWS, POSITIONS};
use troika_graph::{DType, restrict_activations};

/// Segments of a checkpoint, in f32.
///
/// # Errors
/// The model does not open.
pub fn model_cases(model: &Path) -> Result<Vec<DeviceCase>, Box<dyn std::error::Error>> {
    let d = describe(model, FloatType::F32)?;
    let options = LowerOptions { max_rows: MAX_ROWS, max_kv: POSITIONS, kv_dtype: DType::F32 };
    let lowered = lower(&d.spec, &|key| d.store.shape(key), options)?;
    let weights = Arc::new(d.store);
    let model = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let case = |segment: troika::model::lower::Segment| DeviceCase {
        name: format!("{model}: {}", segment.graph.name),
        graph: restrict_activations(&segment.graph, &[]),
        weights: weights.clone(),
        seed: 11,
        tolerance: 1e-4,
    };
    Ok(lowered.segments.into_iter().map(case).collect())
}
