//! A package: one function for each number of rows, over one file of weights.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use prost::Message;
use tempfile::TempDir;
use troika_device::{DeviceError, WeightSource};
use troika_graph::{DType, Op, Subgraph, ValueId, bind_static, verify};

use super::blob::Blobs;
use super::delegation::{Delegation, delegation};
use super::kept::{Cache, Kept, LAST_ROW, POSITION, PackageWeights, cache_name};
use super::proto::{
    ArrayFeatureType, DataType, FEATURE_F16, FEATURE_F32, FEATURE_I32, FeatureDescription,
    FeatureType, Function, FunctionDescription, Metadata, MlModel, ModelDescription,
    NamedValueType, Program, StateFeatureType,
};
use super::runtime::ROOT;
use super::types::MilType;
use super::writer::MilWriter;
use crate::emit::verb::Verb;
use crate::emit::{EmitOptions, Emitter, GraphWriter, is_summed, refusal};
use crate::provider::Provider;
use crate::rewrites::{Rewrite, Rewrites};

/// iOS 18 and macOS 15, the first with states.
const SPECIFICATION: i32 = 9;
/// The most bytes of the file of weights.
const MOST_BYTES: u64 = 4 << 30;

/// The most bytes of a group of experts: beyond, the Neural Engine leaves it to the CPU (NPUMoE,
/// section 3).
pub(crate) const MOST_GROUP_BYTES: u64 = 1_200_000_000;

/// What names of folders begin with in which packages are made, beside their places.
const BEGUN: &str = ".coreml-";
/// The package in such a folder, and the file that is locked while it is written.
const WHOLE: &str = "package";
const LOCK: &str = "lock";

/// A part of a model: what a function runs one after the other.
#[derive(Clone, Debug)]
pub struct PackagePart {
    /// The graph, with any number of rows.
    pub graph: Subgraph,
    /// What its inputs are, by number: parts share them.
    pub inputs: Vec<usize>,
    /// What its outputs are.
    pub outputs: Vec<usize>,
    /// The layer of each of its states in its cache.
    pub layers: Vec<usize>,
    /// Whether it runs on the last row alone.
    pub of_last_row: bool,
}

/// A value between parts.
#[derive(Clone, Debug)]
pub enum PackageValue {
    /// Token ids: an input.
    Ids,
    /// Positions, which functions count themselves.
    Positions,
    /// `[rows, columns]`; an input under this name if no part of a stretch makes it.
    Rows {
        /// Its name.
        name: String,
        /// Its columns.
        cols: usize,
        /// F32 or F16.
        dtype: DType,
    },
}

/// Parts that run one after the other, with nothing outside between them.
#[derive(Clone, Debug, Default)]
pub struct PackageStretch {
    /// What the names of its functions begin with; of a model that is one stretch, nothing.
    pub name: String,
    /// Its parts.
    pub parts: Vec<PackagePart>,
    /// What its functions give, by number.
    pub results: Vec<usize>,
    /// How many layers keep keys and values, by the window of their cache; layers whose window is not
    /// there are in that of all positions (`None`).
    pub layers: BTreeMap<Option<usize>, usize>,
    /// The rows of its only function; `None`: it has all of the package's.
    pub rows: Option<usize>,
}

/// A model for a package.
#[derive(Clone, Debug)]
pub struct PackageModel {
    /// Its stretches. Routers and what else no function can hold run between them.
    pub stretches: Vec<PackageStretch>,
    /// The values between parts.
    pub values: Vec<PackageValue>,
    /// What the package says of itself.
    pub about: BTreeMap<String, String>,
}

/// How a package is written.
#[derive(Clone, Debug)]
pub struct PackageOptions {
    /// Functions by name, with their numbers of rows.
    pub functions: Vec<(String, usize)>,
    /// Positions of the caches.
    pub positions: usize,
    /// Whether keys and values are states; else inputs and outputs.
    pub stateful: bool,
    /// How products' weights are stored.
    pub weights: PackageWeights,
    /// How graphs are written.
    pub rewrites: Rewrites,
}

