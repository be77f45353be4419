//! The weight store: owns the mapped files and all derived forms, and counts their bytes.

mod forms;
pub(crate) mod scan;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use troika_device::{
    DeviceError, EXPERT_PARTS, Eviction, ExpertForecast, ExpertPart, ExpertSource, ExpertStats,
    ExpertsOnDisk, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource, lock,
};
use troika_graph::DType;
use troika_model::families::DescribedModel;
use troika_model::lower::WeightShape;
use troika_model::spec::{Key, ModelSpec, WeightRequirement, WeightRole, weight_requirements};

use crate::arena::{Arena, Room};
use crate::bind::bound::Bound;
use crate::bind::mix::WeightMix;
use crate::bind::scheme::{BindOptions, Quant};
use crate::bind::source::{ValueSource, WeightRows};
use crate::bind::{bind_all, rounded, tied_head, unused};
use crate::cache::hash::{self, Stamp};
use crate::cache::{self, CacheFolder, Found, PackedCache};
use crate::error::WeightError;
use crate::experts::{ExpertCache, OnWait};
use crate::format::file_map::FileMap;
use crate::format::mapped::MappedCheckpoint;
use crate::parallel;

use crate::store::forms::{FormId, Forms};

/// Information about a bound weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Rows, columns and type in the store.
    pub shape: WeightShape,
    /// The tensor it is cut from.
    pub tensor: String,
}

/// Called from any thread with (quantized weights, all weights to quantize).
pub type OnProgress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Bytes scanned at once.
const SCAN_PIECE: usize = 4 << 20;
/// Bytes of a weight that are packed at once, so that they fit in a core's cache.
const PACK_PIECE: usize = 512 << 10;
/// After this many pieces, the whole weight is released again: reading a piece may bring back
/// released pages beside it, half of a large table in one case.
const GIVE_BACK: usize = 32;
/// Smaller ranges are not worth a system call.
const MIN_RELEASE: usize = 64 << 10;
/// The layout of derived weights that are used as plain rows.
const ROWS: &str = "rows";

/// All weights of a model by logical name. The default has none.
#[derive(Default)]
pub struct WeightStore {
    by_name: HashMap<String, usize>,
    pub(crate) bound: Vec<Bound>,
    pub(crate) forms: Forms,
    arena: Arena,
    maps: Vec<Arc<FileMap>>,
    cache: Option<PackedCache>,
    /// The stamps of the mapped files when they were hashed.
    stamps: Vec<Option<Stamp>>,
    /// Tensors in which quantization found NaN or infinities.
    non_finite: Mutex<BTreeSet<String>>,
    progress: Option<OnProgress>,
    /// Tensors beside the weights.
    calibration: BTreeMap<String, Vec<f32>>,
    quantized: AtomicU64,
    warnings: Vec<String>,
    /// Experts that are read when they are chosen.
    experts: Option<Arc<ExpertCache>>,
    /// Whether matrices stay as they lie in mapped files.
    left_in_file: bool,
}

impl WeightStore {
    /// Finds every weight the model needs in the files and checks its shape.
    ///
    /// Weights are views of the file if its layout, alignment and type allow that. Quantized ones
    /// are made when a device requests them.
    ///
    /// # Errors
    /// A missing tensor, one of another shape, or one whose type cannot be a weight.
    pub fn bind(
        model: &DescribedModel,
        files: &dyn MappedCheckpoint,
        options: BindOptions,
    ) -> Result<WeightStore, WeightError> {
        let bound = bind_all(model, files, options)?;
        let mut warnings = unused::warnings(model, &bound, files);
        warnings.extend(rounded::warning(&bound));
        Ok(WeightStore { warnings, ..WeightStore::of(bound, files.maps()) })
    }

    /// Random weights in a model's shape, equal for equal seeds; floats are quantized if requested.
    pub fn synthetic(
        spec: &ModelSpec,
        mix: impl Into<WeightMix>,
        seed: u64,
        quant: Quant,
    ) -> WeightStore {
        WeightStore::random(spec, mix.into(), seed, quant, false)
    }

    /// The same weights, generated on demand: for models too large for memory that are not
    /// computed.
    pub fn synthetic_lazy(
        spec: &ModelSpec,
        mix: impl Into<WeightMix>,
        seed: u64,
        quant: Quant,
    ) -> WeightStore {
        WeightStore::random(spec, mix.into(), seed, quant, true)
    }

