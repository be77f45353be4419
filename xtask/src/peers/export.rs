//! Exports the built-in model as GGUF with its weights and tokenizer: in Q8_0 for the command
//! itself, in bf16 for llama.cpp.

use std::path::{Path, PathBuf};

use half::f16;
use serde_json::{Map, Value};

use super::gguf::{Gguf, Kind};
use crate::command::{Result, failed, whole};

/// The model's folder in `models/`, and the name of its shape here.
pub const BUILT_IN: &str = "tiny-moe";

/// The file that is compiled into the command.
fn compiled_in(root: &Path) -> PathBuf {
    root.join("models").join(BUILT_IN).join(format!("{BUILT_IN}-Q8_0.gguf"))
}

/// Writes the file that is compiled into the command. `root` is the workspace.
///
/// # Errors
/// Those of [`write()`].
pub fn run(root: &Path) -> Result<()> {
    let path = compiled_in(root);
    let folder = root.join("models").join(BUILT_IN);
    whole(&path, |part| write(&folder, part, Kind::Q8_0))?;
    println!("{}", path.display());
    Ok(())
}

/// Metadata: a number's name in the config and in the file (after the architecture).
const NUMBERS: &[(&str, &str)] = &[
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("head_dim", "attention.value_length"),
    ("head_dim", "rope.dimension_count"),
    ("vocab_size", "vocab_size"),
    ("num_local_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
];

/// Tensors outside the layers, and those of a layer.
const WHOLE: &[(&str, &str)] = &[
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
];
const OF_LAYER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate", "ffn_gate_inp"),
];
/// Tensors of experts, one after another in the file.
const OF_EXPERTS: &[(&str, &str)] =
    &[("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];

/// Writes the model in `folder` as GGUF, with matrices of a given type.
///
/// # Errors
/// Missing files, or files of an unknown layout.
pub fn write(folder: &Path, path: &Path, matrices: Kind) -> Result<()> {
    let config = json(&folder.join("config.json"))?;
    let arch = text(&config, "model_type")?.replace('_', "");
    let weights = Weights::read(&folder.join("model.safetensors"))?;
    let mut g = Gguf::default();
    g.str("general.architecture", &arch);
    g.str("general.name", BUILT_IN);
    g.u32("general.file_type", if matrices == Kind::Q8_0 { 7 } else { 32 });
    for (from, to) in NUMBERS {
        g.u32(&format!("{arch}.{to}"), number(&config, from)? as u32);
    }
    let theta = config.pointer("/rope_parameters/rope_theta").and_then(Value::as_f64);
    g.f32(&format!("{arch}.rope.freq_base"), theta.unwrap_or(10_000.0) as f32);
    let eps = config.get("rms_norm_eps").and_then(Value::as_f64).unwrap_or(1e-6);
    g.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), eps as f32);
    let vocab = number(&config, "vocab_size")?;
    let eos = number(&config, "eos_token_id")? as u32;
    tokenizer(&mut g, &json(&folder.join("tokenizer.json"))?, vocab, eos)?;
    tensors(&mut g, &weights, &config, matrices)?;
    g.save(path)
}

fn json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).map_err(|e| failed("read", path, &e))?;
    serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn number(config: &Value, name: &str) -> Result<usize> {
    let n = config.get(name).and_then(Value::as_u64);
    n.map(|n| n as usize).ok_or_else(|| format!("config.json has no number {name}"))
}

fn text<'a>(config: &'a Value, name: &str) -> Result<&'a str> {
    config.get(name).and_then(Value::as_str).ok_or_else(|| format!("config.json has no {name}"))
}

/// Tokens by id, and merges; the pattern is GPT-2's.
fn tokenizer(g: &mut Gguf<'_>, json: &Value, vocab: usize, eos: u32) -> Result<()> {
    let none = || "tokenizer.json has no BPE vocabulary".to_string();
    let by_text = json.pointer("/model/vocab").and_then(Value::as_object).ok_or_else(none)?;
    let mut tokens: Vec<String> = (0..vocab).map(|i| format!("<filler_{i}>")).collect();
    let mut kinds = vec![5; vocab];
    for (text, id) in by_text {
        let id = id.as_u64().map(|id| id as usize).filter(|&id| id < vocab).ok_or_else(none)?;
        (tokens[id], kinds[id]) = (text.clone(), 1);
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let (id, text) = (added["id"].as_u64(), added["content"].as_str());
        if let (Some(id), Some(text)) = (id.map(|id| id as usize).filter(|&id| id < vocab), text) {
            (tokens[id], kinds[id]) = (text.to_string(), 3);
        }
    }
    let merges = json.pointer("/model/merges").and_then(Value::as_array).ok_or_else(none)?;
    let merge = |m: &Value| match m {
        Value::String(pair) => pair.clone(),
        m => [&m[0], &m[1]].map(|part| part.as_str().unwrap_or("")).join(" "),
    };
    let merges: Vec<String> = merges.iter().map(merge).collect();
    g.str("tokenizer.ggml.model", "gpt2");
    g.str("tokenizer.ggml.pre", "gpt-2");
    g.strs("tokenizer.ggml.tokens", &tokens);
    g.i32s("tokenizer.ggml.token_type", &kinds);
    g.strs("tokenizer.ggml.merges", &merges);
    g.u32("tokenizer.ggml.bos_token_id", eos);
    g.u32("tokenizer.ggml.eos_token_id", eos);
    Ok(())
}

