//! Experts that are read when tokens choose them: the same numbers as in memory, whatever fits, and
//! clear errors when they cannot be read.

#![allow(clippy::unwrap_used)]

mod setup;

use std::path::Path;

use setup::{golden_dir, on, root, session_bits};
use troika::engine::WantedLogits;
use troika::plan::Strategy;
use troika::weights::{CacheFolder, FloatType, Quant};
use troika::{Control, DeviceOptions, MemoryLimits, Model, OpenOptions, Request};

fn devices(names: &[&str]) -> DeviceOptions {
    DeviceOptions { threads: Some(2), ..on(names) }
}

#[test]
fn all_families_compute_the_same_as_in_memory() {
    let cache = tempfile::tempdir().unwrap();
    for name in ["deepseek-v2", "gpt-oss", "mixtral", "olmoe", "phimoe", "qwen2-moe", "qwen3-moe"] {
        let folder = golden_dir(name);
        for (dtype, quant) in [
            (FloatType::F32, Quant::None),
            (FloatType::Auto, Quant::None),
            (FloatType::Auto, Quant::Q8),
        ] {
            let options = OpenOptions {
                dtype,
                quant,
                chunk: Some(16),
                devices: devices(&[]),
                cache: Some(CacheFolder::new(cache.path())),
                ..OpenOptions::default()
            };
            let plain = Model::open(&folder, &options).unwrap();
            assert!(plain.expert_stats().is_none());
            let want = session_bits(&plain);
            let all = plain.store().expert_bytes();
            for share in [2, 5] {
                // Experts of these models are small: pages of 4 KiB would hold more than the budget.
                let budget = (all / share).max(160 << 10);
                if budget >= all {
                    continue;
                }
                let memory = MemoryLimits { experts: Some(budget), ..MemoryLimits::default() };
                let less = OpenOptions { memory, ..options.clone() };
                let model = Model::open(&folder, &less).unwrap();
                let what = format!("{name} {dtype:?} {quant:?}, a part in {share}");
                assert!(session_bits(&model) == want, "{what}");
                let stats = model.expert_stats().unwrap();
                assert!(stats.bytes_read > 0 && stats.held <= stats.budget, "{what}: {stats:?}");
            }
        }
    }
}

fn built_in(experts: Option<u64>, folder: &Path) -> OpenOptions {
    OpenOptions {
        memory: MemoryLimits { experts, ..MemoryLimits::default() },
        chunk: Some(16),
        devices: devices(&[]),
        cache: Some(CacheFolder::new(folder)),
        ..OpenOptions::default()
    }
}

#[test]
fn several_devices_read_experts_of_one_cache() {
    let folder = tempfile::tempdir().unwrap();
    let model = root("models/tiny-moe");
    let plain = Model::open(&model, &built_in(None, folder.path())).unwrap();
    let want = session_bits(&plain);
    for strategy in [Strategy::Alternate, Strategy::PrefillDecode] {
        let options = OpenOptions {
            strategy: strategy.clone(),
            devices: devices(&["a=cpu", "b=cpu"]),
            ..built_in(Some(1 << 20), folder.path())
        };
        let model = Model::open(&model, &options).unwrap();
        assert!(session_bits(&model) == want, "{strategy}");
        assert!(model.expert_stats().unwrap().evictions > 0);
    }
}

#[test]
fn a_file_that_is_cut_short_while_running_is_an_error_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = root("models/tiny-moe");
    let model = Model::open(&model, &built_in(Some(1 << 20), folder.path())).unwrap();
    let want = session_bits(&model);
    let packed = std::fs::read_dir(folder.path().join("packed")).unwrap().next().unwrap().unwrap();
    let whole = std::fs::read(packed.path()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(packed.path()).unwrap();
    file.set_len(8192).unwrap();
    let mut session = model.session().unwrap();
    let prompt: Vec<u32> = (1..60).collect();
    let error = session.feed(&prompt, WantedLogits::None, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("layers.") && error.contains("cut short"), "{error}");
    assert!(error.contains(&*packed.file_name().to_string_lossy()), "{error}");
    drop(session);
    // When it is whole again, the model goes on.
    std::fs::write(packed.path(), whole).unwrap();
    assert!(session_bits(&model) == want);
}

#[test]
fn without_a_folder_there_is_nothing_to_read_from() {
    let options = OpenOptions { cache: None, ..built_in(Some(1 << 20), Path::new("")) };
    let error = Model::open(&root("models/tiny-moe"), &options).err().unwrap().to_string();
    assert!(error.contains("--cache-dir"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = built_in(Some(1 << 20), file.path());
    let error = Model::open(&root("models/tiny-moe"), &options).err().unwrap().to_string();
    assert!(error.contains("do not fit into memory"), "{error}");
    assert!(error.contains("cannot be kept"), "it says why: {error}");
}

#[test]
fn a_run_may_be_stopped_while_reads_are_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&root("models/tiny-moe"), &built_in(Some(1 << 20), folder.path()));
    let model = model.unwrap();
    let want = session_bits(&model);
    let prompt: Vec<u32> = (1..100).collect();
    for after in 0..6 {
        let mut session = model.session().unwrap();
        let request = Request { max_tokens: Some(50), ignore_eos: true, ..Request::default() };
        let mut tokens = 0;
        let canceller = session.canceller();
        let out = session.generate(&prompt, &request, &mut |_, _| {
            tokens += 1;
            if tokens > after {
                canceller.cancel();
            }
            Control::Continue
        });
        drop(out);
    }
    assert!(session_bits(&model) == want);
}
