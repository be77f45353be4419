//! safetensors: inconsistent headers, shards, and weights cut out of tensors.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use troika_model::families::from_config;
use troika_model::spec::{Key, WeightRole};
use troika_weights::{FloatType, WeightError, WeightStore, open, parse_safetensors};

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

fn refused(header: &str, data: usize, word: &str) {
    let bytes = file(header, data);
    let e = parse_safetensors(&bytes, bytes.len()).unwrap_err();
    assert!(e.contains(word), "{word:?} is not in {e:?}");
}

#[test]
fn headers_that_lie() {
    let t = |dtype: &str, shape: &str, from: i64, to: i64| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    let ok = file(&t("F32", "[2]", 0, 8), 8);
    assert_eq!(parse_safetensors(&ok, ok.len()).unwrap()["a"].shape, [2]);
    refused(&t("F32", "[2]", 0, 8), 7, "past the end");
    refused(&t("F32", "[2]", 8, 0), 8, "before it begins");
    refused(&t("F32", "[3]", 0, 8), 8, "do not match");
    refused(&t("F31", "[2]", 0, 8), 8, "F31");
    refused(&t("F32", "[-2]", 0, 8), 8, "impossible shape");
    refused(&t("F32", "[4611686018427387904, 4]", 0, 8), 8, "do not match");
    refused(&t("F32", "[2]", -8, 0), 8, "not sizes");
    refused("[]", 0, "object");
    refused("{", 0, "JSON");
    let two = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                  "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    refused(two, 12, "overlap");
    for len in [u64::MAX, 1 << 63, 100] {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        assert!(parse_safetensors(&bytes, bytes.len()).unwrap_err().contains("header length"));
    }
    assert!(parse_safetensors(b"abc", 3).is_err());
}

/// Headers of a valid file with some bytes changed, removed or inserted. Most of them can still be
/// parsed, so that their contents matter.
#[test]
fn changed_headers_are_read_or_refused_for_what_is_wrong() {
    let valid = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},
        "c":{"dtype":"F16","shape":[],"data_offsets":[32,34]}}"#;
    let mut random = 7u64;
    let mut below = |n: usize| {
        // Knuth's constants of a linear congruential generator.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % n
    };
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..30_000 {
        let mut header = valid.as_bytes().to_vec();
        for _ in 0..1 + below(3) {
            let at = below(header.len());
            match below(5) {
                // Digits more often than others, since they give the places of tensors.
                0 | 1 => {
                    let digits = header.iter_mut().filter(|b| b.is_ascii_digit());
                    let n = digits.count();
                    let digit = header.iter_mut().filter(|b| b.is_ascii_digit()).nth(below(n));
                    *digit.unwrap() = b'0' + below(10) as u8;
                }
                2 => header[at] = below(256) as u8,
                3 => drop(header.remove(at)),
                _ => {
                    let end = header.len().min(at + below(40));
                    let piece = header[at..end].to_vec();
                    header.splice(at..at, piece);
                }
            }
        }
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(&header);
        bytes.resize(bytes.len() + 34, 0);
        let kind = match parse_safetensors(&bytes, bytes.len()) {
            Ok(tensors) => {
                let mut ends = 0;
                for t in tensors.values() {
                    assert!(t.range.start >= 8 + header.len() && t.range.end <= bytes.len());
                    ends = ends.max(t.range.end);
                }
                assert!(ends <= bytes.len());
                "read"
            }
            Err(e) => {
                let known = ["JSON", "past the end", "do not match"];
                known.into_iter().find(|k| e.contains(k)).unwrap_or("other")
            }
        };
        *met.entry(kind).or_default() += 1;
    }
    for kind in ["read", "JSON", "past the end", "do not match", "other"] {
        assert!(met.get(kind).is_some_and(|&n| n >= 20), "{kind} is rare: {met:?}");
    }
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn bind(name: &str, float: FloatType) -> Result<WeightStore, WeightError> {
    let opened = open(&golden(name))?;
    let troika_weights::FileSource::HuggingFace { config, .. } = &opened.source else {
        panic!("not a folder");
    };
    let model = from_config(config).unwrap();
    WeightStore::bind(&model, &*opened.files, float.into())
}

#[test]
fn plain_checkpoints_are_not_copied() {
    for name in ["llama-2", "qwen3-moe", "phi-3", "gemma-3"] {
        let r = bind(name, FloatType::Auto).unwrap().report();
        assert_eq!(r.owned, 0, "{name} copies weights");
        assert!(r.mapped > 0);
    }
    // Transposed experts and key expansions cannot be views.
    assert!(bind("gpt-oss", FloatType::Auto).unwrap().report().owned > 0);
    assert!(bind("deepseek-v2", FloatType::Auto).unwrap().report().owned > 0);
    assert!(bind("llama-2", FloatType::BF16).unwrap().report().owned > 0);
}

#[test]
fn packed_projections_are_cut_at_the_right_rows() {
    let store = bind("phi-3", FloatType::Auto).unwrap();
    let q = store.info(Key::layer(0, WeightRole::Q)).unwrap();
    let v = store.info(Key::layer(0, WeightRole::V)).unwrap();
    assert_eq!((q.shape.rows, v.shape.rows), (32, 16));
    assert_eq!(q.tensor, v.tensor);
}

#[test]
fn shards_must_stay_in_their_folder_and_exist() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(golden("llama-2").join("config.json"), dir.path().join("config.json")).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let with = |shard: &str| {
        std::fs::write(&index, format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#)).unwrap();
        open(dir.path()).err().unwrap().to_string()
    };
    assert!(with("../x.safetensors").contains("not a file of this folder"));
    assert!(with("model-00001.safetensors").contains("model-00001.safetensors"));
    std::fs::write(&index, "{}").unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("weight_map"));
}
