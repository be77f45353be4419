//! Packages: what their files hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use prost::Message;
use serde_json::Value as Json;
use troika::npu::mil::proto::{
    ArrayFeatureType, BlobFileValue, FeatureDescription, Function, MlModel, TensorValue, Value,
};

use super::data::{Data, FileBytes, Kind, Stored, Typed};

/// Versions of the specification, each with the newest opset that it knows.
const VERSIONS: [(i32, &str); 2] = [(8, "CoreML7"), (9, "CoreML8")];

/// What a package of one function says of its features.
#[derive(Clone, PartialEq, Message)]
struct Described {
    #[prost(message, optional, tag = "2")]
    description: Option<DescribedFeatures>,
}

#[derive(Clone, PartialEq, Message)]
struct DescribedFeatures {
    #[prost(message, repeated, tag = "1")]
    input: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "10")]
    output: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "13")]
    state: Vec<FeatureDescription>,
}

/// Types by name. No shape stands for any.
pub type Features = BTreeMap<String, Typed>;

/// An opened package.
pub struct Package {
    /// Where its model is.
    folder: PathBuf,
    /// The files and folders that its manifest lists.
    items: Vec<PathBuf>,
    pub model: MlModel,
    single: DescribedFeatures,
}

/// What all opened functions hold of files, so that each file is in memory once.
static FILES: Mutex<Vec<(PathBuf, SystemTime, Weak<FileBytes>)>> = Mutex::new(Vec::new());

fn read_file(path: &Path) -> Result<Arc<FileBytes>, String> {
    let said = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = File::open(path).map_err(said)?;
    let facts = file.metadata().map_err(said)?;
    let (changed, size) = (facts.modified().map_err(said)?, facts.len());
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.retain(|(.., bytes)| bytes.strong_count() > 0);
    let known = files.iter().filter(|(p, at, _)| p == path && *at == changed);
    let known = known.filter_map(|(.., bytes)| bytes.upgrade()).find(|b| b.len as u64 == size);
    if let Some(bytes) = known {
        return Ok(bytes);
    }
    let len = usize::try_from(size).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut words = vec![0_u64; len.div_ceil(8)];
    file.read_exact(&mut bytemuck::cast_slice_mut(&mut words)[..len]).map_err(said)?;
    let bytes = Arc::new(FileBytes { words, len });
    files.push((path.into(), changed, Arc::downgrade(&bytes)));
    Ok(bytes)
}

/// A path below a folder that does not lead out of it.
fn below(folder: &Path, path: &str) -> Result<PathBuf, String> {
    let inside = |c: Component<'_>| matches!(c, Component::Normal(_));
    match Path::new(path).components().all(inside) && !path.is_empty() {
        true => Ok(folder.join(path)),
        false => Err(format!("`{path}` does not lead to a file of the package")),
    }
}

impl Package {
    /// Opens a package: its manifest, and its model.
    pub fn read(package: &Path) -> Result<Package, String> {
        let manifest = package.join("Manifest.json");
        let text = std::fs::read(&manifest).map_err(|e| format!("{}: {e}", manifest.display()))?;
        let json: Json =
            serde_json::from_slice(&text).map_err(|e| format!("Manifest.json: {e}"))?;
        let format = &json["fileFormatVersion"];
        if format != "1.0.0" {
            return Err(format!("Manifest.json: fileFormatVersion is {format}, not \"1.0.0\""));
        }
        let mut items = BTreeMap::new();
        for (id, item) in json["itemInfoEntries"].as_object().into_iter().flatten() {
            let path = item["path"].as_str().ok_or("Manifest.json: an item has no path")?;
            items.insert(id.as_str(), below(&package.join("Data"), path)?);
        }
        let root = json["rootModelIdentifier"].as_str().and_then(|id| items.get(id));
        let root = root.ok_or("Manifest.json: rootModelIdentifier names no item")?;
        let bytes = std::fs::read(root).map_err(|e| format!("{}: {e}", root.display()))?;
        let broken = |e| format!("{}: {e}", root.display());
        let model = MlModel::decode(&*bytes).map_err(broken)?;
        let single = Described::decode(&*bytes).map_err(broken)?.description.unwrap_or_default();
        let folder = root.parent().unwrap_or(package).to_path_buf();
        Ok(Package { folder, items: items.into_values().collect(), model, single })
    }