    /// Gives all quantized matrices one type where their rows allow it, the head included, as
    /// engines for phones do. For weights that nothing reads.
    pub fn in_one_type(mut self, dtype: DType) -> WeightStore {
        let fits = |s: &WeightShape| s.cols.is_multiple_of(dtype.block_len());
        for shape in self.bound.iter_mut().map(|b| &mut b.shape) {
            if shape.dtype.is_quantized() && fits(shape) {
                shape.dtype = dtype;
            }
        }
        self
    }

    fn random(
        spec: &ModelSpec,
        mix: WeightMix,
        seed: u64,
        quant: Quant,
        lazy: bool,
    ) -> WeightStore {
        let needs: Vec<_> = weight_requirements(spec).collect();
        let one = |i: usize| {
            let seed = seed.wrapping_add(i as u64).wrapping_mul(0x9E37_79B9);
            Bound::random(needs[i], mix.type_of(&needs[i], spec), seed, quant, lazy)
        };
        let mut bound = parallel::map(needs.len(), one);
        let dtype = mix.base();
        let quantized = |need: &_| !dtype.is_quantized() && quant.target(need, dtype).is_some();
        let head = tied_head(spec, quant).filter(quantized);
        let head = head.map(|need| Bound::random(need, dtype, seed, quant, lazy));
        if let (Some(head), Some(embed)) = (head, bound.first()) {
            let tensor = embed.tensor.clone();
            bound.push(Bound { tensor, ..head });
        }
        WeightStore::of(bound, Vec::new())
    }

    fn of(bound: Vec<Bound>, maps: Vec<Arc<FileMap>>) -> WeightStore {
        let by_name = bound.iter().enumerate().map(|(i, b)| (b.key.to_string(), i)).collect();
        WeightStore { by_name, bound, maps, ..WeightStore::default() }
    }

    /// Warnings about the files: tensors that nothing uses.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Sets a function that receives the progress of quantization.
    pub fn on_progress(&mut self, f: OnProgress) {
        self.progress = Some(f);
    }

    /// The columns of a weight.
    pub fn cols(&self, name: &str) -> Option<usize> {
        Some(self.bound.get(*self.by_name.get(name)?)?.shape.cols)
    }

    /// Adds vectors of a calibration, which devices find by their names like weights.
    pub fn set_calibration(&mut self, tensors: BTreeMap<String, Vec<f32>>) {
        self.calibration = tensors;
    }

    /// Stores derived weights in a folder, and reuses the ones of earlier starts.
    ///
    /// # Errors
    /// Files cannot be read for hashing.
    pub fn keep_packed(&mut self, folder: &CacheFolder) -> std::io::Result<()> {
        let keeps = self.makes_weights() || self.experts.is_some();
        let Some(first) = self.maps.first().filter(|_| keeps) else {
            return Ok(());
        };
        let each = self.maps.iter().map(|map| hash::of_map(map, &folder.hashes()));
        let hashed = each.collect::<std::io::Result<Vec<_>>>()?;
        let (hashes, stamps): (Vec<_>, _) = hashed.into_iter().unzip();
        self.stamps = stamps;
        let made = self.bound.iter().filter(|b| b.source.is_made());
        let types: BTreeSet<&str> = made.map(|b| b.shape.dtype.name()).collect();
        let types = types.into_iter().collect::<Vec<_>>().join(", ");
        let model = std::path::absolute(first.path()).unwrap_or_else(|_| first.path().into());
        let key = cache::key(&self.bound, &hashes);
        let model = model.display().to_string();
        let cache = PackedCache::open(folder.clone(), &key, model, types);
        lock(&self.non_finite).extend(cache.non_finite());
        self.cache = Some(cache);
        Ok(())
    }

    /// Keeps no more than `budget` bytes of experts in memory: the others are read when tokens choose
    /// them, from the folder of [`WeightStore::keep_packed`], which is to be called after this.
    pub fn limit_experts(&mut self, budget: u64) {
        self.experts = Some(ExpertCache::new(budget, Eviction::Frequency, true));
    }

