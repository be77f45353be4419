//! Weights in device memory: uploaded once, and shared by graphs that read the same bytes in the
//! same form.

use std::sync::{Arc, Weak};

use troika_device::{
    Clock, DeviceError, DeviceId, RealClock, WeightData, WeightSource, calibrated, size,
};
use troika_graph::blocks::dequantize;
use troika_graph::{
    ActivationFormat, InputRange, Rounding, ScaleOrigin, Subgraph, WeightDecl, WeightRef,
};

use crate::code::Code;
use crate::error::locked;
use crate::gpu::{Gpu, Loaded, Memory, PackKey, Use};
use crate::kernels::WeightFormat;
use crate::kernels::repack::repack;
use crate::packs::{Pack, matrices, matrix};
use crate::recorder::Recorder;

/// A graph with its weights on the device.
pub(crate) struct LoadedGraph {
    pub device: DeviceId,
    /// The graph's name.
    pub name: String,
    pub code: Arc<Code>,
    /// The packs of each node, then those of each unit.
    pub weights: Vec<Vec<Arc<Loaded>>>,
}

/// Bytes that are repacked at once.
const AT_ONCE: usize = 4 << 20;
/// The least bytes of a binding, which some kernel reads in units of 16 bytes.
const LEAST: u64 = 256;

/// Loads the weights of a graph.
pub(crate) fn load(
    gpu: &Arc<Gpu>,
    code: &Code,
    graph: &Subgraph,
    source: &dyn WeightSource,
    most: Option<u64>,
) -> Result<Vec<Vec<Arc<Loaded>>>, DeviceError> {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let mut loader = Loader { recorder: Recorder::new(gpu, &clock), gpu, graph, source, most };
    let mut nodes = Vec::with_capacity(code.packs.len());
    for packs in &code.packs {
        let loaded = packs.iter().map(|pack| loader.pack(pack, code.limit));
        nodes.push(loaded.collect::<Result<Vec<_>, _>>()?);
    }
    loader.recorder.finish()?;
    Ok(nodes)
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
            Pack::Numbers(numbers) => Ok(Loaded::own(vec![self.floats("frequencies", numbers)?])),
            Pack::Clipping(w, format) => self.clipping(self.graph.weight(*w), *format),
            Pack::Zeros(len, split) => {
                let parts = split.parts().map(|vectors| {
                    self.memory("biases that are zero", (4 * len * vectors.len()) as u64)
                });
                Ok(Loaded::own(parts.collect::<Result<_, _>>()?))
            }
            Pack::Vectors(list, split) => self.kept(list, true, |own, decl, all| {
                let vectors = split.parts().map(|part| own.floats(&decl.name, &joined(&all[part])));
                vectors.collect()
            }),
            Pack::Rates(list, are_logs) => self.kept(list, true, |own, decl, all| {
                let mut floats = joined(all);
                let rates = &mut floats[..decl.cols];
                if *are_logs {
                    rates.iter_mut().for_each(|rate| *rate = -rate.exp());
                }
                match rates.iter().position(|rate| !rate.is_finite()) {
                    Some(head) => Err(wrong(&decl.name, format!("overflows in head {head}"))),
                    None => Ok(vec![own.floats(&decl.name, &floats)?]),
                }
            }),
            Pack::Matrix(w) => self.kept(&[*w], false, |own, decl, all| {
                let layout = matrix(own.graph, *w, ActivationFormat::F32, limit);
                let parts = layout.map_err(|e| wrong(&decl.name, e.to_string()))?.split.parts();
                let rows = parts.map(|part| match all[0].rows(part) {
                    Some(rows) => own.matrices(decl, &[rows]),
                    None => Err(wrong(&decl.name, "lacks rows")),
                });
                rows.collect()
            }),
            Pack::Matrices(list) => self.kept(list, false, |own, decl, all| {
                let layout = matrices(own.graph, list, ActivationFormat::F32, limit);
                let parts = layout.map_err(|e| wrong(&decl.name, e.to_string()))?.split.parts();
                parts.map(|part| own.matrices(decl, &all[part])).collect()
            }),
        }
    }

    fn clipping(
        &mut self,
        decl: &WeightDecl,
        format: ActivationFormat,
    ) -> Result<Arc<Loaded>, DeviceError> {
        let read = |tensor, n| calibrated(self.source, &decl.name, (tensor, n));
        let scales = format.converted_numbers().map_or(ScaleOrigin::Clipped, |n| n.scales);
        let InputRange { factors, limit, .. } = InputRange::of(scales, decl.cols, read)?;
        let Some(Rounding { step, most }) = Rounding::of(format, limit) else {
            return Err(wrong(&decl.name, "has no limit above zero in its calibration"));
        };
        let mut numbers = vec![1.0; 2 + decl.cols];
        numbers[..2].copy_from_slice(&[step, most]);
        numbers[2..].iter_mut().zip(factors).for_each(|(to, factor)| *to = factor);
        Ok(Loaded::own(vec![self.floats("factors of columns", &numbers)?]))
    }

    /// What was loaded before from the same bytes, or what `make` loads now, of the first weight's
    /// declaration and the bytes of all.
    fn kept(
        &mut self,
        list: &[WeightRef],
        is_vector: bool,
        make: impl FnOnce(&mut Self, &WeightDecl, &[WeightData]) -> Result<Vec<Memory>, DeviceError>,
    ) -> Result<Arc<Loaded>, DeviceError> {
        let graph = self.graph;
        let data = list.iter().map(|w| self.data(graph.weight(*w)));
        let data = data.collect::<Result<Vec<_>, _>>()?;
        let Some(decl) = list.first().map(|w| graph.weight(*w)) else {
            return Ok(Loaded::own(Vec::new()));
        };
        let place = |d: &WeightData| (d.bytes.as_ptr() as usize, d.bytes.len());
        let key: PackKey = (data.iter().map(place).collect(), decl.dtype, decl.cols, is_vector);
        if let Some(known) = locked(&self.gpu.weights).get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let parts = make(self, decl, &data)?;
        let source = data.iter().map(|d| d.bytes.clone()).collect();
        let loaded = Arc::new(Loaded { parts, _source: source });
        let mut held = locked(&self.gpu.weights);
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
            let (device, most) = (&self.gpu.name, size(most));
            let what = format!("weight {name} within the {most} of device {device}");
            return Err(DeviceError::Memory { what, bytes: bytes as usize });
        }
        let what = format!("weight {name} on device {}", self.gpu.name);
        let memory = self.gpu.memory(bytes.max(LEAST), Use::Weights);
        memory.map_err(DeviceError::memory(what))
    }

    fn floats(&mut self, name: &str, floats: &[f32]) -> Result<Memory, DeviceError> {
        let memory = self.memory(name, 4 * floats.len() as u64)?;
        self.recorder.upload(bytemuck::cast_slice(floats), &memory.buffer, 0)?;
        Ok(memory)
    }

    /// Matrices one after another in one binding.
    fn matrices(&mut self, decl: &WeightDecl, all: &[WeightData]) -> Result<Memory, DeviceError> {
        let cols = decl.cols as u32;
        let format = WeightFormat::of(decl.dtype);
        let format =
            format.ok_or_else(|| wrong(&decl.name, format!("is of type {}", decl.dtype)))?;
        let to = format.row_bytes(cols);
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

/// Vectors as f32, one after another.
fn joined(all: &[WeightData]) -> Vec<f32> {
    let mut floats = Vec::new();
    for data in all {
        let at = floats.len();
        floats.resize(at + data.rows * data.cols, 0.0);
        dequantize(data.dtype, &data.bytes, &mut floats[at..]);
    }
    floats
}
