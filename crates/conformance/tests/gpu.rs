//! GPU devices, by Mesa's software adapter: every op, every architecture, and the strategies that
//! divide a model between it and the CPU. Where the adapter is not installed, one line says so.

#![allow(clippy::disallowed_methods, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../../troika-gpu/tests/common/needed.rs"]
mod needed;

mod setup;
mod verdicts;

use std::process::Command;
use std::sync::Arc;

use conformance::golden::{all_logits, find, greedy, read_golden, relative_error};
use conformance::suite::{Exclusion, run_suite};
use setup::engines::{EngineOptions, engine};
use setup::{golden_dir, in_f32, npu_settings, on, plan_of, relative_rms, root, segment_cases};
use troika::device::{Device, SpaceId};
use troika::engine::sample::SampleParams;
use troika::engine::{Admission, Event, Next, SequenceInput, Sharing, WantedLogits};
use troika::graph::DType;
use troika::plan::Strategy;
use troika::trace::Tracer;
use troika::weights::{FloatType, Quant};
use troika::{
    DeviceOptions, GpuAdapter, GpuUse, Model, OpenOptions, Request, Session, describe,
    gpu_adapters, open_devices,
};
use troika_check::{DeviceCase, op_cases};

/// The device that tests take.
fn gpu_spec() -> String {
    format!("gpu:{}", needed::adapter())
}

/// Whether the software adapter is here.
fn is_here() -> bool {
    let name = needed::adapter();
    let named = |adapter: &GpuAdapter| adapter.facts.iter().any(|(_, v)| v.contains(&name));
    let here = gpu_adapters().iter().any(named);
    if !here {
        needed::not_run(&format!("there is no adapter {}", needed::adapter()));
    }
    here
}

/// Devices of which the GPU has memory of its own.
fn options(specs: &[&str]) -> DeviceOptions {
    let gpus = GpuUse { own_memory: true, ..GpuUse::default() };
    DeviceOptions { gpus, ..on(specs) }
}

fn device(spec: &str) -> Arc<dyn Device> {
    open_devices(&options(&[spec])).unwrap().remove(0)
}

/// What it refuses, so that the CPU computes it.
fn refused() -> Vec<Exclusion> {
    let ops = [
        ("convert", "no kernel takes rows of an odd number of 16-bit floats"),
        ("decaying_sum", "no model but a test's has it"),
    ];
    let rounded = [
        "linear of bf16",
        "linear of some rows of pairs",
        "attention of pairs",
        "experts of bf16",
        "expert_group of bf16",
    ];
    let rounded = rounded.map(|what| (what, "kernels round activations to bytes only"));
    ops.into_iter().chain(rounded).map(|(what, why)| Exclusion { what, why }).collect()
}

fn holds(cases: &[DeviceCase], refused: &[Exclusion]) {
    holds_on(&*device(&gpu_spec()), cases, refused);
}

fn holds_on(device: &dyn Device, cases: &[DeviceCase], refused: &[Exclusion]) {
    let report = run_suite(device, cases, refused).unwrap();
    println!("{} runs, {} refused, worst {:e}", report.runs, report.refused.len(), report.worst);
    assert!(report.failures.is_empty(), "{}", report.failures.join("\n"));
}

#[test]
fn ops_hold() {
    if is_here() {
        holds(&op_cases().unwrap(), &refused());
    }
}

#[test]
fn ops_hold_in_the_memory_of_the_host() {
    if !is_here() {
        return;
    }
    let devices = open_devices(&on(&[&gpu_spec(), "cpu"])).unwrap();
    assert_eq!(devices[0].caps().spaces, [SpaceId::HOST]);
    holds_on(&*devices[0], &op_cases().unwrap(), &refused());
}

#[test]
fn segments_hold() {
    if is_here() {
        holds(&segment_cases(), &[]);
    }
}

/// The reference library's logits and greedy tokens.
fn architectures(specs: &[&str], strategy: &Strategy, names: &[&str]) {
    architectures_on(&options(specs), strategy, names);
}

