//! Every architecture and file format against the reference library's outputs.

use std::path::Path;

use conformance::golden::{all_logits, check, find, read_golden, relative_error};
use troika::graph::{Acts, DType};
use troika::{Model, OpenOptions};

fn all_hold(dir: &str, at_least: usize) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(dir);
    let cases = find(&dir).unwrap();
    assert!(cases.len() >= at_least, "{} cases in {}", cases.len(), dir.display());
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| match check(case) {
            Ok(r) if r.holds() => None,
            Ok(r) => Some(format!("{}: {r}", case.name)),
            Err(e) => Some(format!("{}: {e}", case.name)),
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn checkpoints_of_all_architectures() {
    all_hold("golden", 20);
}

#[test]
fn gguf_files() {
    all_hold("gguf", 18);
}

#[test]
fn features_beside_the_usual_ones() {
    all_hold("variants", 10);
}

/// Allowed difference of activations in eight bits, relative to the largest logit.
const INT8_TOLERANCE: f32 = 0.03;

/// Quantized files with activations in eight bits: near the reference, and the same bits for
/// every length of chunks.
#[test]
fn gguf_files_with_integer_activations() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gguf");
    let options = |chunk| OpenOptions { kv_dtype: Some(DType::F32), chunk, ..Default::default() };
    let names = ["llama-q8_0", "llama-q4_0", "llama-q4_k_m", "llama-q5_k_m", "llama-q6_k"];
    for name in names.into_iter().chain(["qwen3-moe-q4_k_m"]) {
        let golden = read_golden(&dir.join(name).with_extension("safetensors")).unwrap();
        let file = dir.join(name).with_extension("gguf");
        let mut model = Model::open(&file, &options(512)).unwrap();
        assert_eq!(model.engine().plan().activations, Acts::Int8);
        assert!(!model.store().report().packed.is_empty());
        let whole = all_logits(&mut model, &golden.input_ids).unwrap();
        let error = relative_error(&whole, &golden.logits);
        println!("{name}: {error:.2e} of the largest logit");
        assert!(error > 0.0 && error <= INT8_TOLERANCE, "{name}: {error}");
        for chunk in [1, 7] {
            let mut model = Model::open(&file, &options(chunk)).unwrap();
            let chunked = all_logits(&mut model, &golden.input_ids).unwrap();
            assert!(chunked == whole, "{name} in chunks of {chunk}");
        }
    }
}
