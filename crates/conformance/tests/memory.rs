//! What a model takes of the memory that is free: its weights, the KV cache, the context.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::path::{Path, PathBuf};

use conformance::golden::{greedy, greedy_request};
use setup::{golden_dir, root, session_bits};
use troika::engine::Sharing;
use troika::weights::{BindOptions, FloatType, Quant};
use troika::{DeviceOptions, Error, MemoryLimits, Model, OpenOptions, describe};

/// Options for a machine where so many bytes are free.
fn free(host: Option<u64>) -> OpenOptions {
    OpenOptions {
        memory: MemoryLimits { host, ..MemoryLimits::default() },
        devices: DeviceOptions { threads: Some(2), ..DeviceOptions::default() },
        ..OpenOptions::default()
    }
}

/// A golden model whose config promises a context that no memory holds.
fn long_context(dir: &Path) -> PathBuf {
    let from = golden_dir("qwen3");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), dir.join(file)).unwrap();
    }
    let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["max_position_embeddings"] = 1_000_000_000.into();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    dir.to_path_buf()
}

#[test]
fn the_context_and_the_cache_are_what_fits() {
    let dir = tempfile::tempdir().unwrap();
    let folder = long_context(dir.path());
    let mib = 1u64 << 20;
    let open = |options: &OpenOptions| Model::open(&folder, options).unwrap();
    let model = open(&free(Some(64 * mib)));
    let context = model.context();
    assert!((2048..1_000_000_000).contains(&context), "{context}");
    assert!(model.engine().unwrap().memory().kv_cache <= 16 * mib);
    let told = format!("the context is {context} of the model's 1000000000 tokens");
    assert!(model.warnings().iter().any(|w| w.contains(&told)), "{:?}", model.warnings());
    let refused = greedy(&model, &vec![1; context + 1], 8).unwrap_err().to_string();
    assert!(refused.contains("use a larger context, which needs more memory"), "{refused}");
    let tokens = greedy(&model, &[1, 2, 3], 8).unwrap();
    // More sequences share the same memory.
    let options = free(Some(64 * mib));
    let sharing = Sharing { sequences: 16, ..options.sharing };
    let several = open(&OpenOptions { sharing, ..options.clone() });
    assert_eq!(several.context(), context);
    assert!(several.engine().unwrap().memory().kv_cache <= 16 * mib);
    // What is asked for decides.
    let asked = open(&OpenOptions { context: Some(8 * context), ..options.clone() });
    assert_eq!(asked.context(), 8 * context);
    assert!(asked.warnings().iter().any(|w| w.contains("takes")), "{:?}", asked.warnings());
    let sharing = Sharing { kv_bytes: Some(mib), ..options.sharing };
    let asked = open(&OpenOptions { sharing, context: Some(8 * context), ..options });
    assert!(asked.engine().unwrap().memory().kv_cache <= mib);
    for model in [several, asked] {
        assert_eq!(greedy(&model, &[1, 2, 3], 8).unwrap(), tokens);
    }
}

#[test]
fn no_budget_is_too_odd_to_open() {
    let file = root("tests/gguf/llama-q4_0.gguf");
    let tokens = greedy(&Model::open(&file, &free(None)).unwrap(), &[1, 2, 3], 8).unwrap();
    for host in [0, 1 << 20, u64::MAX] {
        for kv_bytes in [None, Some(1 << 20), Some(u64::MAX)] {
            let options = free(Some(host));
            let sharing = Sharing { kv_bytes, sequences: 4, ..options.sharing };
            let model = Model::open(&file, &OpenOptions { sharing, ..options }).unwrap();
            assert_eq!(greedy(&model, &[1, 2, 3], 8).unwrap(), tokens, "{host} {kv_bytes:?}");
        }
    }
    let options = free(None);
    let sharing = Sharing { kv_bytes: Some(0), ..options.sharing };
    let refused = Model::open(&file, &OpenOptions { sharing, ..options }).err().unwrap();
    assert!(refused.to_string().contains("its budget is 0 bytes"), "{refused}");
}

#[test]
fn a_file_larger_than_memory_computes_the_same_bits() {
    let mut tried = 0;
    for entry in std::fs::read_dir(root("tests/gguf")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "gguf") {
            continue;
        }
        for (dtype, chunk) in [(FloatType::Auto, 16), (FloatType::Auto, 64), (FloatType::F32, 16)] {
            let with = |host| OpenOptions { dtype, chunk: Some(chunk), ..free(host) };
            let whole = Model::open(&path, &with(None)).unwrap();
            if whole.store().expert_bytes() > 0 {
                break;
            }
            let want = session_bits(&whole);
            // Some forms need memory although the file holds them: they have it here.
            let all: u64 = whole.store().classes().iter().map(|class| class.bytes).sum();
            let Ok(left) = Model::open(&path, &with(Some(all - 1))) else { continue };
            tried += 1;
            assert!(session_bits(&left) == want, "{} {dtype:?}, chunks of {chunk}", path.display());
            let told = left.warnings().iter().any(|w| w.contains("are read from the file"));
            assert!(told, "{:?}", left.warnings());
            let packed = |m: &Model| m.store().report().packed.values().sum::<u64>();
            assert!(packed(&left) < packed(&whole), "{}", path.display());
        }
    }
    assert!(tried >= 20, "{tried}");
}

