//! Reading GGUF: a file written by the `gguf` Python package, and damaged ones.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::Path;

use troika_device::WeightSource;
use troika_graph::{DType, blocks::dequantize};
use troika_model::families;
use troika_model::spec::{GgufMeta, GgufValue, Key, WeightRole};
use troika_weights::{FileSource, FloatType, WeightStore, open, open_start, parse_gguf};

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
    let strs: Vec<_> = get(m, "k.strs").as_texts().unwrap().iter().collect();
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
    // Padding follows the last tensor.
    let end = parse_gguf(KINDS).unwrap().tensors.iter().map(|t| t.range.end).max().unwrap();
    for len in 0..end {
        let result = parse_gguf(&KINDS[..len]);
        assert!(result.is_err(), "a file cut to {len} bytes was accepted");
    }
}

/// The first bytes of a file tell its header, or that they are too few.
#[test]
fn a_header_is_read_from_the_first_bytes() {
    let whole = parse_gguf(KINDS).unwrap();
    let data = whole.tensors.iter().map(|t| t.range.start).min().unwrap();
    let read = |start: &[u8]| open_start("m", start, KINDS.len() as u64).unwrap();
    assert!((8..data / 2).all(|len| read(&KINDS[..len]).is_none()));
    let start = read(&KINDS[..data]).unwrap();
    for t in &whole.tensors {
        let found = start.files.tensor(&t.name).unwrap();
        assert_eq!(
            (Ok(found.dtype), &found.shape, found.bytes.len()),
            (t.dtype.clone(), &t.shape, 0)
        );
    }
    // The tensors have to lie in the whole file.
    let cut = open_start("m", &KINDS[..data], data as u64 + 1).err().unwrap();
    assert!(cut.to_string().contains("past the end"), "{cut}");
    assert!(open_start("m", b"<html>", 1 << 30).is_err());
}

/// The error after replacing some bytes of the file.
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
    // Tensors begin at multiples of the alignment, which is less than a MiB.
    assert!(changed(dims + 24, &huge).contains("not at a multiple of"));
    assert!(changed(dims + 24, &(u64::MAX << 20).to_le_bytes()).contains("past the end"));
}

#[test]
fn types_that_are_not_read_are_named_only_when_used() {
    let dims = KINDS.windows(8).position(|w| w == b"q8_0\x02\0\0\0").unwrap() + 4;
    let mut file = KINDS.to_vec();
    file[dims + 20..dims + 24].copy_from_slice(&15u32.to_le_bytes());
    let h = parse_gguf(&file).unwrap();
    let t = h.tensors.iter().find(|t| t.name == "q8_0").unwrap();
    assert_eq!(t.dtype, Err("Q8_K".to_string()));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, &file).unwrap();
    let opened = open(&path).unwrap();
    assert!(matches!(opened.source, FileSource::Gguf { .. }));
    assert!(opened.files.tensor("q8_0").is_none());
    assert_eq!(opened.files.unusable("q8_0"), Some("Q8_K"));
}

#[test]
fn a_folder_with_one_file_is_that_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("m.gguf"), KINDS).unwrap();
    assert!(matches!(open(dir.path()).unwrap().source, FileSource::Gguf { .. }));
    std::fs::write(dir.path().join("n.gguf"), KINDS).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("2 .gguf files"));
}

/// Five tensors in three files, written by the `gguf` Python package (`split_max_tensors=2`):
/// tensor `tN` is `[2, 4]` numbers N.
const PARTS: [&[u8]; 3] = [
    include_bytes!("data/split-00001-of-00003.gguf"),
    include_bytes!("data/split-00002-of-00003.gguf"),
    include_bytes!("data/split-00003-of-00003.gguf"),
];

/// A folder with the parts, modified by a function.
fn split(change: impl FnOnce(&mut [Vec<u8>; 3])) -> (tempfile::TempDir, [std::path::PathBuf; 3]) {
    let dir = tempfile::tempdir().unwrap();
    let mut parts = PARTS.map(<[u8]>::to_vec);
    change(&mut parts);
    let paths = [1, 2, 3].map(|i| dir.path().join(format!("m-{i:05}-of-00003.gguf")));
    paths.iter().zip(parts).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    (dir, paths)
}

/// The error of opening the first part after a change.
fn split_error(change: impl FnOnce(&mut [Vec<u8>; 3])) -> String {
    let (_dir, paths) = split(change);
    open(&paths[0]).err().unwrap().to_string()
}

/// Replaces the bytes after `name` in a part.
fn set_after(part: &mut [u8], name: &[u8], skip: usize, to: &[u8]) {
    let at = part.windows(name.len()).position(|w| w == name).unwrap() + name.len() + skip;
    part[at..at + to.len()].copy_from_slice(to);
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    words.iter().for_each(|w| assert!(text.contains(w), "{w:?} is not in {text:?}"));
}

#[test]
fn all_parts_of_a_split_model_are_read() {
    let (dir, paths) = split(|_| {});
    for path in [paths[0].as_path(), dir.path()] {
        let files = open(path).unwrap().files;
        assert_eq!(files.names(), ["t0", "t1", "t2", "t3", "t4"]);
        for (i, part) in [0, 0, 1, 1, 2].into_iter().enumerate() {
            let name = format!("t{i}");
            let tensor = files.tensor(&name).unwrap();
            assert_eq!((tensor.dtype, tensor.shape.as_slice()), (DType::F32, &[2, 4][..]));
            let mut values = [0.0; 8];
            dequantize(tensor.dtype, &tensor.bytes, &mut values);
            assert_eq!(values, [i as f32; 8]);
            assert_eq!(files.origin(&name), paths[part].display().to_string());
        }
        assert_eq!(files.maps().len(), 3);
    }
}