impl PackageOptions {
    /// Whether a cache for a window is shorter than one of all positions.
    pub fn is_shorter(&self, window: Option<usize>) -> bool {
        let positions = self.rewrites.padded(self.positions);
        window.is_some_and(|w| self.rewrites.padded(w) < positions)
    }
}

/// What was written.
#[derive(Clone, Debug)]
pub struct Package {
    /// Bytes of the file of weights.
    pub weight_bytes: u64,
    /// Bytes of the program.
    pub program_bytes: u64,
    /// Which unit is expected to run which operations, by function.
    pub delegation: Vec<(String, Vec<Delegation>)>,
}

/// Why there is no package.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// What MIL or the caches lack.
    #[error("{graph}: op {op}: {why}")]
    Refused {
        /// The graph.
        graph: String,
        /// The op.
        op: &'static str,
        /// Why.
        why: String,
    },
    /// The weights are too large.
    #[error("its weights are {:.1} GB, and a package's file takes {:.1}; {advice}", *bytes as f64 / 1e9, MOST_BYTES as f64 / 1e9)]
    Large {
        /// Their bytes.
        bytes: u64,
        /// What takes less.
        advice: &'static str,
    },
    /// Rewrites that do not take the weights' form.
    #[error(
        "--weights {0}: linear-as-conv and multiples-of-16 write products as f16; leave them or the \
         weights' form out"
    )]
    Floats(String),
    /// The user ends it.
    #[error("no package was written: it was cancelled")]
    Cancelled,
    /// There is something at its place.
    #[error("{} exists; give another name with -o, or remove it", .0.display())]
    Exists(PathBuf),
    /// A file that cannot be written.
    #[error("{}: {why}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// A weight that cannot be read.
    #[error(transparent)]
    Weight(#[from] DeviceError),
}

/// The heads and dimensions of keys and values, which all layers of a cache share.
#[derive(Clone, Copy, PartialEq)]
struct CacheShape {
    heads: usize,
    dims: [usize; 2],
    has_values: bool,
}

/// Writes a package into a new folder: beside its place first, so that nothing is left of one that
/// fails.
///
/// # Errors
/// What the package cannot hold, or files that cannot be read or written.
pub fn write_package(
    out: &Path,
    model: &PackageModel,
    weights: &dyn WeightSource,
    options: &PackageOptions,
    may_continue: &dyn Fn() -> bool,
) -> Result<Package, PackageError> {
    if out.symlink_metadata().is_ok() {
        return Err(PackageError::Exists(out.into()));
    }
    let shapes = &checked(model, options)?;
    let mut files = PackageFiles::create(out)?;
    let mut delegations = Vec::new();
    for stretch in &model.stretches {
        let own = stretch.rows.map(|rows| vec![(String::new(), rows)]);
        for (name, rows) in own.as_ref().unwrap_or(&options.functions) {
            let (values, rows) = (&model.values, *rows);
            let writing = Writing { stretch, values, weights, options, shapes, rows, may_continue };
            let (function, outputs) = writing.function(&mut files.blobs)?;
            let name = format!("{}{name}", stretch.name);
            delegations.push((name.clone(), delegation(&function)));
            files.add(&name, function, &outputs);
        }
    }
    let ([weight_bytes, program_bytes], _) = files.finish(&model.about)?;
    Ok(Package { weight_bytes, program_bytes, delegation: delegations })
}

/// A package on its way, beside its place.
pub(crate) struct PackageFiles {
    out: PathBuf,
    beside: TempDir,
    /// Others see by it that the package is being written.
    _lock: File,
    pub blobs: Blobs,
    functions: BTreeMap<String, Function>,
    described: Vec<FunctionDescription>,
}

