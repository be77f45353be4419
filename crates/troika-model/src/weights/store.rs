//! The weight store: owns the mapped files and every form made of them, with byte accounting.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use troika_device::{
    DeviceError, PackFn, Packed, WeightBytes, WeightData, WeightOwner, WeightSource,
};
use troika_graph::{DType, blocks};

use super::checkpoint::{Checkpoint, StoredTensor};
use super::error::WeightError;
use super::recipe::{Cols, Recipe};
use super::{scan, synthetic};
use crate::families::TensorNames;
use crate::lower::WeightShape;
use crate::spec::{Ffn, Key, ModelSpec, Need, Slot, weight_needs};

/// Which type float matrices are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FloatType {
    /// As the file has them.
    #[default]
    Auto,
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// bfloat16.
    BF16,
}

/// What is known of a bound weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Rows, columns and type in the store.
    pub shape: WeightShape,
    /// Tensor it is cut from.
    pub tensor: String,
}

/// Bytes the store accounts for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Used straight from the memory-mapped file.
    pub mapped: u64,
    /// Copies made because the file's layout or type did not serve.
    pub owned: u64,
    /// Packed forms by layout.
    pub packed: BTreeMap<String, u64>,
}

/// Parameters and bytes of a class of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassBytes {
    /// `embedding`, `attention`, `feed-forward`, `experts`, `router`, `norms`, `head`.
    pub class: &'static str,
    /// Type in the store.
    pub dtype: DType,
    /// Parameters.
    pub parameters: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A heap block with the alignment devices are promised.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

struct AlignedBytes(Box<[Line]>);

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

fn aligned(bytes: &[u8]) -> WeightBytes {
    let mut lines: Box<[Line]> = bytemuck::allocation::zeroed_slice_box(bytes.len().div_ceil(64));
    bytemuck::cast_slice_mut::<Line, u8>(&mut lines)[..bytes.len()].copy_from_slice(bytes);
    let owner: WeightOwner = Arc::new(AlignedBytes(lines));
    WeightBytes::whole(owner)
        .slice(0..bytes.len())
        .unwrap_or_else(|| WeightBytes::owned(Vec::new()))
}

struct Bound {
    key: Key,
    data: WeightData,
    tensor: String,
    owned: bool,
}

/// All weights of a model by logical name.
pub struct WeightStore {
    by_name: HashMap<String, usize>,
    bound: Vec<Bound>,
    packed: Mutex<HashMap<(String, String), Packed>>,
}

impl WeightStore {
    /// Finds every weight the spec needs in the files and checks its shape.
    ///
    /// Weights are views of the file where the layout, alignment and type serve.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, or of a type that cannot be a weight.
    pub fn bind(
        spec: &ModelSpec,
        names: &dyn TensorNames,
        files: &dyn Checkpoint,
        float: FloatType,
    ) -> Result<WeightStore, WeightError> {
        let needs = weight_needs(spec);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let part = needs.len().div_ceil(threads).max(1);
        let bound: Vec<Result<Bound, WeightError>> = std::thread::scope(|s| {
            let one = |need: &Need| bind_one(*need, spec, names, files, float);
            let handles: Vec<_> = needs
                .chunks(part)
                .map(|c| s.spawn(move || c.iter().map(one).collect::<Vec<_>>()))
                .collect();
            let gone = || WeightError::Unsupported {
                file: files.origin(""),
                why: "a loading thread ended".into(),
            };
            handles
                .into_iter()
                .flat_map(|h| h.join().unwrap_or_else(|_| vec![Err(gone())]))
                .collect()
        });
        let bound = bound.into_iter().collect::<Result<Vec<_>, _>>()?;
        let by_name = bound.iter().enumerate().map(|(i, b)| (b.key.to_string(), i)).collect();
        Ok(WeightStore { by_name, bound, packed: Mutex::default() })
    }

    /// Random bf16 weights of a model's shape, the same for a seed.
    pub fn synthetic(spec: &ModelSpec, seed: u64) -> WeightStore {
        let one = |(i, need): (usize, Need)| Bound {
            key: need.key,
            data: synthetic::weight(need, seed.wrapping_add(i as u64).wrapping_mul(0x9E37_79B9)),
            tensor: need.key.to_string(),
            owned: true,
        };
        let bound: Vec<Bound> = weight_needs(spec).into_iter().enumerate().map(one).collect();
        let by_name = bound.iter().enumerate().map(|(i, b)| (b.key.to_string(), i)).collect();
        WeightStore { by_name, bound, packed: Mutex::default() }
    }

