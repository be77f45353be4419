//! Tokenizers: read from files, text to ids and back.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use tokenizers::NormalizedString;

use super::check::{self, LONGEST};
use super::error::{Result, TokenizerError};
use super::fim_tokens::FimTokens;
use super::shared::Inner;
use super::spelling::Spelling;
use super::{guard, json};
use crate::files::{parse_json, read_small};

/// The most bytes per byte for long texts. Unicode's normal forms need up to 11.
const TIMES: f64 = 64.0;
const ENOUGH: f64 = (4 << 20) as f64;

/// A tokenizer with its special tokens.
pub struct Tokenizer {
    pub(super) inner: Inner,
    /// As `inner`, but special tokens in the text are plain text. Made when first asked for.
    pub(super) plain: OnceLock<Inner>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    /// Set for GGUF files, which list what to add; `tokenizer.json` has a post-processor.
    pub(super) add: Option<(bool, bool)>,
    pub(super) growth: check::Growths,
    /// Ids whose token also has another id, which the vocabulary uses.
    pub(super) twins: HashMap<u32, u32>,
    pub(super) warnings: Vec<String>,
    pub(super) fim: Option<FimTokens>,
    /// Found when first asked for.
    pub(super) spelling: OnceLock<Spelling>,
    longest: OnceLock<usize>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and `tokenizer_config.json` of a folder; `None` without the former.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn from_hf_dir(dir: &Path) -> Result<Option<Tokenizer>> {
        let path = dir.join("tokenizer.json");
        let bad = |why: String| TokenizerError::File(format!("{}: {why}", path.display()));
        let bytes = match read_small(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|e| bad(e.to_string()))?,
        };
        let mut tokenizer = Tokenizer::from_json(&bytes).map_err(bad)?;
        let path = dir.join("tokenizer_config.json");
        match read_small(&path).and_then(|bytes| Ok(parse_json::<Value>(&bytes)?)) {
            Ok(config) => tokenizer.take_config(&config),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                let path = path.display();
                tokenizer.warnings.push(format!("{path}: {e}; it is read as if it were empty"));
            }
        }
        Ok(Some(tokenizer))
    }

    /// Parses a `tokenizer.json`. Truncation and padding are ignored: prompts are used unchanged.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_json(bytes: &[u8]) -> Result<Tokenizer, String> {
        let json = parse_json(bytes).map_err(|e| format!("is no JSON: {e}"))?;
        Ok(Tokenizer::of(json::tokenizer(json, None)?))
    }

    /// Without special tokens.
    pub(super) fn of(read: json::Read) -> Tokenizer {
        let mut tokenizer = Tokenizer {
            inner: read.inner,
            plain: OnceLock::new(),
            bos: None,
            eos: None,
            add: None,
            growth: read.growth,
            twins: HashMap::new(),
            warnings: read.warnings,
            fim: None,
            spelling: OnceLock::new(),
            longest: OnceLock::new(),
        };
        tokenizer.fim = tokenizer.find_fim(None);
        tokenizer
    }

    /// Reads the names of special tokens from `tokenizer_config.json`.
    fn take_config(&mut self, config: &Value) {
        let id = |field: &str| {
            let v = &config[field];
            self.id(v.as_str().or(v["content"].as_str())?)
        };
        (self.bos, self.eos) = (id("bos_token"), id("eos_token"));
    }

    /// Text to ids. `add_special` adds what the model expects around a text (BOS); `parse_special`
    /// recognises special tokens in the text.
    ///
    /// # Errors
    /// An error of the tokenizer.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let automatic = add_special && self.add.is_none();
        let encoding = guard::caught(|| {
            if !self.fits(text) {
                return Err(TokenizerError::TooLong(text.len()));
            }
            let inner = if parse_special { &self.inner } else { self.plain() };
            inner.encode_fast(text, automatic).map_err(|e| TokenizerError::Encode(e.to_string()))
        });
        let encoding = encoding
            .ok_or_else(|| TokenizerError::Encode("this text cannot be encoded".into()))??;
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

    /// Whether a text stays short enough during encoding.
    fn fits(&self, text: &str) -> bool {
        let growth = &self.growth;
        let most = LONGEST.min(text.len() as f64 * TIMES + ENOUGH);
        let worst = growth.normalized.most(text.len());
        if worst <= most && growth.split.most(worst as usize) <= most {
            return true;
        }
        // The factors are for the worst texts. If they do not suffice, the normalizer is run to
        // find out, at the cost of running twice.
        let mut text = NormalizedString::from(text);
        let normalized = self
            .inner
            .get_normalizer()
            .is_none_or(|n| check::normalized(n, &mut text, growth.alone, most).is_some());
        normalized && growth.split.most(text.len()) <= most
    }

    fn plain(&self) -> &Inner {
        self.plain.get_or_init(|| {
            let mut t = self.inner.clone();
            t.set_encode_special_tokens(true);
            t
        })
    }

    /// Ids to text; unknown ids are skipped.
    ///
    /// # Errors
    /// An error of the tokenizer.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let known: Vec<u32>;
        let ids = if self.twins.is_empty() {
            ids
        } else {
            known = ids.iter().map(|id| *self.twins.get(id).unwrap_or(id)).collect();
            &known
        };
        // Without tokens there is no text; some decoders need at least one.
        if ids.iter().all(|&id| self.is_silent(id, skip_special)) {
            return Ok(String::new());
        }
        guard::caught(|| self.inner.decode(ids, skip_special))
            .ok_or_else(|| TokenizerError::Encode("these ids cannot be decoded".into()))?
            .map_err(|e| TokenizerError::Encode(e.to_string()))
    }

    /// Whether decoding skips an id: it has no token, or a special one.
    pub(super) fn is_silent(&self, id: u32, skip_special: bool) -> bool {
        let special = |t: &String| self.inner.get_added_vocabulary().is_special_token(t);
        self.token(id).is_none_or(|t| skip_special && special(&t))
    }

    /// The token of an id, as spelled in the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(*self.twins.get(&id).unwrap_or(&id))
    }

    /// The bytes of a token in the middle of a text, a special token's spelling included; `None`
    /// without such a token. They need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let id = *self.twins.get(&id).unwrap_or(&id);
        if let Some(added) = self.inner.get_added_vocabulary().simple_id_to_token(id) {
            return Some(added.into_bytes());
        }
        let token = self.inner.id_to_token(id)?;
        let decoder = || self.inner.get_decoder().and_then(|d| serde_json::to_value(d).ok());
        let spelling = self.spelling.get_or_init(|| Spelling::of(&decoder().unwrap_or_default()));
        Some(spelling.bytes(token))
    }

    /// Whether a token is one of control: decoding leaves it out.
    pub fn is_control(&self, id: u32) -> bool {
        self.is_silent(id, true)
    }

    /// The id of a token, as spelled in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Bytes of the longest token as spelled in the vocabulary. A token's text is not longer than
    /// its spelling.
    pub fn longest_token(&self) -> usize {
        let bytes = |id| self.token(id).map(|token| token.len());
        let longest = || (0..self.vocab_size() as u32).filter_map(bytes).max().unwrap_or(1);
        *self.longest.get_or_init(longest)
    }

    /// Number of tokens, special ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Beginning of text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// What begins a text, if anything does.
    pub fn begins(&self) -> Option<u32> {
        let first = self.encode("", true, false).ok()?.first().copied();
        first.filter(|id| self.bos == Some(*id))
    }

    /// The tokens that ask for the text between two others, if the model has such.
    pub fn fim(&self) -> Option<FimTokens> {
        self.fim
    }

    /// Warnings about the tokenizer's files, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// End of text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }
}