fn architectures_on(devices: &DeviceOptions, strategy: &Strategy, names: &[&str]) {
    let mut cases = find(&root("tests/golden")).unwrap();
    if !names.is_empty() {
        cases.extend(find(&root("tests/golden-2026")).unwrap());
        cases.retain(|case| names.contains(&&*case.name));
    }
    assert!(cases.len() >= names.len().max(1) && (!names.is_empty() || cases.len() >= 20));
    let mut failures = Vec::new();
    for case in cases {
        let options = OpenOptions {
            dtype: FloatType::F32,
            devices: devices.clone(),
            strategy: strategy.clone(),
            ..OpenOptions::default()
        };
        let golden = read_golden(&case.golden).unwrap();
        let found = Model::open(&case.model, &options).map_err(|e| e.to_string());
        let found = found.and_then(|model| {
            let logits = all_logits(&model, &golden.input_ids).map_err(|e| e.to_string())?;
            let count = golden.greedy.len();
            let tokens = greedy(&model, &golden.input_ids, count).map_err(|e| e.to_string())?;
            Ok((relative_error(&logits, &golden.logits), tokens == golden.greedy))
        });
        match found {
            Ok((error, true)) if error <= 2e-4 => println!("{}: {error:e}", case.name),
            other => failures.push(format!("{}: {other:?}", case.name)),
        }
    }
    let of = &devices.devices;
    assert!(failures.is_empty(), "{of:?} {strategy}:\n{}", failures.join("\n"));
}

#[test]
fn all_architectures() {
    if is_here() {
        architectures(&[&gpu_spec(), "cpu"], &Strategy::OneDevice, &[]);
    }
}

/// Models with convolutions, scans and delta rules: the GPU computes all of them.
const RECURRENT: [&str; 6] =
    ["lfm2", "falcon-h1", "nemotron-h", "qwen3.5", "qwen3-next", "kimi-linear"];

#[test]
fn recurrences_without_a_cpu() {
    if is_here() {
        architectures(&[&gpu_spec()], &Strategy::OneDevice, &RECURRENT);
    }
}

#[test]
fn streams_with_and_without_a_cpu() {
    if is_here() {
        architectures(&[&gpu_spec()], &Strategy::OneDevice, &["gemma-3n"]);
        architectures(&[&gpu_spec(), "cpu"], &Strategy::Alternate, &["gemma-3n"]);
    }
}

#[test]
fn recurrences_with_the_cpu() {
    if !is_here() {
        return;
    }
    for strategy in ["alternate", "prefill-decode=gpu:cpu", "prefill-decode=cpu:gpu"] {
        let strategy = Strategy::parse(strategy).unwrap();
        architectures(&[&gpu_spec(), "cpu"], &strategy, &["lfm2", "falcon-h1", "qwen3.5"]);
    }
}

/// Two prompts at once, in chunks that end within pages, an answer of each, and a fork that goes back.
fn shared_batches(model: &str, spec: &str) -> Vec<(usize, usize, Vec<f32>)> {
    let tokens: Vec<u32> = (0..47).map(|i| 1 + i * 83 % 190).collect();
    let d = describe(&root("tests/golden-2026").join(model), FloatType::F32).unwrap();
    let devices = open_devices(&options(&[spec])).unwrap();
    let mut plan = plan_of(&d, &devices, &in_f32(Strategy::OneDevice, 11));
    plan.page_len = 8;
    let sharing = Sharing { sequences: 4, ..Sharing::default() };
    let used = EngineOptions { sharing, ..EngineOptions::default() };
    let mut engine = engine(&d, &devices, plan, used).unwrap();
    let shares = || Admission { shares: true, ..Admission::default() };
    let [a, b] = [(); 2].map(|()| engine.handle().admit(shares()).unwrap());
    let mut rows = Vec::new();
    let all = WantedLogits::All;
    let prompts = [(a, &tokens[..29]), (b, &tokens[5..40])];
    let prompts = prompts.map(|(seq, text)| SequenceInput::prompt(seq, text, all));
    let answers = [(a, 29), (b, 40)];
    let answers = answers.map(|(seq, at)| SequenceInput::decode(seq, &tokens[at..=at], all));
    for inputs in [prompts, answers] {
        engine.run(&inputs, &mut |seq, at, row| rows.push((seq, at, row.to_vec()))).unwrap();
    }
    let fork = engine.handle().fork(a).unwrap();
    let text = [&tokens[..27], &[7, 9, 11]].concat();
    let input = SequenceInput::prompt(fork, &text, WantedLogits::Last);
    engine.handle().feed(&input).unwrap();
    let mut is_done = false;
    while !is_done {
        let mut take = |event: Event<'_>| {
            if let Event::Logits { position, logits, .. } = event {
                rows.push((prompts.len(), position, logits.to_vec()));
                is_done = true;
            }
            Next::Wait
        };
        engine.step(&mut take).unwrap();
    }
    rows.sort_by_key(|(seq, at, _)| (*seq, *at));
    rows
}