impl PackageFiles {
    /// A package without functions.
    ///
    /// # Errors
    /// No files can be made there.
    pub fn create(out: &Path) -> Result<PackageFiles, PackageError> {
        let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !parent.is_dir() {
            let why = "there is no such folder; make it, or name another one with -o";
            let why = std::io::Error::new(std::io::ErrorKind::NotFound, why);
            return Err(unwritten(parent)(why));
        }
        remove_abandoned(parent);
        let beside = tempfile::Builder::new().prefix(BEGUN).tempdir_in(parent);
        let beside = beside.map_err(unwritten(parent))?;
        let lock = File::create(beside.path().join(LOCK)).map_err(unwritten(out))?;
        // Without locks nothing is removed.
        let _ = lock.try_lock();
        let weights = beside.path().join(WHOLE).join(ROOT).join("weights");
        fs::create_dir_all(&weights).map_err(unwritten(out))?;
        let blobs = Blobs::create(&weights.join("weight.bin")).map_err(unwritten(out))?;
        let (functions, described) = (BTreeMap::new(), Vec::new());
        Ok(PackageFiles { out: out.into(), beside, _lock: lock, blobs, functions, described })
    }

    /// Adds a function with its outputs.
    pub fn add(&mut self, name: &str, function: Function, outputs: &[(String, MilType)]) {
        self.described.push(description(name, &function.inputs, outputs));
        self.functions.insert(name.into(), function);
    }

    /// Puts the package at its place. Returns the bytes of its weights and of its program, and a hash
    /// of both.
    ///
    /// # Errors
    /// Files that cannot be written.
    pub fn finish(
        self,
        about: &BTreeMap<String, String>,
    ) -> Result<([u64; 2], blake3::Hash), PackageError> {
        let PackageFiles { out, beside, _lock, blobs, functions, described } = self;
        let mut hasher = blobs.hasher.clone();
        let weight_bytes = blobs.finish().map_err(unwritten(&out))?;
        let metadata = Metadata {
            short_description: about.get("model").cloned().unwrap_or_default(),
            author: "Troika".into(),
            user_defined: about.clone(),
            ..Metadata::default()
        };
        let description = ModelDescription {
            default_function_name: described.first().map_or(String::new(), |f| f.name.clone()),
            functions: described,
            metadata: Some(metadata),
        };
        let program = MlModel {
            specification_version: SPECIFICATION,
            description: Some(description),
            ml_program: Some(Program { version: 1, functions }),
        };
        let program = program.encode_to_vec();
        let files = beside.path().join(WHOLE);
        fs::write(files.join(ROOT).join("model.mlmodel"), &program).map_err(unwritten(&out))?;
        fs::write(files.join("Manifest.json"), manifest(&program)).map_err(unwritten(&out))?;
        fs::rename(files, &out).map_err(|why| match out.symlink_metadata() {
            // Another one came first.
            Ok(_) => PackageError::Exists(out.clone()),
            Err(_) => unwritten(&out)(why),
        })?;
        Ok(([weight_bytes, program.len() as u64], hasher.update(&program).finalize()))
    }
}

