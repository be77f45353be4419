//! Finds a model's weights in its files.

pub(crate) mod bound;
pub(crate) mod cut;
pub(crate) mod mix;
pub(crate) mod packed;
pub(crate) mod rounded;
pub(crate) mod scheme;
pub(crate) mod source;
pub(crate) mod synthetic;
pub(crate) mod unused;

use std::collections::HashMap;

use troika_device::{OutOfMemory, WeightData};
use troika_graph::DType;
use troika_model::families::DescribedModel;
use troika_model::lower::WeightShape;
use troika_model::spec::{
    Checkpoint, Key, ModelSpec, Recipe, StoredTensor, WeightRequirement, WeightRole,
    weight_requirements,
};

use crate::bind::bound::Bound;
use crate::bind::cut::{CutError, aligned_with, convert, cut};
use crate::bind::packed::{FoundPacked, Rounding};
use crate::bind::scheme::{BindOptions, FloatType, Quant};
use crate::bind::source::{ScaledNvfp4, ValueSource};
use crate::error::{WeightError, misfit, missing, no_memory, wrong_type};
use crate::parallel;

/// Number of weights searched at once. The next ones wait for these, so that files without the
/// model's weights are refused quickly, however many the config lists.
const AT_ONCE: usize = 1024;

/// Binds all weights that the spec needs, in the order of the requirements.
pub(crate) fn bind_all(
    model: &DescribedModel,
    files: &dyn Checkpoint,
    options: BindOptions,
) -> Result<Vec<Bound>, WeightError> {
    let mut needs = weight_requirements(&model.spec).chain(tied_head(&model.spec, options.quant));
    let binder = Binder { model, files, options };
    let mut bound = Vec::new();
    loop {
        let some: Vec<WeightRequirement> = needs.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        for one in parallel::map(some.len(), |i| binder.bind(some[i])) {
            bound.push(one?);
        }
    }
    // A tied head without quantization is the embedding itself.
    bound.retain(|b| !(model.spec.tied && b.key.role == WeightRole::Head && !b.source.is_made()));
    all_used(&bound, files)?;
    no_scales(&bound, files)?;
    Ok(bound)
}

/// The first weight of a model whose tensor has a type that weights cannot have. Tensors that are not
/// there may be in other files.
pub fn unusable(model: &DescribedModel, files: &dyn Checkpoint) -> Option<WeightError> {
    weight_requirements(&model.spec).find_map(|need| {
        let candidates = model.names.candidates(&model.spec, need.key);
        let there = candidates.iter().any(|r| files.tensor(&r.tensor).is_some());
        let unusable = candidates.iter().any(|r| files.unusable(&r.tensor).is_some());
        (!there && unusable).then(|| not_found(&candidates, need, files))
    })
}

/// The requirement for a tied head that is quantized separately from the embedding.
pub(crate) fn tied_head(spec: &ModelSpec, quant: Quant) -> Option<WeightRequirement> {
    let (key, rows, cols) = (Key::model(WeightRole::Head), spec.vocab, spec.hidden);
    (spec.tied && quant != Quant::None).then_some(WeightRequirement { key, rows, cols })
}

/// Refuses tensors that are only partly used (more experts or heads than in the config), since they
/// belong to another model.
fn all_used(bound: &[Bound], files: &dyn Checkpoint) -> Result<(), WeightError> {
    let mut used: HashMap<&str, usize> = HashMap::new();
    for b in bound {
        let sum = used.entry(&b.tensor).or_default();
        *sum = sum.saturating_add(b.shape.rows.saturating_mul(b.shape.cols));
    }
    for b in bound {
        let (Some(tensor), Some(&sum)) = (files.raw(&b.tensor), used.get(b.tensor.as_str())) else {
            continue;
        };
        let values = tensor.shape.iter().fold(1usize, |n, d| n.saturating_mul(*d));
        let has = match &b.source {
            ValueSource::Packed(weight) => weight.values,
            _ => values,
        };
        if sum < has {
            let need = format!("{sum} of its {has} values");
            return Err(misfit(files, &b.tensor, format!("{:?}", tensor.shape), need));
        }
    }
    Ok(())
}

/// Refuses weights that are to be multiplied with a tensor beside them and were not. Scales of one
/// change nothing.
fn no_scales(bound: &[Bound], files: &dyn Checkpoint) -> Result<(), WeightError> {
    for b in bound.iter().filter(|b| !matches!(b.source, ValueSource::Scaled(_))) {
        let Some(name) = scale_name(&b.tensor) else { continue };
        // It may be a weight of its own: numbers of experts, or of a router's norm.
        if bound.iter().any(|other| other.tensor == name) {
            continue;
        }
        let Some(scale) = files.tensor(&name) else { continue };
        let one = 1f32.to_le_bytes();
        if scale.dtype != DType::F32 || scale.bytes.as_chunks().0.iter().any(|x| *x != one) {
            let why = format!(
                "tensor {} is to be multiplied with {name}, which is not done; quantize the model \
                 from floats instead",
                b.tensor
            );
            return Err(WeightError::Unsupported { file: files.origin(&name), why });
        }
    }
    Ok(())
}

