//! Verbs as MIL's operations, weights as blobs, and what a function keeps of a sequence.

use troika_device::DeviceError;
use troika_graph::blocks::dequantize;
use troika_graph::quantize::row_int4;
use troika_graph::{Attention, DType, Node, Op, Rope, ValueId, WeightRef, WeightSlice};

use super::kept::{Cache, Kept, LAST_ROW, POSITION, PackageWeights, cache_name, mask_name};
use super::proto::DataType;
use super::types::{Arg, MilType};
use super::verbs::MOST_HALF;
use super::writer::MilWriter;
use crate::emit::blocks::Levels;
use crate::emit::int4::nibbles;
use crate::emit::verb::{Product, Seen, Verb};
use crate::emit::{Emitter, GraphWriter, half_bytes};
use crate::rewrites::Rewrite;

/// Numbers of a weight that are converted at once.
const AT_ONCE: usize = 4 << 20;
/// What the residual stream is divided by: of Gemma 3 it reaches 800,000.
const RESIDUAL: f32 = 16.0;
/// The largest number of 8 bits.
const MOST_INT8: f32 = 127.0;

impl GraphWriter for MilWriter<'_> {
    fn input(&mut self, name: &str, dtype: DType, dims: &[usize]) {
        self.bound(name, dtype, dims);
    }

    fn output(&mut self, name: &str, tensor: &str, dtype: DType, _: &[usize]) {
        self.result_as(name, tensor, dtype);
    }

    fn typed(&mut self, _: bool, dims: &[usize], values: &[f32]) -> String {
        self.halves(dims, values)
    }

    fn verb(&mut self, verb: Verb<'_>, inputs: &[&str]) -> String {
        self.written(verb, inputs)
    }

    fn scope(&mut self, op: &str, about: &str) {
        self.scoped(op, about);
    }

    fn whole_norm(&mut self, _: &str, _: f32, _: &str) -> Option<String> {
        None
    }

    fn divisor(&self) -> Option<f32> {
        self.divided.as_ref().map(|_| RESIDUAL)
    }

    fn is_divided(&self, tensor: &str) -> bool {
        self.divided.as_ref().is_some_and(|all| all.contains(tensor))
    }

    fn divided(&mut self, tensor: &str) {
        if let Some(all) = &mut self.divided {
            all.insert(tensor.into());
        }
    }

    fn rotation(&mut self, rope: &Rope, rows: usize) -> Option<[String; 2]> {
        let kept = self.kept.as_ref()?;
        let alike = |(r, _): &&(Rope, _)| {
            (r.rotary_dim, &r.freqs, &r.long) == (rope.rotary_dim, &rope.freqs, &rope.long)
        };
        if let Some((_, known)) = kept.rotations.iter().find(alike) {
            return Some(known.clone());
        }
        let (positions, half) = (kept.positions, rope.rotary_dim / 2);
        let freqs = match &rope.long {
            Some((long, limit)) if positions > *limit => long,
            _ => &rope.freqs,
        };
        let mut tables = [Vec::new(), Vec::new()];
        for position in 0..positions {
            let factor = freqs.factor_at(position as f32);
            for frequency in freqs.inv_freq.iter() {
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                tables[0].push(cos as f32 * factor);
                tables[1].push(sin as f32 * factor);
            }
        }
        let begin = self.ends(&[POSITION, ""], &[0, 0]);
        let named = tables.map(|table| {
            let table = self.halves(&[positions, half], &table);
            self.sized(&table, &begin, &[rows, half])
        });
        let kept = self.kept.as_mut()?;
        kept.rotations.push((rope.clone(), named.clone()));
        Some(named)
    }

    fn kept(
        e: &mut Emitter<'_, Self>,
        a: &Attention,
        node: &Node,
    ) -> Result<Option<Seen>, DeviceError> {
        if e.model.kept.is_none() {
            return Ok(None);
        }
        let dims = [a.k_dim, a.v_dim];
        let mut seen = Vec::new();
        for (i, state) in node.states.iter().enumerate() {
            seen.push(e.cached_by((i, a.window), *state, a.kv_heads, dims[i.min(1)])?);
        }
        let positions = e.model.seen_positions(a.window);
        let mask = e.model.mask(a.window, positions);
        let mut seen = seen.into_iter();
        let (keys, values) = (seen.next().unwrap_or_default(), seen.next());
        let values = values.unwrap_or_else(|| {
            e.one(Verb::Slice { axis: -1, from: 0, to: a.v_dim, step: 1 }, &keys)
        });
        Ok(Some(Seen { keys, values, mask, positions }))
    }

    fn product(e: &mut Emitter<'_, Self>, of: Product<'_>) -> Result<String, DeviceError> {
        if e.takes_whole() {
            return e.whole_product(of);
        }
        let weight = e.weight(of.weight, e.model.weights)?;
        let bias = match of.bias {
            Some(bias) => e.vector(bias, 0.0)?,
            // Programs that coremltools writes always have one.
            None => {
                let rows = e.graph.weight(of.weight).rows;
                e.model.floats(&[rows], &vec![0.0; rows])
            }
        };
        Ok(e.model.verb(Verb::Linear, &[of.x, &weight, &bias]))
    }

    fn rows_of_table(
        e: &mut Emitter<'_, Self>,
        table: WeightRef,
        ids: &str,
    ) -> Result<String, DeviceError> {
        let (rows, cols) = (e.rows, e.graph.weight(table).cols);
        let table = e.weight(table, PackageWeights::F16)?;
        let found = e.two(Verb::Gather, &table, ids);
        Ok(e.one(Verb::Reshape(&[rows as i64, cols as i64]), &found))
    }
}

