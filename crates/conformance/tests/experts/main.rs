//! Experts shared out over devices give the bits of one device, whatever groups, capacities and
//! chunks there are.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod cached;
#[path = "../setup/mod.rs"]
mod setup;

use std::sync::Arc;
use std::time::Duration;

use conformance::golden::relative_error;
use setup::engines::{self, EngineOptions};
use setup::{
    cpu, described, golden, golden_dir, in_f32, logits_of, npu_settings, on, plan_of, processors,
};
use troika::device::{Clock, Device};
use troika::engine::{
    Engine, EngineError, Event, LastingWeights, Next, SequenceInput, WantedLogits,
};
use troika::graph::{ActivationFormat, DType};
use troika::model::lower::{SegmentKind, segments};
use troika::plan::{
    Dispatch, ExpertGroupPlan, ExpertSplit, Overflow, Plan, Rule, Share, Split, Strategy,
};
use troika::trace::Tracer;
use troika::weights::{BindOptions, FloatType, Quant};
use troika::{Described, DeviceOptions, describe, open_devices};
use troika_check::{Hook, Hooked, told_to_fail};
use troika_sim::VirtualClock;

/// A model on a device that computes its prompt alone.
struct Setting {
    d: Described,
    devices: Vec<Arc<dyn Device>>,
    /// The plan of the first device.
    one: Plan,
    ids: Vec<u32>,
    /// The logits by that plan.
    expected: Vec<f32>,
}

impl Setting {
    fn new(name: &str, devices: Vec<Arc<dyn Device>>, chunk: usize) -> Setting {
        let (d, ids) = (described(name), golden(name).input_ids);
        let one = plain(&d, &devices, chunk);
        let expected = logits(&mut engine(&d, &devices, one.clone()).unwrap(), &ids);
        Setting { d, devices, one, ids, expected }
    }

    /// An engine that runs another plan.
    fn engine(&self, plan: Plan) -> Engine {
        engine(&self.d, &self.devices, plan).unwrap()
    }
}

/// Two devices of the CPU.
fn cpus() -> Vec<Arc<dyn Device>> {
    ["a", "b"].map(|name| cpu(name, 1)).to_vec()
}

/// A CPU, and an accelerator named `b`.
fn beside_cpu(accelerator: &str) -> Vec<Arc<dyn Device>> {
    let options = DeviceOptions { npu: npu_settings(), ..on(&["a=cpu", accelerator]) };
    open_devices(&options).unwrap()
}

fn engine(d: &Described, devices: &[Arc<dyn Device>], plan: Plan) -> Result<Engine, EngineError> {
    engines::engine(d, devices, plan, EngineOptions::default())
}

/// A plan of the first device in chunks of `chunk` rows.
fn plain(d: &Described, devices: &[Arc<dyn Device>], chunk: usize) -> Plan {
    plan_of(d, &devices[..1], &in_f32(Strategy::OneDevice, chunk))
}

/// The same plan with the experts of prompts shared out.
fn shared(d: &Described, plan: &Plan, in_flight: usize, split: &ExpertSplit) -> Plan {
    let mut plan = plan.clone();
    let all = plan.prefill.rules[0].clone();
    let has = |kind: &SegmentKind| segments(&d.spec).iter().any(|(k, _)| k == kind);
    let others = SegmentKind::ALL.into_iter().filter(|k| has(k) && *k != SegmentKind::Experts);
    let segments = |kinds: Vec<SegmentKind>| Rule { segments: Some(kinds), ..all.clone() };
    let split_experts =
        Rule { split: Some(Split::Experts(split.clone())), ..segments(vec![SegmentKind::Experts]) };
    plan.prefill.rules = vec![segments(others.collect()), split_experts];
    plan.prefill.chunks_in_flight = in_flight;
    let used = split.groups.iter().map(|g| g.device.clone());
    let mut devices: Vec<String> = plan.devices.iter().cloned().chain(used).collect();
    devices.dedup();
    devices.sort_unstable();
    devices.dedup();
    plan.devices = devices;
    plan
}