    /// A function, and its opset.
    pub fn function(&self, name: &str) -> Result<&Function, String> {
        let version = self.model.specification_version;
        let known = VERSIONS.iter().find(|(v, _)| *v == version);
        let (_, newest) = known.ok_or(format!("specification version {version} is not known"))?;
        let program = self.model.ml_program.as_ref().ok_or("the model is no program")?;
        let function = program.functions.get(name);
        let function = function.ok_or(format!("there is no function `{name}`"))?;
        let opset = &*function.opset;
        match VERSIONS.iter().any(|(_, of)| *of == opset) && opset <= *newest {
            true => Ok(function),
            false => Err(format!("opset `{opset}` is not one of specification version {version}")),
        }
    }

    /// The described inputs, outputs and states of a function.
    pub fn features(&self, function: &str) -> Result<[Features; 3], String> {
        let functions = self.model.description.as_ref().map_or(&[][..], |d| &d.functions);
        let of = match functions {
            [] => [&self.single.input, &self.single.output, &self.single.state],
            _ => {
                let found = functions.iter().find(|f| f.name == function);
                let f = found.ok_or(format!("function `{function}` has no description"))?;
                [&f.input, &f.output, &f.state]
            }
        };
        let [input, output, state] = of.map(|features| described(features));
        Ok([input?, output?, state?])
    }

    /// A constant.
    pub fn value(&self, value: &Value) -> Result<(Typed, Data), String> {
        let tensor = value.value_type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let typed = Typed::parse(tensor.ok_or("a value is no tensor")?)?;
        let here = value.immediate_value.as_ref().and_then(|v| v.tensor.as_ref());
        let data = match (&value.blob_file_value, here) {
            (Some(blob), _) => self.blob(&typed, blob)?,
            (_, Some(tensor)) => immediate(&typed, tensor)?,
            _ => return Err("a value has no elements".into()),
        };
        if data.len() != typed.len() {
            return Err(format!("a value of {typed} has {} elements", data.len()));
        }
        Ok((typed, data))
    }

    fn blob(&self, typed: &Typed, of: &BlobFileValue) -> Result<Data, String> {
        let path = of.file_name.strip_prefix("@model_path/");
        let path = path.ok_or(format!("`{}` does not begin with @model_path/", of.file_name))?;
        let path = below(&self.folder, path)?;
        if !self.items.iter().any(|item| path.starts_with(item)) {
            return Err(format!("the manifest does not list {}", path.display()));
        }
        let file = read_file(&path)?;
        let begin = blob_begin(file.all(), of.offset, typed)
            .map_err(|e| format!("{}, blob at {}: {e}", path.display(), of.offset))?;
        let stored = Data::Stored(Stored { file: file.clone(), begin, typed: typed.clone() });
        let bytes = &file.all()[begin..begin + typed.bytes()];
        // Floats could not hold them all.
        let wide = match typed.kind {
            Kind::I32 => bytemuck::pod_collect_to_vec(bytes),
            Kind::I16 | Kind::U16 => {
                bytes.as_chunks().0.iter().map(|b| i32::from(u16::from_le_bytes(*b))).collect()
            }
            _ => return Ok(stored),
        };
        Ok(Data::from_ints(typed.kind, wide))
    }
}

fn described(features: &[FeatureDescription]) -> Result<Features, String> {
    let one = |feature: &FeatureDescription| {
        let of = feature.feature_type.as_ref();
        let state = || of.and_then(|t| t.state_type.as_ref()).and_then(|s| s.array_type.as_ref());
        let array = of.and_then(|t| t.multi_array_type.as_ref()).or_else(state);
        let typed = array.and_then(feature_type);
        let typed = typed.ok_or(format!("feature `{}` has no type that is known", feature.name))?;
        Ok((feature.name.clone(), typed))
    };
    features.iter().map(one).collect()
}

