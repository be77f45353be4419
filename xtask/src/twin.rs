//! `cargo xtask twin`: a copy of a model that computes the same with outliers in its activations, to
//! see what becomes of them when they are quantized. A few channels of each norm in front of
//! products are multiplied by a factor, and the columns of the products' weights divided by it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::bf16;
use serde_json::{Map, Value, json};

use crate::command::Result;

/// What reads each norm of a layer.
const READERS: [(&str, &[&str]); 2] = [
    ("input_layernorm", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("post_attention_layernorm", &["mlp.gate", "mlp.gate_proj", "mlp.up_proj", "mlp.experts."]),
];

/// Write a twin of a model whose activations have outliers
#[derive(clap::Args)]
pub struct Options {
    /// The folder of a model in Llama's or Qwen's layout, with bf16 weights in one file
    model: PathBuf,
    /// The folder to write
    out: PathBuf,
    /// What channels are multiplied by
    #[arg(long, default_value_t = 50.0)]
    factor: f32,
    /// Channels of each norm
    #[arg(long, default_value_t = 3)]
    channels: usize,
}

/// Writes the twin: weights in f32, the other files as they are.
///
/// # Errors
/// A model of another layout, a folder that cannot be written.
pub fn run(options: &Options) -> Result<()> {
    let file = options.model.join("model.safetensors");
    let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut tensors = read(&bytes).ok_or("model.safetensors is not one file of bf16 tensors")?;
    let norms: Vec<String> =
        tensors.keys().filter(|name| reader(name).is_some()).cloned().collect();
    for (number, norm) in norms.iter().enumerate() {
        scale(&mut tensors, norm, number, options);
    }
    if norms.is_empty() {
        return Err("model.safetensors has no norms in front of attention or feed-forwards".into());
    }
    std::fs::create_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    for entry in std::fs::read_dir(&options.model).map_err(|e| e.to_string())?.flatten() {
        let name = entry.file_name();
        if Path::new(&name).extension().is_some_and(|e| e == "json") {
            std::fs::copy(entry.path(), options.out.join(&name)).map_err(|e| e.to_string())?;
        }
    }
    std::fs::write(options.out.join("model.safetensors"), written(&tensors))
        .map_err(|e| e.to_string())?;
    println!("{} norms, {} channels each, times {}", norms.len(), options.channels, options.factor);
    Ok(())
}

/// Shapes and values by name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn reader(name: &str) -> Option<&'static [&'static str]> {
    READERS.iter().find(|(norm, _)| name.ends_with(&format!(".{norm}.weight"))).map(|(_, r)| *r)
}

/// Multiplies some channels of a norm, and divides the columns that read them.
fn scale(tensors: &mut Tensors, norm: &str, number: usize, options: &Options) {
    let (Some(readers), Some(layer)) = (reader(norm), norm.rsplitn(3, '.').nth(2)) else { return };
    let Some((_, gains)) = tensors.get_mut(norm) else { return };
    let width = gains.len();
    let channels: Vec<usize> =
        (0..options.channels).map(|i| (number * 7 + i * 61 + 5) % width).collect();
    channels.iter().for_each(|c| gains[*c] *= options.factor);
    let prefixes: Vec<String> = readers.iter().map(|r| format!("{layer}.{r}")).collect();
    for (name, (shape, values)) in tensors.iter_mut() {
        let reads = prefixes.iter().any(|p| name.starts_with(p));
        if reads && !name.contains("down_proj") && shape.len() == 2 && shape[1] == width {
            for row in values.chunks_exact_mut(width) {
                channels.iter().for_each(|c| row[*c] /= options.factor);
            }
        }
    }
}

fn read(bytes: &[u8]) -> Option<Tensors> {
    let len = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?) as usize;
    let header: Map<String, Value> = serde_json::from_slice(bytes.get(8..8 + len)?).ok()?;
    let data = bytes.get(8 + len..)?;
    let sizes = |v: &Value| -> Option<Vec<usize>> {
        v.as_array()?.iter().map(|n| n.as_u64().map(|n| n as usize)).collect()
    };
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, entry)| {
            let range = sizes(&entry["data_offsets"])?;
            let bytes = data.get(*range.first()?..*range.get(1)?)?;
            let values = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32());
            let is_bf16 = entry["dtype"] == "BF16";
            is_bf16.then(|| Some((name.clone(), (sizes(&entry["shape"])?, values.collect()))))?
        })
        .collect()
}

fn written(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (shape, values)) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let offsets = [from, data.len()];
        header.insert(
            name.clone(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }),
        );
    }
    let mut text = Value::Object(header).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text.into_bytes());
    file.extend(data);
    file
}