/// A vector that a file stores by groups.
fn as_vector(
    need: &WeightRequirement,
    recipe: &Recipe,
    tensor: &StoredTensor,
) -> Option<StoredTensor> {
    let (rows, cols) = tensor.matrix();
    let fits = need.rows == 1 && rows > 1 && recipe.is_whole();
    let fits = fits && rows.checked_mul(cols) == Some(need.cols);
    fits.then(|| StoredTensor { shape: vec![need.cols], ..tensor.clone() })
}

/// The name of the tensor in GGUF files that a weight is multiplied with.
fn scale_name(tensor: &str) -> Option<String> {
    tensor.strip_suffix(".weight").map(|name| format!("{name}.scale"))
}

/// What the rows of a piece of an NVFP4 tensor are multiplied with, as llama.cpp's converter writes it:
/// a number for the tensor, or one for each expert.
fn factor(recipe: &Recipe, tensor: &StoredTensor, files: &dyn Checkpoint) -> Option<f32> {
    let plain = tensor.dtype == DType::NVFP4 && recipe.cols.is_none() && !recipe.transpose;
    let name = scale_name(&recipe.tensor).filter(|_| plain)?;
    let scale = files.tensor(&name).filter(|scale| scale.dtype == DType::F32)?;
    let factors = scale.bytes.as_chunks().0;
    // All experts of a layer have one type.
    if factors.iter().all(|bytes| *bytes == 1f32.to_le_bytes()) {
        return None;
    }
    let rows = tensor.matrix().0.checked_div(factors.len())?;
    let all = 0..tensor.matrix().0;
    let taken = recipe.rows_of(&all);
    let first = taken.first()?.start.checked_div(rows)?;
    let one = taken.iter().all(|r| r.start / rows == first && r.end <= (first + 1) * rows);
    factors.get(first).filter(|_| one).map(|bytes| f32::from_le_bytes(*bytes))
}

struct Binder<'a> {
    model: &'a DescribedModel,
    files: &'a dyn Checkpoint,
    options: BindOptions,
}

