//! Tokenizers, from `tokenizer.json` or GGUF metadata, and streaming back to text.

mod error;
mod gguf;
mod marked;
mod pre;
mod stream;

use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use crate::files::read_small;
use crate::weights::GgufMeta;

pub use error::TokenizerError;
pub use stream::{Detokenizer, StopMatcher};

/// A tokenizer with its special tokens.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// As `inner`, but special tokens in the text are plain text. Made when first asked for.
    plain: OnceLock<tokenizers::Tokenizer>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Set for GGUF files, which say outright what to add; `tokenizer.json` has a post-processor.
    add: Option<(bool, bool)>,
}

type Res<T> = Result<T, TokenizerError>;

impl Tokenizer {
    /// Reads `tokenizer.json` and `tokenizer_config.json` of a folder; `None` without the former.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn from_hf_dir(dir: &Path) -> Res<Option<Tokenizer>> {
        let path = dir.join("tokenizer.json");
        if !path.exists() {
            return Ok(None);
        }
        let bad = |why: String| TokenizerError::File { file: path.display().to_string(), why };
        let bytes = read_small(&path).map_err(|e| bad(e.to_string()))?;
        let inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(|e| bad(e.to_string()))?;
        let config = read_small(&dir.join("tokenizer_config.json")).unwrap_or_default();
        let config: Value = serde_json::from_slice(&config).unwrap_or(Value::Null);
        let id = |field: &str| {
            let v = &config[field];
            inner.token_to_id(v.as_str().or(v["content"].as_str())?)
        };
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        Ok(Some(Tokenizer { inner, plain: OnceLock::new(), bos, eos, add: None }))
    }

    /// Builds the tokenizer of a GGUF file; `None` when the file has none. The text is a warning
    /// about a pre-tokenizer this build does not know.
    ///
    /// # Errors
    /// Metadata that contradicts itself, or a kind of tokenizer that is not supported.
    pub fn from_gguf(meta: &GgufMeta) -> Res<Option<(Tokenizer, Option<String>)>> {
        let Some(built) = gguf::build(meta)? else { return Ok(None) };
        let tokenizer = Tokenizer {
            inner: built.inner,
            plain: OnceLock::new(),
            bos: built.bos,
            eos: built.eos,
            add: Some((built.add_bos, built.add_eos)),
        };
        Ok(Some((tokenizer, built.warning)))
    }

    /// Text to ids. `add_special` adds what the model expects around a text (BOS);
    /// `parse_special` reads special tokens written in the text as such.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Res<Vec<u32>> {
        let inner = if parse_special { &self.inner } else { self.plain() };
        let automatic = add_special && self.add.is_none();
        let encoding = inner
            .encode_fast(text, automatic)
            .map_err(|e| TokenizerError::Encode(e.to_string()))?;
        let mut ids = encoding.get_ids().to_vec();
        if let (true, Some((add_bos, add_eos))) = (add_special, self.add) {
            // A text that already starts with BOS (from a chat template) keeps one.
            if let (true, Some(bos)) = (add_bos, self.bos)
                && ids.first() != Some(&bos)
            {
                ids.insert(0, bos);
            }
            ids.extend(self.eos.filter(|_| add_eos));
        }
        Ok(ids)
    }

    fn plain(&self) -> &tokenizers::Tokenizer {
        self.plain.get_or_init(|| {
            let mut t = self.inner.clone();
            t.set_encode_special_tokens(true);
            t
        })
    }

    /// Ids to text; unknown ids are left out.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Res<String> {
        let text = self.inner.decode(ids, skip_special);
        text.map_err(|e| TokenizerError::Encode(e.to_string()))
    }

    /// A streaming decoder.
    pub fn detokenizer(&self) -> Detokenizer<'_> {
        Detokenizer::new(self)
    }

    /// The token of an id, as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token, as the vocabulary spells it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Number of tokens, special ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Beginning of text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }
}
