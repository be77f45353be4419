//! Weights in device memory: uploaded once, and shared by graphs that read the same bytes in the
//! same form.

use std::sync::{Arc, PoisonError, Weak};

use troika_device::{Clock, DeviceError, RealClock, WeightData, WeightSource};
use troika_graph::blocks::dequantize;
use troika_graph::{Subgraph, WeightDecl, WeightRef};

use crate::compile::Code;
use crate::gpu::{Gpu, Loaded, Memory, PackKey, Use};
use crate::kernels::WeightFormat;
use crate::kernels::repack::repack;
use crate::packs::{Pack, Split, matrices};
use crate::recorder::Recorder;

/// The packs of each node, then those of each unit.
pub(crate) struct NodeWeights(pub Vec<Vec<Arc<Loaded>>>);

/// Bytes that are repacked at once.
const AT_ONCE: usize = 4 << 20;
/// The least bytes of a binding, which some kernel reads in units of 16 bytes.
const LEAST: u64 = 256;

/// Loads the weights of a graph.
///
/// # Errors
/// A weight that is missing or does not fit its declaration; no memory.
pub(crate) fn load(
    gpu: &Arc<Gpu>,
    code: &Code,
    graph: &Subgraph,
    source: &dyn WeightSource,
    most: Option<u64>,
) -> Result<NodeWeights, DeviceError> {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let mut loader = Loader { recorder: Recorder::new(gpu, &clock), gpu, graph, source, most };
    let mut nodes = Vec::with_capacity(code.packs.len());
    for packs in &code.packs {
        let loaded = packs.iter().map(|pack| loader.pack(pack, code.limit));
        nodes.push(loaded.collect::<Result<Vec<_>, _>>()?);
    }
    loader.recorder.finish()?;
    Ok(NodeWeights(nodes))
}

struct Loader<'a> {
    recorder: Recorder,
    gpu: &'a Arc<Gpu>,
    graph: &'a Subgraph,
    source: &'a dyn WeightSource,
    /// The most bytes of all weights.
    most: Option<u64>,
}

fn wrong(name: &str, why: impl Into<String>) -> DeviceError {
    DeviceError::Weight { name: name.into(), why: why.into() }
}

