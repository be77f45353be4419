//! Quantization at load, and caching of its result.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod setup;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conformance::golden::all_logits;
use setup::{relative_rms, root};
use troika::graph::DType;
use troika::model::spec::{Key, WeightRole};
use troika::weights::{CacheFolder, FloatType, Quant};
use troika::{Model, OpenObserver, OpenOptions, Source};

fn tiny() -> PathBuf {
    root("models/tiny-moe")
}

/// Counts reports of progress.
#[derive(Debug)]
struct Counted(Arc<AtomicU64>);

impl OpenObserver for Counted {
    fn quantized(&self, done: u64, all: u64) {
        assert!(done <= all);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An opened model's logits and warnings, and whether anything was quantized.
struct Opened {
    logits: Vec<f32>,
    warnings: Vec<String>,
    quantized: bool,
}

fn open_model(
    source: impl Into<Source>,
    quant: Quant,
    dtype: FloatType,
    cache: Option<&Path>,
) -> Opened {
    let calls = Arc::new(AtomicU64::new(0));
    let seen = calls.clone();
    let options = OpenOptions {
        quant,
        dtype,
        cache: cache.map(CacheFolder::new),
        observer: Some(Arc::new(Counted(seen))),
        kv_dtype: Some(DType::F32),
        ..OpenOptions::default()
    };
    let model = Model::open(source, &options).unwrap();
    let tokens: Vec<u32> = (0..48).map(|i| 1 + i * 83 % 4000).collect();
    let logits = all_logits(&model, &tokens).unwrap();
    let quantized = calls.load(Ordering::Relaxed) > 0;
    Opened { logits, warnings: model.warnings().to_vec(), quantized }
}

fn open(quant: Quant, cache: Option<&Path>) -> Opened {
    open_model(&tiny(), quant, FloatType::Auto, cache)
}

/// That its bytes come from the source's is tested beside the exporter, in `xtask`.
#[test]
fn the_built_in_model_is_its_source_in_eight_bits() {
    let want = open_model(&tiny(), Quant::None, FloatType::F32, None);
    let got = open_model(Source::BuiltIn, Quant::None, FloatType::F32, None);
    let error = relative_rms(&got.logits, &want.logits);
    assert!(error > 1e-5 && error < 0.03, "{error}");
    let open = |source: Source| Model::open(source, &OpenOptions::default()).unwrap();
    let (inside, folder) = (open(Source::BuiltIn), open(Source::Path(tiny())));
    for text in
        ["It was a dark night", "\u{e9}t\u{e9} 1899,\n\n  \t\"don't\" \u{1f600}<|endoftext|>x", " "]
    {
        assert_eq!(inside.tokenize(text).unwrap().0, folder.tokenize(text).unwrap().0, "{text}");
    }
    // The names of a GGUF file's tokens also mark the end of a turn.
    let im_end = inside.tokenizer().unwrap().id("<|im_end|>").unwrap();
    let ends = [folder.defaults().stop_tokens.clone(), vec![im_end]].concat();
    assert_eq!(inside.defaults().stop_tokens, ends);
    assert_eq!(inside.context(), folder.context());
}

#[test]
fn quantized_models_stay_near_the_float_one() {
    let want = open_model(&tiny(), Quant::None, FloatType::F32, None);
    assert!(!want.quantized);
    for (quant, exact, integer) in [
        (Quant::Bf16, 1e-6, 0.01),
        (Quant::Q8, 0.02, 0.05),
        (Quant::Q4, 0.2, 0.2),
        (Quant::Q4By64, 0.25, 0.25),
    ] {
        let floats = open_model(&tiny(), quant, FloatType::F32, None);
        let ints = open(quant, None);
        let errors = [&floats, &ints].map(|o| relative_rms(&o.logits, &want.logits));
        println!(
            "{}: {:.1e}, activations in eight bits {:.1e}",
            quant.name(),
            errors[0],
            errors[1]
        );
        assert!(errors[0] <= exact && errors[1] <= integer, "{}: {errors:?}", quant.name());
    }
}

#[test]
fn norms_router_and_embedding_stay() {
    for (quant, four) in [(Quant::Q4, DType::Q4_G32), (Quant::Q4By64, DType::Q4_G64)] {
        let options = OpenOptions { quant, ..OpenOptions::default() };
        let model = Model::open(&tiny(), &options).unwrap();
        let dtype = |key| model.store().shape(key).unwrap().dtype;
        assert_eq!(dtype(Key::model(WeightRole::Embed)), DType::BF16);
        assert_eq!(dtype(Key::model(WeightRole::Head)), DType::Q8_0);
        assert_eq!(dtype(Key::layer(0, WeightRole::Router)), DType::BF16);
        assert_eq!(dtype(Key::layer(0, WeightRole::AttnPre)), DType::BF16);
        assert_eq!(dtype(Key::layer(0, WeightRole::Q)), four);
        assert_eq!(dtype(Key::indexed(3, WeightRole::ExpertDown, 7)), four);
    }
}

fn packed_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.join("packed")).into_iter().flatten().flatten();
    entries.map(|e| e.path()).collect()
}

