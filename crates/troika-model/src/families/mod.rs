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

use crate::spec::{Checkpoint, GgufMeta, ModelSpec, Packing};

pub use fields::ConfigError;
pub use in_files::numbers_in_files;
pub use names::{Candidates, TensorNames, needs_no_place};

use base::ConfigSource;
use fields::{Fields, Result, bad, missing, not_in_gguf, unsupported};

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

/// A family: its `model_type`, the function that reads it, the architectures of its GGUF files, and
/// whether these permute q and k so that rope pairs adjacent elements (llama.cpp's "normal" rope).
type Family = (&'static str, FamilyFn, &'static [&'static str], bool);

/// Every supported family.
const FAMILIES: &[Family] = &[
    ("llama", dense::llama, &["llama"], true),
    ("internlm2", dense::internlm2, &["internlm2"], true),
    ("qwen2", dense::qwen2, &["qwen2"], false),
    ("qwen3", dense::qwen3, &["qwen3"], false),
    ("qwen3_moe", moe::qwen3_moe, &["qwen3moe"], false),
    ("qwen2_moe", moe::qwen2_moe, &["qwen2moe"], false),
    ("olmoe", moe::olmoe, &["olmoe"], false),
    ("phi", phi::phi, &["phi2"], false),
    ("phi3", phi::phi3, &["phi3"], false),
    ("phimoe", phi::phimoe, &["phimoe"], false),
    ("gemma", gemma::gemma, &["gemma"], false),
    ("gemma2", gemma::gemma2, &["gemma2"], false),
    ("gemma3_text", gemma::gemma3, &["gemma3"], false),
    ("gemma3n_text", gemma3n::gemma3n, &["gemma3n"], false),
    ("gemma4_text", gemma4::gemma4, &["gemma4"], false),
    ("apertus", dense::apertus, &["apertus"], false),
    ("exaone4", dense::exaone4, &["exaone4"], false),
    ("smollm3", dense::smollm3, &["smollm3"], true),
    ("deepseek_v2", latent::deepseek_v2, &["deepseek2"], true),
    ("deepseek_v32", latent::deepseek_v32, &["deepseek32"], true),
    ("gpt_oss", moe::gpt_oss, &["gpt-oss"], false),
    ("olmo2", |f, source| dense::olmo(f, source, 1e4, false), &["olmo2"], false),
    ("granite", granite::granite, &["granite"], true),
    ("granitemoe", granite::granitemoe, &["granitemoe"], true),
    ("granite_swa", granite::granite_swa, &["granite_swa"], true),
    ("glm4", dense::glm4, &["glm4"], false),
    ("glm4_moe", routed::glm4_moe, &["glm4moe"], false),
    ("ernie4_5", dense::ernie4_5, &["ernie4_5"], false),
    ("ernie4_5_moe", routed::ernie4_5_moe, &["ernie4_5-moe"], false),
    ("hunyuan_v1_dense", dense::hunyuan_v1_dense, &["hunyuan-dense"], false),
    ("hy_v3", routed::hy_v3, &["hy_v3"], false),
    ("ministral3", dense::ministral3, &["mistral3"], true),
    ("arcee", dense::arcee, &["arcee"], true),
    ("seed_oss", dense::seed_oss, &["seed_oss"], false),
    ("minimax_m2", routed::minimax_m2, &["minimax-m2"], false),
    ("exaone_moe", routed::exaone_moe, &["exaone-moe"], false),
    ("cohere2", cohere::cohere2, &["cohere2"], false),
    ("cohere2_moe", cohere::cohere2_moe, &["cohere2moe"], false),
    ("dots1", routed::dots1, &["dots1"], false),
    ("afmoe", routed::afmoe, &["afmoe"], false),
    ("mellum", routed::mellum, &["mellum"], false),
    ("laguna", routed::laguna, &["laguna"], false),
    ("mimo_v2_flash", routed::mimo_v2_flash, &["mimo2"], false),
    ("lfm2", hybrid::lfm2, &["lfm2"], false),
    ("lfm2_moe", hybrid::lfm2_moe, &["lfm2moe"], false),
    ("granitemoehybrid", hybrid::granitemoehybrid, &["granitehybrid"], true),
    ("falcon_h1", hybrid::falcon_h1, &["falcon-h1"], false),
    ("nemotron", dense::nemotron, &["nemotron"], false),
    ("nemotron_h", hybrid::nemotron_h, &["nemotron_h", "nemotron_h_moe"], false),
    ("qwen3_next", |f, source| delta::qwen_experts(f, source, false), &["qwen3next"], false),
    ("qwen3_5", delta::qwen3_5, &["qwen35"], false),
    ("qwen3_5_moe", |f, source| delta::qwen_experts(f, source, true), &["qwen35moe"], false),
    ("kimi_linear", delta::kimi_linear, &["kimi-linear"], true),
    ("starcoder2", dense::starcoder2, &["starcoder2"], false),
    ("stablelm", dense::stablelm, &["stablelm"], false),
    ("bailing_hybrid", delta::bailing_hybrid, &[], false),
    ("deepseek_v3", latent::deepseek_v3, &[], false),
    ("glm4_moe_lite", latent::glm4_moe_lite, &[], false),
    ("kimi_k2", latent::deepseek_v3, &[], false),
    ("lfm3", hybrid::lfm3, &[], false),
    ("mistral", dense::mistral, &[], false),
    ("mixtral", moe::mixtral, &[], false),
    ("olmo3", |f, source| dense::olmo(f, source, 5e5, true), &[], false),
    ("olmo_hybrid", delta::olmo_hybrid, &[], false),
    ("solar_open", routed::solar_open, &[], false),
    ("test_recurrent", recurrent::test_recurrent, &[], false),
    ("youtu", latent::youtu, &[], false),
];

/// All `model_type`s that this build reads, but for those of its tests.
pub fn supported() -> Vec<&'static str> {
    let names = FAMILIES.iter().map(|f| f.0).filter(|name| !name.starts_with("test_"));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names
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
    let arch = meta.architecture().ok_or_else(|| not_in_gguf("general.architecture"))?;
    let known = FAMILIES.iter().find(|f| f.2.contains(&arch)).ok_or_else(|| {
        let all: Vec<&str> = FAMILIES.iter().flat_map(|f| f.2).copied().collect();
        unsupported(format!("GGUF architecture {arch:?}"), all.join(", "))
    })?;
    let source = ConfigSource::Gguf { interleaved: known.3 };
    let (name, config) = gguf::config(known.0, meta, files)?;
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
    let known = FAMILIES.iter().find(|f| f.0 == family);
    known.and_then(|f| f.2.first()).copied().unwrap_or(family)
}
