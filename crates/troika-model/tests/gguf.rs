//! GGUF reading: a file written by the `gguf` Python package, and damaged ones.

use troika_graph::{DType, blocks::dequantize};
use troika_model::weights::{FileSource, GgufMeta, GgufValue, open, parse_gguf};

const KINDS: &[u8] = include_bytes!("data/kinds.gguf");

fn get<'a>(meta: &'a GgufMeta, key: &str) -> &'a GgufValue {
    meta.get(key).unwrap()
}

#[test]
fn all_kinds_of_metadata() {
    let h = parse_gguf(KINDS).unwrap();
    let m = &h.meta;
    assert_eq!(m.architecture(), Some("llama"));
    let ints = [
        ("k.u8", 200),
        ("k.u16", 60_000),
        ("k.u32", 4_000_000_000u64),
        ("k.u64", 1 << 40),
        ("general.alignment", 64),
    ];
    ints.iter().for_each(|(k, v)| assert_eq!(get(m, k).as_u64(), Some(*v), "{k}"));
    for (k, v) in [("k.i8", -5), ("k.i16", -3000), ("k.i32", -7), ("k.i64", -(1i64 << 40))] {
        assert_eq!(get(m, k), &GgufValue::Int(v), "{k}");
    }
    assert_eq!(get(m, "k.f32").as_f64(), Some(1.5));
    assert_eq!(get(m, "k.f64").as_f64(), Some(2.25));
    assert_eq!(get(m, "k.bool").as_bool(), Some(true));
    assert_eq!(get(m, "k.str").as_str(), Some("grüß"));
    let strs: Vec<_> =
        get(m, "k.strs").as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(strs, ["a", "", "ü"]);
    assert_eq!(get(m, "k.bools").as_array().unwrap()[1].as_bool(), Some(false));
}

#[test]
fn tensors_with_an_unusual_alignment() {
    let h = parse_gguf(KINDS).unwrap();
    let tensor = |name: &str| h.tensors.iter().find(|t| t.name == name).unwrap();
    assert_eq!(tensor("cube").shape, [2, 3, 4]);
    assert!(h.tensors.iter().all(|t| t.range.start % 64 == 0));
    let values = |name: &str| {
        let t = tensor(name);
        let mut out = vec![0.0; t.shape.iter().product()];
        dequantize(*t.dtype.as_ref().unwrap(), &KINDS[t.range.clone()], &mut out);
        out
    };
    assert_eq!(values("vec"), [0.0, 1.0, 2.0, 3.0, 4.0]);
    let exact = values("f32");
    let types = [
        ("f16", 1e-3, DType::F16),
        ("bf16", 1e-2, DType::BF16),
        ("q8_0", 2e-2, DType::Q8_0),
        ("q4_0", 0.3, DType::Q4_0),
        ("q4_1", 0.3, DType::Q4_1),
        ("q5_0", 0.15, DType::Q5_0),
        ("q5_1", 0.15, DType::Q5_1),
    ];
    for (name, tolerance, dtype) in types {
        assert_eq!(tensor(name).dtype, Ok(dtype));
        for (a, b) in values(name).iter().zip(&exact) {
            assert!((a - b).abs() < tolerance, "{name}: {a} for {b}");
        }
    }
}

#[test]
fn every_cut_is_refused_without_a_panic() {
    // What follows the last tensor is padding.
    let end = parse_gguf(KINDS).unwrap().tensors.iter().map(|t| t.range.end).max().unwrap();
    for len in 0..end {
        let result = parse_gguf(&KINDS[..len]);
        assert!(result.is_err(), "a file cut to {len} bytes was accepted");
    }
}

/// The error when some bytes of the file are replaced.
fn changed(at: usize, bytes: &[u8]) -> String {
    let mut file = KINDS.to_vec();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    parse_gguf(&file).unwrap_err()
}

#[test]
fn impossible_headers_are_refused_before_allocating() {
    let huge = u64::MAX.to_le_bytes();
    assert!(changed(0, b"GGML").contains("GGUF"));
    assert!(changed(4, &1u32.to_le_bytes()).contains("version 1"));
    assert!(changed(4, &3u32.to_be_bytes()).contains("big-endian"));
    assert!(changed(8, &huge).contains("tensors"));
    assert!(changed(16, &huge).contains("metadata pairs"));
    assert!(changed(24, &huge).contains("bytes of text"));
    let dims = KINDS.windows(8).position(|w| w == b"q8_0\x02\0\0\0").unwrap() + 4;
    assert!(changed(dims, &9u32.to_le_bytes()).contains("9 dimensions"));
    assert!(changed(dims + 4, &huge).contains("q8_0"));
    assert!(changed(dims + 4, &63u64.to_le_bytes()).contains("whole blocks"));
    assert!(changed(dims + 24, &huge).contains("past the end"));
}

#[test]
fn types_that_are_not_read_are_named_only_when_used() {
    let dims = KINDS.windows(8).position(|w| w == b"q8_0\x02\0\0\0").unwrap() + 4;
    let mut file = KINDS.to_vec();
    file[dims + 20..dims + 24].copy_from_slice(&19u32.to_le_bytes());
    let h = parse_gguf(&file).unwrap();
    let t = h.tensors.iter().find(|t| t.name == "q8_0").unwrap();
    assert_eq!(t.dtype, Err("IQ1_S".to_string()));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, &file).unwrap();
    let opened = open(&path).unwrap();
    assert!(matches!(opened.source, FileSource::Gguf { .. }));
    assert!(opened.files.tensor("q8_0").is_none());
    assert_eq!(opened.files.unusable("q8_0"), Some("IQ1_S"));
}

#[test]
fn a_folder_with_one_file_is_that_file_and_missing_parts_are_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.gguf"), KINDS).unwrap();
    assert!(matches!(open(dir.path()).unwrap().source, FileSource::Gguf { .. }));
    std::fs::write(dir.path().join("n.gguf"), KINDS).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("2 .gguf files"));
}