impl Loader<'_> {
    fn pack(&mut self, pack: &Pack, limit: u64) -> Result<Arc<Loaded>, DeviceError> {
        match pack {
            Pack::Numbers(numbers) => {
                let memory = self.memory("frequencies", 4 * numbers.len() as u64)?;
                self.recorder.upload(bytemuck::cast_slice(numbers), &memory.buffer, 0)?;
                Ok(Arc::new(Loaded { parts: vec![memory], _source: Vec::new() }))
            }
            Pack::Zeros(len, split) => {
                let parts = split.parts().map(|(_, count)| {
                    self.memory("biases that are zero", (4 * len * count) as u64)
                });
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                Ok(Arc::new(Loaded { parts, _source: Vec::new() }))
            }
            Pack::Vector(w) => self.vectors(&[*w], Split { all: 1, each: 1 }),
            Pack::Vectors(list, split) => self.vectors(list, *split),
            Pack::Matrix(w) => {
                let decl = self.graph.weight(*w);
                let row = format(decl)?.row_bytes(decl.cols as u32);
                let split = Split::new(decl.rows, row, limit).ok_or_else(|| {
                    wrong(&decl.name, "its rows are beyond the limit of a binding")
                })?;
                let data = self.data(decl)?;
                self.kept(&[*w], false, &[data], |own, data| {
                    let [data] = data else { return Ok(Vec::new()) };
                    let mut parts = Vec::new();
                    for (first, count) in split.parts() {
                        let rows = data.rows(first..first + count);
                        let rows = rows.ok_or_else(|| wrong(&decl.name, "lacks rows"))?;
                        parts.push(own.matrices(decl, &[rows])?);
                    }
                    Ok(parts)
                })
            }
            Pack::Matrices(list) => {
                let Some(first) = list.first() else { return Ok(Arc::new(Loaded::none())) };
                let decl = self.graph.weight(*first);
                let (_, split, _) = matrices(self.graph, list, limit)
                    .map_err(|e| wrong(&decl.name, e.to_string()))?;
                let all = list.iter().map(|w| self.data(self.graph.weight(*w)));
                let all = all.collect::<Result<Vec<_>, _>>()?;
                self.kept(list, false, &all, |own, all| {
                    let parts = split.parts();
                    parts.map(|(at, count)| own.matrices(decl, &all[at..at + count])).collect()
                })
            }
        }
    }

    /// What was loaded before from the same bytes, or what `make` loads now.
    fn kept(
        &mut self,
        list: &[WeightRef],
        is_vector: bool,
        data: &[WeightData],
        make: impl FnOnce(&mut Self, &[WeightData]) -> Result<Vec<Memory>, DeviceError>,
    ) -> Result<Arc<Loaded>, DeviceError> {
        let Some(first) = list.first() else { return Ok(Arc::new(Loaded::none())) };
        let decl = self.graph.weight(*first);
        let place = |d: &WeightData| (d.bytes.as_ptr() as usize, d.bytes.len());
        let key: PackKey = (data.iter().map(place).collect(), decl.dtype, decl.cols, is_vector);
        let held = || self.gpu.weights.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = held().get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let parts = make(self, data)?;
        let source = data.iter().map(|d| d.bytes.clone()).collect();
        let loaded = Arc::new(Loaded { parts, _source: source });
        let mut held = self.gpu.weights.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, known| known.strong_count() > 0);
        held.insert(key, Arc::downgrade(&loaded));
        Ok(loaded)
    }

    /// The bytes of a weight, as its declaration says.
    fn data(&self, decl: &WeightDecl) -> Result<WeightData, DeviceError> {
        let data = self.source.weight(&decl.name)?;
        let is = (data.dtype, data.rows, data.cols);
        let (rows, cols) = decl.stored();
        if is != (decl.dtype, rows, cols) {
            let (dtype, has_rows, has_cols) = is;
            let why = format!(
                "is {dtype} of {has_rows}x{has_cols}, and {} of {rows}x{cols} was declared",
                decl.dtype
            );
            return Err(wrong(&decl.name, why));
        }
        let data = data.rows(decl.stored_rows()).ok_or_else(|| wrong(&decl.name, "lacks rows"))?;
        let part = decl.stored_cols();
        if part == (0..cols) {
            return Ok(data);
        }
        // Columns of a vector, in whole blocks.
        let bytes = |at: usize| decl.dtype.row_bytes(at);
        let range = bytes(part.start).zip(bytes(part.end)).filter(|_| data.rows == 1);
        let bytes = range.and_then(|(start, end)| data.bytes.slice(start..end));
        let bytes = bytes.ok_or_else(|| wrong(&decl.name, "is not divided at these columns"))?;
        Ok(WeightData { cols: part.len(), bytes, ..data })
    }

    fn memory(&self, name: &str, bytes: u64) -> Result<Memory, DeviceError> {
        let held = self.gpu.weights_held();
        if let Some(most) = self.most.filter(|most| held.saturating_add(bytes) > *most) {
            let (device, mib) = (&self.gpu.name, most >> 20);
            let what = format!("weight {name} within the {mib} MiB of device {device}");
            return Err(DeviceError::Memory { what, bytes: bytes as usize });
        }
        let what = format!("weight {name} on device {}", self.gpu.name);
        let memory = self.gpu.memory(bytes.max(LEAST), Use::Weights);
        memory.map_err(DeviceError::memory(what))
    }

    /// Vectors as f32, one after another.
    fn vectors(&mut self, list: &[WeightRef], split: Split) -> Result<Arc<Loaded>, DeviceError> {
        let all = list.iter().map(|w| self.data(self.graph.weight(*w)));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let name = list.first().map_or_else(|| "".into(), |w| self.graph.weight(*w).name.clone());
        self.kept(list, true, &all, |own, all| {
            let mut parts = Vec::new();
            for (first, count) in split.parts() {
                let mut floats = Vec::new();
                for data in &all[first..first + count] {
                    let at = floats.len();
                    floats.resize(at + data.rows * data.cols, 0.0);
                    dequantize(data.dtype, &data.bytes, &mut floats[at..]);
                }
                let memory = own.memory(&name, 4 * floats.len() as u64)?;
                own.recorder.upload(bytemuck::cast_slice(&floats), &memory.buffer, 0)?;
                parts.push(memory);
            }
            Ok(parts)
        })
    }

    /// Matrices one after another in one binding.
    fn matrices(&mut self, decl: &WeightDecl, all: &[WeightData]) -> Result<Memory, DeviceError> {
        let cols = decl.cols as u32;
        let to = format(decl)?.row_bytes(cols);
        let from = decl.dtype.row_bytes(decl.cols).filter(|bytes| *bytes > 0);
        let from = from.ok_or_else(|| wrong(&decl.name, "has rows of no whole blocks"))?;
        let rows: usize = all.iter().map(|d| d.rows).sum();
        let memory = self.memory(&decl.name, (to as u64).saturating_mul(rows as u64))?;
        let (mut at, mut packed) = (0, Vec::new());
        let each = (AT_ONCE / to.max(1)).max(1);
        for data in all {
            for rows in data.bytes.chunks(each * from) {
                packed.clear();
                packed.resize(rows.len() / from * to, 0);
                if !repack(decl.dtype, rows, cols, &mut packed) {
                    return Err(wrong(&decl.name, "has rows of no whole blocks"));
                }
                self.recorder.upload(&packed, &memory.buffer, at)?;
                at += packed.len() as u64;
            }
        }
        Ok(memory)
    }
}

impl Loaded {
    fn none() -> Loaded {
        Loaded { parts: Vec::new(), _source: Vec::new() }
    }
}

fn format(decl: &WeightDecl) -> Result<WeightFormat, DeviceError> {
    let format = WeightFormat::of(decl.dtype);
    format.ok_or_else(|| wrong(&decl.name, format!("is of type {}", decl.dtype)))
}
