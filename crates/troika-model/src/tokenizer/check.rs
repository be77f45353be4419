//! Checks the parts of a tokenizer for what would make the `tokenizers` crate panic, run for ever,
//! or use too much memory.

use serde_json::Value;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::{
    DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper,
};

use super::charsmap;

/// How much a text can grow in the tokenizer: bytes per byte, and extra bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    factor: f64,
    fixed: f64,
    /// Texts between added tokens, per byte of text: each gets its own prefix.
    texts: f64,
}

impl Growth {
    /// Growth without any step. `shortest` is the length of the shortest added token.
    pub fn new(shortest: Option<usize>) -> Growth {
        let texts = shortest.map_or(0.0, |n| 1.0 / n.max(1) as f64);
        Growth { factor: 1.0, fixed: 0.0, texts }
    }

    fn times(&mut self, n: f64) {
        self.factor *= n.max(1.0);
        self.fixed *= n.max(1.0);
    }

    fn before_each_text(&mut self, bytes: usize) {
        self.factor += bytes as f64 * self.texts;
        self.fixed += bytes as f64;
    }

    /// The most bytes that a text of `len` bytes can become.
    pub fn most(&self, len: usize) -> f64 {
        self.factor * len as f64 + self.fixed
    }
}

/// The growth in a tokenizer's steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growths {
    /// Of an unchanged text.
    pub alone: Growth,
    /// Of a text in the normalizer.
    pub normalized: Growth,
    /// Of the normalizer's result in the pre-tokenizer.
    pub split: Growth,
}

/// The most bytes that a text may become during encoding; each uses about 50 bytes of memory.
pub(super) const LONGEST: f64 = (128 << 20) as f64;

/// The most bytes per UTF-8 byte: of canonical forms, compatibility forms (U+FDFA: 3 to 33), lower
/// case, and bytes written as characters.
const CANONICAL: f64 = 4.0;
const COMPATIBLE: f64 = 12.0;
const LOWER: f64 = 2.0;
const BYTES: f64 = 2.0;

/// Limits of regular expressions. Published tokenizers have up to about 1,000 characters and ten
/// counted repetitions.
const PATTERN_BYTES: usize = 16 << 10;
const PATTERNS: usize = 64;
const REPETITIONS: usize = 32;
const REPEATED: usize = 10_000;

/// Checks a normalizer, pre-tokenizer or decoder before it is parsed, since parsing compiles
/// patterns and character maps.
pub(super) fn before_reading(parts: &[&Value]) -> Result<(), String> {
    let mut patterns = Vec::new();
    parts.iter().try_for_each(|p| collect(p, &mut patterns))?;
    let (mut bytes, mut repetitions) = (0, 0);
    for p in &patterns {
        bytes += p.len();
        repetitions += repeated(p)?;
    }
    if bytes > PATTERN_BYTES || patterns.len() > PATTERNS || repetitions > REPETITIONS {
        return Err(format!(
            "{} patterns of {bytes} bytes with {repetitions} counted repetitions are more than \
             the {PATTERNS} patterns, {PATTERN_BYTES} bytes and {REPETITIONS} repetitions supported",
            patterns.len()
        ));
    }
    Ok(())
}

fn collect<'a>(value: &'a Value, patterns: &mut Vec<&'a str>) -> Result<(), String> {
    match value {
        Value::Array(list) => list.iter().try_for_each(|v| collect(v, patterns)),
        Value::Object(map) => map.iter().try_for_each(|(key, v)| match (key.as_str(), v) {
            ("Regex" | "String", Value::String(p)) => {
                patterns.push(p);
                Ok(())
            }
            ("precompiled_charsmap", Value::String(s)) => charsmap::growth(s).map(|_| ()),
            // The crate panics on any invalid map.
            ("precompiled_charsmap", _) => Err("the precompiled_charsmap is no text".into()),
            ("type", Value::String(t)) if t == "Precompiled" => match map.len() {
                2 if map.contains_key("precompiled_charsmap") => Ok(()),
                _ => Err("a normalizer Precompiled needs a precompiled_charsmap".into()),
            },
            (_, v) => collect(v, patterns),
        }),
        _ => Ok(()),
    }
}

