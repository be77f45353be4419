//! The weight store: owns the mapped files and every form made of them, with byte accounting.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use troika_device::{
    DeviceError, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource,
};
use troika_graph::DType;

use super::account::{ClassBytes, MemoryReport, class_of};
use super::bind::bind_all;
use super::checkpoint::Checkpoint;
use super::cut::try_aligned_with;
use super::error::WeightError;
use super::{parallel, scan, synthetic};
use crate::families::TensorNames;
use crate::lower::WeightShape;
use crate::spec::{Key, ModelSpec, Need, weight_needs};

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

/// Bytes looked at in one go when scanning.
const SCAN_PIECE: usize = 4 << 20;

/// A weight and where it came from.
pub(super) struct Bound {
    pub key: Key,
    pub data: WeightData,
    /// Tensor it is cut from.
    pub tensor: String,
    /// Lives on the heap, not in the file.
    pub owned: bool,
}

/// A packed form; empty until it is made.
type PackSlot = Arc<Mutex<Option<Packed>>>;

/// All weights of a model by logical name.
pub struct WeightStore {
    by_name: HashMap<String, usize>,
    bound: Vec<Bound>,
    packed: Mutex<HashMap<(String, String), PackSlot>>,
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
        Ok(WeightStore::of(bind_all(spec, names, files, float)?))
    }

    /// Random weights of a model's shape, the same for a seed: matrices of a type of
    /// [`super::SYNTHETIC_DTYPES`], as far as it fits them.
    pub fn synthetic(spec: &ModelSpec, dtype: DType, seed: u64) -> WeightStore {
        let needs: Vec<Need> = weight_needs(spec);
        let one = |i: usize| {
            let seed = seed.wrapping_add(i as u64).wrapping_mul(0x9E37_79B9);
            let (need, key) = (needs[i], needs[i].key);
            let data = synthetic::weight(need, dtype, seed);
            Bound { key, data, tensor: key.to_string(), owned: true }
        };
        WeightStore::of(parallel::map(needs.len(), one))
    }

    fn of(bound: Vec<Bound>) -> WeightStore {
        let by_name = bound.iter().enumerate().map(|(i, b)| (b.key.to_string(), i)).collect();
        WeightStore { by_name, bound, packed: Mutex::default() }
    }

    /// All bound weights.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Bound> {
        self.bound.iter()
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
        for ((_, layout), slot) in lock(&self.packed).iter() {
            // A form that is being made at this moment is not counted yet.
            let made = match slot.try_lock() {
                Ok(made) => made,
                Err(TryLockError::Poisoned(e)) => e.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if let Some(p) = &*made {
                *report.packed.entry(layout.clone()).or_default() += p.bytes.len() as u64;
            }
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
        let mut pieces = Vec::new();
        for b in &self.bound {
            let (block, len) = (b.data.dtype.block_bytes(), b.data.bytes.len());
            let step = SCAN_PIECE / block * block;
            pieces.extend((0..len).step_by(step).map(|at| (b, at..len.min(at + step))));
        }
        let bad = parallel::map(pieces.len(), |i| {
            let (b, range) = &pieces[i];
            scan::has_non_finite(b.data.dtype, &b.data.bytes[range.clone()])
        });
        let mut seen = HashSet::new();
        let found = pieces.iter().zip(bad).filter(|(_, bad)| *bad).map(|((b, _), _)| &b.tensor);
        found.filter(|t| seen.insert(*t)).cloned().collect()
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

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let data = &self.bound(name)?.data;
        let key = (name.to_string(), layout.name.to_string());
        let slot = lock(&self.packed).entry(key).or_default().clone();
        // Whoever asks for the same form meanwhile waits here, others do not.
        let mut made = lock(&slot);
        if let Some(p) = &*made {
            return Ok(p.clone());
        }
        let p = Packed { bytes: pack_all(data, layout, pack, name)? };
        *made = Some(p.clone());
        Ok(p)
    }
}

/// Source bytes of a piece that is packed at once: they stay in a core's cache until they are.
const PACK_PIECE: usize = 512 << 10;

/// Packs a weight in pieces of whole panels, on all cores.
fn pack_all(
    data: &WeightData,
    layout: PackLayout<'_>,
    pack: PackFn<'_>,
    name: &str,
) -> Result<WeightBytes, DeviceError> {
    let wrong = |why: &str| DeviceError::Weight { name: name.into(), why: why.into() };
    let total = layout.bytes(data.rows).ok_or_else(|| wrong("is too large to be packed"))?;
    let row_bytes = data.dtype.row_bytes(data.cols).ok_or_else(|| wrong("has broken blocks"))?;
    let panels = data.rows.div_ceil(layout.rows.max(1));
    let each = (PACK_PIECE / (row_bytes * layout.rows).max(1)).clamp(1, panels.max(1));
    try_aligned_with(total, |out| {
        let pieces: Vec<Mutex<&mut [u8]>> =
            out.chunks_mut((each * layout.panel).max(1)).map(Mutex::new).collect();
        let made = parallel::map(pieces.len(), |i| {
            let first = i * each * layout.rows;
            let rows = first..(first + each * layout.rows).min(data.rows);
            let bytes = data.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
            let bytes = bytes.ok_or_else(|| wrong("is shorter than its shape"))?;
            pack(&WeightData { rows: rows.len(), bytes, ..data.clone() }, &mut lock(&pieces[i]))
        });
        made.into_iter().collect()
    })
}

/// Locks. What a panicked thread left is whole: a form is stored in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn shape_of(d: &WeightData) -> WeightShape {
    WeightShape { rows: d.rows, cols: d.cols, dtype: d.dtype }
}