fn logits(e: &mut Engine, ids: &[u32]) -> Vec<f32> {
    logits_of(e, ids).concat()
}

fn group(device: &str, experts: &[usize], capacity: usize) -> ExpertGroupPlan {
    ExpertGroupPlan::new(device, experts.to_vec(), capacity)
}

/// An expert whose products are divided by columns.
fn divided(parts: &[(&str, u32)], expert: usize, capacity: usize) -> ExpertGroupPlan {
    let share = |(device, share): &(&str, u32)| Share { device: (*device).into(), share: *share };
    let largest = parts.iter().max_by_key(|p| p.1).unwrap().0;
    let parts = parts.iter().map(share).collect();
    ExpertGroupPlan { parts, ..group(largest, &[expert], capacity) }
}

#[test]
fn experts_on_another_device_give_the_same_bits() {
    for name in ["mixtral", "qwen3-moe", "gpt-oss", "qwen2-moe"] {
        let (d, ids, devices) = (described(name), golden(name).input_ids, cpus());
        for values in [DType::F32, DType::BF16, DType::F16] {
            for chunk in [5, 64] {
                let mut one = plain(&d, &devices, chunk);
                one.prefill.rules.iter_mut().for_each(|r| r.values = values);
                let expected = logits(&mut engine(&d, &devices, one.clone()).unwrap(), &ids);
                for dispatch in Dispatch::ALL {
                    for (in_flight, capacity) in [(1, 1), (1, 3), (2, 3), (4, 64)] {
                        // Experts 0 and 3 are divided by rows, expert 2 by columns and by rows.
                        let groups = vec![
                            divided(&[("b", 3), ("a", 2)], 2, 2),
                            group("b", &[1, 0], capacity),
                            group("b", &[3], capacity),
                            group("a", &[0, 3], 2),
                            group("b", &[3], capacity),
                            group("b", &[2], capacity),
                        ];
                        let split = ExpertSplit {
                            groups,
                            overflow: Overflow::Cpu,
                            dispatch,
                            expected: Vec::new(),
                        };
                        let plan = shared(&d, &one, in_flight, &split);
                        let mut e = engine(&d, &devices, plan).unwrap();
                        // Twice, since the memory is not new the second time.
                        for _ in 0..2 {
                            let same = logits(&mut e, &ids) == expected;
                            let how = (values, chunk, dispatch, in_flight, capacity);
                            assert!(same, "{name}: other bits with {how:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Whatever weights and formats there are, and by both devices in both stages.
#[test]
fn an_expert_divided_by_columns_gives_the_same_bits() {
    let files = [FloatType::F32.into(), FloatType::BF16.into()];
    let quantized = [Quant::Q8, Quant::Q4].map(|quant| BindOptions { quant, ..files[0] });
    let devices = cpus();
    // A group takes what its device has; not every processor multiplies bf16.
    let mut formats = vec![ActivationFormat::INT8, ActivationFormat::Bf16];
    formats.retain(|f| devices[0].caps().activation_formats.contains(f));
    for (bind, formats) in
        files.into_iter().chain(quantized).flat_map(|b| [(b, &formats[..]), (b, &[])])
    {
        let d = describe(&golden_dir("mixtral"), bind).unwrap();
        let ids = golden("mixtral").input_ids;
        let mut one = plain(&d, &devices, 9);
        one.prefill.rules.iter_mut().for_each(|r| r.activations = formats.to_vec());
        let expected = logits(&mut engine(&d, &devices, one.clone()).unwrap(), &ids);
        for dispatch in Dispatch::ALL {
            let groups = (0..4).map(|expert| divided(&[("b", 3), ("a", 2)], expert, 2)).collect();
            let split =
                ExpertSplit { groups, overflow: Overflow::Cpu, dispatch, expected: Vec::new() };
            let tracer = Tracer::on();
            let plan = shared(&d, &one, 2, &split);
            let traced = EngineOptions { tracer: tracer.clone(), ..EngineOptions::default() };
            let mut e = engines::engine(&d, &devices, plan, traced).unwrap();
            assert!(logits(&mut e, &ids) == expected, "other bits: {bind:?}, {formats:?}");
            let spans = tracer.take();
            for part in ["0, part 0", "0, part 1", "1, part 0", "1, part 1"] {
                let name = format!("[stage {part}]");
                let ran = |lane| spans.iter().any(|s| s.name.contains(&name) && &*s.lane == lane);
                let by = if part.ends_with('0') { "b" } else { "a" };
                assert!(ran(by), "{by} ran nothing of stage {part}");
            }
        }
    }
}

/// Groups of two devices, and experts that are divided between them.
fn some_groups(dispatch: Dispatch) -> ExpertSplit {
    let halves = divided(&[("a", 1), ("b", 1)], 2, 2);
    let groups = vec![group("b", &[1, 0], 3), group("b", &[3], 2), halves, group("b", &[0], 1)];
    ExpertSplit { groups, overflow: Overflow::Cpu, dispatch, expected: Vec::new() }
}

/// An engine whose groups run on a watched device, with the logits of its model on one device.
fn watched(dispatch: Dispatch) -> (Engine, Hook, Vec<u32>, Vec<f32>) {
    let hook = Hook::default();
    let device: Arc<dyn Device> = Arc::new(Hooked::new(cpu("b", 1), hook.clone()));
    let set = Setting::new("qwen3-moe", vec![cpu("a", 1), device], 5);
    let plan = shared(&set.d, &set.one, 3, &some_groups(dispatch));
    (set.engine(plan), hook, set.ids, set.expected)
}

/// A device that fails while experts are in flight ends the sequence with its error. The next one
/// is computed as ever.
#[test]
fn a_device_that_fails_with_experts_in_flight_is_no_deadlock() {
    for dispatch in Dispatch::ALL {
        let (mut e, hook, ids, expected) = watched(dispatch);
        let (mut after, mut failed) = (0, 0);
        loop {
            let mut left = after;
            hook.set(move |_| {
                if left == 0 {
                    return Err(told_to_fail("b"));
                }
                left -= 1;
                Ok(())
            });
            let seq = e.open();
            let input = SequenceInput::prompt(seq, &ids, WantedLogits::Last);
            let result = e.run(&[input], &mut |_, _, _| {});
            e.close(seq);
            e.audit().unwrap();
            let Err(error) = result else { break };
            assert!(error.to_string().contains("it was told to fail"), "{error}");
            hook.clear();
            assert!(logits(&mut e, &ids) == expected, "other bits after a failure");
            (after, failed) = (after * 3 / 2 + 1, failed + 1);
        }
        assert!(failed > 3, "{failed} failures");
    }
}

/// A sequence that is cancelled while experts are in flight ends, and the next one is computed as
/// ever.
#[test]
fn what_is_cancelled_with_experts_in_flight_ends() {
    for dispatch in Dispatch::ALL {
        let (mut e, hook, ids, expected) = watched(dispatch);
        for after in [0, 1, 2, 5, 9, 20] {
            let seq = e.open();
            let (handle, mut left) = (e.handle().clone(), after);
            handle.feed(&SequenceInput::prompt(seq, &ids, WantedLogits::Last)).unwrap();
            hook.set(move |_| {
                if left == 0 {
                    handle.cancel(seq).unwrap();
                }
                left -= 1;
                Ok(())
            });
            let mut ended = Vec::new();
            let mut note = |event: Event<'_>| {
                match event {
                    Event::Begun { .. } => {}
                    Event::Cancelled { .. } => ended.push("cancelled"),
                    _ => ended.push("done"),
                }
                Next::Wait
            };
            while e.step(&mut note).unwrap() {}
            assert!(ended.len() == 1 || ended == ["done", "cancelled"], "{ended:?} after {after}");
            hook.clear();
            e.close(seq);
            e.audit().unwrap();
            assert!(logits(&mut e, &ids) == expected, "other bits after {after} lists");
        }
    }
}

/// Processors with memory of their own, of which one can be bound at some places only.
const SOC: &str = "name = \"two\"
[[processor]]
name = \"a\"
kind = \"cpu\"
peak_gops = 1.0
bandwidth_gb_s = 10.0
launch_us = 20.0
[[processor]]
name = \"b\"
kind = \"npu\"
peak_gops = 4.0
bandwidth_gb_s = 10.0
launch_us = 50.0
own_memory = true
offset_alignment = 256
static_shapes = true
row_buckets = [8, 16]
";

/// What two virtual devices give, and how long they take, with the plan that is made of the plain
/// one and the weights that are loaded later.
fn run_virtual(
    d: &Described,
    text: &str,
    ids: &[u32],
    plan: impl FnOnce(&Plan) -> (Plan, Option<LastingWeights>),
) -> (Vec<f32>, Duration) {
    let clock = Arc::new(VirtualClock::new());
    let devices = processors(text, &clock);
    let (plan, weights) = plan(&plain(d, &devices, 8));
    let own: Option<Arc<dyn Clock>> = Some(clock.clone());
    let options = EngineOptions { clock: own, ..EngineOptions::default() };
    let mut e = engines::engine(d, &devices, plan, options).unwrap();
    if let Some(weights) = weights {
        e.load_experts(&weights, None);
    }
    let (seq, mut out, began) = (e.open(), Vec::new(), clock.now());
    let off = text.contains("\"off\"");
    let logits = if off { WantedLogits::None } else { WantedLogits::All };
    let inputs = [SequenceInput::prompt(seq, ids, logits)];
    match off {
        true => e.run_unread(&inputs).unwrap(),
        false => e.run(&inputs, &mut |_, _, row| out.extend_from_slice(row)).unwrap(),
    }
    (out, clock.now() - began)
}

/// On a virtual SoC: the same bits, and each run takes equally long. With numerics off it takes
/// time, too.
#[test]
fn virtual_devices_share_experts_out() {
    let (d, ids) = (described("olmoe"), golden("olmoe").input_ids);
    let run = |text: &str, split: Option<&ExpertSplit>| -> (Vec<f32>, Duration) {
        run_virtual(&d, text, &ids, |one| {
            (split.map_or(one.clone(), |split| shared(&d, one, 2, split)), None)
        })
    };
    let (expected, _) = run(SOC, None);
    // Of a device on the host's memory that writes no columns of wider rows.
    let narrow = SOC.replace("own_memory = true", "strided_rows = false");
    for dispatch in Dispatch::ALL {
        let groups = vec![
            group("b", &[1, 0, 4], 3),
            group("b", &[3], 2),
            group("a", &[6, 1], 2),
            divided(&[("b", 2), ("a", 1)], 2, 5),
            divided(&[("a", 1), ("b", 1)], 4, 3),
        ];
        let split = ExpertSplit { groups, overflow: Overflow::Cpu, dispatch, expected: Vec::new() };
        let (first, took) = run(SOC, Some(&split));
        assert!(first == expected, "other bits with {dispatch:?}");
        assert_eq!(run(SOC, Some(&split)).1, took);
        assert!(run(&narrow, Some(&split)).0 == expected, "other bits with {dispatch:?}, narrow");
        let off =
            format!("{SOC}\n").replacen("name = \"two\"", "name = \"two\"\nnumerics = \"off\"", 1);
        let (_, modelled) = run(&off, Some(&split));
        assert!(modelled > Duration::ZERO);
        assert_eq!(run(&off, Some(&split)).1, modelled);
    }
}

#[test]
fn statistics_say_what_was_routed_where() {
    let set = Setting::new("mixtral", cpus(), 6);
    let all = set.ids.len() as u64 * 2;
    for overflow in [Overflow::Cpu, Overflow::Pad, Overflow::Prune] {
        let capacity = if overflow == Overflow::Pad { 6 } else { 2 };
        let groups = vec![group("b", &[2, 1], capacity), group("b", &[0], capacity)];
        let split =
            ExpertSplit { groups, overflow, dispatch: Dispatch::PerChunk, expected: Vec::new() };
        let mut e = set.engine(shared(&set.d, &set.one, 2, &split));
        let got = logits(&mut e, &set.ids);
        let stats = e.group_stats();
        assert_eq!(stats.layers.len(), 3);
        let (_, padding) = stats.group_rows();
        assert!(padding > 0);
        let mut sums = [0; 4];
        for layer in stats.layers.values() {
            assert_eq!(layer.experts.iter().map(|e| e.rows).sum::<u64>(), all);
            assert!(layer.group_runs > 0 && layer.rest_runs > 0);
            assert_eq!(layer.experts[3].grouped, 0, "it is in no group");
            for e in &layer.experts[..3] {
                assert_eq!(e.grouped + e.overflow + e.dropped, e.rows);
                sums = [sums[0] + e.overflow, sums[1] + e.dropped, sums[2] + e.grouped, 0];
            }
        }
        let want = match overflow {
            Overflow::Cpu => (true, false),
            Overflow::Pad => (false, false),
            Overflow::Prune => (false, true),
        };
        assert_eq!((sums[0] > 0, sums[1] > 0), want, "{overflow:?}: {sums:?}");
        assert_eq!(stats.dropped(), (sums[1], 3 * all));
        assert_eq!(got == set.expected, overflow != Overflow::Prune);
        assert!(got.iter().all(|x| x.is_finite()));
    }
}

#[test]
fn groups_that_do_not_fit_are_refused() {
    let d = described("mixtral");
    let open = |soc: &str, edit: &dyn Fn(&mut Plan)| {
        let devices = processors(soc, &Arc::new(VirtualClock::new()));
        let one = plain(&d, &devices, 8);
        let mut plan = shared(&d, &one, 2, &some_groups(Dispatch::PerChunk));
        edit(&mut plan);
        engine(&d, &devices, plan).map(|_| ()).unwrap_err().to_string()
    };
    let small = format!("{SOC}max_graph_bytes = 1000\n");
    let why = open(&small, &|_| ());
    assert!(why.starts_with("group 1 of the plan's experts in layer"), "{why}");
    assert!(why.contains("on device b, whose graphs hold 1000; put fewer experts"), "{why}");
    let why = open(SOC, &|plan| plan.prefill.rules[1].device = "b".into());
    assert!(why.contains("has device b share experts out, which runs no functions"), "{why}");
    let why = open(&SOC.replacen("launch", "own_memory = true\nlaunch", 1), &|_| ());
    assert!(why.starts_with("device a cannot share experts out"), "{why}");
    let why = open(SOC, &|plan| {
        plan.prefill.rules.iter_mut().for_each(|rule| rule.values = DType::F16);
        let Some(Split::Experts(split)) = &mut plan.prefill.rules[1].split else { panic!() };
        split.overflow = Overflow::Prune;
    });
    assert!(why.contains("cannot be left out by what attention added to them"), "{why}");
}

#[test]
fn npus_compute_groups_of_experts() {
    for spec in ["b=npu:reference", "b=npu:openvino:cpu"] {
        let set = Setting::new("mixtral", beside_cpu(spec), 8);
        for dispatch in Dispatch::ALL {
            let plan = shared(&set.d, &set.one, 2, &some_groups(dispatch));
            let error = relative_error(&logits(&mut set.engine(plan), &set.ids), &set.expected);
            assert!(error <= 1e-5, "{spec}, {dispatch:?}: {error}");
        }
    }
}
