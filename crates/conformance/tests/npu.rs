//! NPU devices by the providers of ONNX Runtime, which the test installs by its packages' names:
//! every op that a static graph can have, and every architecture with its products on the NPU.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use conformance::golden::{all_logits, find, read_golden, relative_error};
use conformance::suite::{Exclusion, SuiteCase, model_cases, op_cases, run_suite};
use troika::device::{Device, DeviceError, Weights};
use troika::graph::Dim;
use troika::npu::{HelperCommand, RuntimePlaces};
use troika::weights::FloatType;
use troika::{DeviceOptions, Model, NpuSettings, OpenOptions, open_devices};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A Python environment with the runtimes, made once.
fn runtime() -> RuntimePlaces {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let environment = MADE.get_or_init(|| {
        let environment = root("target/npu-runtimes");
        let made = Command::new(root(".ci/npu-runtimes")).arg(&environment).status().unwrap();
        assert!(made.success());
        environment
    });
    RuntimePlaces { library: None, environments: vec![environment.clone()] }
}

fn options(specs: &[&str]) -> DeviceOptions {
    let devices = specs.iter().map(|spec| spec.parse().unwrap()).collect();
    let npu = NpuSettings { runtime: runtime(), ..NpuSettings::default() };
    DeviceOptions { devices, npu, ..DeviceOptions::default() }
}

fn device(spec: &str) -> Arc<dyn Device> {
    open_devices(&options(&[spec])).unwrap().remove(0)
}

/// What no static graph has.
const DYNAMIC: [Exclusion; 5] = [
    Exclusion { what: "attention", why: "its cache grows" },
    Exclusion { what: "kv_append", why: "its cache grows" },
    Exclusion { what: "router", why: "what follows depends on it" },
    Exclusion { what: "experts", why: "which rows an expert gets is known late" },
    Exclusion { what: "rope of long sequences", why: "frequencies go by the length" },
];

fn cases() -> Vec<SuiteCase> {
    let mut all = op_cases().unwrap();
    for model in ["qwen3-moe", "gemma-2", "deepseek-v2", "gpt-oss", "phi-2"] {
        all.extend(model_cases(&root("tests/golden").join(model)).unwrap());
    }
    all
}

fn holds(spec: &str, more: &[Exclusion]) {
    let exclusions = [&DYNAMIC, more].concat();
    let device = device(spec);
    let report = run_suite(&*device, &cases(), &exclusions).unwrap();
    println!(
        "{spec}: {} runs, {} refused, worst {:e}",
        report.runs,
        report.refused.len(),
        report.worst
    );
    assert!(report.failures.is_empty(), "{spec}:\n{}", report.failures.join("\n"));
    assert!(report.runs > 60 && report.refused.len() > 20, "{}", report.runs);
}

#[test]
fn the_reference_holds() {
    holds("npu:reference", &[]);
}

#[test]
fn openvino_holds() {
    let convert = Exclusion { what: "convert", why: "its compiler does not round to the nearest" };
    holds("npu:openvino:cpu", &[convert]);
}

/// Everything but attention and routing on the NPU: the reference library's logits.
fn architectures(npu: &str, names: &[&str], tolerance: f32) {
    let mut cases = find(&root("tests/golden")).unwrap();
    cases.retain(|case| names.is_empty() || names.contains(&&*case.name));
    assert!(cases.len() >= names.len().max(1) && (!names.is_empty() || cases.len() >= 20));
    let mut failures = Vec::new();
    for case in cases {
        let options = OpenOptions {
            dtype: FloatType::F32,
            devices: options(&[npu, "cpu"]),
            // Fewer lengths to compile.
            chunk: 16,
            ..OpenOptions::default()
        };
        let golden = read_golden(&case.golden).unwrap();
        let logits = Model::open(&case.model, &options)
            .map_err(|e| e.to_string())
            .and_then(|model| all_logits(&model, &golden.input_ids).map_err(|e| e.to_string()));
        match logits.map(|logits| relative_error(&logits, &golden.logits)) {
            Ok(error) if error <= tolerance => {
                println!("{npu} {}: {error:e}", case.name);
            }
            other => failures.push(format!("{}: {other:?}", case.name)),
        }
    }
    assert!(failures.is_empty(), "{npu}:\n{}", failures.join("\n"));
}

#[test]
fn all_architectures_on_the_reference() {
    architectures("npu:reference", &[], 2e-4);
}

#[test]
fn all_architectures_on_openvino() {
    architectures("npu:openvino:cpu", &[], 2e-4);
}

/// Qualcomm's processor computes in halves: 0.2 to 1.7 percent of the largest logit on these random weights.
#[test]
fn some_architectures_on_the_emulated_qnn() {
    let names = ["qwen3", "llama-3.2", "qwen3-moe", "gemma-2"];
    architectures("npu:qnn:emulator", &names, 3e-2);
}

/// A compiler that crashes or hangs costs its graph, and nothing else.
#[test]
fn compilers_may_crash_or_hang() {
    for (script, says) in [
        ("kill -9 $$", "its compiler ended in the middle (signal: 9"),
        ("sleep 60", "its compiler was ended after 1 s"),
        ("exit 3", "its compiler ended in the middle (exit status: 3"),
        ("echo no answer; sleep 60", "its compiler was ended after 1 s"),
    ] {
        let mut options = options(&["npu:qnn:emulator"]);
        options.npu.helper = Some(HelperCommand {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            limit: Duration::from_secs(1),
        });
        let device = open_devices(&options).unwrap().remove(0);
        let case = op_cases().unwrap().into_iter().find(|c| c.name == "linear").unwrap();
        let mut graph = case.graph.clone();
        for dim in graph.values.iter_mut().filter_map(|v| v.shape.0.first_mut()) {
            *dim = Dim::Fixed(16);
        }
        let refused = Weights::compiled(&*device, &graph, &*case.weights).unwrap_err();
        assert!(matches!(refused, DeviceError::Unsupported { .. }), "{script}: {refused}");
        assert!(refused.to_string().contains(says), "{script}: {refused}");
    }
}

/// Each missing step has a sentence with what mends it.
#[test]
fn what_is_missing_is_said() {
    let open = |npu: NpuSettings, spec: &str| {
        let devices = vec![spec.parse().unwrap()];
        let options = DeviceOptions { devices, npu, ..DeviceOptions::default() };
        open_devices(&options).err().unwrap().to_string()
    };
    let settings = |runtime| NpuSettings { runtime, ..NpuSettings::default() };
    for spec in ["npu", "npu:qnn", "npu:openvino:npu"] {
        let why = open(settings(runtime()), spec);
        assert!(why.contains("finds no") && !why.contains('\n'), "{why}");
    }
}