/// Counts the repetitions `{n}`, `{n,}`, `{n,m}` of a pattern. A repeated group with a lookaround
/// takes time but no text, so nested groups multiply.
fn repeated(pattern: &str) -> Result<usize, String> {
    let mut found = 0;
    let mut product = 1usize;
    for (at, _) in pattern.match_indices('{') {
        let inside = pattern[at + 1..].split('}').next().unwrap_or_default();
        let numbers = || inside.split(',').map(str::trim).filter(|n| !n.is_empty());
        if numbers().next().is_none() || !numbers().all(|n| n.bytes().all(|b| b.is_ascii_digit())) {
            continue;
        }
        found += 1;
        let most = numbers().map(|n| n.parse().unwrap_or(usize::MAX)).max().unwrap_or(0);
        if pattern[..at].ends_with(')') {
            product = product.saturating_mul(most.max(1));
        }
        if most > REPEATED || product > REPEATED {
            return Err(format!("the pattern {pattern:?} repeats more than {REPEATED} times"));
        }
    }
    Ok(found)
}

/// Bytes per byte when a pattern is replaced.
fn replaced(replace: &Replace) -> f64 {
    let content = replace.content.len();
    let pattern = serde_json::to_value(replace).unwrap_or(Value::Null);
    match pattern["pattern"]["String"].as_str() {
        Some(p) if !p.is_empty() => content as f64 / p.len() as f64,
        // The pattern may match between any two characters.
        _ if content > 0 => content as f64 + 1.0,
        _ => 1.0,
    }
}

/// Adds a normalizer's growth.
pub(super) fn normalizer(n: &NormalizerWrapper, growth: &mut Growth) -> Result<(), String> {
    use NormalizerWrapper as N;
    match n {
        N::Sequence(all) => all.as_ref().iter().try_for_each(|n| normalizer(n, growth))?,
        N::NFC(_) | N::NFD(_) => growth.times(CANONICAL),
        N::NFKC(_) | N::NFKD(_) => growth.times(COMPATIBLE),
        N::Lowercase(_) => growth.times(LOWER),
        // A Chinese character gets spaces around it; accents are separated.
        N::BertNormalizer(_) => growth.times(2.0 * CANONICAL * LOWER),
        N::ByteLevel(_) => growth.times(BYTES),
        N::Precompiled(map) => {
            let map = serde_json::to_value(map).map_err(|e| e.to_string())?;
            growth.times(charsmap::growth(map["precompiled_charsmap"].as_str().unwrap_or(""))?);
        }
        N::Replace(r) => growth.times(replaced(r)),
        N::Prepend(p) => growth.before_each_text(p.prepend.len()),
        N::StripNormalizer(_) | N::StripAccents(_) | N::Nmt(_) => {}
    }
    Ok(())
}

/// The length of a normalized text, found by normalizing it; `None` if a step could make more than
/// `longest` bytes.
pub(super) fn normalized(
    n: &NormalizerWrapper,
    text: &mut NormalizedString,
    alone: Growth,
    longest: f64,
) -> Option<()> {
    if let NormalizerWrapper::Sequence(all) = n {
        return all.as_ref().iter().try_for_each(|n| normalized(n, text, alone, longest));
    }
    let mut growth = alone;
    normalizer(n, &mut growth).ok()?;
    if growth.most(text.len()) > longest {
        return None;
    }
    n.normalize(text).ok()
}

/// Adds a pre-tokenizer's growth.
pub(super) fn pre_tokenizer(p: &PreTokenizerWrapper, growth: &mut Growth) -> Result<(), String> {
    use PreTokenizerWrapper as P;
    match p {
        P::Sequence(all) => all.as_ref().iter().try_for_each(|p| pre_tokenizer(p, growth))?,
        P::ByteLevel(b) => {
            // A space before each piece, which may be a byte long.
            growth.times(if b.add_prefix_space { 2.0 * BYTES } else { BYTES });
        }
        P::Metaspace(m) => growth.times(2.0 * m.get_replacement().len_utf8() as f64),
        P::FixedLength(f) if f.length == 0 => {
            return Err("the pre-tokenizer FixedLength has length 0".into());
        }
        _ => {}
    }
    Ok(())
}