/// Removes what processes that ended left behind of packages in a folder.
fn remove_abandoned(folder: &Path) {
    let begun = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with(BEGUN);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(begun) {
        let lock = File::options().write(true).open(entry.path().join(LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn unwritten(path: &Path) -> impl FnOnce(std::io::Error) -> PackageError {
    let path = path.to_path_buf();
    move |why| PackageError::Write { path, why }
}

/// The shapes of the model's caches, by their window.
type Shapes = BTreeMap<Option<usize>, CacheShape>;

/// The shapes of the model's caches.
///
/// # Errors
/// An op that MIL lacks, layers whose keys differ, or weights that are too large.
fn checked(model: &PackageModel, options: &PackageOptions) -> Result<Shapes, PackageError> {
    let mut shapes = Shapes::new();
    if options.weights != PackageWeights::F16 && options.rewrites.take_floats() {
        return Err(PackageError::Floats(options.weights.name()));
    }
    let parts = model.stretches.iter().flat_map(|s| s.parts.iter().map(move |part| (part, s)));
    for (part, stretch) in parts {
        let graph = &part.graph;
        verify(graph).map_err(DeviceError::from)?;
        let refused = |op: &Op, why: String| {
            let (graph, op) = (graph.name.clone(), op.name());
            PackageError::Refused { graph, op, why }
        };
        let of_group: u64 = graph.weights.iter().map(|w| options.weights.bytes(w)).sum();
        for node in &graph.nodes {
            if let Some(why) = refusal(&node.op, graph, Provider::CoreMl) {
                return Err(refused(&node.op, why.into()));
            }
            if stretch.rows.is_some() && of_group > MOST_GROUP_BYTES {
                return Err(refused(
                    &node.op,
                    format!(
                        "its weights are {:.2} GB, and the Neural Engine takes groups of {:.1}; put \
                         fewer experts into a group",
                        of_group as f64 / 1e9,
                        MOST_GROUP_BYTES as f64 / 1e9
                    ),
                ));
            }
            let Op::Attention(a) = &node.op else { continue };
            let has_values = node.states.len() > 1;
            let own = CacheShape { heads: a.kv_heads, dims: [a.k_dim, a.v_dim], has_values };
            let cache = a.window.filter(|_| stretch.layers.contains_key(&a.window));
            if *shapes.entry(cache).or_insert(own) != own {
                return Err(refused(
                    &node.op,
                    format!(
                        "it keeps {} heads of {:?} columns, other layers do not: all share one state",
                        own.heads, own.dims
                    ),
                ));
            }
        }
    }
    let bytes = stored_bytes(model, options);
    if bytes > MOST_BYTES {
        let advice = match options.weights {
            _ if model.stretches.iter().any(|s| s.rows.is_some()) => {
                "leave experts to another device, or take a smaller model"
            }
            PackageWeights::Int4(_) => "a smaller model fits",
            _ if bytes / 4 > MOST_BYTES => "a smaller model fits",
            _ => "--weights int4 takes about a quarter of f16",
        };
        return Err(PackageError::Large { bytes, advice });
    }
    Ok(shapes)
}

/// Bytes of the file of weights.
fn stored_bytes(model: &PackageModel, options: &PackageOptions) -> u64 {
    let (mut bytes, mut seen) = (0, HashSet::new());
    for graph in model.stretches.iter().flat_map(|s| &s.parts).map(|part| &part.graph) {
        for (i, w) in graph.weights.iter().enumerate() {
            // Tables are halves for looking rows up, beside the head's numbers.
            let is_table = |op: &Op| matches!(op, Op::Embed { table, .. } if table.0 as usize == i);
            let halves = graph.nodes.iter().any(|n| is_table(&n.op));
            let stored = if halves { PackageWeights::F16 } else { options.weights };
            if seen.insert((w.name.clone(), w.slice, stored.form(w.dtype, w.cols))) {
                bytes += stored.bytes(w);
            }
        }
    }
    bytes
}

/// A function on its way.
struct Writing<'a> {
    stretch: &'a PackageStretch,
    values: &'a [PackageValue],
    weights: &'a dyn WeightSource,
    options: &'a PackageOptions,
    shapes: &'a Shapes,
    rows: usize,
    may_continue: &'a dyn Fn() -> bool,
}

impl Writing<'_> {
    fn function(
        &self,
        blobs: &mut Blobs,
    ) -> Result<(Function, Vec<(String, MilType)>), PackageError> {
        let (stretch, rows) = (self.stretch, self.rows);
        let mut writer = MilWriter::new(blobs, self.options.weights);
        self.declare(&mut writer);
        let divides = self.options.rewrites.has(Rewrite::ScaleResidual);
        writer.divided = divides.then(HashSet::new);
        let mut tensors: HashMap<usize, String> = HashMap::new();
        for part in &stretch.parts {
            if !(self.may_continue)() {
                return Err(PackageError::Cancelled);
            }
            let rows = if part.of_last_row { 1 } else { rows };
            for value in &part.inputs {
                self.input(*value, &mut tensors, &mut writer);
            }
            let graph = bind_static(&part.graph, rows);
            let of_part = |value: &usize| {
                let whole = tensors.get(value)?;
                Some(if part.of_last_row { last_row(&mut writer, whole) } else { whole.clone() })
            };
            let inputs: Vec<Option<String>> = part.inputs.iter().map(of_part).collect();
            let inputs = graph.inputs.iter().zip(inputs);
            let known = inputs.filter_map(|(id, name)| Some((*id, name?))).collect();
            writer = self.part(part, &graph, rows, writer, known, &mut tensors)?;
        }
        for value in &stretch.results {
            let (Some(made), Some(PackageValue::Rows { name, dtype, .. })) =
                (tensors.get(value), self.values.get(*value))
            else {
                continue;
            };
            writer.result_as(name, made, *dtype);
        }
        let kept = writer.kept.take().filter(|kept| !kept.stateful);
        for cache in kept.iter().flat_map(|kept| &kept.caches) {
            for (fresh, name) in cache.fresh.iter().zip(["new_keys", "new_values"]) {
                let all: Vec<&str> = fresh.iter().flatten().map(String::as_str).collect();
                if !all.is_empty() {
                    let all = writer.joined(&all, 0);
                    let name = cache.window.map_or(name.into(), |w| format!("{name}_window_{w}"));
                    writer.result_as(&name, &all, DType::F16);
                }
            }
        }
        Ok(writer.finish())
    }

    /// Declares the position and the caches.
    fn declare(&self, writer: &mut MilWriter<'_>) {
        let (stretch, rows) = (self.stretch, self.rows);
        let PackageOptions { rewrites, stateful, .. } = self.options;
        let longest = rewrites.padded(self.options.positions);
        let mut caches = Vec::new();
        for (&window, &layers) in &stretch.layers {
            let Some(shape) = self.shapes.get(&window) else { continue };
            let positions = window.map_or(longest, |w| rewrites.padded(w).min(longest));
            let tensors = [0, 1].map(|which| cache_name(which, window));
            let has = 1 + usize::from(shape.has_values);
            for (name, dim) in tensors.iter().zip(shape.dims).take(has) {
                let padded = [shape.heads, positions, dim].map(|n| rewrites.padded(n));
                let of = MilType::halves([&[layers][..], &padded].concat());
                match stateful {
                    true => writer.declare_state(name, of),
                    false => writer.declare(name, of),
                }
            }
            let fresh = [vec![None; layers], vec![None; layers]];
            caches.push(Cache { window, positions, tensors, fresh });
        }
        if caches.is_empty() {
            return;
        }
        let number = || MilType { element: DataType::I32, dims: vec![1] };
        writer.declare(POSITION, number());
        if *stateful && rows > 1 && caches.iter().any(|c| c.window.is_some()) {
            writer.declare(LAST_ROW, number());
        }
        let (stateful, layers) = (*stateful, HashMap::new());
        let (rotations, masks) = (Vec::new(), Vec::new());
        let positions = longest;
        writer.kept = Some(Kept { stateful, positions, rows, layers, caches, rotations, masks });
    }

    /// Declares what no part makes.
    fn input(
        &self,
        value: usize,
        tensors: &mut HashMap<usize, String>,
        writer: &mut MilWriter<'_>,
    ) {
        if tensors.contains_key(&value) {
            return;
        }
        let (name, dtype, dims) = match &self.values[value] {
            PackageValue::Positions => return,
            PackageValue::Ids => ("input_ids", DType::I32, [1, self.rows]),
            PackageValue::Rows { name, cols, dtype } => (&**name, *dtype, [self.rows, *cols]),
        };
        let summed = |part: &PackagePart| {
            let mut own = part.graph.inputs.iter().zip(&part.inputs).filter(|(_, v)| **v == value);
            own.all(|(id, _)| is_summed(&part.graph, *id))
        };
        if self.stretch.parts.iter().all(summed) {
            writer.divided(name);
        }
        writer.bound(name, dtype, &dims);
        tensors.insert(value, name.into());
    }

    /// Writes a part, and names what it makes.
    fn part<'w>(
        &self,
        part: &PackagePart,
        graph: &Subgraph,
        rows: usize,
        mut writer: MilWriter<'w>,
        known: HashMap<ValueId, String>,
        tensors: &mut HashMap<usize, String>,
    ) -> Result<MilWriter<'w>, PackageError> {
        let layers = graph.states.iter().copied().zip(part.layers.iter().copied()).collect();
        writer.kept.iter_mut().for_each(|kept| kept.layers = HashMap::clone(&layers));
        let options = EmitOptions {
            provider: Provider::CoreMl,
            rewrites: &self.options.rewrites,
            positions: self.options.positions,
            any_rows: false,
        };
        let mut emitter = Emitter::new(graph, self.weights, options, writer);
        (emitter.rows, emitter.tensors) = (rows, known);
        emitter.nodes(rows, |node| !node.outputs.is_empty())?;
        for (id, value) in graph.outputs.iter().zip(&part.outputs) {
            tensors.insert(*value, emitter.tensor(*id)?);
        }
        Ok(emitter.model)
    }
}

