//! safetensors: headers that lie, shards, and weights cut out of tensors.

use std::path::Path;

use proptest::prelude::*;
use troika_model::families::from_config;
use troika_model::spec::{Key, Slot};
use troika_model::weights::{FloatType, WeightError, WeightStore, open, parse_safetensors};

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

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_safetensors(&bytes, bytes.len());
        let mut framed = ((bytes.len()) as u64).to_le_bytes().to_vec();
        framed.extend(&bytes);
        let _ = parse_safetensors(&framed, framed.len());
    }
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn bind(name: &str, float: FloatType) -> Result<WeightStore, WeightError> {
    let opened = open(&golden(name))?;
    let troika_model::weights::FileSource::HuggingFace { config, .. } = &opened.source else {
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
    let q = store.info(Key::layer(0, Slot::Q)).unwrap();
    let v = store.info(Key::layer(0, Slot::V)).unwrap();
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
