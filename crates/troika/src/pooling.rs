//! How a model's authors make one embedding of its states.

use std::path::Path;

use serde_json::Value;
use troika_model::spec::GgufValue;
use troika_weights::FileSource;

use crate::generation::read_json;

troika_model::named! {
    /// Which states are an embedding, with llama.cpp's names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Pooling {
        /// The mean of all tokens' states.
        #[default]
        Mean = "mean",
        /// The first token's.
        Cls = "cls",
        /// The last token's.
        Last = "last",
    }
}

/// How embeddings are made: where a model says nothing they are the mean, of length one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embeddings {
    /// Which states they are.
    pub pooling: Pooling,
    /// Whether their length is one.
    pub normalized: bool,
}

impl Default for Embeddings {
    fn default() -> Embeddings {
        Embeddings { pooling: Pooling::Mean, normalized: true }
    }
}

impl Embeddings {
    /// Reads a GGUF file's `pooling_type`, or a folder's modules as sentence-transformers writes them.
    ///
    /// # Errors
    /// What is said cannot be computed: a sentence.
    pub(crate) fn read(source: &FileSource) -> Result<Embeddings, String> {
        match source {
            FileSource::Gguf { meta, .. } => {
                let arch = meta.get("general.architecture").and_then(GgufValue::as_str);
                let key = format!("{}.pooling_type", arch.unwrap_or_default());
                // llama.cpp's `llama_pooling_type`.
                let pooling = match meta.get(&key).and_then(GgufValue::as_u64) {
                    None | Some(0 | 1) => Pooling::Mean,
                    Some(2) => Pooling::Cls,
                    Some(3) => Pooling::Last,
                    Some(n) => return Err(format!("{key} is {n}; such pooling is not computed")),
                };
                Ok(Embeddings { pooling, normalized: true })
            }
            FileSource::HuggingFace { dir, .. } => match read_json(&dir.join("modules.json"))? {
                None | Some(Value::Null) => Ok(Embeddings::default()),
                Some(modules) => of_modules(&modules, dir),
            },
        }
    }
}

fn of_modules(modules: &Value, dir: &Path) -> Result<Embeddings, String> {
    let mut said = Embeddings { pooling: Pooling::Mean, normalized: false };
    for module in modules.as_array().into_iter().flatten() {
        let kind = module["type"].as_str().unwrap_or_default();
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Normalize" => said.normalized = true,
            "Pooling" => {
                let at = dir.join(module["path"].as_str().unwrap_or("1_Pooling"));
                said.pooling = of_modes(&read_json(&at.join("config.json"))?.unwrap_or_default())?;
            }
            _ => return Err(format!("modules.json has {kind:?}, which is not computed")),
        }
    }
    Ok(said)
}

/// The pooling of a module's modes, exactly one of which has to be on.
fn of_modes(config: &Value) -> Result<Pooling, String> {
    let modes = config.as_object().into_iter().flatten();
    let on: Vec<&str> = modes
        .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true)
        .map(|(key, _)| key.as_str())
        .chain(config["pooling_mode"].as_str())
        .collect();
    match on.as_slice() {
        [] | ["pooling_mode_mean_tokens" | "mean"] => Ok(Pooling::Mean),
        ["pooling_mode_cls_token" | "cls"] => Ok(Pooling::Cls),
        ["pooling_mode_lasttoken" | "lasttoken"] => Ok(Pooling::Last),
        other => Err(format!("the model pools by {}, which is not computed", other.join(", "))),
    }
}
