//! From a config or GGUF metadata to a [`ModelSpec`] and the names of its tensors.
//!
//! Each family is one function that reads fields. The same functions serve both sources: GGUF
//! metadata is first translated to the config's field names.

mod base;
mod cohere;
mod defaults;
mod delta;
mod delta_names;
mod dense;
mod fields;
mod gemma;
mod gemma3n;
mod gemma4;
mod gguf;
mod gguf_mixers;
mod gguf_names;
mod granite;
mod hf_names;
mod hybrid;
mod in_files;
mod latent;
mod moe;
mod names;
mod phi;
mod quantized;
mod recurrent;
mod rope;
mod routed;

use serde_json::Value;

use crate::spec::ModelSpec;
use crate::spec::{Checkpoint, GgufMeta, Packing};

pub use fields::ConfigError;
pub use in_files::numbers_in_files;
pub use names::{Candidates, TensorNames, needs_no_place};

use base::ConfigSource;
use fields::{Fields, Result, bad, missing, unsupported};

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
    ("afmoe", routed::afmoe),
    ("apertus", dense::apertus),
    ("arcee", dense::arcee),
    ("bailing_hybrid", delta::bailing_hybrid),
    ("cohere2", cohere::cohere2),
    ("cohere2_moe", cohere::cohere2_moe),
    ("deepseek_v2", latent::deepseek_v2),
    ("deepseek_v3", latent::deepseek_v3),
    ("deepseek_v32", latent::deepseek_v32),
    ("dots1", routed::dots1),
    ("ernie4_5", dense::ernie4_5),
    ("ernie4_5_moe", routed::ernie4_5_moe),
    ("exaone4", dense::exaone4),
    ("exaone_moe", routed::exaone_moe),
    ("falcon_h1", hybrid::falcon_h1),
    ("gemma", gemma::gemma),
    ("gemma2", gemma::gemma2),
    ("gemma3_text", gemma::gemma3),
    ("gemma3n_text", gemma3n::gemma3n),
    ("gemma4_text", gemma4::gemma4),
    ("glm4", dense::glm4),
    ("glm4_moe", routed::glm4_moe),
    ("glm4_moe_lite", latent::glm4_moe_lite),
    ("gpt_oss", moe::gpt_oss),
    ("granite", granite::granite),
    ("granite_swa", granite::granite_swa),
    ("granitemoe", granite::granitemoe),
    ("granitemoehybrid", hybrid::granitemoehybrid),
    ("hunyuan_v1_dense", dense::hunyuan_v1_dense),
    ("hy_v3", routed::hy_v3),
    ("internlm2", dense::internlm2),
    ("kimi_k2", latent::deepseek_v3),
    ("kimi_linear", delta::kimi_linear),
    ("laguna", routed::laguna),
    ("lfm2", hybrid::lfm2),
    ("lfm2_moe", hybrid::lfm2_moe),
    ("lfm3", hybrid::lfm3),
    ("llama", dense::llama),
    ("mellum", routed::mellum),
    ("mimo_v2_flash", routed::mimo_v2_flash),
    ("minimax_m2", routed::minimax_m2),
    ("ministral3", dense::ministral3),
    ("mistral", dense::mistral),
    ("mixtral", moe::mixtral),
    ("nemotron", dense::nemotron),
    ("nemotron_h", hybrid::nemotron_h),
    ("olmo2", dense::olmo2),
    ("olmo3", dense::olmo3),
    ("olmo_hybrid", delta::olmo_hybrid),
    ("olmoe", moe::olmoe),
    ("phi", phi::phi),
    ("phi3", phi::phi3),
    ("phimoe", phi::phimoe),
    ("qwen2", dense::qwen2),
    ("qwen2_moe", moe::qwen2_moe),
    ("qwen3", dense::qwen3),
    ("qwen3_5", delta::qwen3_5),
    ("qwen3_5_moe", delta::qwen3_5_moe),
    ("qwen3_moe", moe::qwen3_moe),
    ("qwen3_next", delta::qwen3_next),
    ("seed_oss", dense::seed_oss),
    ("smollm3", dense::smollm3),
    ("solar_open", routed::solar_open),
    ("stablelm", dense::stablelm),
    ("starcoder2", dense::starcoder2),
    ("test_recurrent", recurrent::test_recurrent),
    ("youtu", latent::youtu),
];

/// All `model_type`s that this build reads, but for those of its tests.
pub fn supported() -> Vec<&'static str> {
    FAMILIES.iter().map(|f| f.0).filter(|name| !name.starts_with("test_")).collect()
}

fn family(name: &str) -> Result<FamilyFn> {
    match FAMILIES.iter().find(|f| f.0 == name) {
        Some(f) => Ok(f.1),
        None => {
            let mut all = supported();
            let list = all.join(", ");
            all.sort_by_key(|known| distance(known, name));
            let nearest = all.first().unwrap_or(&"");
            let known = format!("{list}; the nearest name of these is {nearest}");
            Err(unsupported(format!("model_type {name:?}"), known))
        }
    }
}

/// Characters to insert, delete or replace to make one name of the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let least = (before + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            before = std::mem::replace(&mut row[j + 1], least);
        }
    }
    row[b.len()]
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
    let name = match fields.text("model_type")?.ok_or_else(|| missing("model_type"))? {
        "gemma3" => "gemma3_text",
        "gemma3n" => "gemma3n_text",
        "gemma4" => "gemma4_text",
        "kimi_k2" => "deepseek_v3",
        "qwen3_5_text" => "qwen3_5",
        "qwen3_5_moe_text" => "qwen3_5_moe",
        name => name,
    };
    // First, since fields of unknown families may look like those of quantizations.
    let read = family(name)?;
    let inner = if text.is_some() { quantized::packing(fields)? } else { None };
    let packing = inner.or(quantized::packing(outer)?);
    let filled = defaults::fill(name, fields.0, text.is_some());
    let mut spec = read(Fields(&filled), &ConfigSource::HuggingFace)?;
    spec.family = name.into();
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
    spec.family = name.into();
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

/// The name of a family in GGUF files.
pub fn gguf_name(family: &str) -> &str {
    let family = if matches!(family, "mistral" | "mixtral") { "llama" } else { family };
    gguf::ARCHITECTURES.iter().find(|of| of.1 == family).map_or(family, |of| of.0)
}