    /// Leaves matrices in their mapped files where devices compute with rows as they are stored: they
    /// are read anew whenever they are used. Returns the bytes of the others, which need memory: all,
    /// if there are experts, which are read in a form of their own.
    pub fn leave_in_file(&mut self) -> u64 {
        self.left_in_file = self.expert_bytes() == 0;
        let others = self.bound.iter().filter(|b| !(self.left_in_file && b.stays_in_file()));
        others.map(Bound::bytes).sum()
    }

    /// The mapped file of a weight, the largest if there are several.
    pub fn file(&self) -> Option<&std::path::Path> {
        let mapped = self.maps.iter().filter(|map| map.file().is_some());
        Some(mapped.max_by_key(|map| (***map).as_ref().len())?.path())
    }

    /// Bytes of the weights if `quant` were asked for, without the embedding of a tied head, whose
    /// rows are then looked up in the file.
    pub fn bytes_with(&self, spec: &ModelSpec, quant: Quant) -> u64 {
        let head = tied_head(spec, quant);
        let looked_up =
            |need: &WeightRequirement| head.is_some() && need.key.role == WeightRole::Embed;
        let needs = weight_requirements(spec).filter(|need| !looked_up(need)).chain(head);
        let bytes = |need: WeightRequirement| {
            let stored = self.bound(&need.key.to_string()).ok().filter(|b| b.key == need.key);
            let cut = stored.is_none_or(|b| matches!(b.source, ValueSource::Cut { .. }));
            let is = stored.filter(|_| !cut).map_or(DType::BF16, |b| b.shape.dtype);
            let dtype = quant.target(&need, is).unwrap_or(is);
            need.rows.saturating_mul(dtype.row_size(need.cols)) as u64
        };
        needs.map(bytes).sum()
    }

    /// Sets what says which experts are read ahead while decoding, where not all are in memory.
    pub fn set_forecast(&self, forecast: Arc<ExpertForecast>) {
        self.experts.iter().for_each(|experts| experts.set_forecast(forecast.clone()));
    }

    /// Sets what is told when computing has waited for an expert to be read.
    pub fn on_expert_wait(&self, told: OnWait) {
        self.experts.iter().for_each(|experts| experts.on_wait(told.clone()));
    }

    /// What became of experts that are read when tokens choose them; `None` if all are in memory.
    pub fn expert_stats(&self) -> Option<ExpertStats> {
        self.experts.as_ref().filter(|experts| experts.is_used()).map(|experts| experts.stats())
    }

    /// Call after [`WeightStore::finish_packed`], with its warnings: opens the file that experts are
    /// read from.
    ///
    /// # Errors
    /// It could not be written, or cannot be read.
    pub fn open_experts(&self, unkept: &[String]) -> Result<(), WeightError> {
        let Some(experts) = self.experts.as_ref().filter(|experts| experts.is_used()) else {
            return Ok(());
        };
        let path = self.cache.as_ref().map(PackedCache::path).unwrap_or_default();
        let wrong = |why: String| {
            // Why it was not written says more than that it is not there.
            let why = if unkept.is_empty() { why } else { unkept.join("; ") };
            WeightError::Other(format!(
                "the experts do not fit into memory, and cannot be read from {} while running: \
                 {why}; give --cache-dir a folder with room for them, or --expert-cache-mib enough \
                 for all",
                path.display()
            ))
        };
        let found = Found::read(&path).map_err(wrong)?;
        let stored = |part: &ExpertPart| {
            let entry = found.entry(&part.weight, &part.layout)?;
            (entry.len == part.bytes as u64).then(|| (entry.offset, entry.hash.clone()))
        };
        experts.open(path.clone(), &stored).map_err(wrong)
    }

    /// The name of a file that changed since it was hashed.
    fn changed(&self) -> Option<String> {
        let same = |(map, stamp): &(&Arc<FileMap>, &Option<Stamp>)| match (map.file(), stamp) {
            (Some(file), Some(stamp)) => Stamp::of(file).is_ok_and(|now| now == *stamp),
            _ => true,
        };
        let (map, _) = self.maps.iter().zip(&self.stamps).find(|pair| !same(pair))?;
        Some(map.path().display().to_string())
    }