impl MilWriter<'_> {
    /// Whole numbers side by side: of tensors, which are named, something is added to each.
    pub(super) fn ends(&mut self, tensors: &[&str], add: &[usize]) -> String {
        let number = |dims: usize| MilType { element: DataType::I32, dims: vec![dims] };
        let mut parts = Vec::new();
        for (tensor, add) in tensors.iter().zip(add) {
            parts.push(match (*tensor, *add) {
                ("", add) => self.integers(&[1], &[add as i64]),
                (tensor, 0) => tensor.to_string(),
                (tensor, add) => {
                    let args = [("x", Arg::Tensor(tensor)), ("y", Arg::Ints(vec![add as i64]))];
                    self.op("add", &args, number(1))
                }
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.joined(&parts, 0)
    }

    /// The mask for a window: an input.
    fn mask(&mut self, window: Option<usize>, positions: usize) -> String {
        let name = mask_name(window);
        if let Some(kept) = self.kept.as_mut().filter(|k| !k.masks.contains(&window)) {
            kept.masks.push(window);
            let rows = kept.rows;
            self.declare(&name, MilType::halves([rows, positions]));
        }
        name
    }

    /// Positions that an attention with a window sees.
    fn seen_positions(&mut self, window: Option<usize>) -> usize {
        let Some(kept) = &mut self.kept else { return 0 };
        let (stateful, rows) = (kept.stateful, kept.rows);
        let holds = |c: &mut Cache| match stateful && c.window.is_none() {
            true => c.positions,
            false => c.positions + rows,
        };
        kept.cache(window).map_or(0, holds)
    }
}

/// Where keys (0) or values (1) of a layer are kept, and the rows of the function.
#[derive(Clone, Copy)]
struct Place {
    which: usize,
    window: Option<usize>,
    layer: usize,
    rows: usize,
    heads: usize,
    positions: usize,
    dim: usize,
}

impl Emitter<'_, MilWriter<'_>> {
    /// Keys (0) or values (1) of a layer with a window, `[heads, positions, dim]`, with those of the
    /// function's rows.
    fn cached_by(
        &mut self,
        (which, window): (usize, Option<usize>),
        state: ValueId,
        heads: usize,
        dim: usize,
    ) -> Result<String, DeviceError> {
        let own = |kept: &mut Kept| {
            let (rows, stateful) = (kept.rows, kept.stateful);
            let layer = *kept.layers.get(&state)?;
            let Cache { window, positions, .. } = *kept.cache(window)?;
            Some((stateful, Place { which, window, layer, rows, heads, positions, dim }))
        };
        let own = self.model.kept.as_mut().and_then(own);
        let Some((stateful, place)) = own else {
            return Err(self.wrong("its state has no place in the package's".into()));
        };
        let appends = |n: &&Node| matches!(n.op, Op::KvAppend(_)) && n.states.contains(&state);
        if let Some(append) = self.graph.nodes.iter().find(appends) {
            let new = self.tensor(append.inputs[0])?;
            let new = self.reshape(&new, &[place.rows, heads, dim]);
            let mut new = self.one(Verb::Transpose(&[1, 0, 2]), &new);
            if which == 1 && place.rows > 1 && self.options.rewrites.has(Rewrite::GuardValues) {
                let tiny = self.model.floats(&[1], &[f32::MIN_POSITIVE]);
                new = self.two(Verb::Add, &new, &tiny);
            }
            let fresh = match place.window {
                Some(_) if stateful => Some(self.shifted(place, &new)),
                _ => {
                    let new = self.reshape(&new, &[1, heads, place.rows, dim]);
                    if stateful {
                        self.model.update((which, place.window), &new, place.layer, POSITION);
                    }
                    Some(new).filter(|_| !stateful)
                }
            };
            let own = self.model.kept.as_mut().and_then(|kept| kept.cache(window));
            own.into_iter().for_each(|own| own.fresh[which][place.layer].clone_from(&fresh));
        }
        let own = self.model.kept.as_mut().and_then(|kept| kept.cache(window));
        let fresh = own.and_then(|own| own.fresh[which][place.layer].clone());
        match fresh {
            Some(seen) if stateful => Ok(seen),
            Some(new) => {
                let cached = self.of_layer(place, &cache_name(which, place.window));
                let new = self.reshape(&new, &[heads, place.rows, dim]);
                Ok(self.model.joined(&[&cached, &new], 1))
            }
            None => {
                let cache = match stateful {
                    true => self.model.state(which, place.window),
                    false => cache_name(which, place.window),
                };
                Ok(self.of_layer(place, &cache))
            }
        }
    }

    /// A layer's part of its cache.
    fn of_layer(&mut self, of: Place, cache: &str) -> String {
        let to = [of.layer + 1, of.heads, of.positions, of.dim];
        self.model.part(cache, &[of.layer, 0, 0, 0], &to, true)
    }

    /// What a layer with a window sees: its state and new rows, of which the state keeps the last ones
    /// up to the last row that holds a token.
    fn shifted(&mut self, of: Place, new: &str) -> String {
        let Place { which, window, layer, rows, heads, positions, dim } = of;
        let state = self.model.state(which, window);
        let cached = self.of_layer(of, &state);
        let seen = self.model.joined(&[&cached, new], 1);
        let last = if rows == 1 { "" } else { LAST_ROW };
        let begin = self.model.ends(&["", last, ""], &[0, 1, 0]);
        let stays = self.model.sized(&seen, &begin, &[heads, positions, dim]);
        let stays = self.reshape(&stays, &[1, heads, positions, dim]);
        self.model.update((which, window), &stays, layer, "");
        seen
    }

    /// A weight `[rows, cols]` as a constant, which is stored once.
    fn weight(&mut self, weight: WeightRef, stored: PackageWeights) -> Result<String, DeviceError> {
        let decl = self.graph.weight(weight);
        let (n, k) = (decl.rows, decl.cols);
        let key = format!("{} {:?}", decl.name, decl.slice);
        let Some((element, each)) = stored.form(decl.dtype, k) else {
            let key = format!("{key} f16");
            if let Some(known) = self.model.known_blob(&key, DataType::F16, &[n, k]) {
                return Ok(known);
            }
            let mut bytes = Vec::with_capacity(2 * n * k);
            self.convert(weight, &mut |rows| bytes.extend(half_bytes(rows)))?;
            return Ok(self.model.blob(key, MilType::halves([n, k]), || bytes));
        };
        let key = format!("{key} {element:?} {each}");
        let scales_key = format!("{key} scales");
        let (mut numbers, mut scales) = (Vec::new(), Vec::new());
        if !self.model.knows(&key) {
            numbers.reserve(n * k);
            if stored == PackageWeights::Stored {
                let bits = if element == DataType::I4 { 4 } else { 8 };
                let levels = Levels::take(decl.dtype, &self.stored(weight)?.bytes, bits);
                (numbers, scales) = (levels.numbers, levels.scales);
                if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
                    return Err(self.damaged(weight, *scale));
                }
            } else {
                let mut of = vec![0; each];
                self.convert(weight, &mut |rows| {
                    for group in rows.chunks_exact(each) {
                        scales.push(match element {
                            DataType::I4 => row_int4(group, &mut of),
                            _ => row_int8(group, &mut of),
                        });
                        match element {
                            DataType::I4 => numbers.extend(nibbles(&of)),
                            _ => numbers.extend(of.iter().map(|v| *v as u8)),
                        }
                    }
                })?;
            }
        }
        let numbers_of = MilType { element, dims: vec![n, k] };
        let numbers = self.model.blob_value(&key, &numbers_of, || numbers);
        let scales_of = MilType::halves([n, k / each]);
        let scales = self.model.blob_value(&scales_key, &scales_of, || half_bytes(&scales));
        Ok(self.model.scaled(numbers, scales, &[n, k]))
    }

    /// Passes a weight's numbers on, some rows at once.
    fn convert(&self, weight: WeightRef, take: &mut dyn FnMut(&[f32])) -> Result<(), DeviceError> {
        let decl = self.graph.weight(weight);
        let beyond = |v: &&f32| v.abs().total_cmp(&MOST_HALF).is_gt();
        let fits = |values: &[f32]| {
            values.iter().find(beyond).map_or(Ok(()), |v| Err(self.damaged(weight, *v)))
        };
        if let Some(WeightSlice::Cols { .. }) = decl.slice {
            let values = self.read(weight)?;
            fits(&values)?;
            take(&values);
            return Ok(());
        }
        let (whole, rows) = (self.weights().weight(&decl.name)?, decl.stored_rows());
        let each = (AT_ONCE / decl.cols.max(1)).max(1);
        let mut values = Vec::new();
        for from in rows.clone().step_by(each) {
            let part = whole.rows(from..(from + each).min(rows.end)).ok_or_else(|| {
                let why = "has another shape than its graph says".into();
                DeviceError::Weight { name: decl.name.to_string(), why }
            })?;
            values.resize(part.rows * part.cols, 0.0);
            dequantize(part.dtype, &part.bytes, &mut values);
            fits(&values)?;
            take(&values);
        }
        Ok(())
    }
}

/// A row as numbers of 8 bits. Returns their scale.
fn row_int8(row: &[f32], numbers: &mut [i8]) -> f32 {
    let most = row.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    let scale = half::f16::from_f32(if most > 0.0 { most / MOST_INT8 } else { 1.0 }).to_f32();
    for (to, v) in numbers.iter_mut().zip(row) {
        *to = (v / scale).round_ties_even().clamp(-MOST_INT8, MOST_INT8) as i8;
    }
    scale
}