#[test]
fn missing_and_misplaced_parts_are_named() {
    for missing in [1, 2] {
        let (_dir, paths) = split(|_| {});
        std::fs::remove_file(&paths[missing]).unwrap();
        let part = format!("m-{:05}-of-00003.gguf: ", missing + 1);
        has(&open(&paths[0]).err().unwrap().to_string(), &[&part, "No such file"]);
    }
    let (dir, paths) = split(|_| {});
    let error = open(&paths[1]).err().unwrap().to_string();
    has(&error, &["m-00002-of-00003.gguf", "it is part 2 of 3, give the first part"]);
    let renamed = dir.path().join("model.gguf");
    std::fs::rename(&paths[0], &renamed).unwrap();
    let error = open(&renamed).err().unwrap().to_string();
    has(&error, &["model.gguf", "the first of 3 parts, but not named NAME-00001-of-00003.gguf"]);
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    has(&split_error(|p| p.swap(1, 2)), &["m-00002-of-00003.gguf", "it is not part 2 of 3"]);
    let other_count = |p: &mut [Vec<u8>; 3]| set_after(&mut p[2], b"split.count", 4, &[4, 0]);
    has(&split_error(other_count), &["m-00003-of-00003.gguf", "it is not part 3 of 3"]);
    let one = PARTS[0];
    has(&split_error(|p| p[1] = one.to_vec()), &["tensor t0 is in", "m-00001-of-00003"]);
    has(&split_error(|p| p[1] = KINDS.to_vec()), &["it is not part 2 of 3"]);
    let more = |p: &mut [Vec<u8>; 3]| set_after(&mut p[0], b"split.tensors.count", 4, &[6]);
    has(&split_error(more), &["m-00001-of-00003.gguf", "its parts have 5 tensors, not 6"]);
    let twice = |p: &mut [Vec<u8>; 3]| {
        let at = p[1].windows(2).position(|w| w == b"t2").unwrap();
        p[1][at + 1] = b'0';
    };
    let error = split_error(twice);
    has(&error, &["m-00002-of-00003.gguf is damaged", "tensor t0 is in", "m-00001-of-00003"]);
    let cut = |p: &mut [Vec<u8>; 3]| p[2].truncate(170);
    has(&split_error(cut), &["m-00003-of-00003.gguf is damaged", "t4", "past the end"]);
    has(&split_error(|p| p[1].clear()), &["m-00002-of-00003.gguf"]);
}

#[test]
fn part_numbers_at_the_limit_do_not_overflow() {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend([0u64, 2].iter().flat_map(|n| n.to_le_bytes()));
    for key in ["split.no", "split.count"] {
        file.extend((key.len() as u64).to_le_bytes());
        file.extend(key.as_bytes());
        file.extend(10u32.to_le_bytes());
        file.extend(u64::MAX.to_le_bytes());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, file).unwrap();
    has(&open(&path).err().unwrap().to_string(), &["it is part 18446744073709551615 of"]);
}

/// Changes the offset of a tensor in the header.
fn moved(name: &str, by: i64) -> Result<(), String> {
    let mut bytes = KINDS.to_vec();
    let key = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len();
    let dims = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let at = at + 4 + 8 * dims + 4;
    let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let offset = offset.checked_add_signed(by).unwrap();
    bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
    parse_gguf(&bytes).map(|_| ())
}

#[test]
fn tensors_begin_where_they_may_and_share_no_bytes() {
    let h = parse_gguf(KINDS).unwrap();
    let mut order: Vec<_> = h.tensors.iter().filter(|t| !t.range.is_empty()).collect();
    order.sort_by_key(|t| t.range.start);
    let (before, last) = (&order[order.len() - 2], &order[order.len() - 1]);
    assert_eq!(moved(&last.name, 0), Ok(()));
    let error = moved(&last.name, -4).unwrap_err();
    assert!(error.contains(&last.name) && error.contains("multiple of 64"), "{error}");
    let back = before.range.start as i64 - last.range.start as i64;
    let error = moved(&last.name, back).unwrap_err();
    let both = error.contains(&last.name) && error.contains(&before.name);
    assert!(both && error.contains("overlap"), "{error}");
}

/// Looking up a row must not map a huge page of the file.
#[cfg(target_os = "linux")]
#[test]
fn a_table_in_blocks_is_mapped_in_small_pages() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-moe/tiny-moe-Q8_0.gguf");
    let path = path.canonicalize().unwrap();
    let opened = open(&path).unwrap();
    let FileSource::Gguf { meta, .. } = &opened.source else { panic!("a GGUF file") };
    let model = families::from_gguf(meta, &*opened.files).unwrap();
    let store = WeightStore::bind(&model, &*opened.files, FloatType::default().into()).unwrap();
    let table = |role| Key { role, layer: None, index: None }.to_string();
    let bytes = store.weight(&table(WeightRole::Embed)).unwrap().bytes;
    // The system's entry for the mapping of the table's middle.
    let middle = bytes[bytes.len() / 2..].as_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let flags = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(a, b)| (number(a), number(b))) {
            inside = (start..end).contains(&middle);
        }
        inside && line.starts_with("VmFlags:")
    });
    // A system without huge pages does not report this flag.
    if Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        assert!(flags.unwrap().split(' ').any(|flag| flag == "nh"), "{flags:?}");
    }
}