    /// Whether some weights are derived and not used as in the files: quantized, or assembled from
    /// the tensors of a packed layer.
    pub fn makes_weights(&self) -> bool {
        self.bound.iter().any(|b| b.source.is_made())
    }

    /// Call after all weights were requested. Completes the file of packed weights and releases
    /// other memory used for reading. Returns warnings.
    pub fn finish_packed(&self) -> Vec<String> {
        self.release_all();
        let non_finite = lock(&self.non_finite).clone();
        let finish = |c: &PackedCache| c.finish(non_finite, self.changed());
        self.cache.as_ref().map(finish).unwrap_or_default()
    }

    /// Information about a weight.
    pub fn info(&self, key: Key) -> Option<WeightInfo> {
        let b = &self.bound[*self.by_name.get(&key.to_string())?];
        Some(WeightInfo { shape: b.shape, tensor: b.tensor.clone() })
    }

    /// Shape and type of a weight, for lowering.
    pub fn shape(&self, key: Key) -> Option<WeightShape> {
        let b = &self.bound[*self.by_name.get(&key.to_string())?];
        Some(b.shape)
    }

    /// Names of tensors with NaN or infinities. Reads all weights that are used as they are in the
    /// file; for quantized ones see [`WeightStore::non_finite`].
    pub fn scan_non_finite(&self) -> Vec<String> {
        let mut pieces = Vec::new();
        for b in &self.bound {
            let ValueSource::Ready { bytes, .. } = &b.source else { continue };
            let (block, len) = (b.shape.dtype.block_bytes(), bytes.len());
            let step = SCAN_PIECE / block * block;
            pieces.extend((0..len).step_by(step).map(|at| (b, bytes, at..len.min(at + step))));
        }
        let bad = parallel::map(pieces.len(), |i| {
            let (b, bytes, range) = &pieces[i];
            let piece = &bytes[range.clone()];
            let bad = scan::has_non_finite(b.shape.dtype, piece);
            self.release(piece);
            bad
        });
        self.release_all();
        let mut seen = HashSet::new();
        let found = pieces.iter().zip(bad).filter(|(_, bad)| *bad).map(|((b, _, _), _)| &b.tensor);
        found.filter(|t| seen.insert(*t)).cloned().collect()
    }

    /// Tensors in which quantization found NaN or infinities, now or when the cached file was made.
    pub fn non_finite(&self) -> Vec<String> {
        lock(&self.non_finite).iter().cloned().collect()
    }

    /// Tells the system that these bytes of a file are not needed for now.
    fn release(&self, bytes: &[u8]) {
        let _ = self.maps.iter().any(|m| m.release(bytes));
    }

    /// Releases also the pages that the system mapped around each that was read.
    fn release_all(&self) {
        self.maps.iter().for_each(|m| _ = m.release((**m).as_ref()));
    }

    pub(crate) fn bound(&self, name: &str) -> Result<&Bound, DeviceError> {
        let index = self.by_name.get(name);
        let index = index.ok_or_else(|| DeviceError::weight(name, "the model has no such weight"));
        Ok(&self.bound[*index?])
    }

    /// A form of a weight or of some of its rows: from memory, from the disk cache, or newly made.
    fn form(
        &self,
        b: &Bound,
        rows: Range<usize>,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let some = (rows != (0..b.shape.rows)).then(|| rows.clone());
        if let Some(stored) = self.stored(b, &rows, layout) {
            return Ok(stored);
        }
        let name = b.key.to_string();
        let id = FormId { weight: name.as_str().into(), layout: layout.name.into(), rows: some };
        let (slot, form) = (self.forms.slot(&id), id.form());
        // Only threads that request the same form wait here.
        let mut made = lock(&slot);
        if let Some(packed) = &*made {
            return Ok(packed.clone());
        }
        let len = layout.bytes(rows.len()).ok_or_else(|| too_large(&name))?;
        let cache = self.cache.as_ref().filter(|_| b.source.is_made());
        let bytes = match cache.and_then(|c| c.get(&name, &form, len)) {
            Some(bytes) => bytes,
            None => {
                let bytes = self.make(b, rows, layout, pack)?;
                cache.iter().for_each(|c| c.put(&name, &form, &bytes));
                bytes
            }
        };
        let packed = Packed { bytes, stored: false };
        *made = layout.keep.then(|| packed.clone());
        Ok(packed)
    }

