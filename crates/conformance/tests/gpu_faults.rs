//! GPUs that lack something or are lost, by Mesa's software adapter: no wrong token, no hang, and
//! an error by name where there is one.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../../troika-gpu/tests/common/needed.rs"]
mod needed;
#[path = "../../troika-gpu/tests/common/open.rs"]
mod open;
mod setup;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use conformance::golden::{greedy, greedy_request};
use setup::{Told, described, golden, golden_dir, on};
use troika::device::Device;
use troika::engine::Sharing;
use troika::plan::Strategy;
use troika::weights::FloatType;
use troika::{
    BoundModel, Described, DeviceOptions, Model, OpenOptions, check_device, open_devices,
};
use troika_gpu::{GpuDevice, GpuOptions};

/// How long anything here may take at most.
const LONGEST: Duration = Duration::from_secs(120);
const NAMES: [&str; 3] = ["qwen3", "gemma-2", "qwen3-moe"];

/// The software adapter as a device; `None`, with a line, where it is not installed.
fn gpu(binding_limit: Option<u64>) -> Option<Arc<GpuDevice>> {
    open::device(GpuOptions { binding_limit, ..open::options() }).map(Arc::new)
}

fn cpu() -> Arc<dyn Device> {
    open_devices(&DeviceOptions::default()).unwrap().remove(0)
}

fn options() -> OpenOptions {
    options_for(1)
}

/// For so many sequences at once.
fn options_for(sequences: usize) -> OpenOptions {
    let sharing = Sharing { sequences, ..Sharing::default() };
    OpenOptions { dtype: FloatType::F32, sharing, ..OpenOptions::default() }
}

fn opened(name: &str, devices: Vec<Arc<dyn Device>>, options: &OpenOptions) -> Model {
    let Described { spec, store, .. } = described(name);
    Model::open_bound(name, BoundModel { spec, store, devices }, options).unwrap()
}

/// Asserts that a model says what the reference library says.
fn holds(name: &str, model: &Model) {
    let golden = golden(name);
    let got = greedy(model, &golden.input_ids, golden.greedy.len()).unwrap();
    assert_eq!(got, golden.greedy, "{name}");
}

#[test]
fn what_does_not_fit_stays_on_the_cpu() {
    if gpu(None).is_none() {
        return;
    }
    for name in NAMES {
        let all: u64 = described(name).store.classes().iter().map(|class| class.bytes).sum();
        for (memory, some) in [(0, false), (1, false), (all / 2, true)] {
            let memory = vec![("gpu".to_string(), memory)];
            let devices = on(&[&format!("gpu:{}", needed::adapter()), "cpu"]);
            let devices = DeviceOptions { memory, ..devices };
            let model =
                Model::open(&golden_dir(name), &OpenOptions { devices, ..options() }).unwrap();
            let uses = |device: &str| {
                model.plan().all_rules().any(|rule| rule.devices().any(|d| d == device))
            };
            assert!(uses("cpu"), "{name}");
            if some {
                assert!(uses("gpu"), "{name} with half of its memory");
            }
            holds(name, &model);
        }
    }
}

#[test]
fn a_low_limit_of_bindings_changes_no_token() {
    for name in NAMES {
        let Some(gpu) = gpu(Some(64 << 10)) else { return };
        holds(name, &opened(name, vec![gpu, cpu()], &options()));
    }
}

#[test]
fn a_cache_that_cannot_be_bound_is_an_error_at_once() {
    // Keys of a sequence take 32 KiB in a layer: 256 positions of 32 numbers.
    for (sequences, fits) in [(1, true), (4, true), (64, false)] {
        let Some(gpu) = gpu(Some(256 << 10)) else { return };
        let Described { spec, store, .. } = described("qwen3");
        let model = BoundModel { spec, store, devices: vec![gpu, cpu()] };
        match Model::open_bound("qwen3", model, &options_for(sequences)) {
            Ok(model) => {
                assert!(fits, "{sequences} sequences");
                holds("qwen3", &model);
            }
            Err(e) => {
                assert!(!fits, "{sequences} sequences: {e}");
                let why = e.to_string();
                let parts = ["device gpu binds at most 262144 at once", "--parallel"];
                assert!(parts.iter().all(|part| why.contains(part)), "{why}");
            }
        }
    }
}

#[test]
fn nothing_is_said_of_kernels_of_a_lost_device() {
    let Some(gpu) = gpu(None) else { return };
    gpu.lose();
    let why = check_device(&*gpu, &mut |_, _| true).unwrap_err().to_string();
    assert!(why.contains("device gpu: the driver lost it"), "{why}");
}

