//! Makes a tokenizer from the structure of `tokenizer.json`, checking each part.

use serde_json::{Map, Value};
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

use super::check::{self, Growth, Growths};
use super::guard::caught;
use super::shared::Inner;
use super::vocab::{self, Added, part};

/// A tokenizer that was read.
pub(super) struct Read {
    pub inner: Inner,
    pub growth: Growths,
    pub warnings: Vec<String>,
}

/// Makes a tokenizer, with a model that is made already or the one in the parts. `truncation` and
/// `padding` are ignored: prompts are used unchanged, as in the transformers library.
pub(super) fn tokenizer(json: Value, made: Option<ModelWrapper>) -> Result<Read, String> {
    let Value::Object(json) = json else { return Err("is no JSON object".into()) };
    let read = caught(|| put_together(json, made));
    read.unwrap_or_else(|| Err("makes no tokenizer: its parts contradict each other".into()))
}

fn put_together(mut json: Map<String, Value>, made: Option<ModelWrapper>) -> Result<Read, String> {
    if let Some(v) = json.get("version").filter(|v| v.as_str() != Some("1.0")) {
        return Err(format!("has version {v}; version \"1.0\" is supported"));
    }
    let mut take = |name: &str| json.remove(name).unwrap_or(Value::Null);
    let (normalizer, pre, decoder) = (take("normalizer"), take("pre_tokenizer"), take("decoder"));
    check::before_reading(&[&normalizer, &pre, &decoder])?;
    let added: Option<Vec<Added>> = part("added_tokens", take("added_tokens"))?;
    let added = added.unwrap_or_default();
    let post: Option<PostProcessorWrapper> = part("post_processor", take("post_processor"))?;
    let mut warnings = Vec::new();
    let model = match (made, take("model")) {
        (Some(model), _) => model,
        (None, Value::Object(model)) => vocab::model(model, &added, &mut warnings)?,
        (None, _) => return Err("has no model".into()),
    };

    let shortest = added.iter().map(|a| a.token.content.len()).filter(|&n| n > 0).min();
    let alone = Growth::new(shortest);
    let mut normalized = alone;
    let normalizer: Option<NormalizerWrapper> = part("normalizer", normalizer)?;
    normalizer.iter().try_for_each(|n| check::normalizer(n, &mut normalized))?;
    // The contents of added tokens are normalized too.
    let contents = added.iter().filter(|a| a.token.normalized);
    if normalized.most(contents.map(|a| a.token.content.len()).sum()) > check::LONGEST {
        return Err("has added tokens that its normalizer makes too long".into());
    }
    let pre: Option<PreTokenizerWrapper> = part("pre_tokenizer", pre)?;
    let mut split = alone;
    pre.iter().try_for_each(|p| check::pre_tokenizer(p, &mut split))?;
    post.iter().try_for_each(check::post_processor)?;
    let decoder: Option<DecoderWrapper> = part("decoder", decoder)?;
    let decoder = decoder.map(check::decoder).transpose()?;

    let mut inner = Inner::new(model.into());
    inner.with_normalizer(normalizer).map_err(|e| e.to_string())?;
    inner.with_pre_tokenizer(pre).with_post_processor(post).with_decoder(decoder);
    inner
        .add_tokens(added.into_iter().map(|a| a.token))
        .map_err(|e| format!("has added tokens that cannot be used: {e}"))?;
    Ok(Read { inner, growth: Growths { alone, normalized, split }, warnings })
}