/// Limits of what is added around a text.
const AROUND: usize = 4096;
const COPIES: usize = 4;

/// Checks a post-processor.
pub(super) fn post_processor(p: &PostProcessorWrapper) -> Result<(), String> {
    let mut templates = 0;
    post(p, &mut templates)?;
    match templates {
        0 | 1 => Ok(()),
        // The second would get the pieces of the first.
        n => Err(format!("{n} post-processors TemplateProcessing follow each other; one can be")),
    }
}

fn post(p: &PostProcessorWrapper, templates: &mut usize) -> Result<(), String> {
    use PostProcessorWrapper as P;
    let template = match p {
        P::Sequence(all) => return all.as_ref().iter().try_for_each(|p| post(p, templates)),
        P::Template(t) => t,
        P::Roberta(_) | P::Bert(_) | P::ByteLevel(_) => return Ok(()),
    };
    *templates += 1;
    let name = "the post-processor TemplateProcessing";
    let specials = serde_json::to_value(template.get_special_tokens()).unwrap_or(Value::Null);
    let single = serde_json::to_value(&template.single).unwrap_or(Value::Null);
    let (mut copies, mut around) = (0, 0);
    for piece in single.as_array().into_iter().flatten() {
        if let Some(id) = piece["SpecialToken"]["id"].as_str() {
            let ids = specials.get(id).and_then(|s| s["ids"].as_array());
            around +=
                ids.ok_or_else(|| format!("{name} uses {id:?}, which it does not define"))?.len();
        } else if piece["Sequence"]["id"] == "B" {
            return Err(format!("{name} puts a second text into its template for one text"));
        } else {
            copies += 1;
        }
    }
    if copies > COPIES || around > AROUND {
        return Err(format!("{name} makes {copies} copies of the text and adds {around} tokens"));
    }
    Ok(())
}

/// The most bytes per byte in decoding.
const DECODED: f64 = 256.0;
/// The most characters stripped from the end of a token.
const STRIPPED: usize = 64;

/// Checks a decoder. A step that strips the end of tokens would panic on tokens of nothing else: it
/// is replaced by an equivalent pattern.
pub(super) fn decoder(mut d: DecoderWrapper) -> Result<DecoderWrapper, String> {
    let mut factor = 1.0;
    decode(&mut d, &mut factor)?;
    match factor > DECODED {
        true => Err(format!("the decoder could make text {factor:.0} times longer")),
        false => Ok(d),
    }
}

fn decode(d: &mut DecoderWrapper, factor: &mut f64) -> Result<(), String> {
    use DecoderWrapper as D;
    *factor *= match d {
        D::Sequence(all) => {
            return all.get_decoders_mut().iter_mut().try_for_each(|d| decode(d, factor));
        }
        D::Strip(strip) if strip.stop > 0 => {
            let (content, stop) = (strip.content, strip.stop);
            if stop > STRIPPED {
                return Err(format!("the decoder Strip takes {stop} characters from the end"));
            }
            strip.stop = 0;
            let end = format!(r"\x{{{:x}}}{{1,{stop}}}\z", u32::from(content));
            let end = Replace::new(ReplacePattern::Regex(end), "").map_err(|e| e.to_string())?;
            let steps = vec![d.clone(), D::Replace(end)];
            *d = D::Sequence(tokenizers::decoders::sequence::Sequence::new(steps));
            1.0
        }
        D::Replace(r) => replaced(r).max(1.0),
        D::BPE(b) if b.suffix.is_empty() => 2.0,
        D::CTC(c) if c.word_delimiter_token.is_empty() => 2.0,
        // A space before each token, which may be a byte long.
        D::WordPiece(_) => 2.0,
        // A byte outside any character becomes a character of three bytes.
        D::ByteLevel(_) => 3.0,
        D::BPE(_) | D::CTC(_) | D::Metaspace(_) | D::Fuse(_) | D::Strip(_) | D::ByteFallback(_) => {
            1.0
        }
    };
    Ok(())
}