#[test]
fn a_folder_that_does_not_fit_is_refused_with_a_quantization_that_does() {
    let folder = golden_dir("llama-3.2");
    let bytes = |quant| {
        let options = BindOptions { quant, ..BindOptions::default() };
        let store = describe(&folder, options).unwrap().store;
        store.classes().iter().map(|class| class.bytes).sum::<u64>()
    };
    let [whole, q8, q4] = [Quant::None, Quant::Q8, Quant::Q4].map(bytes);
    assert!(q4 < q8 && q8 < whole);
    // A sixteenth is the cache's.
    let holds = |bytes: u64| bytes + bytes / 15 + 16;
    let refused = |host| Model::open(&folder, &free(Some(host))).err().unwrap();
    for (host, fits) in [(whole, Some("q8")), (holds(q8), Some("q8")), (q8, Some("q4")), (q4, None)]
    {
        let error = refused(host);
        let Error::TooLarge { advice, .. } = error else { panic!("{error}") };
        let says = fits.map_or("take a GGUF file".into(), |quant| format!("--quant {quant} makes"));
        assert!(advice.starts_with(&says), "{host} of {whole}, {q8}, {q4}: {advice}");
    }
    let error = refused(holds(q4)).to_string();
    assert!(error.ends_with("--quant q4 makes them fit"), "{error}");
    let options = OpenOptions { quant: Quant::Q4, ..free(Some(holds(q4))) };
    session_bits(&Model::open(&folder, &options).unwrap());
    session_bits(&Model::open(&folder, &free(Some(holds(whole)))).unwrap());
}

#[test]
fn memory_of_the_cache_is_counted_when_written_and_given_back() {
    let options =
        OpenOptions { sharing: Sharing { sequences: 16, ..Sharing::default() }, ..free(None) };
    let model = Model::open(&root("models/tiny-moe"), &options).unwrap();
    let memory = || {
        // The step closes sequences that were dropped.
        model.step().unwrap();
        model.engine().unwrap().memory()
    };
    assert_eq!(memory().kv_written, 0);
    let prompt: Vec<u32> = (0..500).map(|i| i * 7 % 4000).collect();
    let tokens = greedy(&model, &prompt, 8).unwrap();
    let after = memory();
    assert!(after.kv_kept > 0 && after.kv_written >= after.kv_used);
    assert!(after.kv_written < after.kv_cache / 16, "{after:?}");
    model.give_back(false).unwrap();
    assert_eq!(memory().kv_written, memory().kv_used);
    assert_eq!(memory().kv_kept, after.kv_kept);
    assert_eq!(greedy(&model, &prompt, 8).unwrap(), tokens);
    model.give_back(true).unwrap();
    assert_eq!((memory().kv_written, memory().kv_used), (0, 0));
    model.engine().unwrap().audit().unwrap();
    assert_eq!(greedy(&model, &prompt, 8).unwrap(), tokens);
}

/// Kept prefixes of finished sequences fill the cache until another sequence waits.
#[test]
fn while_a_sequence_waits_kept_prefixes_take_at_most_half() {
    let options = free(None);
    let sharing = Sharing { sequences: 1, kv_bytes: Some(1 << 20), ..options.sharing };
    let model = Model::open(&root("models/tiny-moe"), &OpenOptions { sharing, ..options }).unwrap();
    let prompt = |seed: u32| (0..200).map(|i| (i * 7 + seed * 501) % 4000).collect::<Vec<u32>>();
    let want: Vec<_> = (0..8).map(|seed| greedy(&model, &prompt(seed), 8).unwrap()).collect();
    let kept = || model.engine().unwrap().memory().kv_kept;
    assert!(kept() > 3 << 18, "{}", kept());
    let mut sessions = [model.session().unwrap(), model.session().unwrap()];
    for (session, seed) in sessions.iter_mut().zip([20, 7]) {
        session.start(&prompt(seed), &greedy_request(8)).unwrap();
    }
    model.step().unwrap();
    assert!(kept() <= 1 << 19, "{}", kept());
    let answers = sessions.map(|mut session| session.finish(None).unwrap().tokens);
    assert_eq!(answers[1], want[7]);
    model.engine().unwrap().audit().unwrap();
}
