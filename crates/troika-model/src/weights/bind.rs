//! Finding the weights a model needs in its files.

use std::collections::HashMap;

use troika_device::WeightData;

use super::checkpoint::Checkpoint;
use super::cut::{convert, cut};
use super::error::WeightError;
use super::parallel;
use super::recipe::Recipe;
use super::store::{Bound, FloatType};
use crate::families::TensorNames;
use crate::spec::{ModelSpec, Need, weight_needs};

/// Binds every weight the spec needs, in the order of the needs.
pub(super) fn bind_all(
    spec: &ModelSpec,
    names: &dyn TensorNames,
    files: &dyn Checkpoint,
    float: FloatType,
) -> Result<Vec<Bound>, WeightError> {
    let needs = weight_needs(spec);
    let bound = parallel::map(needs.len(), |i| bind_one(needs[i], spec, names, files, float));
    let bound = bound.into_iter().collect::<Result<Vec<_>, _>>()?;
    all_used(&bound, files)?;
    Ok(bound)
}

/// A tensor of which only a part is used (more experts or heads than the config says) belongs to
/// another model.
fn all_used(bound: &[Bound], files: &dyn Checkpoint) -> Result<(), WeightError> {
    let mut used: HashMap<&str, usize> = HashMap::new();
    for b in bound {
        let sum = used.entry(&b.tensor).or_default();
        *sum = sum.saturating_add(b.data.rows.saturating_mul(b.data.cols));
    }
    for b in bound {
        let (Some(tensor), Some(&sum)) = (files.tensor(&b.tensor), used.get(b.tensor.as_str()))
        else {
            continue;
        };
        let (rows, cols) = tensor.matrix();
        let has = rows.saturating_mul(cols);
        if sum < has {
            return Err(WeightError::Shape {
                file: files.origin(&b.tensor),
                tensor: b.tensor.clone(),
                found: format!("{:?}", tensor.shape),
                need: format!("{sum} of its {has} values"),
            });
        }
    }
    Ok(())
}

fn bind_one(
    need: Need,
    spec: &ModelSpec,
    names: &dyn TensorNames,
    files: &dyn Checkpoint,
    float: FloatType,
) -> Result<Bound, WeightError> {
    let candidates = names.candidates(spec, need.key);
    let found = candidates.iter().find_map(|r| Some((r, files.tensor(&r.tensor)?)));
    let Some((recipe, tensor)) = found else {
        return Err(not_found(&candidates, need, files));
    };
    let (rows, cols) = tensor.matrix();
    let shape_error = || WeightError::Shape {
        file: files.origin(&recipe.tensor),
        tensor: recipe.tensor.clone(),
        found: format!("{:?}", tensor.shape),
        need: match recipe.is_whole() {
            true => format!("[{}, {}]", need.rows, need.cols),
            false => format!("a part of [{}, {}]", need.rows, need.cols),
        },
    };
    if recipe.result(rows, cols) != Some((need.rows, need.cols)) {
        return Err(shape_error());
    }
    let piece = cut(tensor, recipe).ok_or_else(shape_error)?;
    let (dtype, bytes) = (piece.dtype, piece.bytes);
    let data = WeightData { dtype, rows: need.rows, cols: need.cols, bytes };
    let (data, converted) = convert(data, float);
    let owned = piece.owned || converted;
    Ok(Bound { key: need.key, data, tensor: recipe.tensor.clone(), owned })
}

fn not_found(candidates: &[Recipe], need: Need, files: &dyn Checkpoint) -> WeightError {
    for r in candidates {
        if let Some(dtype) = files.unusable(&r.tensor) {
            let (file, tensor) = (files.origin(&r.tensor), r.tensor.clone());
            return WeightError::Type { file, tensor, dtype: dtype.to_string() };
        }
    }
    let mut names: Vec<&str> = candidates.iter().map(|r| r.tensor.as_str()).collect();
    names.dedup();
    let tensor = match names.as_slice() {
        [] => need.key.to_string(),
        [one] => (*one).to_string(),
        [first, rest @ ..] => format!("{first} (nor {})", rest.join(", nor ")),
    };
    WeightError::Missing { file: files.origin(""), tensor }
}
