//! What a host does with a package's functions: masks, chunks, and the caches of stateless ones.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use half::f16;
use prost::Message;
use troika::npu::mil::proto::{FeatureDescription, FunctionDescription, MlModel};
use troika::npu::mil::{CoreMlFunction, CoreMlRuntime, CoreMlState};

use super::interpreter::Interpreter;

/// Core ML's number of arrays of f32.
const FLOATS: i32 = 65568;
/// What hides a position.
const HIDDEN: f32 = -60_000.0;

/// A feature: its shape, and how many bytes it has.
#[derive(Clone)]
struct Feature {
    name: String,
    shape: Vec<usize>,
    is_f32: bool,
}

impl Feature {
    fn of(feature: &FeatureDescription) -> Feature {
        let of = feature.feature_type.as_ref().unwrap();
        let array = of.multi_array_type.as_ref().unwrap();
        let shape = array.shape.iter().map(|d| *d as usize).collect();
        Feature { name: feature.name.clone(), shape, is_f32: array.data_type == FLOATS }
    }

    fn bytes(&self) -> usize {
        self.elements() * if self.is_f32 { 4 } else { 2 }
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A function that is open.
struct Opened {
    name: String,
    rows: usize,
    inputs: Vec<Feature>,
    outputs: Vec<Feature>,
    function: Box<dyn CoreMlFunction>,
}

/// A package with a sequence.
pub struct Host {
    functions: Vec<Opened>,
    state: Option<CoreMlState>,
    /// Key and value caches of stateless packages, with their shapes.
    caches: HashMap<String, (Vec<f16>, Vec<usize>)>,
    positions: usize,
    /// Windows that have caches of their own.
    windows: HashSet<usize>,
    pub at: usize,
    /// Where runs are written, as tests/coreml/values.py reads them.
    pub record: Option<PathBuf>,
}

/// A package's description.
pub fn described(package: &Path) -> MlModel {
    let file = package.join("Data/com.apple.CoreML/model.mlmodel");
    MlModel::decode(&*std::fs::read(file).unwrap()).unwrap()
}

/// What goes in or comes out under a name.
pub type Values = HashMap<String, Vec<f32>>;

impl Host {
    /// Opens all functions of a package.
    pub fn open(package: &Path) -> Host {
        Host::of_part(package, "")
    }

    /// Opens those for prompts and for decoding whose names begin so.
    pub fn of_part(package: &Path, part: &str) -> Host {
        let model = described(package);
        let description = model.description.unwrap();
        let positions = description.metadata.as_ref().unwrap().user_defined["positions"].clone();
        let open = |f: &FunctionDescription| {
            let function = Interpreter.open(package, &f.name).unwrap();
            let inputs: Vec<Feature> = f.input.iter().map(Feature::of).collect();
            let length = f.name.strip_prefix(part).unwrap().strip_prefix("prefill_");
            let rows = length.map_or(1, |rows| rows.parse().unwrap());
            let outputs = f.output.iter().map(Feature::of).collect();
            Opened { name: f.name.clone(), rows, inputs, outputs, function }
        };
        let of_part = description.functions.iter().filter(|f| f.name.starts_with(part));
        let mut functions: Vec<Opened> = of_part.map(open).collect();
        functions.sort_by_key(|f| f.rows);
        let is_cache =
            |name: &str| name.starts_with("key_cache") || name.starts_with("value_cache");
        let own = description.functions.iter().flat_map(|f| f.state.iter().chain(&f.input));
        let windows = own.filter_map(|f| f.name.strip_prefix("key_cache_window_")?.parse().ok());
        let windows = windows.collect();
        let caches = functions[0].inputs.iter().filter(|i| is_cache(&i.name));
        let caches =
            caches.map(|i| (i.name.clone(), (vec![f16::ZERO; i.elements()], i.shape.clone())));
        let (caches, positions) = (caches.collect(), positions.parse().unwrap());
        Host { functions, state: None, caches, positions, windows, at: 0, record: None }
    }

    /// Runs tokens, in the largest functions that they fill and the smallest that hold the rest.
    /// Returns the logits of each run's last row.
    pub fn feed(&mut self, tokens: &[u32]) -> Vec<f32> {
        let (mut logits, mut left) = (Vec::new(), tokens);
        while !left.is_empty() {
            let (now, later) = left.split_at(self.rows_now(left.len()));
            let mut results = self.run(now, &Values::new());
            logits = results.remove("logits").unwrap();
            left = later;
        }
        logits
    }

    /// The name of the rows that a part takes.
    pub fn takes(&self) -> String {
        let known = |i: &&Feature| {
            let beside = ["position", "last_row", "mask", "key_cache", "value_cache"];
            !beside.iter().any(|name| i.name.starts_with(name))
        };
        self.functions[0].inputs.iter().find(known).unwrap().name.clone()
    }

    /// How many of so many tokens the next run takes.
    pub fn rows_now(&self, left: usize) -> usize {
        left.min(self.functions[self.function(left)].rows)
    }

    /// The smallest function that holds so many tokens, or else the largest.
    fn function(&self, tokens: usize) -> usize {
        let room = self.positions - self.at;
        let fits = |f: &&Opened| f.rows <= room;
        let enough = self.functions.iter().filter(fits).position(|f| f.rows >= tokens);
        enough.unwrap_or_else(|| self.functions.iter().filter(fits).count() - 1)
    }

    /// The mask of a function: rows see what came before, within a window.
    fn mask(&self, shape: &[usize], window: Option<usize>) -> Vec<u8> {
        let [rows, all] = shape[..] else { panic!("a mask is no matrix") };
        let own = window.filter(|w| self.windows.contains(w));
        let new = if own.is_some() { rows } else { all - self.positions };
        let mut mask = Vec::with_capacity(rows * all);
        for row in 0..rows {
            let of = self.at + row;
            for position in 0..all {
                // A stateless function has its own rows behind the cache.
                let (at, known) = match position.checked_sub(all - new) {
                    Some(row) if new > 0 => (self.at + row, true),
                    // The last positions before the function's rows.
                    _ if own.is_some() => {
                        let at = (self.at + position).checked_sub(all - new);
                        (at.unwrap_or(0), at.is_some())
                    }
                    _ => (position, new == 0 || position < self.at),
                };
                let seen = known && at <= of && window.is_none_or(|w| at + w > of);
                mask.push(f16::from_f32(if seen { 0.0 } else { HIDDEN }));
            }
        }
        bytemuck::cast_slice(&mask).to_vec()
    }

    /// Runs tokens in one function. What it takes beside them is `given`, of which rows may be missing.
    pub fn run(&mut self, tokens: &[u32], given: &Values) -> Values {
        let function = self.function(tokens.len());
        let Opened { rows, inputs, .. } = &self.functions[function];
        let int = |values: Vec<i32>| bytemuck::cast_slice(&values).to_vec();
        let mut bytes: Vec<(String, Vec<u8>)> = Vec::new();
        for input in inputs {
            let mut ids: Vec<i32> = tokens.iter().map(|t| *t as i32).collect();
            ids.resize(*rows, 0);
            let window = input.name.strip_prefix("mask_window_").map(|w| w.parse().unwrap());
            let value = match &*input.name {
                "input_ids" => int(ids),
                "position" => int(vec![self.at as i32]),
                "last_row" => int(vec![tokens.len() as i32 - 1]),
                name if name.starts_with("mask") => self.mask(&input.shape, window),
                name if self.caches.contains_key(name) => {
                    bytemuck::cast_slice(&self.caches[name].0).to_vec()
                }
                name => {
                    let mut values = given[name].clone();
                    values.resize(input.elements(), 0.0);
                    assert!(input.is_f32, "states of tokens are f32");
                    bytemuck::cast_slice(&values).to_vec()
                }
            };
            bytes.push((input.name.clone(), value));
        }
        let of = &mut self.functions[function];
        let mut results: Vec<Vec<u8>> = of.outputs.iter().map(|o| vec![0; o.bytes()]).collect();
        if self.caches.is_empty() && self.state.is_none() {
            self.state = Some(of.function.state().unwrap());
        }
        let named: Vec<(&str, &[u8])> = bytes.iter().map(|(n, b)| (&**n, &**b)).collect();
        let mut outputs: Vec<(&str, &mut [u8])> =
            of.outputs.iter().zip(&mut results).map(|(o, b)| (&*o.name, &mut **b)).collect();
        of.function.predict(&named, self.state.as_mut(), &mut outputs).unwrap();
        let outputs = of.outputs.clone();
        if let Some(runs) = &self.record {
            let number = std::fs::read_dir(runs).unwrap().count();
            let run = runs.join(format!("{number}-{}", of.name));
            std::fs::create_dir(&run).unwrap();
            let files = bytes.iter().map(|(name, bytes)| (format!("{name}.in"), bytes));
            let results = outputs.iter().zip(&results);
            let results = results.map(|(o, bytes)| (format!("{}.out", o.name), bytes));
            files.chain(results).for_each(|(name, b)| std::fs::write(run.join(name), b).unwrap());
        }
        let mut made = Values::new();
        for (output, bytes) in outputs.iter().zip(&results) {
            if output.is_f32 {
                made.insert(output.name.clone(), bytemuck::cast_slice(bytes).to_vec());
                continue;
            }
            let values: &[f16] = bytemuck::cast_slice(bytes);
            match &*output.name {
                name if name.starts_with("new_") => {
                    let cache = name.replace("new_keys", "key_cache");
                    let cache = cache.replace("new_values", "value_cache");
                    self.keep(&cache, values, &output.shape, tokens.len());
                }
                name => {
                    made.insert(name.into(), values.iter().map(|v| v.to_f32()).collect());
                }
            }
        }
        self.at += tokens.len();
        made
    }

    /// Writes new keys or values `[layers, heads, rows, dim]` into their cache.
    fn keep(&mut self, cache: &str, new: &[f16], shape: &[usize], valid: usize) {
        let [layers, heads, rows, dim] = shape[..] else {
            panic!("new keys have no four dimensions")
        };
        let (all, of) = self.caches.get_mut(cache).unwrap();
        // Of a window the oldest go.
        let gone = if cache.contains("_window_") { valid } else { 0 };
        let at = if gone > 0 { of[2] as isize - valid as isize } else { self.at as isize };
        let head_len = of[2] * of[3];
        all.chunks_exact_mut(head_len).for_each(|head| head.rotate_left(gone * of[3] % head_len));
        for layer in 0..layers {
            for head in 0..heads {
                for row in 0..valid {
                    let Ok(place) = usize::try_from(at + row as isize) else { continue };
                    let from = ((layer * heads + head) * rows + row) * dim;
                    let to = ((layer * of[1] + head) * of[2] + place) * of[3];
                    all[to..to + dim].copy_from_slice(&new[from..from + dim]);
                }
            }
        }
    }
}