fn tensors<'a>(
    g: &mut Gguf<'a>,
    weights: &'a Weights,
    config: &Value,
    matrices: Kind,
) -> Result<()> {
    for (from, to) in WHOLE {
        weights.add(g, &[from.to_string()], to, matrices)?;
    }
    for layer in 0..number(config, "num_hidden_layers")? {
        for (from, to) in OF_LAYER {
            let from = format!("model.layers.{layer}.{from}.weight");
            weights.add(g, &[from], &format!("blk.{layer}.{to}.weight"), matrices)?;
        }
        for (from, to) in OF_EXPERTS {
            let of = |e: usize| format!("model.layers.{layer}.mlp.experts.{e}.{from}.weight");
            let from: Vec<String> = (0..number(config, "num_local_experts")?).map(of).collect();
            weights.add(g, &from, &format!("blk.{layer}.{to}.weight"), matrices)?;
        }
    }
    Ok(())
}

/// A safetensors file: a JSON header with offsets, then bytes.
struct Weights {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Weights {
    fn read(path: &Path) -> Result<Weights> {
        let bytes = std::fs::read(path).map_err(|e| failed("read", path, &e))?;
        let parts = bytes
            .split_first_chunk()
            .and_then(|(len, rest)| rest.split_at_checked(u64::from_le_bytes(*len) as usize));
        let (header, data) = parts.ok_or_else(|| format!("{} is cut short", path.display()))?;
        let header =
            serde_json::from_slice(header).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Weights { header, data: data.to_vec() })
    }

    /// A tensor's shape and bytes, which must be bf16.
    fn get(&self, name: &str) -> Result<(Vec<u64>, &[u8])> {
        let bad = || format!("model.safetensors has no bf16 tensor {name}");
        let info = self.header.get(name).filter(|i| i["dtype"] == "BF16").ok_or_else(bad)?;
        let numbers = |key: &str| -> Option<Vec<u64>> {
            info[key].as_array()?.iter().map(Value::as_u64).collect()
        };
        let (shape, at) = (numbers("shape").ok_or_else(bad)?, numbers("data_offsets"));
        let at = at.filter(|at| at.len() == 2).ok_or_else(bad)?;
        let bytes = self.data.get(at[0] as usize..at[1] as usize).ok_or_else(bad)?;
        Ok((shape, bytes))
    }

    /// Adds several tensors as one. Vectors and routers become f32, as in llama.cpp.
    fn add<'a>(
        &'a self,
        g: &mut Gguf<'a>,
        from: &[String],
        to: &str,
        matrices: Kind,
    ) -> Result<()> {
        let parts: Vec<(Vec<u64>, &[u8])> =
            from.iter().map(|name| self.get(name)).collect::<Result<_>>()?;
        let mut dims: Vec<u64> = parts[0].0.iter().rev().copied().collect();
        if parts.len() > 1 {
            dims.push(parts.len() as u64);
        }
        let wide = dims.len() == 1 || to.contains("gate_inp");
        let kind = if wide { Kind::F32 } else { matrices };
        if kind == Kind::Q8_0 && !dims[0].is_multiple_of(32) {
            return Err(format!("{to} has rows of {} values, not whole blocks of 32", dims[0]));
        }
        if kind == Kind::Q4_0 {
            return Err("models are exported in bf16 or Q8_0".into());
        }
        g.tensor(to, &dims, kind, move || {
            let bytes = parts.iter().flat_map(|(_, bytes)| *bytes).copied().collect::<Vec<u8>>();
            match kind {
                Kind::BF16 | Kind::Q4_0 => bytes,
                Kind::F32 => floats(&bytes).flat_map(f32::to_le_bytes).collect(),
                Kind::Q8_0 => {
                    let all: Vec<f32> = floats(&bytes).collect();
                    all.chunks_exact(32).flat_map(q8_0).collect()
                }
            }
        });
        Ok(())
    }
}

/// bf16 values as floats.
fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|b: &[u8; 2]| f32::from_le_bytes([0, 0, b[0], b[1]]))
}

/// A block of Q8_0, equal to Troika's `--quant q8`: a scale and 32 values of eight bits.
fn q8_0(x: &[f32]) -> [u8; 34] {
    let scale = f16::from_f32(x.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0);
    let inverse = 1.0 / scale.to_f32();
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let mut block = [0; 34];
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (x, b) in x.iter().zip(&mut block[2..]) {
        *b = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn the_built_in_model_is_of_the_layout_this_knows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        write(&root().join("models").join(BUILT_IN), &path, Kind::BF16).unwrap();
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert!((11_800_000..12_200_000).contains(&bytes), "{bytes}");
        assert!(write(dir.path(), &path, Kind::BF16).unwrap_err().contains("config.json"));
    }

    #[test]
    fn the_file_in_the_command_is_what_its_source_gives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        write(&root().join("models").join(BUILT_IN), &path, Kind::Q8_0).unwrap();
        let same = std::fs::read(&path).unwrap() == std::fs::read(compiled_in(&root())).unwrap();
        assert!(same, "run `cargo xtask built-in` after a change of the model or the exporter");
    }
}