#[test]
fn states_of_one_row_hold_in_batches_and_forks() {
    if !is_here() {
        return;
    }
    for model in ["lfm2", "falcon-h1", "kimi-linear"] {
        let [gpu, cpu] = [&gpu_spec(), "cpu"].map(|spec| shared_batches(model, spec));
        assert_eq!((gpu.len(), cpu.len()), (29 + 35 + 2 + 1, 29 + 35 + 2 + 1));
        for ((seq, at, row), (of, position, want)) in gpu.iter().zip(&cpu) {
            assert_eq!((seq, at), (of, position));
            let error = relative_error(row, want);
            assert!(error < 1e-4, "{model}: {error:e} at {at} of {seq}");
        }
    }
}

/// Devices of unlike numerics are judged by tolerance and tokens, those of like ones by bits.
#[test]
fn the_command_judges_a_model_on_both() {
    if !is_here() {
        return;
    }
    let golden = |devices: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
        command.arg("golden").arg(golden_dir("qwen3"));
        let found = command.args(["--device", devices]).args(more).output().unwrap();
        let said = String::from_utf8(found.stdout).unwrap();
        assert_eq!(found.status.success(), said.contains("1 passed"), "{said}");
        said
    };
    let both = format!("{},cpu", gpu_spec());
    let said = golden(&both, &["--strategy", "alternate"]);
    assert!(said.contains("ok    max error") && !said.contains("bits"), "{said}");
    let said = golden(&both, &["--strategy", "alternate", "--tolerance", "1e-9"]);
    assert!(said.contains("FAIL  max error"), "{said}");
    let said = golden("cpu,a=cpu", &["--strategy", "alternate"]);
    assert!(said.contains("ok    max error") && said.contains("bits of one device"), "{said}");
}

#[test]
fn strategies_with_the_cpu() {
    if !is_here() {
        return;
    }
    // Drivers compile each split's kernels, which takes long.
    let names = ["qwen3", "qwen3-moe", "gemma-2", "gpt-oss"];
    for strategy in Strategy::ALL {
        architectures(&[&gpu_spec(), "cpu"], &strategy, &names);
    }
    let names = ["qwen3", "llama-3.2", "qwen3-moe", "gemma-2", "gpt-oss", "deepseek-v2"];
    for phases in ["prefill-decode=gpu:cpu", "prefill-decode=cpu:gpu"] {
        architectures(&[&gpu_spec(), "cpu"], &Strategy::parse(phases).unwrap(), &names);
    }
}

#[test]
fn strategies_with_the_cpu_in_its_memory() {
    if !is_here() {
        return;
    }
    let devices = on(&[&gpu_spec(), "cpu"]);
    for strategy in Strategy::ALL {
        architectures_on(&devices, &strategy, &["qwen3", "qwen3-moe"]);
    }
    let names = ["qwen3", "qwen3-moe", "gemma-2", "gpt-oss", "deepseek-v2"];
    for phases in ["prefill-decode=gpu:cpu", "prefill-decode=cpu:gpu"] {
        architectures_on(&devices, &Strategy::parse(phases).unwrap(), &names);
    }
}