    /// Weights a decoded token reads: (parameters, bytes). Of the experts only the chosen ones
    /// count, of an embedding that is no head only one row.
    pub fn per_token(&self, spec: &ModelSpec) -> (u64, u64) {
        let mut sum = (0, 0);
        for b in &self.bound {
            let share = match (b.key.slot, b.key.layer.map(|l| &spec.layers[l].ffn)) {
                (Slot::Embed, _) if !spec.tied => 1.0 / b.data.rows as f64,
                (_, Some(Ffn::Moe(m))) if b.key.index.is_some() && is_expert(b.key.slot) => {
                    m.top_k as f64 / m.experts as f64
                }
                _ => 1.0,
            };
            sum.0 += ((b.data.rows * b.data.cols) as f64 * share) as u64;
            sum.1 += (b.data.bytes.len() as f64 * share) as u64;
        }
        sum
    }

    /// What is known of a weight.
    pub fn info(&self, key: Key) -> Option<WeightInfo> {
        let b = &self.bound[*self.by_name.get(&key.to_string())?];
        Some(WeightInfo { shape: shape_of(&b.data), tensor: b.tensor.clone() })
    }

    /// Shape and type of a weight, as lowering asks for it.
    pub fn shape(&self, key: Key) -> Option<WeightShape> {
        let b = &self.bound[*self.by_name.get(&key.to_string())?];
        Some(shape_of(&b.data))
    }

    /// Bytes by where they live.
    pub fn report(&self) -> MemoryReport {
        let mut report = MemoryReport::default();
        for b in &self.bound {
            let bytes = b.data.bytes.len() as u64;
            *(if b.owned { &mut report.owned } else { &mut report.mapped }) += bytes;
        }
        let packed = self.packed.lock().unwrap_or_else(|e| e.into_inner());
        for ((_, layout), p) in packed.iter() {
            *report.packed.entry(layout.clone()).or_default() += p.bytes.len() as u64;
        }
        report
    }

    /// Parameters and bytes by class and type.
    pub fn classes(&self) -> Vec<ClassBytes> {
        let mut sums: BTreeMap<(&'static str, &'static str), ClassBytes> = BTreeMap::new();
        for b in &self.bound {
            let (class, dtype) = (class_of(b.key.slot, b.data.rows), b.data.dtype);
            let entry = sums.entry((class, dtype.name())).or_insert(ClassBytes {
                class,
                dtype,
                parameters: 0,
                bytes: 0,
            });
            entry.parameters += (b.data.rows * b.data.cols) as u64;
            entry.bytes += b.data.bytes.len() as u64;
        }
        sums.into_values().collect()
    }

    /// Names of tensors that hold NaN or infinities. Reads all weights.
    pub fn scan_non_finite(&self) -> Vec<String> {
        let bad = |b: &&Bound| scan::has_non_finite(b.data.dtype, &b.data.bytes);
        let mut names: Vec<String> =
            self.bound.iter().filter(bad).map(|b| b.tensor.clone()).collect();
        names.dedup();
        names
    }

    fn bound(&self, name: &str) -> Result<&Bound, DeviceError> {
        let index = self.by_name.get(name).ok_or_else(|| DeviceError::Weight {
            name: name.into(),
            why: "the model has no such weight".into(),
        })?;
        Ok(&self.bound[*index])
    }
}

impl WeightSource for WeightStore {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        Ok(self.bound(name)?.data.clone())
    }

    fn packed(&self, name: &str, layout: &str, pack: PackFn<'_>) -> Result<Packed, DeviceError> {
        let data = &self.bound(name)?.data;
        let key = (name.to_string(), layout.to_string());
        let lock = || self.packed.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(p) = lock().get(&key) {
            return Ok(p.clone());
        }
        let made = Packed { bytes: aligned(&pack(data)?) };
        // If two threads packed the same weight at once, both use the first one's.
        Ok(lock().entry(key).or_insert(made).clone())
    }
}

fn shape_of(d: &WeightData) -> WeightShape {
    WeightShape { rows: d.rows, cols: d.cols, dtype: d.dtype }
}

fn is_expert(slot: Slot) -> bool {
    use Slot::*;
    matches!(
        slot,
        ExpertGate | ExpertUp | ExpertDown | ExpertGateBias | ExpertUpBias | ExpertDownBias
    )
}

