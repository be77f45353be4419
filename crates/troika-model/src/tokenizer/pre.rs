//! Pre-tokenizers by the names GGUF files give them (`tokenizer.ggml.pre`).
//!
//! The patterns are those of the models' own `tokenizer.json` files.

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Cased letters, CJK and digits are split by patterns of their own.
const DEEPSEEK: &[&str] = &[
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];

/// The patterns of a pre-tokenizer, applied one after the other; `None` for unknown names.
pub(super) fn patterns(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "default" | "gpt-2" | "phi-2" | "olmo" | "mpt" | "jina-v2-en" | "jais" | "trillion" => {
            &[GPT2]
        }
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "smaug-bpe" | "dbrx" | "pixtral"
        | "midm-2.0" | "lfm2" | "kanana2" => &[LLAMA3],
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" | "hunyuan" | "solar-open" => {
            &[QWEN2]
        }
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            &[r"\p{N}", GPT2]
        }
        "gpt-4o" | "llama4" | "o200k" => &[GPT4O],
        "tekken" => &[TEKKEN],
        "deepseek-llm" | "deepseek-coder" => DEEPSEEK,
        "deepseek-v3" => &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", GPT4O],
        _ => return None,
    })
}

/// The pattern used when a file names none this build knows.
pub(super) const FALLBACK: &[&str] = &[LLAMA3];