/// The row of a value that the input `last_row` names, `[1, columns]`.
fn last_row(writer: &mut MilWriter<'_>, whole: &str) -> String {
    if writer.dims(LAST_ROW).is_empty() {
        writer.declare(LAST_ROW, MilType { element: DataType::I32, dims: vec![1] });
    }
    let row = writer.written(Verb::Gather, &[whole, LAST_ROW]);
    if writer.is_divided(whole) {
        writer.divided(&row);
    }
    row
}

/// A function's features.
fn description(
    name: &str,
    inputs: &[NamedValueType],
    outputs: &[(String, MilType)],
) -> FunctionDescription {
    let mut described = FunctionDescription { name: name.into(), ..Default::default() };
    for input in inputs {
        let of = input.value_type.as_ref();
        let state = of.and_then(|t| t.state_type.as_ref());
        let tensor = match state {
            Some(state) => state.wrapped_type.as_ref().and_then(|t| t.tensor_type.as_ref()),
            None => of.and_then(|t| t.tensor_type.as_ref()),
        };
        let Some(tensor) = tensor else { continue };
        let dims = tensor.dimensions.iter().filter_map(|d| d.constant.as_ref());
        let array = array(tensor.data_type, dims.map(|d| d.size as usize));
        match state {
            None => described.input.push(feature(&input.name, Some(array), None)),
            Some(_) => {
                let of_state = StateFeatureType { array_type: Some(array) };
                described.state.push(feature(&input.name, None, Some(of_state)));
            }
        }
    }
    let outputs = outputs.iter().map(|(name, of)| {
        feature(name, Some(array(of.element as i32, of.dims.iter().copied())), None)
    });
    described.output.extend(outputs);
    described
}