/// Between devices on the host's memory nothing is copied: neither values nor caches.
#[test]
fn nothing_is_copied_in_the_memory_of_the_host() {
    if !is_here() {
        return;
    }
    for strategy in ["alternate", "prefill-decode=gpu:cpu", "prefill-decode=cpu:gpu"] {
        let copies = |devices: DeviceOptions| {
            let tracer = Tracer::on();
            let options = OpenOptions {
                dtype: FloatType::F32,
                devices,
                strategy: Strategy::parse(strategy).unwrap(),
                tracer: tracer.clone(),
                ..OpenOptions::default()
            };
            let model = Model::open(&golden_dir("qwen3"), &options).unwrap();
            tracer.take();
            greedy(&model, &[1, 2, 3, 4, 5], 4).unwrap();
            tracer.take().iter().filter(|span| span.name == "copy").count()
        };
        let specs = [&*gpu_spec(), "cpu"];
        assert!(copies(options(&specs)) > 0, "{strategy}");
        assert_eq!(copies(on(&specs)), 0, "{strategy}");
    }
}

/// Products with activations in eight bits are as exact as the CPU's, in chunks of any length.
#[test]
fn activations_in_eight_bits() {
    if !is_here() {
        return;
    }
    let logits = |spec: &str, quant, dtype, chunk| {
        let options = OpenOptions {
            quant,
            dtype,
            chunk: Some(chunk),
            kv_dtype: Some(DType::F32),
            devices: options(&[spec]),
            ..OpenOptions::default()
        };
        let model = Model::open(&root("models/tiny-moe"), &options).unwrap();
        let tokens: Vec<u32> = (0..48).map(|i| 1 + i * 83 % 4000).collect();
        all_logits(&model, &tokens).unwrap()
    };
    for quant in [Quant::Q8, Quant::Q4, Quant::Q4By64] {
        let exact = logits("cpu", quant, FloatType::F32, 48);
        let cpu = relative_rms(&logits("cpu", quant, FloatType::Auto, 48), &exact);
        let whole = logits(&gpu_spec(), quant, FloatType::Auto, 48);
        let gpu = relative_rms(&whole, &exact);
        let parts = relative_rms(&logits(&gpu_spec(), quant, FloatType::Auto, 4), &whole);
        println!("{quant:?}: CPU {cpu:e}, GPU {gpu:e}, in chunks of 4 rows {parts:e}");
        assert!(gpu > 1e-4 && gpu < 1.5 * cpu, "{quant:?}: {gpu:e}, CPU {cpu:e}");
        assert!(parts < 0.5 * gpu, "{quant:?}: {parts:e} of {gpu:e}");
    }
}

/// An NPU computes prompts, a GPU the answers: Intel's runtime on the CPU stands in for the NPU.
#[test]
fn an_npu_hands_prompts_over() {
    if !is_here() {
        return;
    }
    let devices = options(&["npu:openvino:cpu", &gpu_spec(), "cpu"]);
    let devices = DeviceOptions { npu: npu_settings(), ..devices };
    let names = ["qwen3", "llama-3.2", "gemma-2", "qwen3-moe"];
    architectures_on(&devices, &Strategy::parse("prefill-decode=npu:gpu").unwrap(), &names);
}

