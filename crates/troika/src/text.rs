//! What a model's files hold for its text: tokenizer, chat template, recommended generation.

use std::sync::Arc;

use troika_model::chat::{ChatTemplate, HelperCommand};
use troika_model::tokenizer::{Tokenizer, TokenizerError};
use troika_weights::FileSource;

use crate::error::Error;
use crate::generation::GenerationDefaults;
use crate::pooling::Embeddings;
use crate::source::Source;

/// A model's text side, with warnings for the user. Random weights have none.
#[derive(Default)]
pub(crate) struct ModelText {
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub template: Option<ChatTemplate>,
    pub defaults: GenerationDefaults,
    /// How embeddings are made, if there are files, or why they cannot be.
    pub embeddings: Option<Result<Embeddings, String>>,
    pub warnings: Vec<String>,
}

impl Source {
    /// The model's tokenizer, with a warning.
    ///
    /// # Errors
    /// Unusable files or tokenizer, or none.
    pub fn tokenizer(&self) -> Result<(Tokenizer, Option<String>), Error> {
        let (tokenizer, warning) = tokenizer_in(&self.files()?.source)?;
        let tokenizer = tokenizer.ok_or_else(|| Error::NoTokenizer(self.to_string()))?;
        Ok((tokenizer, warning))
    }
}

/// The tokenizer of a model's files, with a warning.
fn tokenizer_in(
    source: &FileSource,
) -> Result<(Option<Tokenizer>, Option<String>), TokenizerError> {
    match source {
        FileSource::HuggingFace { dir, .. } => Ok((Tokenizer::from_hf_dir(dir)?, None)),
        FileSource::Gguf { meta, .. } => {
            let read = Tokenizer::from_gguf(meta)?;
            Ok(read.map_or((None, None), |(tokenizer, warning)| (Some(tokenizer), warning)))
        }
    }
}

impl ModelText {
    /// Loads what is present. A problem is only a warning: the model still runs on token ids. A
    /// `helper` renders the template.
    pub fn load(source: &FileSource, vocab: usize, helper: Option<HelperCommand>) -> ModelText {
        let mut warnings = Vec::new();
        let template = match source {
            FileSource::HuggingFace { dir, .. } => ChatTemplate::from_hf_dir(dir),
            FileSource::Gguf { meta, .. } => ChatTemplate::from_gguf(meta),
        };
        let (tokenizer, warning) = tokenizer_in(source)
            .unwrap_or_else(|e| (None, Some(format!("{e}; only token ids can be used"))));
        warnings.extend(warning);
        warnings.extend(tokenizer.iter().flat_map(|t| t.warnings().iter().cloned()));
        let template = template.unwrap_or_else(|e| {
            warnings.push(format!("{e}; chat falls back to plain text"));
            None
        });
        let template = template.map(|t| match helper {
            Some(helper) => t.with_helper(helper),
            None => t,
        });
        let (mut defaults, about) = GenerationDefaults::read(source, vocab);
        warnings.extend(about);
        if let Some(tokenizer) = &tokenizer {
            defaults.add_from_tokenizer(tokenizer, matches!(source, FileSource::Gguf { .. }));
        }
        let (tokenizer, embeddings) = (tokenizer.map(Arc::new), Some(Embeddings::read(source)));
        ModelText { tokenizer, template, defaults, embeddings, warnings }
    }
}
