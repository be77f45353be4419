//! Pre-tokenizers by their names in GGUF files (`tokenizer.ggml.pre`).
//!
//! The patterns come from the models' own `tokenizer.json` files.

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Cased letters, CJK and digits are split by separate patterns.
const DEEPSEEK: &[&str] = &[
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];

const DEEPSEEK_CODER: &[&str] =
    &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is split before encoding, and other properties of the same name.
pub(super) struct Pre {
    /// Patterns, applied in order.
    pub patterns: &'static [&'static str],
    /// Whether a word that is a token becomes that token even if merges do not lead to it.
    pub whole_words: bool,
    /// Whether the models' own files first normalise text to Unicode's composed form (NFC).
    pub composed: bool,
    /// Whether a text starts with BOS if the file does not say.
    pub adds_bos: bool,
}

/// A pre-tokenizer by its name; `None` for unknown names.
pub(super) fn find(name: &str) -> Option<Pre> {
    let patterns: &[&str] = match name {
        "default" | "gpt-2" | "phi-2" | "olmo" | "mpt" | "jina-v2-en" | "jais" | "trillion"
        | "exaone4" => &[GPT2],
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "smaug-bpe" | "dbrx"
        | "pixtral" | "midm-2.0" | "lfm2" | "glm4" | "chatglm-bpe" => &[LLAMA3],
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" | "hunyuan" | "solar-open" => {
            &[QWEN2]
        }
        "qwen35" => &[QWEN35],
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            &[r"\p{N}", GPT2]
        }
        "gpt-4o" | "llama4" | "o200k" | "kanana2" => &[GPT4O],
        "tekken" => &[TEKKEN],
        "deepseek-llm" => DEEPSEEK,
        "deepseek-coder" => DEEPSEEK_CODER,
        "deepseek-v3" | "hunyuan-dense" => &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
        _ => return None,
    };
    let whole_words = matches!(
        name,
        "llama-bpe"
            | "llama3"
            | "llama-v3"
            | "falcon3"
            | "falcon-h1"
            | "pixtral"
            | "midm-2.0"
            | "lfm2"
            | "tekken"
    );
    let composed = matches!(name, "qwen2" | "qwen35");
    Some(Pre { patterns, whole_words, composed, adds_bos: whole_words })
}

/// Used if the file names none or an unknown one.
pub(super) const FALLBACK: Pre =
    Pre { patterns: &[LLAMA3], whole_words: false, composed: false, adds_bos: false };
