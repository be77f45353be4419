//! GPUs that lack something or are lost, by Mesa's software adapter: no wrong token, no hang, and
//! an error by name where there is one.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../../troika-gpu/tests/common/needed.rs"]
mod needed;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use conformance::golden::{greedy, read_golden};
use troika::device::Device;
use troika::engine::Sharing;
use troika::weights::{BindOptions, FloatType, Quant};
use troika::{
    BoundModel, Described, DeviceOptions, Model, OpenOptions, Request, check_device, describe,
    open_devices,
};
use troika_gpu::{GpuDevice, GpuError, GpuOptions, GpuSpec};

/// How long anything here may take at most.
const LONGEST: Duration = Duration::from_secs(120);
const NAMES: [&str; 3] = ["qwen3", "gemma-2", "qwen3-moe"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// The software adapter as a device; `None`, with a line, where it is not installed.
fn gpu(binding_limit: Option<u64>) -> Option<Arc<GpuDevice>> {
    let spec = GpuSpec::Named(needed::adapter());
    let options = GpuOptions { name: "gpu".into(), spec, binding_limit, ..GpuOptions::default() };
    match GpuDevice::open(options) {
        Ok(device) => Some(Arc::new(device)),
        Err(e @ (GpuError::NoAdapter | GpuError::Unknown { .. })) => {
            needed::not_run(&e.to_string());
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn cpu() -> Arc<dyn Device> {
    open_devices(&DeviceOptions::default()).unwrap().remove(0)
}

fn described(name: &str) -> Described {
    let bind = BindOptions { float: FloatType::F32, quant: Quant::None };
    describe(&golden(name), bind).unwrap()
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
    let golden = read_golden(&golden(name).join("golden.safetensors")).unwrap();
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
            let devices = [&format!("gpu:{}", needed::adapter()), "cpu"]
                .map(|spec| spec.parse().unwrap())
                .to_vec();
            let memory = vec![("gpu".to_string(), memory)];
            let devices = DeviceOptions { devices, memory, ..DeviceOptions::default() };
            let model = Model::open(&golden(name), &OpenOptions { devices, ..options() }).unwrap();
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
fn nothing_is_said_of_kernels_of_a_lost_device() {
    let Some(gpu) = gpu(None) else { return };
    gpu.lose();
    let why = check_device(&*gpu, &mut |_, _| {}).unwrap_err().to_string();
    assert!(why.contains("device gpu: the driver lost it"), "{why}");
}

#[test]
fn a_lost_device_fails_its_sequences_by_name() {
    let Some(gpu) = gpu(None) else { return };
    let (done, told) = channel();
    let device = gpu.clone();
    std::thread::spawn(move || {
        let model = opened("qwen3", vec![device.clone() as Arc<dyn Device>], &options_for(2));
        let mut request = Request { max_tokens: Some(64), ignore_eos: true, ..Request::default() };
        request.params.temperature = 0.0;
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
