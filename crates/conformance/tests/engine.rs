//! The engine on real models: devices, batches of sequences, reuse of the cache.

#![allow(clippy::unwrap_used)]

mod setup;

use std::sync::Arc;

use conformance::golden::{all_logits, greedy, greedy_request, relative_error};
use setup::engines::{self, EngineOptions};
use setup::{cpu, described, golden, golden_dir, in_f32, logits_of, plan_of};
use troika::device::{
    Device, DeviceError, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource,
    ZeroedBytes,
};
use troika::engine::{Engine, SequenceInput, Sharing, WantedLogits};
use troika::graph::DType;
use troika::plan::{Plan, PlanRequest, Strategy};
use troika::trace::Tracer;
use troika::weights::{FloatType, parse_safetensors};
use troika::{
    Control, Described, DeviceOptions, DeviceSpec, Model, OpenOptions, Request, Session, make_plan,
};

/// An engine whose layers are assigned to the devices in turn.
fn engine(name: &str, devices: &[Arc<dyn Device>], chunk: usize, sequences: usize) -> Engine {
    let d = described(name);
    let one = devices.len() == 1;
    let strategy = if one { Strategy::OneDevice } else { Strategy::Alternate };
    let plan = plan_of(&d, devices, &in_f32(strategy, chunk));
    engine_of(&d, devices, plan, sequences)
}

fn engine_of(d: &Described, devices: &[Arc<dyn Device>], plan: Plan, sequences: usize) -> Engine {
    let sharing = Sharing { sequences, ..Sharing::default() };
    let options = EngineOptions { tracer: Tracer::on(), sharing, ..EngineOptions::default() };
    engines::engine(d, devices, plan, options).unwrap()
}

#[test]
fn two_devices_compute_what_one_does() {
    for name in ["qwen3-moe", "gemma-2", "deepseek-v2"] {
        let golden = golden(name);
        let one = logits_of(&mut engine(name, &[cpu("cpu", 2)], 5, 1), &golden.input_ids);
        let two = [cpu("a", 1), cpu("b", 3)];
        let both = logits_of(&mut engine(name, &two, 5, 1), &golden.input_ids);
        assert_eq!(one, both, "{name}: bits differ between device splits");
        assert!(relative_error(&both.concat(), &golden.logits) < 2e-4, "{name}");
    }
}

#[test]
fn sequences_in_one_batch_do_not_disturb_each_other() {
    for name in ["mistral", "gpt-oss", "smollm3"] {
        let ids = &golden(name).input_ids;
        let mut e = engine(name, &[cpu("cpu", 2)], 8, 3);
        let alone = logits_of(&mut e, ids);
        let (a, b) = (e.open(), e.open());
        let (short, long) = (&ids[..5], &ids[..]);
        let feeds = [
            SequenceInput::prompt(a, short, WantedLogits::All),
            SequenceInput::prompt(b, long, WantedLogits::All),
        ];
        let mut got = [Vec::new(), Vec::new()];
        e.run(&feeds, &mut |feed, _, row| got[feed].push(row.to_vec())).unwrap();
        assert_eq!(got[1], alone, "{name}");
        assert_eq!(got[0], alone[..5], "{name}");
        // Decodes both at once: one row each.
        let feeds = [
            SequenceInput::decode(a, &ids[5..6], WantedLogits::Last),
            SequenceInput::decode(b, &ids[..1], WantedLogits::Last),
        ];
        let mut row_a = Vec::new();
        e.run(&feeds, &mut |feed, pos, row| {
            if feed == 0 {
                assert_eq!(pos, 5);
                row_a.extend_from_slice(row);
            }
        })
        .unwrap();
        assert_eq!(row_a, alone[5], "{name}");
    }
}

#[test]
fn a_shared_prefix_is_not_computed_again() {
    for name in ["qwen3", "mistral"] {
        let ids = &golden(name).input_ids;
        let model = Model::open(&golden_dir(name), &OpenOptions::default()).unwrap();
        let mut session = model.session().unwrap();
        let mut run = |ids: &[u32]| {
            session.generate(ids, &greedy_request(4), &mut |_, _| Control::Continue).unwrap()
        };
        let first = run(&ids[..20]);
        assert_eq!(first.stats.cached_tokens, 0);
        let mut longer = ids[..20].to_vec();
        longer.extend(&first.tokens[..2]);
        longer.push(7);
        let again = run(&longer);
        assert_eq!(again.stats.cached_tokens, 22, "{name}");
        let fresh = Model::open(&golden_dir(name), &OpenOptions::default()).unwrap();
        assert_eq!(again.tokens, greedy(&fresh, &longer, 4).unwrap(), "{name}");
    }
}

#[test]
fn threads_and_half_precision_caches() {
    let golden = golden("llama-3.2");
    let logits = |options: &OpenOptions| {
        let model = Model::open(&golden_dir("llama-3.2"), options).unwrap();
        all_logits(&model, &golden.input_ids).unwrap()
    };
    let mut one = OpenOptions::default();
    one.devices.threads = Some(1);
    let mut many = OpenOptions::default();
    many.devices.threads = Some(5);
    assert_eq!(logits(&one), logits(&many), "thread count changes bits");
    one.kv_dtype = Some(DType::F16);
    let half = logits(&one);
    let error = relative_error(&half, &golden.logits);
    assert!(error > 0.0 && error < 5e-3, "{error}");
    one.dtype = FloatType::BF16;
    let bf16 = logits(&one);
    let error = relative_error(&bf16, &golden.logits);
    assert!(error > 0.0 && error < 5e-2, "{error}");
}

