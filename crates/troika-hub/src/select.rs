//! Selects the files of a repository that form the model: a pure function of their names.

use std::collections::BTreeMap;

use super::name::Wanted;

/// The default quantization if a repository has only GGUF files and none is named.
const USUAL: &str = "Q4_K_M";

/// The list of shards of a split model.
pub const INDEX: &str = "model.safetensors.index.json";
/// The weights of a model in one file.
const SINGLE: &str = "model.safetensors";
/// The model's description.
pub const CONFIG: &str = "config.json";

/// Small files that belong to a model in safetensors format.
const SMALL: &[&str] = &[
    CONFIG,
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    INDEX,
];

/// What to fetch and what to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Files, small ones first.
    pub files: Vec<String>,
    /// The file to open; `None`: their folder.
    pub entry: Option<String>,
}

/// Why nothing was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectError {
    /// No weights at all.
    Weightless,
    /// No or several files match; with the available ones.
    NoMatch(String, Vec<String>),
    /// A part of a split file is missing.
    MissingPart(String),
}

/// Selects from the names of all files of a repository.
pub fn select(names: &[String], wanted: &Wanted) -> Result<Selection, SelectError> {
    match wanted {
        Wanted::Default => safetensors(names).map_or_else(|| usual_gguf(names), Ok),
        Wanted::Tag(tag) => all_parts(names, &tagged_gguf(names, tag)?),
        Wanted::File(file) => all_parts(names, &named_gguf(names, file)?),
    }
}

/// Every model that the files make: the one of the safetensors files, and each GGUF model whose
/// parts are all there.
pub fn models(names: &[String]) -> Vec<Selection> {
    let gguf = gguf_models(names).into_values().filter_map(|file| all_parts(names, &file).ok());
    safetensors(names).into_iter().chain(gguf).collect()
}

/// The files of a GGUF model that are there, even if some of its parts are not.
///
/// # Errors
/// No model or several match.
pub fn present_parts(names: &[String], wanted: &Wanted) -> Result<Vec<String>, SelectError> {
    let file = match wanted {
        Wanted::Default => return Ok(names.to_vec()),
        Wanted::Tag(tag) => tagged_gguf(names, tag)?,
        Wanted::File(file) => named_gguf(names, file)?,
    };
    let Some((stem, _, parts)) = shard(&file, ".gguf") else { return Ok(vec![file]) };
    let belongs = |name: &str| {
        shard(name, ".gguf").is_some_and(|(other, _, of)| (other, of) == (stem, parts))
    };
    Ok(names.iter().filter(|name| belongs(name)).cloned().collect())
}

/// What follows the colon where a user names a GGUF model of these files: its quantization if that
/// is enough, else its file.
pub fn choice(names: &[String], file: &str) -> String {
    let means_it = |tag: &String| {
        let found = tagged_gguf(names, tag);
        found.is_ok_and(|found| all_parts(names, &found) == all_parts(names, file))
    };
    quantization(file).filter(means_it).unwrap_or_else(|| file.to_string())
}

/// The quantization that a GGUF file's name tells, in capitals.
pub fn quantization(file: &str) -> Option<String> {
    let upper = file.to_ascii_uppercase();
    let stem = upper.strip_suffix(".GGUF").unwrap_or(&upper);
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    stem.rsplit(is_end).find_map(quantization_at_end).map(str::to_string)
}

/// The quantization with which a word ends, such as `MODEL_Q4_0`.
fn quantization_at_end(word: &str) -> Option<&str> {
    let starts = std::iter::once(0).chain(word.match_indices('_').map(|(at, _)| at + 1));
    starts.map(|at| &word[at..]).find(|tail| {
        let after_q = ["IQ", "TQ", "Q"].iter().find_map(|q| tail.strip_prefix(q));
        after_q.is_some_and(|bits| bits.starts_with(|c: char| c.is_ascii_digit()))
            || ["F16", "F32", "BF16", "FP16"].contains(tail)
            || tail.starts_with("MXFP4")
    })
}

/// Configuration, tokenizer and weights at the top of the repository.
fn safetensors(names: &[String]) -> Option<Selection> {
    let top: Vec<&String> = names.iter().filter(|name| !name.contains('/')).collect();
    let has = |wanted: &str| top.iter().any(|name| *name == wanted);
    let is_weight = |name: &str| name.starts_with("model") && name.ends_with(".safetensors");
    let is_shard = |name: &str| is_weight(name) && shard(name, ".safetensors").is_some();
    // Some repositories keep the list of shards although the shards were merged into one file. It
    // is left out, since opening the folder would look for the shards.
    let in_parts = has(INDEX) && (top.iter().any(|name| is_shard(name)) || !has(SINGLE));
    let weights: Vec<&String> = top
        .iter()
        .copied()
        .filter(|name| match (in_parts, has(SINGLE)) {
            (true, _) => is_shard(name),
            (false, true) => *name == SINGLE,
            (false, false) => is_weight(name),
        })
        .collect();
    if weights.is_empty() {
        return None;
    }
    let is_small = |name: &str| {
        let tokenizer = name.starts_with("tokenizer") && name.ends_with(".json");
        SMALL.contains(&name) && (name != INDEX || in_parts) || tokenizer
    };
    let small = top.iter().copied().filter(|name| is_small(name));
    let files = small.chain(weights).cloned().collect();
    Some(Selection { files, entry: None })
}