fn feature_type(array: &ArrayFeatureType) -> Option<Typed> {
    let kind = Kind::find(|row| row.feature != 0 && row.feature == array.data_type)?;
    let shape: Result<_, _> = array.shape.iter().map(|d| usize::try_from(*d)).collect();
    Typed::new(kind, shape.ok()?).ok()
}

/// Where a blob's elements begin.
fn blob_begin(file: &[u8], offset: u64, typed: &Typed) -> Result<usize, String> {
    let short = || String::from("the file is too short");
    let half = |at: usize| Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let whole = |at: usize| Some(u64::from_le_bytes(*file.get(at..)?.first_chunk()?));
    let at = usize::try_from(offset).map_err(|e| e.to_string())?;
    let end = at.checked_add(64).filter(|end| *end <= file.len()).ok_or_else(short)?;
    if half(4) != Some(2) || at < 64 {
        return Err("the file is of another version".into());
    }
    if half(at) != Some(0xDEAD_BEEF) || !at.is_multiple_of(64) {
        return Err("there is no blob".into());
    }
    let (facts, bytes) = (typed.kind.facts(), typed.bytes() as u64);
    if facts.blob == 0 || half(at + 4) != Some(facts.blob) {
        return Err(format!("its elements are not {}", facts.name));
    }
    let unused = bytes * 8 - (typed.len() * facts.bits) as u64;
    if whole(at + 8) != Some(bytes) || whole(at + 24) != Some(unused) {
        return Err(format!("its size is not that of {typed}"));
    }
    let begin = whole(at + 16).and_then(|begin| usize::try_from(begin).ok()).ok_or_else(short)?;
    if begin < end || !begin.is_multiple_of(64) {
        return Err(format!("its elements are at {begin}"));
    }
    let end = begin.checked_add(typed.bytes()).filter(|end| *end <= file.len());
    end.map(|_| begin).ok_or_else(short)
}

fn immediate(typed: &Typed, tensor: &TensorValue) -> Result<Data, String> {
    let kind = typed.kind;
    let bytes = tensor.bytes.as_ref().map(|b| &b.values[..]);
    let ints = tensor.ints.as_ref().map(|i| i.values.clone());
    let number = |b: &u8| if kind == Kind::I8 { i32::from(*b as i8) } else { i32::from(*b) };
    let nibbles = |b: &u8| [i32::from(*b & 15), i32::from(*b >> 4)];
    let data = match kind {
        Kind::F32 => tensor.floats.as_ref().map(|f| Data::F32(Arc::new(f.values.clone()))),
        Kind::F16 => bytes
            .filter(|bytes| bytes.len() == typed.bytes())
            .map(|bytes| Data::from_bytes(kind, bytes)),
        Kind::I4 | Kind::U4 => bytes.map(|bytes| {
            let all = bytes.iter().flat_map(nibbles).take(typed.len());
            Data::from_ints(kind, all.collect())
        }),
        Kind::I8 | Kind::U8 => {
            bytes.map(|bytes| Data::from_ints(kind, bytes.iter().map(number).collect()))
        }
        Kind::I16 | Kind::U16 | Kind::I32 => ints.map(|ints| Data::from_ints(kind, ints)),
        Kind::Bool => tensor.bools.as_ref().map(|bools| {
            let truths = bools.values.iter().map(|b| i32::from(*b));
            Data::I32(Arc::new(truths.collect()))
        }),
        Kind::Text => {
            let texts = tensor.strings.as_ref().map(|s| &s.values[..]);
            texts.and_then(|t| t.first()).map(|text| Data::Text(text.as_str().into()))
        }
    };
    data.ok_or(format!("a value's elements are not those of {typed}"))
}