    /// Rows as they lie in the file, where matrices are left there.
    fn stored(&self, b: &Bound, rows: &Range<usize>, layout: PackLayout<'_>) -> Option<Packed> {
        let ValueSource::Ready { bytes, .. } = &b.source else { return None };
        if !self.left_in_file || !layout.keep || layout.name == ROWS || !b.stays_in_file() {
            return None;
        }
        b.handed_out.store(true, Ordering::Relaxed);
        let row = b.shape.dtype.row_size(b.shape.cols);
        Some(Packed { bytes: bytes.slice(rows.start * row..rows.end * row)?, stored: true })
    }

    /// Packs rows of a weight on all cores in pieces of whole panels. File pages are released piece
    /// by piece, so that there is no second copy of the weight.
    fn make(
        &self,
        b: &Bound,
        all: Range<usize>,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<WeightBytes, DeviceError> {
        let wrong = |why: String| DeviceError::Weight { name: b.key.to_string(), why };
        let opened = b.source.open(b.shape).map_err(wrong)?;
        // All source bytes, including pages around single pieces.
        let whole = || opened.read().into_iter().chain(b.source.packed_tensors());
        whole().for_each(|t| _ = self.maps.iter().any(|m| m.fetch(t)));
        let len = layout.bytes(all.len()).unwrap_or(0);
        let room = if layout.keep { self.arena.take(len) } else { Room::apart(len) };
        let mut room = room.ok_or_else(|| wrong(format!("finds no memory ({len} bytes)")))?;
        let each = self.pieces(b, layout);
        let pieces = room.as_mut().chunks_mut((each * layout.panel).max(1));
        let pieces: Vec<Mutex<&mut [u8]>> = pieces.map(Mutex::new).collect();
        let done = parallel::map(pieces.len(), |i| {
            let first = all.start + i * each * layout.rows;
            let rows = first..(first + each * layout.rows).min(all.end);
            let made = opened.rows(b.shape, rows.clone());
            let made = made.ok_or_else(|| {
                wrong("is shorter than its shape, or there is no memory for its rows".into())
            })?;
            if let (false, ValueSource::Packed(_)) = (made.finite, &b.source) {
                let tensor = &b.tensor;
                return Err(wrong(format!(
                    "is made of {tensor}, which holds NaN or infinite values; download the model again"
                )));
            }
            let packed = pack(&made.data, &mut lock(&pieces[i]));
            self.read(b, &made);
            if i % GIVE_BACK == GIVE_BACK - 1 {
                whole().for_each(|t| self.release(t));
            }
            self.advance(b, rows.len());
            packed
        });
        whole().for_each(|t| self.release(t));
        done.into_iter().collect::<Result<(), _>>()?;
        Ok(WeightBytes::whole(Arc::new(room)))
    }

    /// Panels per piece: enough to keep a core busy, few enough to use all cores.
    fn pieces(&self, b: &Bound, layout: PackLayout<'_>) -> usize {
        let panels = b.shape.rows.div_ceil(layout.rows.max(1)).max(1);
        let each = PACK_PIECE / (2 * b.shape.cols * layout.rows).max(1);
        each.clamp(1, panels.div_ceil(4).max(1))
    }

    /// Records what making rows has shown, and releases their source.
    fn read(&self, b: &Bound, made: &WeightRows) {
        if !made.finite {
            lock(&self.non_finite).insert(b.tensor.clone());
        }
        if let Some(read) = made.read.as_ref().filter(|r| r.len() >= MIN_RELEASE) {
            self.release(read);
        }
    }

    /// Counts quantized rows.
    fn advance(&self, b: &Bound, rows: usize) {
        let Some(f) = self.progress.as_ref().filter(|_| b.source.is_made()) else { return };
        let values = (rows * b.shape.cols) as u64;
        let done = self.quantized.fetch_add(values, Ordering::Relaxed) + values;
        let all = self.bound.iter().filter(|b| b.source.is_made()).map(Bound::values).sum();
        f(done.min(all), all);
    }
}

fn too_large(weight: &str) -> DeviceError {
    DeviceError::weight(weight, "is too large to be packed")
}

impl ExpertSource for WeightStore {
    fn keep(
        &self,
        weight: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<(), DeviceError> {
        let b = self.bound(weight)?;
        let cache = self.cache.as_ref().ok_or_else(|| {
            let why = "its experts do not fit into memory, and there is no folder to read them \
                       from; leave out --no-cache, or give --cache-dir a folder with room for them";
            DeviceError::weight(weight, why)
        })?;
        let len = layout.bytes(b.shape.rows).ok_or_else(|| too_large(weight))?;
        if !cache.has(weight, layout.name, len) {
            let once = PackLayout { keep: false, ..layout };
            let bytes = self.make(b, 0..b.shape.rows, once, pack)?;
            cache.put(weight, layout.name, &bytes);
        }
        Ok(())
    }

    fn layer(
        &self,
        experts: Vec<[ExpertPart; EXPERT_PARTS]>,
    ) -> Result<Arc<dyn ExpertsOnDisk>, DeviceError> {
        if let Some(cache) = &self.experts {
            return cache.add_layer(experts);
        }
        let name = experts.first().map_or("experts", |e| &*e[0].weight);
        Err(DeviceError::weight(name, "all experts are in memory"))
    }
}

impl WeightSource for WeightStore {
    fn experts(&self) -> Option<&dyn ExpertSource> {
        self.experts.as_ref().map(|_| self as &dyn ExpertSource)
    }

    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        if let Some(values) = self.calibration.get(name) {
            let bytes = WeightBytes::owned(values.iter().flat_map(|v| v.to_le_bytes()).collect());
            return Ok(WeightData { dtype: DType::F32, rows: 1, cols: values.len(), bytes });
        }
        let b = self.bound(name)?;
        let again = b.handed_out.swap(true, Ordering::Relaxed);
        let WeightShape { rows, cols, dtype } = b.shape;
        let bytes = match &b.source {
            ValueSource::Ready { bytes, .. } => {
                // Single rows of a table of blocks are looked up (products use a packed form). Each
                // would otherwise map 2 MiB of a file in huge pages: 30 MB for a prompt of 16 tokens.
                if !again && b.key.role == WeightRole::Embed && dtype.is_quantized() {
                    let _ = self.maps.iter().any(|m| m.in_small_pages(bytes));
                }
                bytes.clone()
            }
            _ => {
                let panel = dtype.row_bytes(cols).unwrap_or(0);
                let layout = PackLayout { name: ROWS, rows: 1, panel, keep: true };
                let copy = |data: &WeightData, out: &mut [u8]| {
                    out.copy_from_slice(&data.bytes);
                    Ok(())
                };
                self.form(b, 0..rows, layout, &copy)?.bytes
            }
        };
        Ok(WeightData { dtype, rows, cols, bytes })
    }

