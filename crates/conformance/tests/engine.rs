//! The engine on real models: devices, batches of sequences, cache reuse.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use conformance::golden::{all_logits, read_golden, relative_error};
use troika::device::{Device, RealClock};
use troika::engine::{Engine, EngineParts, Feed, Want};
use troika::graph::DType;
use troika::model::weights::FloatType;
use troika::plan::{Placement, PlanRequest, one_device};
use troika::trace::Tracer;
use troika::{Control, Model, OpenOptions, Request, describe};
use troika_cpu::{CpuDevice, CpuOptions};

fn model_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn cpu(name: &str, threads: usize) -> Arc<dyn Device> {
    Arc::new(
        CpuDevice::new(CpuOptions { name: name.into(), threads, ..Default::default() }).unwrap(),
    )
}

/// An engine whose segments are dealt to the devices in turn.
fn engine(name: &str, devices: &[Arc<dyn Device>], chunk: usize, sequences: usize) -> Engine {
    let d = describe(&model_dir(name), FloatType::F32).unwrap();
    let request =
        PlanRequest { context: None, chunk, kv_dtype: DType::F32, activations: Vec::new() };
    let mut plan = one_device(&d.spec, devices[0].name(), &request).unwrap();
    plan.devices = devices.iter().map(|d| d.name().to_string()).collect();
    for (i, segment) in
        ["qkv", "attention", "attn_out", "ffn", "router", "experts", "head"].iter().enumerate()
    {
        plan.placements.push(Placement {
            segment: (*segment).into(),
            layers: None,
            device: i % devices.len(),
        });
    }
    Engine::new(EngineParts {
        spec: &d.spec,
        shapes: &|key| d.store.shape(key),
        weights: &d.store,
        plan,
        devices,
        clock: Arc::new(RealClock::new()),
        tracer: Tracer::on(),
        sequences,
    })
    .unwrap()
}

fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    let seq = engine.open();
    let mut out = Vec::new();
    engine
        .run(&[Feed { seq, tokens, want: Want::All }], &mut |_, _, row| out.extend_from_slice(row))
        .unwrap();
    engine.close(seq);
    out
}

#[test]
fn two_devices_compute_what_one_does() {
    for name in ["qwen3-moe", "gemma-2", "deepseek-v2"] {
        let golden = read_golden(&model_dir(name).join("golden.safetensors")).unwrap();
        let one = logits(&mut engine(name, &[cpu("cpu", 2)], 5, 1), &golden.input_ids);
        let two = [cpu("a", 1), cpu("b", 3)];
        let both = logits(&mut engine(name, &two, 5, 1), &golden.input_ids);
        assert_eq!(one, both, "{name}: bits differ between device splits");
        assert!(relative_error(&both, &golden.logits) < 2e-4, "{name}");
    }
}

#[test]
fn sequences_in_one_batch_do_not_disturb_each_other() {
    for name in ["mistral", "gpt-oss", "smollm3"] {
        let golden = read_golden(&model_dir(name).join("golden.safetensors")).unwrap();
        let ids = &golden.input_ids;
        let mut e = engine(name, &[cpu("cpu", 2)], 8, 3);
        let alone = logits(&mut e, ids);
        let vocab = alone.len() / ids.len();
        let (a, b) = (e.open(), e.open());
        let (short, long) = (&ids[..5], &ids[..]);
        let feeds = [
            Feed { seq: a, tokens: short, want: Want::All },
            Feed { seq: b, tokens: long, want: Want::All },
        ];
        let mut got = [Vec::new(), Vec::new()];
        e.run(&feeds, &mut |feed, _, row| got[feed].extend_from_slice(row)).unwrap();
        assert_eq!(got[1], alone, "{name}");
        assert_eq!(got[0], alone[..5 * vocab], "{name}");
        // Decoding both at once: one row of each.
        let feeds = [
            Feed { seq: a, tokens: &ids[5..6], want: Want::Last },
            Feed { seq: b, tokens: &ids[..1], want: Want::Last },
        ];
        let mut row_a = Vec::new();
        e.run(&feeds, &mut |feed, pos, row| {
            if feed == 0 {
                assert_eq!(pos, 5);
                row_a.extend_from_slice(row);
            }
        })
        .unwrap();
        assert_eq!(row_a, alone[5 * vocab..6 * vocab], "{name}");
    }
}

#[test]
fn a_shared_prefix_is_not_computed_again() {
    for name in ["qwen3", "mistral"] {
        let golden = read_golden(&model_dir(name).join("golden.safetensors")).unwrap();
        let ids = &golden.input_ids;
        let mut model = Model::open(&model_dir(name), &OpenOptions::default()).unwrap();
        let mut greedy = Request { max_tokens: Some(4), ignore_eos: true, ..Request::default() };
        greedy.params.temperature = 0.0;
        let mut run =
            |ids: &[u32]| model.generate(ids, &greedy, &mut |_, _| Control::Continue).unwrap();
        let first = run(&ids[..20]);
        assert_eq!(first.stats.cached_tokens, 0);
        let mut longer = ids[..20].to_vec();
        longer.extend(&first.tokens[..2]);
        longer.push(7);
        let again = run(&longer);
        assert_eq!(again.stats.cached_tokens, 22, "{name}");
        let mut fresh = Model::open(&model_dir(name), &OpenOptions::default()).unwrap();
        let expected = fresh.generate(&longer, &greedy, &mut |_, _| Control::Continue).unwrap();
        assert_eq!(again.tokens, expected.tokens, "{name}");
    }
}

#[test]
fn threads_and_half_precision_caches() {
    let dir = model_dir("llama-3.2");
    let golden = read_golden(&dir.join("golden.safetensors")).unwrap();
    let mut one = OpenOptions::default();
    one.devices.threads = Some(1);
    let mut many = OpenOptions::default();
    many.devices.threads = Some(5);
    let a = all_logits(&mut Model::open(&dir, &one).unwrap(), &golden.input_ids).unwrap();
    let b = all_logits(&mut Model::open(&dir, &many).unwrap(), &golden.input_ids).unwrap();
    assert_eq!(a, b, "thread count changes bits");
    one.kv_dtype = Some(DType::F16);
    let half = all_logits(&mut Model::open(&dir, &one).unwrap(), &golden.input_ids).unwrap();
    let error = relative_error(&half, &golden.logits);
    assert!(error > 0.0 && error < 5e-3, "{error}");
    one.dtype = FloatType::BF16;
    let bf16 = all_logits(&mut Model::open(&dir, &one).unwrap(), &golden.input_ids).unwrap();
    let error = relative_error(&bf16, &golden.logits);
    assert!(error > 0.0 && error < 5e-2, "{error}");
}
