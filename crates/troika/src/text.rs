//! The tokenizer and chat template of a model.

use troika_model::chat::ChatTemplate;
use troika_model::spec::GgufValue;
use troika_model::tokenizer::Tokenizer;
use troika_weights::FileSource;

use crate::error::Error;

type Loaded = (Option<Tokenizer>, Option<ChatTemplate>, Vec<String>);

/// Loads both if present. A problem is only a warning: the model still runs on token ids.
pub(crate) fn load(source: &FileSource) -> Result<Loaded, Error> {
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
    Ok((tokenizer, template, warnings))
}