impl Binder<'_> {
    fn bind(&self, need: WeightRequirement) -> Result<Bound, WeightError> {
        // A tied head is quantized from the embedding's tensor.
        let tied = self.model.spec.tied && need.key.role == WeightRole::Head;
        let key = if tied { Key::model(WeightRole::Embed) } else { need.key };
        let candidates = self.model.names.candidates(&self.model.spec, key);
        let found = candidates.iter().find_map(|r| Some((r, self.files.tensor(&r.tensor)?)));
        if let (None, Some(packing)) = (&found, self.model.packing) {
            for recipe in &candidates {
                if let Some(found) = packed::find(packing, recipe, &need, self.files)? {
                    return Ok(self.unpack(need, found));
                }
            }
        }
        let Some((recipe, tensor)) = found else {
            return Err(not_found(&candidates, need, self.files));
        };
        if !recipe.below.is_empty() {
            return self.take(need, recipe, &self.stacked(recipe, tensor)?);
        }
        self.take(need, recipe, tensor)
    }

    /// A copy of a recipe's tensors as one.
    fn stacked(&self, recipe: &Recipe, first: &StoredTensor) -> Result<StoredTensor, WeightError> {
        let (mut rows, cols) = first.matrix();
        let mut parts: Vec<&[u8]> = vec![&first.bytes];
        for name in &recipe.below {
            let tensor = self.files.tensor(name);
            let tensor = tensor.ok_or_else(|| missing(self.files.origin(name), name))?;
            if tensor.dtype != first.dtype || tensor.matrix().1 != cols {
                let found = format!("{} {:?}", tensor.dtype, tensor.shape);
                let need = format!("{} and {cols} columns, as {}", first.dtype, recipe.tensor);
                return Err(misfit(self.files, name, found, need));
            }
            rows += tensor.matrix().0;
            parts.push(&tensor.bytes);
        }
        let bytes = parts.concat();
        let out = aligned_with(bytes.len(), |out| out.copy_from_slice(&bytes));
        let bytes = out.map_err(|e| no_memory(self.files, &recipe.tensor, e))?;
        Ok(StoredTensor { dtype: first.dtype, shape: vec![rows, cols], bytes })
    }

    /// The type of blocks that do not stay whole: rearranged ones become Q8_0, since f32 would take
    /// several times the file's bytes.
    fn rearranged(
        &self,
        need: &WeightRequirement,
        recipe: &Recipe,
        tensor: &StoredTensor,
    ) -> Option<DType> {
        let apart = tensor.dtype.is_quantized() && (recipe.transpose || recipe.cols.is_some());
        let fits = need.rows > 1 && need.cols.is_multiple_of(DType::Q8_0.block_len());
        (apart && fits && self.options.float == FloatType::Auto).then_some(DType::Q8_0)
    }

    /// A packed layer. What is rounded anyway has the type that floats get.
    fn unpack(&self, need: WeightRequirement, found: FoundPacked) -> Bound {
        let FoundPacked { mut weight, mut dtype, tensor } = found;
        if let Rounding::Values(to) = &mut weight.rounding {
            let float = self.options.float.dtype().unwrap_or(*to);
            *to = self.options.quant.target(&need, float).unwrap_or(float);
            dtype = *to;
        }
        let shape = WeightShape { rows: need.rows, cols: need.cols, dtype };
        Bound::new(need.key, shape, ValueSource::Packed(Box::new(weight)), tensor)
    }

    fn take(
        &self,
        need: WeightRequirement,
        recipe: &Recipe,
        tensor: &StoredTensor,
    ) -> Result<Bound, WeightError> {
        let (rows, cols) = tensor.matrix();
        if let Some(vector) = as_vector(&need, recipe, tensor) {
            return self.take(need, recipe, &vector);
        }
        let shape_error = || {
            let need = match recipe.rows.iter().map(|rows| rows.end).max() {
                Some(least) if recipe.cols.is_none() && !recipe.transpose => {
                    format!("at least {least} rows of {}", need.cols)
                }
                _ if recipe.is_whole() => format!("[{}, {}]", need.rows, need.cols),
                _ => format!("[{}, {}] as a part of it", need.rows, need.cols),
            };
            misfit(self.files, &recipe.tensor, format!("{:?}", tensor.shape), need)
        };
        if tensor.dtype == DType::I32 {
            return Err(wrong_type(self.files, &recipe.tensor, tensor.dtype.name()));
        }
        if recipe.result(rows, cols) != Some((need.rows, need.cols)) {
            return Err(shape_error());
        }
        let shape = |dtype| WeightShape { rows: need.rows, cols: need.cols, dtype };
        let name = recipe.tensor.clone();
        let target = self.options.quant.target(&need, tensor.dtype);
        if let Some(target) = target.or_else(|| self.rearranged(&need, recipe, tensor)) {
            let source = ValueSource::Cut { tensor: tensor.clone(), recipe: recipe.clone() };
            return Ok(Bound::new(need.key, shape(target), source, name));
        }
        let no_memory = |e: OutOfMemory| no_memory(self.files, &recipe.tensor, e);
        let piece = cut(tensor, recipe).map_err(|e| match e {
            CutError::Misfit => shape_error(),
            CutError::Memory(e) => no_memory(e),
        })?;
        let (dtype, bytes) = (piece.dtype, piece.bytes);
        if let Some(factor) = factor(recipe, tensor, self.files) {
            if !factor.is_finite() || factor == 0.0 {
                let why =
                    format!("the scale of {name} is {factor}, of which no weight can be made");
                return Err(WeightError::Unsupported { file: self.files.origin(&name), why });
            }
            let source = ValueSource::Scaled(ScaledNvfp4 { blocks: bytes, factor });
            return Ok(Bound::new(need.key, shape(DType::F4_G16), source, name));
        }
        let data = WeightData { dtype, rows: need.rows, cols: need.cols, bytes };
        let (data, converted) = convert(data, self.options.float).map_err(no_memory)?;
        let source = ValueSource::Ready { bytes: data.bytes, owned: piece.owned || converted };
        Ok(Bound::new(need.key, shape(data.dtype), source, name))
    }
}

fn not_found(
    candidates: &[Recipe],
    need: WeightRequirement,
    files: &dyn Checkpoint,
) -> WeightError {
    for r in candidates {
        if let Some(dtype) = files.unusable(&r.tensor) {
            return wrong_type(files, &r.tensor, dtype);
        }
    }
    let mut names: Vec<&str> = candidates.iter().map(|r| r.tensor.as_str()).collect();
    names.dedup();
    let tensor = match names.as_slice() {
        [] => need.key.to_string(),
        [one] => (*one).to_string(),
        [first, rest @ ..] => {
            format!("{first} (nor one of {} other names it may have)", rest.len())
        }
    };
    let packed = |r: &Recipe| Some(format!("{}qweight", r.tensor.strip_suffix("weight")?));
    let packed = candidates.iter().filter_map(packed).find(|name| files.tensor(name).is_some());
    if let Some(name) = packed {
        let file = files.origin(&name);
        let why = format!("it has {name}, but the config has no quantization_config that says how");
        return WeightError::Unsupported { file, why };
    }
    missing(files.origin(""), &tensor)
}