/// `(stem, part, parts)` of a name such as `stem-00001-of-00003.gguf`.
fn shard<'a>(name: &'a str, ending: &str) -> Option<(&'a str, u32, u32)> {
    let (rest, parts) = name.strip_suffix(ending)?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |text: &str| text.parse().ok().filter(|_| text.len() == 5);
    Some((stem, number(part)?, number(parts)?))
}

/// GGUF models by name without ending and part number, each with one of its files.
fn gguf_models(names: &[String]) -> BTreeMap<String, String> {
    let mut models = BTreeMap::new();
    for name in names {
        let lower = name.to_lowercase();
        let helper = lower.contains("mmproj") || lower.contains("imatrix");
        let Some(whole) = lower.strip_suffix(".gguf").filter(|_| !helper) else { continue };
        let stem = shard(&lower, ".gguf").map_or(whole, |(stem, _, _)| stem);
        models.entry(stem.to_string()).or_insert_with(|| name.clone());
    }
    models
}

/// All parts of the model that a file belongs to.
fn all_parts(names: &[String], file: &str) -> Result<Selection, SelectError> {
    let Some((stem, _, parts)) = shard(file, ".gguf").filter(|(_, _, parts)| *parts <= 1000) else {
        return Ok(Selection { files: vec![file.to_string()], entry: Some(file.to_string()) });
    };
    let files: Vec<String> =
        (1..=parts).map(|part| format!("{stem}-{part:05}-of-{parts:05}.gguf")).collect();
    match files.iter().find(|file| !names.contains(file)) {
        Some(missing) => Err(SelectError::MissingPart(missing.clone())),
        None => Ok(Selection { entry: files.first().cloned(), files }),
    }
}

/// The usual quantization, else the first.
fn usual_gguf(names: &[String]) -> Result<Selection, SelectError> {
    let models = gguf_models(names);
    let file =
        best(&models, USUAL).or_else(|| models.values().next()).ok_or(SelectError::Weightless)?;
    all_parts(names, file)
}

/// A file of the GGUF model that a tag names.
fn tagged_gguf(names: &[String], tag: &str) -> Result<String, SelectError> {
    let models = gguf_models(names);
    if let Some(file) = best(&models, tag) {
        return Ok(file.clone());
    }
    let lower = tag.to_lowercase();
    let holding: Vec<&String> =
        models.iter().filter(|(stem, _)| stem.contains(&lower)).map(|(_, file)| file).collect();
    let (why, there) = match holding.as_slice() {
        [file] => return Ok(file.to_string()),
        [] if models.is_empty() => (
            format!("`{tag}` names a GGUF file, and this repository has none"),
            names.iter().filter(|name| name.ends_with(".safetensors")).cloned().collect(),
        ),
        [] => (format!("no GGUF file is tagged `{tag}`"), models.into_values().collect()),
        several => (
            format!("`{tag}` fits more than one file"),
            several.iter().map(|file| file.to_string()).collect(),
        ),
    };
    Err(SelectError::NoMatch(why, there))
}

/// The model whose name contains the tag as a whole word; the shortest such name.
fn best<'a>(models: &'a BTreeMap<String, String>, tag: &str) -> Option<&'a String> {
    let tag = tag.to_lowercase();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let fits = |stem: &str| {
        stem.match_indices(&tag).any(|(at, _)| {
            !stem[..at].ends_with(is_part) && !stem[at + tag.len()..].starts_with(is_part)
        })
    };
    let fitting = models.iter().filter(|(stem, _)| fits(stem));
    fitting.min_by_key(|(stem, _)| stem.len()).map(|(_, file)| file)
}

