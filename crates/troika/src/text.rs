//! What a model's files hold for its text: tokenizer, chat template, recommended generation.

use std::sync::Arc;

use troika_model::chat::ChatTemplate;
use troika_model::spec::GgufValue;
use troika_model::tokenizer::Tokenizer;
use troika_weights::FileSource;

use crate::generation::GenerationDefaults;

/// A model's text side, with warnings for the user. Random weights have none.
#[derive(Default)]
pub(crate) struct ModelText {
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub template: Option<ChatTemplate>,
    pub defaults: GenerationDefaults,
    pub warnings: Vec<String>,
}

impl ModelText {
    /// Loads what is present. A problem is only a warning: the model still runs on token ids.
    pub fn load(source: &FileSource, vocab: usize) -> ModelText {
        let mut warnings = Vec::new();
        let (tokenizer, template) = match source {
            FileSource::HuggingFace { dir, .. } => {
                (Tokenizer::from_hf_dir(dir), ChatTemplate::from_hf_dir(dir))
            }
            FileSource::Gguf { meta, .. } => {
                let tokenizer = Tokenizer::from_gguf(meta).map(|read| {
                    let (tokenizer, warning) = read?;
                    warnings.extend(warning);
                    Some(tokenizer)
                });
                let source = meta.get("tokenizer.chat_template").and_then(GgufValue::as_str);
                (tokenizer, source.map(ChatTemplate::new).transpose())
            }
        };
        let tokenizer = tokenizer.unwrap_or_else(|e| {
            warnings.push(format!("{e}; only token ids can be used"));
            None
        });
        warnings.extend(tokenizer.iter().flat_map(|t| t.warnings().iter().cloned()));
        let template = template.unwrap_or_else(|e| {
            warnings.push(format!("{e}; chat falls back to plain text"));
            None
        });
        let (mut defaults, about) = GenerationDefaults::read(source, vocab);
        warnings.extend(about);
        if let Some(tokenizer) = &tokenizer {
            let by_name = matches!(source, FileSource::Gguf { .. });
            defaults.add_from_tokenizer(tokenizer, by_name);
        }
        ModelText { tokenizer: tokenizer.map(Arc::new), template, defaults, warnings }
    }
}