fn class_of(slot: Slot, rows: usize) -> &'static str {
    use Slot::*;
    match slot {
        Embed => "embedding",
        Head | HeadBias => "head",
        Router | RouterBias => "router",
        ExpertGate | ExpertUp | ExpertDown | ExpertGateBias | ExpertUpBias | ExpertDownBias
        | SharedGate | SharedUp | SharedDown | SharedOutGate => "experts",
        Gate | Up | Down | GateBias | UpBias | DownBias => "feed-forward",
        Q | K | V | O | QDown | QUp | KvDown | KRope | KAbsorb | VUp => "attention",
        _ if rows == 1 => "norms",
        _ => "attention",
    }
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
    let (dtype, bytes, owned) = cut(tensor, recipe).ok_or_else(shape_error)?;
    let data = WeightData { dtype, rows: need.rows, cols: need.cols, bytes };
    let (data, converted) = convert(data, float);
    Ok(Bound { key: need.key, data, tensor: recipe.tensor.clone(), owned: owned || converted })
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

/// The bytes a recipe takes: a view when possible, else a copy. `None` when it does not fit.
fn cut(tensor: &StoredTensor, recipe: &Recipe) -> Option<(DType, WeightBytes, bool)> {
    let (rows, cols) = tensor.matrix();
    let dtype = tensor.dtype;
    let row_bytes = dtype.row_bytes(cols)?;
    let all = 0..rows;
    let ranges =
        if recipe.rows.is_empty() { std::slice::from_ref(&all) } else { recipe.rows.as_slice() };
    let plain = !recipe.transpose && recipe.cols.is_none();
    if let ([one], true) = (ranges, plain) {
        let view = tensor.bytes.slice(one.start * row_bytes..one.end * row_bytes)?;
        let align = dtype.block_bytes().min(4);
        let fits = dtype.is_quantized() || (view.as_ptr() as usize).is_multiple_of(align);
        if fits {
            return Some((dtype, view, false));
        }
        return Some((dtype, aligned(&view), true));
    }
    let mut taken = Vec::with_capacity(ranges.iter().map(|r| r.len() * row_bytes).sum());
    for r in ranges {
        taken.extend_from_slice(tensor.bytes.get(r.start * row_bytes..r.end * row_bytes)?);
    }
    if plain {
        return Some((dtype, aligned(&taken), true));
    }
    // Columns of quantized blocks cannot be taken apart: such tensors become f32.
    let (dtype, taken) = if dtype.is_quantized() {
        let n: usize = ranges.iter().map(|r| r.len() * cols).sum();
        let mut values = vec![0.0f32; n];
        blocks::dequantize(dtype, &taken, &mut values);
        (DType::F32, bytemuck::cast_slice(&values).to_vec())
    } else {
        (dtype, taken)
    };
    let picked = recipe.cols.unwrap_or(Cols { start: 0, len: cols, step: 1 });
    let bytes = rearrange(&taken, dtype.block_bytes(), cols, picked, recipe.transpose);
    Some((dtype, aligned(&bytes), true))
}

/// Takes columns and transposes, element by element.
fn rearrange(bytes: &[u8], size: usize, cols: usize, c: Cols, transpose: bool) -> Vec<u8> {
    let rows = bytes.len() / (cols * size).max(1);
    let mut out = vec![0; rows * c.len * size];
    for row in 0..rows {
        for j in 0..c.len {
            let from = (row * cols + c.start + j * c.step) * size;
            let to = if transpose { j * rows + row } else { row * c.len + j } * size;
            out[to..to + size].copy_from_slice(&bytes[from..from + size]);
        }
    }
    out
}

/// Converts float matrices to the wanted type; vectors and quantized weights stay.
fn convert(data: WeightData, float: FloatType) -> (WeightData, bool) {
    let dtype = match float {
        FloatType::Auto => return (data, false),
        FloatType::F32 => DType::F32,
        FloatType::F16 => DType::F16,
        FloatType::BF16 => DType::BF16,
    };
    if data.rows == 1 || data.dtype == dtype || !data.dtype.is_float() {
        return (data, false);
    }
    let mut row = vec![0.0f32; data.cols];
    let row_bytes = data.bytes.len() / data.rows;
    let mut out = Vec::with_capacity(data.rows * data.cols * dtype.block_bytes());
    for r in data.bytes.chunks_exact(row_bytes.max(1)) {
        blocks::dequantize(data.dtype, r, &mut row);
        match dtype {
            DType::F16 => row.iter().for_each(|v| out.extend(f16::from_f32(*v).to_le_bytes())),
            DType::BF16 => row.iter().for_each(|v| out.extend(bf16::from_f32(*v).to_le_bytes())),
            _ => out.extend_from_slice(bytemuck::cast_slice(&row)),
        }
    }
    (WeightData { dtype, bytes: aligned(&out), ..data }, true)
}
