//! From a config or GGUF metadata to a [`ModelSpec`] and the names of its tensors.
//!
//! Each family is one function that reads fields. The same functions serve both sources: GGUF
//! metadata is first translated to the config's field names.

mod base;
mod defaults;
mod dense;
mod fields;
mod gemma;
mod gguf;
mod gguf_names;
mod hf_names;
mod moe;
mod names;
mod phi;
mod quantized;
mod recurrent;
mod rope;

use serde_json::Value;

use crate::spec::ModelSpec;
use crate::spec::{Checkpoint, GgufMeta, Packing};

pub use fields::ConfigError;
pub use names::{Candidates, TensorNames, needs_no_place};

use base::ConfigSource;
use fields::{Fields, Result, bad, unsupported};

/// A model's description and the names of its tensors.
pub struct DescribedModel {
    /// The description.
    pub spec: ModelSpec,
    /// The table of tensor names.
    pub names: Box<dyn TensorNames>,
    /// How linear layers are stored, if the checkpoint is quantized.
    pub packing: Option<Packing>,
}

/// The most experts, and likewise the most heads of latent attention, of all layers together, since
/// each has its own weights. The largest published models have less than a tenth of it, and the
/// list of their weights stays small.
const MAX_PARTS: usize = 1 << 18;

type FamilyFn = fn(Fields<'_>, &ConfigSource) -> Result<ModelSpec>;

/// Every supported `model_type` with the function that reads it.
const FAMILIES: &[(&str, FamilyFn)] = &[
    ("deepseek_v2", moe::deepseek_v2),
    ("exaone4", dense::exaone4),
    ("gemma", gemma::gemma),
    ("gemma2", gemma::gemma2),
    ("gemma3_text", gemma::gemma3),
    ("gpt_oss", moe::gpt_oss),
    ("internlm2", dense::internlm2),
    ("llama", dense::llama),
    ("mistral", dense::mistral),
    ("mixtral", moe::mixtral),
    ("olmoe", moe::olmoe),
    ("phi", phi::phi),
    ("phi3", phi::phi3),
    ("phimoe", phi::phimoe),
    ("qwen2", dense::qwen2),
    ("qwen2_moe", moe::qwen2_moe),
    ("qwen3", dense::qwen3),
    ("qwen3_moe", moe::qwen3_moe),
    ("smollm3", dense::smollm3),
    ("test_recurrent", recurrent::test_recurrent),
];

/// All `model_type`s that this build reads, but for those of its tests.
pub fn supported() -> Vec<&'static str> {
    FAMILIES.iter().map(|f| f.0).filter(|name| !name.starts_with("test_")).collect()
}

fn family(name: &str) -> Result<FamilyFn> {
    match FAMILIES.iter().find(|f| f.0 == name) {
        Some(f) => Ok(f.1),
        None => Err(unsupported(format!("model_type {name:?}"), supported().join(", "))),
    }
}

/// Reads a `config.json`.
///
/// # Errors
/// An unknown `model_type`, or a field that is missing, impossible or unsupported.
pub fn from_config(config: &Value) -> Result<DescribedModel> {
    let object = config.as_object().ok_or_else(|| bad("config", "this", "not a JSON object"))?;
    let outer = Fields(object);
    // Multimodal configs have the language model's fields in a separate object.
    let text = outer.object("text_config")?;
    let fields = text.unwrap_or(outer);
    if text.is_some() && outer.get("model_type").is_some_and(|t| t == "paligemma") {
        let what = "model_type \"paligemma\" (its prompts attend in both directions)";
        return Err(unsupported(what, "decoders that attend to the past"));
    }
    let name =
        fields.text("model_type")?.ok_or_else(|| ConfigError::Missing("model_type".into()))?;
    let name = if name == "gemma3" { "gemma3_text" } else { name };
    let inner = if text.is_some() { quantized::packing(fields)? } else { None };
    let packing = inner.or(quantized::packing(outer)?);
    let filled = defaults::fill(name, fields.0, text.is_some());
    let spec = family(name)?(Fields(&filled), &ConfigSource::HuggingFace)?;
    possible(&spec)?;
    Ok(DescribedModel { spec, names: Box::new(hf_names::HfNames), packing })
}

/// Reads GGUF metadata. `files` shows which tensors exist (biases, tied heads, rope factors).
///
/// # Errors
/// Those of [`from_config`].
pub fn from_gguf(meta: &GgufMeta, files: &dyn Checkpoint) -> Result<DescribedModel> {
    let (name, config) = gguf::config(meta, files)?;
    let source = ConfigSource::Gguf { interleaved: gguf::interleaved(meta) };
    let mut spec = family(name)?(Fields(&config), &source)?;
    possible(&spec)?;
    gguf::apply_rope_factors(&mut spec, files)?;
    Ok(DescribedModel { names: Box::new(gguf_names::GgufNames::new(files)), spec, packing: None })
}

/// Refuses combinations of fields that are possible individually but too large together.
fn possible(spec: &ModelSpec) -> Result<()> {
    let (mut experts, mut heads) = (0usize, 0usize);
    for layer in &spec.layers {
        experts = experts.saturating_add(layer.moe().map_or(0, |moe| moe.experts));
        let Some(attn) = layer.attention() else { continue };
        let scale = attn.scale;
        if !scale.is_finite() || scale <= 0.0 {
            return Err(bad("scale of attention scores", scale, "not a finite number above 0"));
        }
        if attn.latent.is_some() {
            heads = heads.saturating_add(attn.heads);
        }
    }
    for (count, what) in [(experts, "experts"), (heads, "heads of latent attention")] {
        if count > MAX_PARTS {
            let layers = spec.layers.len();
            let what = format!("a model of {count} {what} in its {layers} layers together");
            return Err(unsupported(what, format!("at most {MAX_PARTS}")));
        }
    }
    Ok(())
}
