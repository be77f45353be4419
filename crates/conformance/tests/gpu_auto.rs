//! Devices that are chosen, by Mesa's software adapter in the place of a card with little memory:
//! plans open, run, say what the CPU says, and hold what they said.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../../troika-gpu/tests/common/needed.rs"]
mod needed;
#[path = "../../troika-gpu/tests/common/open.rs"]
mod open;
mod setup;

use std::sync::Arc;

use conformance::golden::greedy;
use setup::{Told, golden, golden_dir, on};
use troika::device::Device;
use troika::graph::DType;
use troika::model::chat::HelperCommand;
use troika::weights::{FloatType, Quant};
use troika::{
    AutoDevices, BoundModel, DeviceOptions, GpuAdapter, Model, OpenOptions, gpu_adapters,
    open_devices,
};
use troika_lab::Shape;

/// Options that choose devices, where software is a card of so many bytes.
fn options(told: &Arc<Told>, memory: u64) -> OpenOptions {
    let auto =
        AutoDevices { layers: Some(usize::MAX), software: Some(memory), ..AutoDevices::default() };
    OpenOptions {
        chunk: Some(16),
        context: Some(256),
        observer: Some(told.clone()),
        devices: DeviceOptions { auto: Some(auto), ..DeviceOptions::default() },
        ..OpenOptions::default()
    }
}

fn cpu() -> Arc<dyn Device> {
    open_devices(&DeviceOptions::default()).unwrap().remove(0)
}

const DENSE: &str = r#"{"model_type": "llama", "num_hidden_layers": 20, "hidden_size": 768,
    "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 3072,
    "vocab_size": 2048, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "tie_word_embeddings": false}"#;
const MOE: &str = r#"{"model_type": "qwen3_moe", "num_hidden_layers": 10, "hidden_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024,
    "moe_intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 2,
    "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 2048,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "tie_word_embeddings": false}"#;

/// The bytes that a line says to lie on the card: `(90.5 of 100.0 MiB)`.
fn said(line: &str) -> f64 {
    let figures = line.split_once(" MiB)").unwrap().0.rsplit_once('(').unwrap().1;
    figures.split(' ').next().unwrap().parse::<f64>().unwrap() * f64::from(1 << 20)
}

#[test]
fn plans_for_little_memory_hold_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    for (name, config) in [("dense", DENSE), ("moe", MOE)] {
        let file = dir.path().join(format!("{name}.json"));
        std::fs::write(&file, config).unwrap();
        let shape = Shape::find(file.to_str().unwrap(), DType::Q8_0).unwrap();
        let store = || shape.lazy_weights(Quant::None);
        let all: u64 = store().classes().iter().map(|class| class.bytes).sum();
        let say = |devices: Vec<Arc<dyn Device>>, options: &OpenOptions| {
            let bound = BoundModel { spec: shape.spec.clone(), store: store(), devices };
            let model = Model::open_bound(name, bound, options).unwrap();
            let tokens = greedy(&model, &[1, 5, 9, 2, 7, 7, 3], 6).unwrap();
            (tokens, model)
        };
        // Random routers have near ties: rounded activations would choose other experts.
        let dtype = FloatType::F32;
        let plain = OpenOptions { context: Some(256), dtype, ..OpenOptions::default() };
        let (expected, _) = say(vec![cpu()], &plain);
        for (memory, least) in [(all / 2, 1), (all / 10, 0), (2 * all, 10)] {
            let Some(gpu) = open::device(open::options()).map(Arc::new) else { return };
            let told = Arc::new(Told::default());
            let asked = OpenOptions { dtype, ..options(&told, memory) };
            let chosen = asked.chosen(name, &shape.spec, &store()).unwrap();
            let [line] = &told.placed.lock().unwrap()[..] else { panic!("{told:?}") };
            println!("{name} with {} MiB: {line}", memory >> 20);
            if chosen.devices.devices.is_empty() {
                assert!(line.contains("the CPU computes") && least == 0, "{line}");
                continue;
            }
            let (tokens, model) = say(vec![gpu.clone(), cpu()], &chosen);
            assert_eq!(tokens, expected, "{name} with {memory}: {line}");
            let held = gpu.held_bytes() as f64;
            let said = said(line);
            assert!(said <= memory as f64 * 1.001 && held <= memory as f64, "{held}: {line}");
            assert!((held / said - 1.0).abs() < 0.05, "{held} of {said}: {line}");
            let is_on_gpu = |layer: &usize| {
                let mut rules = model.plan().decode.rules.clone().into_iter();
                rules.any(|rule| {
                    rule.device == "gpu" && rule.layers.is_none_or(|l| l.contains(*layer))
                })
            };
            let layers = (0..shape.spec.layers.len()).filter(is_on_gpu).count();
            assert!(layers >= least, "{layers}: {line}");
        }
    }
}