#[test]
fn the_second_start_takes_what_the_first_made() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(Quant::Q4, Some(dir.path()));
    let again = open(Quant::Q4, Some(dir.path()));
    assert!(first.quantized && !again.quantized);
    assert!(first.logits == again.logits);
    assert!(first.warnings.is_empty() && again.warnings.is_empty(), "{:?}", again.warnings);
    // Other types are stored in other files.
    assert!(open(Quant::Q8, Some(dir.path())).quantized);
    assert_eq!(packed_files(dir.path()).len(), 2);
    // Products of floats read the same layout.
    assert!(!open_model(&tiny(), Quant::Q4, FloatType::F32, Some(dir.path())).quantized);
    assert!(!open(Quant::Q4, Some(dir.path())).quantized);
}

#[test]
fn damaged_files_are_noticed_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let want = open(Quant::Q8, Some(dir.path())).logits;
    let [file] = packed_files(dir.path()).try_into().unwrap();
    let whole = std::fs::read(&file).unwrap();
    let len = whole.len();
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [(&str, Damage<'_>); 7] = [
        ("cut short", &|b| b.truncate(len / 2)),
        ("empty", &|b| b.clear()),
        ("one byte short", &|b| b.truncate(len - 1)),
        ("another version", &|b| b[8] ^= 1),
        ("the index", &|b| b[len - 20] ^= 1),
        ("the index's length", &|b| b[24..32].fill(0xff)),
        ("a weight", &|b| b[4096 + 5] ^= 1),
    ];
    for (what, damage) in damages {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        let opened = open(Quant::Q8, Some(dir.path()));
        assert!(opened.quantized && opened.logits == want, "{what}");
        assert!(opened.warnings.iter().any(|w| w.contains("is damaged")), "{what}");
        let again = open(Quant::Q8, Some(dir.path()));
        assert!(!again.quantized && again.logits == want, "{what}, again");
    }
    assert_eq!(packed_files(dir.path()).len(), 1);
}

#[test]
fn a_folder_that_cannot_be_written_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "no folder").unwrap();
    let opened = open(Quant::Q8, Some(&file));
    assert!(opened.quantized);
    assert!(opened.warnings.iter().any(|w| w.contains("cannot be kept")), "{:?}", opened.warnings);
}

#[test]
fn several_starts_at_once_agree() {
    let dir = tempfile::tempdir().unwrap();
    let start = || open(Quant::Q4, Some(dir.path())).logits;
    let all: Vec<Vec<f32>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..3).map(|_| s.spawn(start)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(all.iter().all(|l| *l == all[0]));
    assert!(!open(Quant::Q4, Some(dir.path())).quantized);
    assert_eq!(packed_files(dir.path()).len(), 1);
}

#[test]
fn other_weights_are_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = copied(dir.path());
    let cache = dir.path().join("cache");
    let open = || open_model(&model, Quant::Q8, FloatType::Auto, Some(&cache));
    let before = open();
    assert!(!open().quantized);
    // The same length and names, with one weight's bits changed.
    let path = model.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 1001;
    bytes[at] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
    let after = open();
    assert!(after.quantized && after.logits != before.logits);
}

/// A copy of the model in a separate folder.
fn copied(dir: &Path) -> PathBuf {
    let model = dir.join("model");
    std::fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(tiny().join(name), model.join(name)).unwrap();
    }
    model
}

#[cfg(unix)]
#[test]
fn weights_changed_in_place_with_their_time_kept_are_read_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (model, cache) = (copied(dir.path()), dir.path().join("cache"));
    let open = |cache: Option<&Path>| open_model(&model, Quant::Q8, FloatType::Auto, cache);
    // Hashes of files that were changed very recently are not remembered.
    open(Some(&cache));
    assert!(!cache.join("hashes").exists());
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let before = open(Some(&cache));
    assert_eq!(std::fs::read_dir(cache.join("hashes")).unwrap().count(), 1);
    let path = model.join("model.safetensors");
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let at = file.metadata().unwrap().len() - 1001;
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, at).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[byte[0] ^ 0x40], at).unwrap();
    file.set_modified(time).unwrap();
    let (want, got) = (open(None).logits, open(Some(&cache)));
    assert!(got.quantized && got.logits == want && want != before.logits);
}

#[test]
fn the_folder_keeps_to_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let open = |quant, bytes| {
        let options = OpenOptions {
            quant,
            cache: Some(CacheFolder::new(dir.path()).within(bytes)),
            ..OpenOptions::default()
        };
        Model::open(&tiny(), &options).unwrap().warnings().to_vec()
    };
    let size = || packed_files(dir.path()).iter().map(|p| p.metadata().unwrap().len()).sum::<u64>();
    let refused = open(Quant::Q8, 1 << 20);
    assert!(refused[0].contains("more than the 1 MiB allowed"), "{refused:?}");
    assert_eq!(size(), 0);
    assert!(open(Quant::Q8, u64::MAX).is_empty());
    let q8 = packed_files(dir.path());
    assert!(open(Quant::Q4, u64::MAX).is_empty());
    let both = size();
    let records: u64 = std::fs::read_dir(dir.path().join("hashes"))
        .into_iter()
        .flatten()
        .map(|e| e.unwrap().metadata().unwrap().len())
        .sum();
    assert!(open(Quant::Q4, both + records).is_empty());
    assert_eq!(size(), both);
    // One byte over the limit: the least recently used file is removed.
    assert!(open(Quant::Q4, both + records - 1).is_empty());
    assert!(!q8[0].exists() && packed_files(dir.path()).len() == 1 && size() < both);
}