/// The host reads the largest logits alone where they decide: they are those of the whole row, in
/// prompts and in answers, and so are the tokens.
#[test]
fn the_largest_logits_are_picked_on_the_device() {
    const KEPT: usize = 40;
    if !is_here() {
        return;
    }
    let devices = options(&[&gpu_spec(), "cpu"]);
    let sharing = Sharing { sequences: 3, ..Sharing::default() };
    let options = OpenOptions { devices, sharing, chunk: Some(16), ..OpenOptions::default() };
    let model = Model::open(&root("models/tiny-moe"), &options).unwrap();
    let prompt: Vec<u32> = (1..40).collect();
    let next = prompt.len() as u32;
    {
        let mut engine = model.engine().unwrap();
        let (seq, other) = (engine.open(), engine.open());
        engine
            .handle()
            .feed(&SequenceInput::prompt(seq, &prompt, WantedLogits::TopK(KEPT)))
            .unwrap();
        let mut picked = Vec::new();
        let mut take = |event: Event<'_>| match event {
            Event::TopK { position, top_k: largest, .. } => {
                picked.push((position, largest.to_vec()));
                if picked.len() == 1 { Next::Append(next) } else { Next::Wait }
            }
            Event::Begun { .. } => Next::Wait,
            other => panic!("{other:?}"),
        };
        while engine.step(&mut take).unwrap() {}
        let tokens = [&prompt[..], &[next]].concat();
        let mut rows = Vec::new();
        for tokens in [&tokens[..prompt.len()], &tokens[prompt.len()..]] {
            let fed = if tokens.len() == 1 { SequenceInput::decode } else { SequenceInput::prompt };
            let input = [fed(other, tokens, WantedLogits::Last)];
            engine
                .run(&input, &mut |_, position, row| rows.push((position, row.to_vec())))
                .unwrap();
        }
        assert_eq!((picked.len(), rows.len()), (2, 2));
        for ((at, largest), (position, row)) in picked.iter().zip(&rows) {
            let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1));
            assert_eq!((at, &largest[..]), (position, &all[..KEPT]));
        }
        engine.close(seq);
        engine.close(other);
    }
    // Those with logarithms of probabilities read whole rows.
    let tokens = |temperature: f32, logprobs| {
        let params = SampleParams { temperature, seed: 3, ..SampleParams::default() };
        let max_tokens = Some(24);
        let request =
            Request { params, logprobs, max_tokens, ignore_eos: true, ..Request::default() };
        let mut session = model.session().unwrap();
        session.start(&prompt, &request).unwrap();
        session
    };
    let all = |session: &mut Session| session.finish(None).unwrap().tokens;
    for temperature in [0.0, 1.5] {
        let whole = all(&mut tokens(temperature, Some(0)));
        assert_eq!(all(&mut tokens(temperature, None)), whole, "temperature {temperature}");
        // In one batch.
        let mut both = [tokens(temperature, None), tokens(temperature, Some(0)), tokens(0.0, None)];
        for session in &mut both[..2] {
            assert_eq!(all(session), whole, "temperature {temperature}, in one batch");
        }
    }
}

/// Logits of a long prompt are wanted of its last row only; a chunk's would be 8 MiB here, and
/// 300 MiB with a vocabulary of 150,000.
#[test]
fn logits_take_memory_for_the_rows_that_are_wanted() {
    if !is_here() {
        return;
    }
    let devices = options(&[&gpu_spec()]);
    let model = Model::open(
        &root("models/tiny-moe"),
        &OpenOptions { devices, chunk: Some(512), ..OpenOptions::default() },
    )
    .unwrap();
    let prompt: Vec<u32> = (1..200).collect();
    assert_eq!(greedy(&model, &prompt, 2).unwrap().len(), 2);
    let held = model.engine().unwrap().memory().activations;
    let of_a_chunk = 512 * 4 * model.spec().vocab as u64;
    assert!(held < of_a_chunk, "{held} bytes of values, {of_a_chunk} of a chunk's logits");
    // Those of all rows are wanted now, and are there.
    let logits = all_logits(&model, &prompt).unwrap();
    assert_eq!(logits.len(), prompt.len() * model.spec().vocab);
}

#[test]
fn a_gpu_takes_what_the_table_of_families_says() {
    if is_here() {
        let said = verdicts::check(&device(&gpu_spec()), "GPU");
        assert!(said.is_ok(), "{}", said.unwrap_err());
    }
}