fn feature(
    name: &str,
    multi_array_type: Option<ArrayFeatureType>,
    state_type: Option<StateFeatureType>,
) -> FeatureDescription {
    let feature_type = Some(FeatureType { multi_array_type, state_type });
    FeatureDescription { name: name.into(), feature_type, ..FeatureDescription::default() }
}

fn array(element: i32, dims: impl Iterator<Item = usize>) -> ArrayFeatureType {
    let data_type = match element {
        e if e == DataType::I32 as i32 => FEATURE_I32,
        e if e == DataType::F32 as i32 => FEATURE_F32,
        _ => FEATURE_F16,
    };
    ArrayFeatureType { shape: dims.map(|d| d as i64).collect(), data_type }
}

/// The list of a package's files. Their identifiers follow from the program.
fn manifest(program: &[u8]) -> String {
    let identifier = |about: &str| {
        let hash = blake3::hash(&[about.as_bytes(), program].concat()).to_hex();
        let (a, b, c, d, e) =
            (&hash[..8], &hash[8..12], &hash[13..16], &hash[17..20], &hash[20..32]);
        format!("{a}-{b}-4{c}-8{d}-{e}")
    };
    let entry = |name: &str, path: &str, description: &str| {
        serde_json::json!({
            "author": "com.apple.CoreML", "description": description, "name": name,
            "path": format!("com.apple.CoreML/{path}"),
        })
    };
    let (model, weights) = (identifier("model"), identifier("weights"));
    let manifest = serde_json::json!({
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": {
            model.clone(): entry("model.mlmodel", "model.mlmodel", "CoreML Model Specification"),
            weights: entry("weights", "weights", "CoreML Model Weights"),
        },
        "rootModelIdentifier": model,
    });
    format!("{manifest:#}\n")
}
