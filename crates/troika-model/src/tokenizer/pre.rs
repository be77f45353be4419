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

const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const SPARK: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
];
const YOUTU: &[&str] = &[
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];
const FALCON: &[&str] = &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"];
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CHAMELEON: &[&str] = &[
    r"<sentinel:[0-9]+>",
    r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
];
const EXAONE_MOE: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
/// Groups of three digits, counted from the last.
const THREES: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))";
const AFMOE: &[&str] =
    &[THREES, r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+", DEEPSEEK3];
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

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

/// The patterns of a name; `None` for unknown names.
fn patterns(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "default" | "gpt-2" | "phi-2" | "olmo" | "mpt" | "jina-v2-en" | "jais" | "trillion"
        | "exaone4" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
        | "a.x-4.0" | "mellum" | "modern-bert" | "granite-docling" | "jina-v1-en"
        | "jina-v2-code" | "roberta-bpe" => &[GPT2],
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "smaug-bpe" | "dbrx"
        | "pixtral" | "midm-2.0" | "lfm2" | "jina-v5-nano" | "glm4" | "glm5" | "chatglm-bpe" => {
            &[LLAMA3]
        }
        "minicpm5" => &[r"\p{N}{1,3}", LLAMA3],
        "jais-2" => &[JAIS2],
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" | "hunyuan" | "solar-open"
        | "kormo" | "f2llmv2" | "grok-2" => &[QWEN2],
        "laguna" => &[r"[^\n]+|[\n]+", QWEN2],
        "qwen35" => &[QWEN35],
        "ufakzeka" => &[UFAKZEKA],
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => &[r"\p{N}", GPT2],
        "gpt-4o" | "llama4" | "o200k" | "kanana2" | "talkie" | "minimax-m2" => &[GPT4O],
        "granite-embed-multi-97m" => &[GPT4O],
        "tiny_aya" | "cohere2moe" => &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
        "tekken" => &[TEKKEN],
        "deepseek-llm" => DEEPSEEK,
        "deepseek-coder" => DEEPSEEK_CODER,
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3]
        }
        "spark2_5" => SPARK,
        "youtu" => YOUTU,
        "falcon" => FALCON,
        "poro-chat" | "bloom" | "gpt3-finnish" => &[BLOOM],
        "viking" => &[BLOOM, r"\p{N}"],
        "chameleon" => CHAMELEON,
        "exaone-moe" => &[EXAONE_MOE],
        "superbpe" => &[r"\p{N}+", THREES],
        "afmoe" => AFMOE,
        "bailingmoe" | "bailingmoe2" | "llada-moe" => &[BAILING],
        "seed-coder" => &[SEED],
        "kimi-k2" => &[KIMI],
        _ => return None,
    })
}

/// A pre-tokenizer by its name; `None` for unknown names.
pub(super) fn find(name: &str) -> Option<Pre> {
    let patterns = patterns(name)?;
    let listed = |list: &str| list.split(' ').any(|known| known == name);
    let llama = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano";
    let llama = listed(llama) || name == "tekken";
    let whole_words = llama || listed("glm4 glm5 minicpm5 youtu granite-embed-multi-97m");
    let adds_bos = llama || name == "chameleon";
    let composed = matches!(name, "qwen2" | "qwen35");
    Some(Pre { patterns, whole_words, composed, adds_bos })
}

/// Used if the file names none or an unknown one.
pub(super) const FALLBACK: Pre =
    Pre { patterns: &[LLAMA3], whole_words: false, composed: false, adds_bos: false };

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    };

    use super::find;

    /// All names that llama.cpp knows for models of text, but for those without bytes as letters.
    const NAMES: &str = "default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral \
        midm-2.0 lfm2 jina-v5-nano deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon \
        mpt starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum \
        modern-bert jina-v1-en jina-v2-code roberta-bpe jais-2 refact command-r qwen2 \
        deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 \
        olmo dbrx smaug-bpe poro-chat chatglm-bpe glm4 glm5 viking jais tekken smollm codeshell \
        bloom gpt3-finnish exaone exaone4 exaone-moe chameleon minerva-7b megrez gpt-4o llama4 \
        kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe superbpe trillion \
        granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense hy_v4 \
        joyai-llm kimi-k2 ufakzeka grok-2 afmoe laguna minimax-m2 solar-open mellum2";

    fn pieces(name: &str, text: &str) -> Vec<String> {
        let mut split = PreTokenizedString::from(text);
        for pattern in find(name).unwrap_or_else(|| panic!("{name}")).patterns {
            let step = json!({"type": "Split", "pattern": {"Regex": pattern},
                "behavior": "Isolated", "invert": false});
            let step: PreTokenizerWrapper = serde_json::from_value(step).unwrap();
            step.pre_tokenize(&mut split).unwrap();
        }
        let all = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        all.into_iter().map(|(piece, ..)| piece.to_string()).collect()
    }

    #[test]
    fn all_names_split_a_text_without_loss() {
        let text = "It'S 1234567 x\u{301}y,  漢字かな 한국어 <a>\r\n\n\tHTTPServer ½ 🦀 end.  ";
        for name in NAMES.split_whitespace() {
            let all = pieces(name, text);
            assert!(all.len() > 3 && all.concat() == text, "{name}: {all:?}");
        }
        assert!(find("whitespace").is_none() && find("none such").is_none());
    }

    #[test]
    fn kinds_differ_where_the_models_do() {
        let cases: [(&str, &str, &[&str]); 14] = [
            ("qwen2", "a1234", &["a", "1", "2", "3", "4"]),
            ("glm5", "a1234", &["a", "123", "4"]),
            ("superbpe", "a b1234", &["a b", "1", "234"]),
            ("afmoe", "1234567", &["1", "234", "567"]),
            ("tiny_aya", "12345", &["12", "345"]),
            ("falcon", "1234", &["123", "4"]),
            ("viking", "ab 12!", &["ab", " ", "1", "2", "!"]),
            ("bloom", "ab 12!", &["ab", " 12", "!"]),
            ("ufakzeka", "Ankara'dan", &["Ankara", "'dan"]),
            ("qwen2", "Ankara'dan", &["Ankara", "'d", "an"]),
            ("kimi-k2", "abc漢字def", &["abc", "漢字", "def"]),
            ("exaone-moe", "one two", &["one two"]),
            ("seed-coder", "!\n", &["!", "\n"]),
            ("laguna", "!\n\n", &["!", "\n\n"]),
        ];
        for (name, text, expected) in cases {
            assert_eq!(pieces(name, text), expected, "{name} of {text:?}");
        }
        let flags = |name| find(name).map(|p| [p.whole_words, p.adds_bos]);
        assert_eq!(flags("glm4"), Some([true, false]));
        assert_eq!(flags("chameleon"), Some([false, true]));
        assert_eq!(flags("jina-v5-nano"), Some([true, true]));
    }
}