/// A GPU that is named gets the context that fits beside the weights; with the CPU, whole layers.
#[test]
fn a_gpu_that_is_named_gets_what_fits() {
    let Some(gpu) = open::device(open::options()).map(Arc::new) else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("long.json");
    std::fs::write(&file, DENSE.replace("embeddings\": 2048", "embeddings\": 32768")).unwrap();
    let shape = Shape::find(file.to_str().unwrap(), DType::Q8_0).unwrap();
    let store = || shape.lazy_weights(Quant::None);
    let all: u64 = store().classes().iter().map(|class| class.bytes).sum();
    let named = |devices: &[&str], most: u64| {
        let told = Arc::new(Told::default());
        let options = OpenOptions {
            dtype: FloatType::F32,
            chunk: Some(16),
            observer: Some(told.clone()),
            devices: DeviceOptions { memory: vec![("gpu".into(), most)], ..on(devices) },
            ..OpenOptions::default()
        };
        let chosen = options.chosen("long", &shape.spec, &store()).unwrap();
        let told = told.placed.lock().unwrap().clone();
        (chosen, told)
    };
    // A position of the cache takes 40 KiB in f32.
    let (chosen, told) = named(&["gpu:llvmpipe"], all + (500 << 20));
    let context = chosen.context.unwrap();
    assert!((8192..16384).contains(&context), "{context}: {told:?}");
    let [line] = &told[..] else { panic!("{told:?}") };
    assert!(line.contains(&format!("a context of {context} of 32768 tokens fits")), "{line}");
    let open = |devices: Vec<Arc<dyn Device>>, options: &OpenOptions| {
        let bound = BoundModel { spec: shape.spec.clone(), store: store(), devices };
        let model = Model::open_bound("long", bound, options).unwrap();
        greedy(&model, &[1, 5, 9, 2, 7, 7, 3], 6).unwrap()
    };
    let plain = OpenOptions { context: Some(256), dtype: FloatType::F32, ..OpenOptions::default() };
    let expected = open(vec![cpu()], &plain);
    assert_eq!(open(vec![gpu.clone()], &chosen), expected);
    assert!(gpu.held_bytes() <= all + (500 << 20), "{}", gpu.held_bytes());
    let (chosen, told) = named(&["gpu:llvmpipe", "cpu"], all / 2 + (330 << 20));
    assert!(
        chosen.strategy.to_string().starts_with("layers=cpu:"),
        "{}: {told:?}",
        chosen.strategy
    );
    // What fits as it is asked for is not told, and what does not fit at all is left as it is.
    let (chosen, told) = named(&["gpu:llvmpipe"], 8 * all + (2 << 30));
    assert!(told.is_empty() && chosen.context.is_none(), "{told:?}");
    let (chosen, told) = named(&["gpu:llvmpipe"], all / 2);
    assert!(told.is_empty() && chosen.context.is_none(), "{told:?}");
}

/// Opens a model of files with devices that are chosen, checks its tokens, and returns what was said.
fn holds(name: &str, memory: u64, helper: Option<HelperCommand>) -> (Vec<String>, Model) {
    let told = Arc::new(Told::default());
    let mut options =
        OpenOptions { dtype: FloatType::F32, context: None, ..options(&told, memory) };
    options.devices.auto.as_mut().unwrap().helper = helper;
    let model = Model::open(&golden_dir(name), &options).unwrap();
    let golden = golden(name);
    let got = greedy(&model, &golden.input_ids, golden.greedy.len()).unwrap();
    assert_eq!(got, golden.greedy, "{name}");
    let said = told.placed.lock().unwrap().clone();
    (said, model)
}

fn is_here() -> bool {
    let here = gpu_adapters().iter().any(|adapter| adapter.is_software);
    if !here {
        needed::not_run("there is no software adapter");
    }
    here
}

#[test]
fn files_run_on_what_is_chosen() {
    if !is_here() {
        return;
    }
    for name in ["qwen3", "gemma-2", "qwen3-moe", "deepseek-v2", "gpt-oss"] {
        let (said, model) = holds(name, 1 << 30, None);
        assert!(said.len() == 1 && said[0].starts_with(&format!("{name}: ")), "{said:?}");
        assert_eq!(model.plan().devices, ["gpu"], "{said:?}");
    }
}

/// A card that is gone when it is opened, and one that is there but has less than it said.
#[test]
#[cfg(unix)]
fn the_cpu_takes_the_place_of_a_card_that_is_gone() {
    let found = |adapters: &[GpuAdapter]| {
        let lines: Vec<String> = adapters.iter().map(GpuAdapter::to_line).collect();
        let args = vec!["-c".into(), "printf '%s\\n' \"$0\"".into(), lines.join("\n")];
        Some(HelperCommand { program: "sh".into(), args })
    };
    let card = GpuAdapter {
        name: "Gone".into(),
        has_own_memory: true,
        memory: Some(8 << 30),
        free: Some(7 << 30),
        binding: 1 << 30,
        ..GpuAdapter::default()
    };
    let fault = Some("it is elsewhere".to_string());
    let other = GpuAdapter { fault, ..card.clone() };
    // Its number is beyond those that are here.
    let adapters: Vec<GpuAdapter> = std::iter::repeat_n(other, 99).chain([card]).collect();
    let (said, model) = holds("qwen3", 0, found(&adapters));
    assert_eq!(model.plan().devices, ["cpu"]);
    let [chosen, instead] = &said[..] else { panic!("{said:?}") };
    assert!(chosen.contains("on Gone ("), "{chosen}");
    assert!(instead.contains("the CPU computes") && instead.contains("gpu"), "{instead}");
    // Nothing is said where there is no card at all.
    let none = HelperCommand { program: "true".into(), args: vec![] };
    let (said, model) = holds("qwen3", 0, Some(none));
    assert_eq!(model.plan().devices, ["cpu"]);
    assert!(said[0].contains("there is no GPU that can be used"), "{said:?}");
}