fn named_gguf(names: &[String], wanted: &str) -> Result<String, SelectError> {
    let exact = names.iter().find(|name| *name == wanted);
    match exact.or_else(|| names.iter().find(|name| name.eq_ignore_ascii_case(wanted))) {
        Some(file) => Ok(file.clone()),
        None => Err(SelectError::NoMatch(
            format!("there is no file `{wanted}`"),
            gguf_models(names).into_values().collect(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| name.to_string()).collect()
    }

    fn pick(list: &[&str], tag: &str) -> Result<Vec<String>, SelectError> {
        select(&names(list), &Wanted::Tag(tag.to_string())).map(|s| s.files)
    }

    #[test]
    fn a_safetensors_repository_gives_what_is_needed_and_no_more() {
        let list = names(&[
            "README.md",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            INDEX,
            "tokenizer_config.json",
            "model-00001-of-00002.safetensors",
            "pytorch_model.bin",
            "model-00002-of-00002.safetensors",
            "consolidated.safetensors",
            "onnx/model.onnx",
            "original/model.safetensors",
            "merges.txt",
            "chat_template.jinja",
            "tokenizer.model",
        ]);
        let got = select(&list, &Wanted::Default).expect("a selection");
        assert_eq!(got.entry, None);
        assert_eq!(
            got.files,
            [
                "config.json",
                "generation_config.json",
                "tokenizer.json",
                INDEX,
                "tokenizer_config.json",
                "merges.txt",
                "chat_template.jinja",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            ]
        );
    }

    #[test]
    fn one_file_is_preferred_to_its_variants_and_to_a_list_of_shards_without_any() {
        let shard = "model-00001-of-00001.safetensors";
        for (list, want) in [
            (
                &["model.fp16.safetensors", "model.safetensors", "config.json"][..],
                &["config.json", "model.safetensors"][..],
            ),
            (&[INDEX, "model.safetensors", "config.json"], &["config.json", "model.safetensors"]),
            (&[INDEX, "model.safetensors", "config.json", shard], &[INDEX, "config.json", shard]),
        ] {
            assert_eq!(select(&names(list), &Wanted::Default).expect("a selection").files, want);
        }
        let bare = names(&[INDEX, "config.json"]);
        assert_eq!(select(&bare, &Wanted::Default), Err(SelectError::Weightless));
    }

    #[test]
    fn tags_are_whole_words_first() {
        let list =
            ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m.BF16.gguf", "m.f16.gguf", "mmproj-f16.gguf"];
        assert_eq!(pick(&list, "q4_k_m"), Ok(names(&["m-Q4_K_M.gguf"])));
        assert_eq!(pick(&list, "F16"), Ok(names(&["m.f16.gguf"])));
        assert_eq!(pick(&list, "K_S"), Ok(names(&["m-Q4_K_S.gguf"])));
        assert!(
            matches!(pick(&list, "Q4_K"), Err(SelectError::NoMatch(why, _)) if why.contains("more"))
        );
        assert!(
            matches!(pick(&list, "Q8_0"), Err(SelectError::NoMatch(_, there)) if there.len() == 4)
        );
        assert!(matches!(pick(&["model.safetensors"], "Q8_0"), Err(SelectError::NoMatch(..))));
    }

    #[test]
    fn quantizations_are_read_from_names() {
        for (file, want) in [
            ("m-Q4_K_M.gguf", Some("Q4_K_M")),
            ("UD/m-UD-iq2_xxs-00001-of-00002.gguf", Some("IQ2_XXS")),
            ("model_q4_0.GGUF", Some("Q4_0")),
            ("Qwen3-0.6B-BF16.gguf", Some("BF16")),
            ("gpt-oss-mxfp4.gguf", Some("MXFP4")),
            ("Qwen2.gguf", None),
            ("model.gguf", None),
        ] {
            assert_eq!(quantization(file).as_deref(), want, "{file}");
        }
    }

    #[test]
    fn every_model_is_found_by_what_is_said_of_it() {
        let list = names(&[
            "config.json",
            "model.safetensors",
            "m-Q4_K_M.gguf",
            "m-it-Q4_K_M.gguf",
            "plain.gguf",
            "mmproj-f16.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "m-Q8_0-00002-of-00002.gguf",
            "m-Q6_K-00001-of-00002.gguf",
        ]);
        let found: Vec<Option<String>> =
            models(&list).into_iter().map(|s| s.entry.map(|file| choice(&list, &file))).collect();
        let want =
            ["m-it-Q4_K_M.gguf", "Q4_K_M", "Q8_0", "plain.gguf"].map(|w| Some(w.to_string()));
        let mut got = found[1..].to_vec();
        got.sort();
        let mut want = want.to_vec();
        want.sort();
        assert_eq!((&found[0], got), (&None, want));
        // A part that is left over can still be named.
        let wanted = Wanted::Tag("Q6_K".to_string());
        assert_eq!(present_parts(&list, &wanted), Ok(names(&["m-Q6_K-00001-of-00002.gguf"])));
        assert!(matches!(select(&list, &wanted), Err(SelectError::MissingPart(_))));
    }

    #[test]
    fn split_files_come_whole() {
        let list = ["Q8_0/m-Q8_0-00002-of-00002.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "m.gguf"];
        let got = select(&names(&list), &Wanted::Tag("Q8_0".to_string())).expect("a selection");
        assert_eq!(got.files, [list[1], list[0]]);
        assert_eq!(got.entry.as_deref(), Some(list[1]));
        assert_eq!(pick(&list[..1], "Q8_0"), Err(SelectError::MissingPart(list[1].to_string())));
    }

    #[test]
    fn without_a_tag_the_usual_quantization_is_taken() {
        let pick = |list: &[&str]| {
            select(&names(list), &Wanted::Default).map(|s| s.entry.unwrap_or_default())
        };
        assert_eq!(pick(&["a-Q2_K.gguf", "a-Q4_K_M.gguf"]), Ok("a-Q4_K_M.gguf".to_string()));
        assert_eq!(pick(&["b-Q8_0.gguf", "a-Q6_K.gguf"]), Ok("a-Q6_K.gguf".to_string()));
        assert_eq!(pick(&["README.md", "pytorch_model.bin"]), Err(SelectError::Weightless));
    }
}