/// Weights of which one kind is a million times too large.
struct Loud<'a> {
    weights: &'a dyn WeightSource,
    kind: &'static str,
}

impl WeightSource for Loud<'_> {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        let data = self.weights.weight(name)?;
        if !name.ends_with(self.kind) {
            return Ok(data);
        }
        assert_eq!(data.dtype, DType::F32);
        let mut bytes = ZeroedBytes::new(data.bytes.len()).unwrap();
        let floats = data.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        for (to, x) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(floats) {
            *to = (x * 1e6).to_le_bytes();
        }
        Ok(WeightData { bytes: WeightBytes::whole(Arc::new(bytes)), ..data })
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        if !name.ends_with(self.kind) {
            return self.weights.packed(name, layout, pack);
        }
        let data = self.weight(name)?;
        let mut bytes = ZeroedBytes::new(layout.bytes(data.rows).unwrap()).unwrap();
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)), stored: false })
    }
}

/// The logits of some tokens, with too large weights of one kind and a given cache type.
fn loud_logits(kind: &'static str, kv_dtype: DType) -> Result<Vec<f32>, String> {
    let d = described("llama-3.2");
    let kv_dtype = Some(kv_dtype);
    let request = PlanRequest { kv_dtype, ..in_f32(Strategy::OneDevice, 8) };
    let devices = [cpu("cpu", 2)];
    let weights: Option<&dyn WeightSource> = Some(&Loud { weights: &d.store, kind });
    let plan = plan_of(&d, &devices, &request);
    let options = EngineOptions { weights, ..EngineOptions::default() };
    let mut engine = engines::engine(&d, &devices, plan, options).unwrap();
    let (seq, mut out) = (engine.open(), Vec::new());
    let feed = SequenceInput::prompt(seq, &[1, 2, 3], WantedLogits::All);
    let done = engine.run(&[feed], &mut |_, _, row| out.extend_from_slice(row));
    assert_eq!(engine.len(seq), if done.is_ok() { 3 } else { 0 });
    done.map(|()| out).map_err(|e| e.to_string())
}

#[test]
fn keys_and_values_beyond_f16_are_an_error_that_names_the_layer() {
    for (kind, cache) in [(".K", "layer 0 k cache"), (".V", "layer 0 v cache")] {
        let refused = loud_logits(kind, DType::F16).unwrap_err();
        for words in [cache, "exceed the range of f16", "use a cache of bf16 or f32"] {
            assert!(refused.contains(words), "{kind}: {refused}");
        }
        for wide in [DType::BF16, DType::F32] {
            assert!(loud_logits(kind, wide).unwrap().iter().all(|x| x.is_finite()), "{kind}");
        }
    }
    // The unmodified model has no too large values.
    assert!(loud_logits("no such weight", DType::F16).is_ok());
}

#[test]
fn a_session_gets_the_states_that_the_head_turns_into_logits() {
    let (dir, golden) = (golden_dir("llama-2"), golden("llama-2"));
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let head = &parse_safetensors(&bytes, bytes.len()).unwrap()["lm_head.weight"];
    let head: Vec<f32> = bytes[head.range.clone()]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|c| f32::from_le_bytes(*c))
        .collect();
    let two = ["cpu", "b=cpu"].map(|d| d.parse::<DeviceSpec>().unwrap());
    for (strategy, devices, values) in [
        ("one-device", &two[..1], DType::F32),
        ("split-columns=0.5", &two, DType::F32),
        ("alternate", &two, DType::BF16),
    ] {
        let strategy = Strategy::parse(strategy).unwrap();
        let devices = DeviceOptions { devices: devices.to_vec(), ..DeviceOptions::default() };
        let mut options =
            OpenOptions { dtype: FloatType::F32, strategy, devices, ..OpenOptions::default() };
        let mut plan = make_plan(&*dir, &options).unwrap().plan;
        let rules = plan.prefill.rules.iter_mut().chain(&mut plan.decode.rules);
        rules.for_each(|rule| rule.values = values);
        options.plan = plan.into();
        let model = Model::open(&dir, &options).unwrap();
        let hidden = model.spec().hidden;
        let ids = &golden.input_ids;
        let plain = |session: &mut Session| {
            let request = Request { max_tokens: Some(4), ..Request::default() };
            session.generate(ids, &request, &mut |_, _| Control::Continue).unwrap().tokens
        };
        let mut session = model.session().unwrap();
        let want = plain(&mut session);
        let mut got = Vec::new();
        session = model.session().unwrap();
        let mut add = |_: usize, state: &mut [f32]| {
            assert_eq!(state.len(), hidden);
            let dot = |row: &[f32]| row.iter().zip(&*state).map(|(w, s)| w * s).sum::<f32>();
            got.extend(head.chunks_exact(hidden).map(dot));
        };
        // In parts, and beside a sequence that decodes.
        let (first, rest) = ids.split_at(ids.len() / 3);
        let mut beside = model.session().unwrap();
        beside.start(ids, &Request { max_tokens: Some(4), ..Request::default() }).unwrap();
        session.feed(first, WantedLogits::States, &mut add).unwrap();
        session.feed(rest, WantedLogits::States, &mut add).unwrap();
        let most = if values == DType::F32 { 2e-4 } else { 3e-2 };
        assert!(relative_error(&got, &golden.logits) < most, "{values:?}");
        assert_eq!(beside.finish(None).unwrap().tokens, want);
        assert_eq!(plain(&mut session), want);
    }
}
