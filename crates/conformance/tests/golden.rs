//! Every architecture and file format, compared with the reference library's outputs.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod setup;

use std::path::Path;

use conformance::golden::{
    PlanChange, REFERENCE_TOLERANCE, Report, all_logits, check_with, find, read_golden,
    relative_error,
};
use setup::{case, on, relative_rms, root, virtual_spec};
use troika::graph::{ActivationFormat, DType};
use troika::model::lower::SegmentKind;
use troika::plan::Strategy;
use troika::weights::FloatType;
use troika::{Model, OpenOptions};

fn all_hold(dir: &str, at_least: usize) {
    all_hold_on(&OpenOptions::default(), None, dir, at_least);
}

fn all_hold_on(options: &OpenOptions, change: Option<PlanChange<'_>>, dir: &str, at_least: usize) {
    let dir = root("tests").join(dir);
    let cases = find(&dir).unwrap();
    assert!(cases.len() >= at_least, "{} cases in {}", cases.len(), dir.display());
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| match check_with(case, options, change) {
            Ok(r)
                if r.holds(REFERENCE_TOLERANCE)
                    && r.same_bits.is_some() == (options.devices.devices.len() > 1) =>
            {
                None
            }
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
fn checkpoints_of_2026() {
    all_hold("golden-2026", 24);
}

/// The command shows how far such a context was right; tests of checkpoints want all of it.
#[test]
fn a_context_that_ends_before_its_reference_is_not_whole() {
    let (error, chunk_error, same_bits) = (0.0, 0.0, None);
    let (greedy, alike, tokens, of) = (true, true, 16, 29);
    let part = Report { error, chunk_error, greedy, alike, same_bits, tokens, of };
    assert!(!part.holds(1.0) && part.holds_in_context(1.0));
    assert!(part.to_string().ends_with("the context ends 13 tokens before the reference"));
}

/// There is nothing to compare where a file leaves numbers off.
#[test]
fn devices_that_compute_nothing_are_named() {
    let devices = on(&[&virtual_spec("npu", "sd8gen3-fp16.toml:npu"), "cpu"]);
    let options = OpenOptions { devices, ..OpenOptions::default() };
    let said = check_with(&case("qwen3"), &options, None).unwrap_err().to_string();
    assert!(said.contains("device npu computes nothing (its numerics are off)"), "{said}");
}

#[test]
fn gguf_files() {
    all_hold("gguf", 18);
}

#[test]
fn features_beside_the_usual_ones() {
    all_hold("variants", 10);
}

#[test]
fn quantized_checkpoints() {
    all_hold("quantized", 17);
}

/// The experts of a folder in MXFP4 have the values of its twin in bfloat16.
#[test]
fn experts_in_mxfp4_are_those_of_their_floats() {
    let dir = root("tests/quantized");
    let tokens: Vec<u32> = (0..40).map(|i| i * 29 % 64).collect();
    let [packed, floats] = ["mxfp4", "mxfp4-floats"].map(|name| {
        let options = OpenOptions { dtype: FloatType::F32, ..OpenOptions::default() };
        all_logits(&Model::open(&dir.join(name), &options).unwrap(), &tokens).unwrap()
    });
    let error = relative_error(&packed, &floats);
    assert!(error <= 1e-5, "{error}");
}

/// As they are opened without flags, they are near their logits.
#[test]
fn quantized_checkpoints_in_types_of_their_own() {
    let dir = root("tests/quantized");
    for case in find(&dir).unwrap() {
        let golden = read_golden(&case.golden).unwrap();
        let model = Model::open(&case.model, &OpenOptions::default()).unwrap();
        let error = relative_rms(&all_logits(&model, &golden.input_ids).unwrap(), &golden.logits);
        println!("{}: {error:.1e}", case.name);
        // The largest is 0.0501, of groups of 8 bits with AVX2 alone.
        assert!(error <= 0.055, "{}: {error}", case.name);
    }
}

/// Two CPU devices with different numbers of threads, and three where any number is allowed:
/// several devices compute bit-identical results to one.
#[test]
fn checkpoints_on_several_devices() {
    use Strategy as S;
    for strategy in Strategy::ALL {
        let any = matches!(strategy, S::OneDevice | S::Alternate);
        let count = if any { 3 } else { 2 };
        let core = troika::usable_cores().first().map_or(String::new(), |core| format!(":{core}"));
        let pinned = format!("a=cpu{core}");
        let devices = on(&[&*pinned, "cpu", "b=cpu"][..count]);
        let options = OpenOptions { devices, strategy, ..OpenOptions::default() };
        let change: PlanChange<'_> = &|plan| plan.prefill.chunks_in_flight = count;
        all_hold_on(&options, Some(change), "golden", 20);
        all_hold_on(&options, Some(change), "golden-2026", 24);
    }
}

/// Allowed root mean square difference between activations in bf16 and f32 (both with bf16
/// weights), relative to that of the logits.
const BF16_TOLERANCE: f32 = 0.015;
/// The same for mixtures of experts: where random experts have similar scores, rounding may choose
/// another one, which changes all logits of a token.
const BF16_EXPERTS_TOLERANCE: f32 = 0.12;

/// All checkpoints with bf16 weights and activations: close to f32 activations, and bit-identical
/// for every chunk length.
#[test]
fn checkpoints_with_bf16_activations() {
    let dir = root("tests/golden");
    let open = |model: &Path, activations: &[ActivationFormat], chunk| {
        let options = OpenOptions {
            dtype: FloatType::BF16,
            activations: Some(activations.to_vec()),
            kv_dtype: Some(DType::F32),
            chunk: Some(chunk),
            ..Default::default()
        };
        Model::open(model, &options).unwrap()
    };
    let native = troika_cpu::kernels::linear::bf16::is_native(troika_cpu::Isa::detect());
    println!("products of pairs of bf16: {}", if native { "native" } else { "rounded, in f32" });
    for case in find(&dir).unwrap() {
        let (name, golden) = (&case.name, read_golden(&case.golden).unwrap());
        let exact = open(&case.model, &[], 512);
        let engine = exact.engine().unwrap();
        let mut segments = engine.lowered().segments.iter();
        let experts = segments.any(|s| s.kind == SegmentKind::Experts);
        drop(engine);
        let tolerance = if experts { BF16_EXPERTS_TOLERANCE } else { BF16_TOLERANCE };
        let exact = all_logits(&exact, &golden.input_ids).unwrap();
        let whole =
            all_logits(&open(&case.model, &[ActivationFormat::Bf16], 512), &golden.input_ids)
                .unwrap();
        let error = relative_error(&whole, &exact);
        let total = relative_error(&whole, &golden.logits);
        let rms = relative_rms(&whole, &exact);
        println!(
            "{name}: rms {rms:.2e}, largest {error:.2e} of the largest logit; with the weights' \
             rounding {total:.2e}"
        );
        assert!(rms > 0.0 && rms <= tolerance, "{name}: {rms}");
        for chunk in [1, 7] {
            let model = open(&case.model, &[ActivationFormat::Bf16], chunk);
            let chunked = all_logits(&model, &golden.input_ids).unwrap();
            assert!(chunked == whole, "{name} in chunks of {chunk}");
        }
    }
}

/// Allowed difference with eight-bit activations, relative to the largest logit.
const INT8_TOLERANCE: f32 = 0.03;

/// Quantized files with eight-bit activations: close to the reference, and bit-identical for every
/// chunk length.
#[test]
fn gguf_files_with_integer_activations() {
    let dir = root("tests/gguf");
    let options = |chunk| OpenOptions {
        kv_dtype: Some(DType::F32),
        chunk: Some(chunk),
        ..Default::default()
    };
    let names = ["llama-q8_0", "llama-q4_0", "llama-q4_k_m", "llama-q5_k_m", "llama-q6_k"];
    for name in names.into_iter().chain(["qwen3-moe-q4_k_m"]) {
        let golden = read_golden(&dir.join(name).with_extension("safetensors")).unwrap();
        let file = dir.join(name).with_extension("gguf");
        let model = Model::open(&file, &options(512)).unwrap();
        assert!(model.engine().unwrap().plan().activations().contains(&ActivationFormat::INT8));
        assert!(!model.store().report().packed.is_empty());
        let whole = all_logits(&model, &golden.input_ids).unwrap();
        let error = relative_error(&whole, &golden.logits);
        println!("{name}: {error:.2e} of the largest logit");
        assert!(error > 0.0 && error <= INT8_TOLERANCE, "{name}: {error}");
        for chunk in [1, 7] {
            let model = Model::open(&file, &options(chunk)).unwrap();
            let chunked = all_logits(&model, &golden.input_ids).unwrap();
            assert!(chunked == whole, "{name} in chunks of {chunk}");
        }
    }
}