/// Sequences in the middle of answers, and later ones, say what the CPU alone says.
#[test]
fn with_a_fallback_the_cpu_goes_on_where_a_device_is_lost() {
    const TOKENS: usize = 24;
    let prompts: [&[u32]; 3] = [&[1, 2, 3], &[9, 8, 7, 6, 5, 4, 3, 2, 1], &[5, 6]];
    let answer = |session: &mut troika::Session, mut got: usize| {
        let mut tokens = Vec::new();
        while got < TOKENS {
            let piece = session.next_piece().unwrap().unwrap();
            tokens.push(piece.token);
            got += 1;
        }
        tokens
    };
    for (name, strategy, together, decoded) in [
        ("qwen3", "one-device", true, 1),
        ("qwen3", "prefill-decode=cpu:gpu", true, 3),
        ("qwen3-moe", "alternate", true, 5),
        ("gemma-2", "prefill-decode=gpu:cpu", false, 9),
    ] {
        let Some(gpu) = gpu(None) else { return };
        let alone = opened(name, vec![cpu()], &options());
        let want = prompts.map(|prompt| greedy(&alone, prompt, TOKENS).unwrap());
        let told = Arc::new(Told::default());
        let with_fallback = OpenOptions {
            fallback: true,
            strategy: Strategy::parse(strategy).unwrap(),
            observer: Some(told.clone()),
            ..options_for(if together { 2 } else { 1 })
        };
        let model = opened(name, vec![gpu.clone(), cpu()], &with_fallback);
        assert!(model.plan().devices.iter().any(|d| d == "gpu"), "{name}");
        let mut sessions = [model.session().unwrap(), model.session().unwrap()];
        let mut got = [Vec::new(), Vec::new()];
        for (i, session) in sessions.iter_mut().enumerate().take(1 + usize::from(together)) {
            session.start(prompts[i], &greedy_request(TOKENS)).unwrap();
            for _ in 0..decoded {
                got[i].push(session.next_piece().unwrap().unwrap().token);
            }
        }
        gpu.lose();
        for (i, session) in sessions.iter_mut().enumerate() {
            if got[i].is_empty() {
                session.start(prompts[i], &greedy_request(TOKENS)).unwrap();
            }
            let so_far = got[i].len();
            got[i].extend(answer(session, so_far));
            assert_eq!(got[i], want[i], "{name} by {strategy}, sequence {i}");
        }
        let later = greedy(&model, prompts[2], TOKENS).unwrap();
        assert_eq!(later, want[2], "{name}, a later sequence");
        assert_eq!(model.plan().devices, ["cpu"], "{name} by {strategy}");
        let told = told.noticed.lock().unwrap();
        assert_eq!(told.len(), 1, "{name}: {told:?}");
        assert!(told[0].contains("device gpu: the driver lost it"), "{told:?}");
        model.engine().unwrap().audit().unwrap();
    }
}

#[test]
fn a_lost_device_fails_its_sequences_by_name() {
    let Some(gpu) = gpu(None) else { return };
    let (done, told) = channel();
    let device = gpu.clone();
    std::thread::spawn(move || {
        let model = opened("qwen3", vec![device.clone() as Arc<dyn Device>], &options_for(2));
        let request = greedy_request(64);
        let mut sessions = [model.session().unwrap(), model.session().unwrap()];
        for (i, session) in sessions.iter_mut().enumerate() {
            session.start(&[1, 2, 3 + i as u32], &request).unwrap();
            assert!(session.next_piece().unwrap().is_some());
        }
        device.lose();
        for session in &mut sessions {
            let failed = (0..64).find_map(|_| session.next_piece().err());
            done.send(failed.map(|e| e.to_string())).unwrap();
        }
        let late = model.session().and_then(|mut s| {
            s.start(&[5, 6], &request)?;
            s.next_piece()
        });
        done.send(late.err().map(|e| e.to_string())).unwrap();
    });
    for which in ["one", "another", "a later one"] {
        let why = told.recv_timeout(LONGEST).unwrap().unwrap();
        println!("{which}: {why}");
        assert!(
            why.contains("device gpu: the driver lost it") && !why.contains('\n'),
            "{which}: {why}"
        );
    }
    // Whoever opens the adapter anew goes on.
    holds("qwen3", &opened("qwen3", vec![self::gpu(None).unwrap(), cpu()], &options()));
}