    /// A hash of the bytes that the weight is made from, and of how.
    fn digest(&self, name: &str) -> Option<[u8; 32]> {
        let b = self.bound(name).ok()?;
        let opened = b.source.open(b.shape).ok()?;
        let read = opened.read().into_iter().chain(b.source.packed_tensors());
        let hash = |bytes: &WeightBytes| {
            let hash = hash::of_bytes(bytes);
            self.release(bytes);
            hash
        };
        let hashes: Vec<blake3::Hash> = read.map(hash).collect();
        Some(*cache::key(std::slice::from_ref(b), &hashes).as_bytes())
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let b = self.bound(name)?;
        self.form(b, 0..b.shape.rows, layout, pack)
    }

    fn packed_rows(
        &self,
        name: &str,
        rows: Range<usize>,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let b = self.bound(name)?;
        let (first, end, all) = (rows.start, rows.end, b.shape.rows);
        let why = format!("has {all} rows, of which {first} to {end} were asked for");
        let outside = || DeviceError::weight(name, &*why);
        if first > end || end > all {
            return Err(outside());
        }
        if let Some(stored) = self.stored(b, &rows, layout) {
            return Ok(stored);
        }
        // A view of the whole weight's form, so that devices share it.
        if let Some(range) = layout.slice(&rows) {
            let whole = self.form(b, 0..all, layout, pack)?;
            let bytes = whole.bytes.slice(range).ok_or_else(outside)?;
            return Ok(Packed { bytes, stored: false });
        }
        self.form(b, rows, layout, pack)
    }
}
