//! NPU devices by the providers of ONNX Runtime, which the test installs by its packages' names:
//! every op that a static graph can have, and every architecture with its products on the NPU.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod setup;
mod verdicts;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conformance::golden::{all_logits, find, open_changed, read_golden, relative_error};
use conformance::suite::{Exclusion, run_suite};
use half::f16;
use setup::{all_cases, golden, golden_dir, npu_settings, on, root};
use troika::device::{
    Bindings, Buffer, CommandList, CompileRequest, CompileResults, Device, DeviceError,
    ForwardBatch, PackFn, PackLayout, Packed, RealClock, Run, Submission, View, WeightBytes,
    WeightData, WeightSource, Weights, Work,
};
use troika::graph::blocks::dequantize;
use troika::graph::quantize::row_int4;
use troika::graph::{
    ActivationFormat, CalibrationTensor, DType, Dim, Op, ProductForm, Rope, RopeFreqs, RopeStyle,
    Rounding, ScaleOrigin, Subgraph, SubgraphBuilder, WeightDecl, WeightRef, bind_static,
    convert_products, form_products,
};
use troika::model::spec::WeightRole;
use troika::npu::{HelperCommand, NpuDevice, NpuOptions, NpuSpec, Rewrites};
use troika::plan::{Plan, Strategy};
use troika::trace::Tracer;
use troika::weights::{FloatType, Quant};
use troika::{
    BoundModel, CalibrationOptions, DeviceOptions, Error, MemoryLimits, Model, NpuNumbers,
    OpenOptions, Scored, Source, calibrate, open_devices,
};
use troika_check::{Bench, DeviceCase, Random, op_cases};

fn options(specs: &[&str]) -> DeviceOptions {
    DeviceOptions { npu: npu_settings(), ..on(specs) }
}

fn device(spec: &str) -> Arc<dyn Device> {
    open_devices(&options(&[spec])).unwrap().remove(0)
}

/// What no static graph has, and Gemma 3n's own ops.
const DYNAMIC: [Exclusion; 10] = [
    Exclusion { what: "outliers", why: "which columns have any is known late" },
    Exclusion { what: "router", why: "what follows depends on it" },
    Exclusion { what: "experts", why: "which rows an expert gets is known late" },
    Exclusion { what: "decaying_sum", why: "its state is no cache of positions" },
    Exclusion { what: "short_conv", why: "its state is no cache of positions" },
    Exclusion { what: "mamba2", why: "its state is no cache of positions" },
    Exclusion { what: "rms_norm of groups", why: "its groups have weights of their own" },
    Exclusion { what: "delta_rule", why: "its state is no cache of positions" },
    Exclusion { what: "rescale", why: "it is written for no compiler yet" },
    Exclusion { what: "mix", why: "it is written for no compiler yet" },
];

fn holds(spec: &str, rewrites: &str, more: &[Exclusion]) {
    holds_within(spec, rewrites, more, all_cases());
}

fn holds_within(spec: &str, rewrites: &str, more: &[Exclusion], cases: Vec<DeviceCase>) {
    let exclusions = [&DYNAMIC, more].concat();
    let mut options = options(&[spec]);
    if !rewrites.is_empty() {
        let all = rewrites.split(',').map(|r| r.parse().unwrap());
        options.npu.rewrites = Rewrites(all.collect());
    }
    let device = open_devices(&options).unwrap().remove(0);
    let report = run_suite(&*device, &cases, &exclusions).unwrap();
    println!(
        "{spec} {rewrites}: {} runs, {} refused, worst {:e}",
        report.runs,
        report.refused.len(),
        report.worst
    );
    assert!(report.failures.is_empty(), "{spec}:\n{}", report.failures.join("\n"));
    assert!(report.runs > 60 && report.refused.len() > 10, "{}", report.runs);
}

#[test]
fn the_reference_holds() {
    holds("npu:reference", "", &[]);
}

#[test]
fn openvino_holds() {
    holds("npu:openvino:cpu", "", &OF_OPENVINO);
}

const OF_OPENVINO: [Exclusion; 3] = [
    Exclusion { what: "convert", why: "its compiler does not round to the nearest" },
    Exclusion { what: "linear of blocks with exchanged operands", why: "its results are wrong" },
    Exclusion { what: "linear of bytes with exchanged operands", why: "its results are wrong" },
];

/// Qualcomm's processor computes in halves.
#[test]
fn the_emulated_qnn_holds() {
    let _alone = alone("npu:qnn:emulator");
    let mut cases = op_cases().unwrap();
    cases.iter_mut().for_each(|case| case.tolerance = case.tolerance.max(1.2e-2));
    let convert = Exclusion { what: "convert", why: "its compiler places none" };
    holds_within("npu:qnn:emulator", "", &[convert], cases);
}

/// Rewritten graphs mean the same.
#[test]
fn rewritten_graphs_hold() {
    let of_attention = "slice-q=2:3,pad-cache,guard-values";
    holds("npu:reference", of_attention, &[]);
    holds("npu:reference", "fold-epsilon,linear-as-conv", &[]);
    holds("npu:reference", "multiples-of-16", &[]);
    let all = format!("{of_attention},fold-epsilon,linear-as-conv,multiples-of-16");
    holds("npu:openvino:cpu", &all, &OF_OPENVINO);
}

/// Qualcomm's library loses its device where one session ends while another one begins.
fn alone(npu: &str) -> Option<MutexGuard<'static, ()>> {
    static EMULATED: Mutex<()> = Mutex::new(());
    npu.contains("qnn").then(|| EMULATED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The median of the rows' errors. Halves make a router take another expert where two are as good:
/// the logits of that row are others, and a little so those of the rows that attend to it.
fn usual_error(got: &[f32], reference: &[f32], rows: usize) -> f32 {
    let cols = reference.len() / rows;
    let pairs = got.chunks(cols).zip(reference.chunks(cols));
    let mut errors: Vec<f32> = pairs.map(|(a, b)| relative_error(a, b)).collect();
    errors.sort_by(f32::total_cmp);
    if got.len() == reference.len() { errors[rows / 2] } else { f32::INFINITY }
}

/// Everything but routing on the NPU: the reference library's logits.
fn architectures(npu: &str, names: &[&str], tolerance: f32) {
    let mut cases = find(&root("tests/golden")).unwrap();
    cases.retain(|case| names.is_empty() || names.contains(&&*case.name));
    assert!(cases.len() >= names.len().max(1) && (!names.is_empty() || cases.len() >= 20));
    let mut failures = Vec::new();
    let _alone = alone(npu);
    for case in cases {
        let mut devices = options(&[npu, "cpu"]);
        devices.npu.attention = true;
        let options = OpenOptions {
            dtype: FloatType::F32,
            devices,
            // Fewer lengths to compile.
            chunk: Some(16),
            ..OpenOptions::default()
        };
        let golden = read_golden(&case.golden).unwrap();
        let logits = Model::open(&case.model, &options)
            .map_err(|e| e.to_string())
            .and_then(|model| all_logits(&model, &golden.input_ids).map_err(|e| e.to_string()));
        let error = |logits: Vec<f32>| match npu.contains("qnn") && case.name.contains("moe") {
            true => usual_error(&logits, &golden.logits, golden.input_ids.len()),
            false => relative_error(&logits, &golden.logits),
        };
        match logits.map(error) {
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

/// The roles of products of dense models.
const ROLES: [WeightRole; 8] = {
    use WeightRole::{Down, Gate, Head, K, O, Q, Up, V};
    [Q, K, V, O, Gate, Up, Down, Head]
};

/// A plan may give all products another form: the reference library's logits.
#[test]
fn formed_products_give_the_same_logits() {
    for npu in ["npu:reference", "npu:openvino:cpu"] {
        for name in ["qwen3", "phi-2", "gemma-2"] {
            let options = OpenOptions {
                dtype: FloatType::F32,
                devices: options(&[npu, "cpu"]),
                chunk: Some(16),
                ..OpenOptions::default()
            };
            let (model, golden) = (golden_dir(name), golden(name));
            let logits = |form: Option<ProductForm>| {
                let change = |plan: &mut Plan| {
                    assert!(plan.all_rules().any(|r| r.device == "npu" && !r.has_forms()));
                    let forms = || form.into_iter().flat_map(|f| ROLES.map(|role| (role, f)));
                    plan.all_rules_mut().for_each(|r| r.set_forms(forms()));
                };
                let model = open_changed(&model, &options, &change).unwrap();
                all_logits(&model, &golden.input_ids).unwrap()
            };
            let plain = logits(None);
            for form in [ProductForm::Exchanged, ProductForm::Groups(4)] {
                let formed = logits(Some(form));
                let error = relative_error(&formed, &golden.logits);
                println!("{npu} {name}, {form}: {error:e}");
                assert!(error <= 2e-4, "{npu} {name}, {form}: {error}");
                assert!(relative_error(&formed, &plain) <= 1e-5, "{npu} {name}, {form}");
            }
        }
    }
}

fn linear(weight: WeightRef, activations: ActivationFormat) -> Op {
    Op::Linear { weight, bias: None, activations, form: None }
}

/// A graph of one op, which has a weight.
fn product(rows: usize, weight: WeightDecl, op: impl FnOnce(WeightRef) -> Op) -> Subgraph {
    let (n, k) = (weight.rows, weight.cols);
    let mut b = SubgraphBuilder::new("product", rows);
    let x = b.input("x", k, DType::F32);
    let op = op(b.weight(weight));
    let y = b.op("y", op, &[x], n);
    b.output(y);
    b.finish().unwrap()
}

/// Products in formats of which weights are converted give the same in all forms.
#[test]
fn converted_products_are_the_same_in_all_forms() {
    let _alone = alone("npu:qnn:emulator");
    for (spec, formats) in
        [("npu:reference", &[8, 16][..]), ("npu:openvino:cpu", &[8, 16]), ("npu:qnn:emulator", &[])]
    {
        let npu = device(spec);
        let clipped = formats.iter().map(|b| ActivationFormat::of_tensor(*b, ScaleOrigin::Clipped));
        let by_row = (!formats.is_empty()).then_some(ActivationFormat::by_row(8));
        let floats = [ActivationFormat::F32, ActivationFormat::F16, ActivationFormat::F16Int4];
        for activations in floats.into_iter().chain(by_row).chain(clipped) {
            let (rows, n, k) = (128, 48, 64);
            let weights = Calibrated { n, k, limit: 1.5 };
            let plain = product(rows, weights.decl(), |weight| linear(weight, activations));
            let plain = bind_static(&plain, rows);
            let formed = |form| form_products(&plain, |name| (name == "w").then_some(form));
            // Groups of more rows than a piece of a chunk, too.
            let forms = [ProductForm::Exchanged, ProductForm::Groups(4), ProductForm::Groups(64)];
            let formed = forms.map(formed);
            assert!(formed.iter().all(|graph| *graph != plain));
            let x: Vec<f32> =
                (0..rows * k).map(|i| ((i * 71 % 199) as f32 - 99.0) / 80.0).collect();
            if !sums_are_exact() && Weights::compiled(&*npu, &plain, &weights).is_err() {
                continue;
            }
            let plain = run(&*npu, &plain, &weights, &x);
            // Halves are rounded in another order.
            let halves = spec.contains("qnn") || activations.is_halves();
            let most = if halves { 4e-3 } else { 2e-6 };
            for graph in formed {
                let error = relative_error(&run(&*npu, &graph, &weights, &x), &plain);
                println!("{spec} {activations}: {error:e}");
                assert!(error <= most, "{spec} {activations}: {error}");
            }
        }
    }
}

/// The command finds the runtime as `troika` does, and judges by tolerance.
#[test]
fn the_command_takes_npus() {
    let runtime = npu_settings().runtime.environments.remove(0);
    let golden = |tolerance: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
        command.arg("golden").arg(golden_dir("qwen3"));
        command.args(["--device", "npu:openvino:cpu,cpu", "--tolerance", tolerance]);
        let found = command.env("VIRTUAL_ENV", &runtime).output().unwrap();
        (found.status.success(), String::from_utf8(found.stdout).unwrap())
    };
    let (holds, said) = golden("2e-4");
    assert!(holds && said.contains("ok    max error") && said.contains("1 passed"), "{said}");
    let (holds, said) = golden("1e-9");
    assert!(!holds && said.contains("FAIL  max error") && said.contains("1 failed"), "{said}");
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
        let _alone = alone("npu:qnn:emulator");
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
    let open = |spec| open_devices(&options(&[spec])).err().unwrap().to_string();
    for spec in ["npu", "npu:qnn", "npu:openvino:npu"] {
        let why = open(spec);
        assert!(why.contains("finds no") && !why.contains('\n'), "{why}");
    }
}

/// Runs a graph of one input, and perhaps positions, and one output.
fn run(device: &dyn Device, graph: &Subgraph, weights: &dyn WeightSource, x: &[f32]) -> Vec<f32> {
    run_at(device, graph, weights, x, &[])
}

fn run_at(
    device: &dyn Device,
    graph: &Subgraph,
    weights: &dyn WeightSource,
    x: &[f32],
    positions: &[i32],
) -> Vec<f32> {
    let loaded = Weights::compiled(device, graph, weights).unwrap();
    let mut bench = Bench::open(device, 0, Arc::new(RealClock::new())).unwrap();
    let cols = |id| graph.value(id).shape.row_len();
    let rows = x.len() / cols(graph.inputs[0]);
    let buffer = |cols: usize| Buffer::zeroed(4 * rows * cols).unwrap();
    let (from, to) = (buffer(cols(graph.inputs[0])), buffer(cols(graph.outputs[0])));
    from.write()
        .unwrap()
        .copy_from_slice(&x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    let view = |b: &Buffer, cols| View::dense(b, 0, (rows, 4 * cols)).unwrap();
    let at = buffer(1);
    let bytes: Vec<u8> = positions.iter().flat_map(|p| p.to_le_bytes()).collect();
    at.write().unwrap()[..bytes.len()].copy_from_slice(&bytes);
    let inputs = [view(&from, cols(graph.inputs[0])), view(&at, 1)];
    let bindings = Bindings {
        inputs: inputs[..graph.inputs.len()].to_vec(),
        states: vec![],
        outputs: vec![view(&to, cols(graph.outputs[0]))],
    };
    let forward = Arc::new(ForwardBatch { seqs: Vec::new() });
    let run = Run { weights: loaded, bindings: Arc::new(bindings), rows, forward };
    let tasks = vec![Submission { tag: 0, work: Work::Run(run) }];
    bench.run(CommandList { tasks, ..CommandList::default() }).unwrap();
    let bytes = to.read().unwrap().to_vec();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Halves do not tell the angles of large positions apart: the host computes their cosines.
#[test]
fn rotations_of_large_positions_are_exact() {
    let _alone = alone("npu:qnn:emulator");
    let (rows, cols) = (16, 32);
    let mut b = SubgraphBuilder::new("rotation", rows);
    let (x, at) = (b.input("x", cols, DType::F32), b.input("positions", 1, DType::I32));
    let inv_freq = (0..8).map(|i| 1e4_f32.powf(-i as f32 / 8.0)).collect();
    let rope = Rope {
        head_dim: 16,
        offset: 0,
        rotary_dim: 16,
        style: RopeStyle::Half,
        freqs: RopeFreqs { inv_freq, factor: 1.0, growth: None },
        long: None,
    };
    let y = b.op("y", Op::Rope(rope), &[x, at], cols);
    b.output(y);
    let graph = bind_static(&b.finish().unwrap(), rows);
    let x: Vec<f32> = (0..rows * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let positions: Vec<i32> = (0..rows as i32).map(|i| 3000 + 517 * i).collect();
    let weights = Calibrated { n: 1, k: 1, limit: 1.0 };
    let cpu = open_devices(&DeviceOptions::default()).unwrap().remove(0);
    let expected = run_at(&*cpu, &graph, &weights, &x, &positions);
    for (spec, most) in
        [("npu:reference", 1e-6), ("npu:openvino:cpu", 1e-6), ("npu:qnn:emulator", 4e-3)]
    {
        let got = run_at(&*device(spec), &graph, &weights, &x, &positions);
        let error = relative_error(&got, &expected);
        assert!(error < most, "{spec}: {error}");
    }
}

/// A weight `[n, 256]` of a type; or one of floats that are no numbers.
struct Stored {
    dtype: DType,
    n: usize,
    bytes: Vec<u8>,
}

/// Columns of such a weight.
const STORED: usize = 256;

impl Stored {
    fn new(dtype: DType, n: usize) -> Stored {
        let bytes = Random(7).bytes(dtype, dtype.row_bytes(n * STORED).unwrap());
        Stored { dtype, n, bytes }
    }

    fn floats(&self) -> Vec<f32> {
        let mut all = vec![0.0; self.n * STORED];
        dequantize(self.dtype, &self.bytes, &mut all);
        all
    }

    /// A product with it, for each of some numbers of rows.
    fn products<const N: usize>(&self, rows: [usize; N], of: ActivationFormat) -> [Subgraph; N] {
        let decl = WeightDecl::whole("w".into(), self.n, STORED, self.dtype);
        let graph = product(16, decl, |weight| linear(weight, of));
        rows.map(|rows| bind_static(&graph, rows))
    }
}

impl WeightSource for Stored {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        let (rows, cols, dtype) = (self.n, STORED, self.dtype);
        if name == "nan" {
            let bytes = WeightBytes::owned(f32::NAN.to_le_bytes().repeat(rows * cols));
            return Ok(WeightData { dtype: DType::F32, rows, cols, bytes });
        }
        Ok(WeightData { dtype, rows, cols, bytes: WeightBytes::owned(self.bytes.clone()) })
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        packed(self, name, layout, pack)
    }
}

fn packed(
    source: &dyn WeightSource,
    name: &str,
    layout: PackLayout<'_>,
    pack: PackFn<'_>,
) -> Result<Packed, DeviceError> {
    let data = source.weight(name)?;
    let mut bytes = vec![0; layout.bytes(data.rows).unwrap()];
    pack(&data, &mut bytes)?;
    Ok(Packed { bytes: WeightBytes::owned(bytes), stored: false })
}

/// A device whose trace counts what it compiles.
fn counted(spec: &str) -> (NpuDevice, impl Fn() -> usize) {
    let tracer = Tracer::on();
    let options = NpuOptions {
        name: "npu".into(),
        spec: NpuSpec::parse(spec).unwrap(),
        places: npu_settings().runtime,
        row_buckets: Vec::new(),
        threads: 1,
        helper: None,
        cache: None,
        rewrites: Rewrites::default(),
        tracer: tracer.clone(),
        clock: RealClock::new(),
        profiling: None,
    };
    let count = move || {
        let mut json = Vec::new();
        tracer.write_chrome(&mut json).unwrap();
        String::from_utf8(json).unwrap().matches("\"name\":\"compile\"").count()
    };
    (NpuDevice::open(options).unwrap(), count)
}

fn compiled(npu: &dyn Device, graphs: &[&Subgraph], weights: &dyn WeightSource) -> CompileResults {
    npu.compile(&CompileRequest { graphs, weights, report_progress: &|_| true })
}

/// What a product of stored weights differs by from one of floats, for so many rows of inputs.
fn error_of_stored(npu: &NpuDevice, stored: &Stored, rows: usize, of: ActivationFormat) -> f32 {
    let [graph] = stored.products([rows], of);
    let x: Vec<f32> = (0..rows * STORED).map(|i| ((i * 29 % 83) as f32 - 41.0) / 41.0).collect();
    let got = run(npu, &graph, stored, &x);
    let (mut floats, inputs) = (stored.floats(), x.chunks(STORED));
    if of == ActivationFormat::F16Int4 {
        for row in floats.chunks_mut(STORED) {
            let mut numbers = [0; STORED];
            let scale = row_int4(row, &mut numbers);
            row.iter_mut().zip(numbers).for_each(|(v, n)| *v = f32::from(n) * scale);
        }
    }
    let product = |row: &[f32], w: &[f32]| {
        row.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    let expected = inputs
        .flat_map(|x| floats.chunks(STORED).map(|w| product(x, w) as f32))
        .collect::<Vec<_>>();
    assert_eq!(expected.len(), rows * stored.n);
    relative_error(&got, &expected)
}

/// Weights of every type are multiplied as they are stored, and held once for all numbers of rows.
#[test]
fn weights_of_blocks_are_multiplied_as_they_are() {
    for spec in [":reference", ":openvino:cpu"] {
        let (npu, count) = counted(spec);
        for dtype in DType::WEIGHTS.iter().copied().filter(|d| d.is_quantized()) {
            let (stored, before) = (Stored::new(dtype, 48), count());
            for (format, most) in [
                (ActivationFormat::F32, 2e-6),
                (ActivationFormat::F16, 4e-3),
                (ActivationFormat::F16Int4, 4e-3),
            ] {
                for rows in [1, 16] {
                    let error = error_of_stored(&npu, &stored, rows, format);
                    assert!(error < most, "{spec} {dtype} {format:?} {rows}: {error}");
                }
            }
            let both = stored.products([1, 16], ActivationFormat::F32);
            let between = count();
            assert!(between > before);
            let codes = compiled(&npu, &both.each_ref(), &stored);
            assert!(codes.iter().all(Result::is_ok));
            assert_eq!(count(), between + 1, "{spec} {dtype}: two numbers of rows share a session");
        }
    }
}

/// A single row, as a share of a head may be, and one more than the rows that are multiplied at once.
#[test]
fn weights_of_any_number_of_rows_are_multiplied() {
    for spec in [":reference", ":openvino:cpu"] {
        let (npu, _) = counted(spec);
        for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4_K] {
            let formats = [ActivationFormat::F32, ActivationFormat::F16, ActivationFormat::F16Int4];
            for (n, of) in [1, 2, (8 << 20) / STORED + 1]
                .into_iter()
                .flat_map(|n| formats.map(|format| (n, format)))
            {
                let error = error_of_stored(&npu, &Stored::new(dtype, n), 2, of);
                assert!(error < 4e-3, "{spec} {dtype} {n} {of:?}: {error}");
            }
        }
    }
}

/// Halves of weights that are nearly equal: what is taken off numbers is beyond halves.
#[test]
fn halves_of_nearly_equal_weights_are_finite() {
    let mut stored = Stored::new(DType::Q4_K, 48);
    let size = DType::Q4_K.block_bytes();
    for block in stored.bytes.chunks_exact_mut(size) {
        // The scale of scales, and that of minima.
        block[..2].copy_from_slice(&f16::from_f32(1e-6).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
    }
    for spec in [":reference", ":openvino:cpu"] {
        let error = error_of_stored(&counted(spec).0, &stored, 2, ActivationFormat::F16);
        assert!(error < 4e-3, "{spec}: {error}");
    }
}

/// The refused op is the one that is refused alone, and what was compiled beside it stays for the
/// next plan, and no longer.
#[test]
fn a_refusal_names_its_op_and_keeps_what_was_compiled() {
    let (npu, count) = counted(":openvino:cpu");
    let stored = Stored::new(DType::Q8_0, 48);
    let [good] = stored.products([4], ActivationFormat::F32);
    let mut b = SubgraphBuilder::new("bad", 4);
    let x = b.input("x", STORED, DType::F32);
    let x = b.op("twice", Op::Scale { factor: 2.0 }, &[x], STORED);
    let weight = b.weight(WeightDecl::whole("nan".into(), stored.n, STORED, DType::F32));
    let y = b.op("y", linear(weight, ActivationFormat::F32), &[x], stored.n);
    b.output(y);
    let bad = bind_static(&b.finish().unwrap(), 4);
    let codes = compiled(&npu, &[&good, &bad], &stored);
    assert!(codes[0].is_ok());
    let Err(DeviceError::Unsupported { op, .. }) = &codes[1] else { panic!("it was compiled") };
    assert_eq!(op, "linear");
    drop(codes);
    let before = count();
    drop(compiled(&npu, &[&good], &stored));
    assert_eq!(count(), before);
    drop(compiled(&npu, &[&good], &stored));
    assert_eq!(count(), before + 1);
}

/// What graphs hold is compared with free memory before anything is compiled.
#[test]
fn graphs_that_do_not_fit_are_refused_before_they_are_compiled() {
    let limits = |host| MemoryLimits { host: Some(host), ..MemoryLimits::default() };
    let open = |host| {
        let devices = options(&["npu:reference", "cpu"]);
        let options = OpenOptions { devices, memory: limits(host), ..OpenOptions::default() };
        Model::open(&golden_dir("qwen3"), &options)
    };
    let refused = open(1 << 12).err().unwrap();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
    assert!(refused.to_string().contains("--device-memory npu=MIB"), "{refused}");
    assert!(open(1 << 32).is_ok());
}

/// Beside graphs of an NPU, a GGUF file may be larger than memory, and experts have their own budget.
#[test]
fn files_larger_than_memory_run_beside_an_npu() {
    let _alone = alone("npu:qnn:emulator");
    let mut warned = 0;
    for (file, layers) in
        [("llama-3.2", "layers=npu:1+cpu:1"), ("deepseek-v2", "layers=npu:1+cpu:2")]
    {
        let open = |host| {
            let mut devices = options(&["npu:qnn:emulator", "cpu"]);
            devices.npu.row_buckets = vec![16];
            let memory = MemoryLimits { host, ..MemoryLimits::default() };
            let strategy = Strategy::parse(layers).unwrap();
            let options = OpenOptions { devices, memory, strategy, ..OpenOptions::default() };
            let options = OpenOptions { chunk: Some(16), dtype: FloatType::F32, ..options };
            Model::open(&root(&format!("tests/gguf/{file}.gguf")), &options)
        };
        let whole = open(None).unwrap();
        let all: u64 = whole.store().classes().iter().map(|class| class.bytes).sum();
        let small = open(Some(all * 3 / 4)).unwrap_or_else(|e| panic!("{file}: {e}"));
        warned += small.warnings().iter().filter(|w| w.contains("are read from the file")).count();
    }
    assert!(warned > 0);
}

/// A weight with its calibration, whose numbers eight bits hold exactly.
struct Calibrated {
    n: usize,
    k: usize,
    limit: f32,
}

impl Calibrated {
    fn decl(&self) -> WeightDecl {
        WeightDecl::whole("w".into(), self.n, self.k, DType::F32)
    }

    fn weights(&self) -> Vec<f32> {
        let number =
            |i: usize| if i.is_multiple_of(self.k) { 127 } else { (i * 37 % 255) as i32 - 127 };
        (0..self.n * self.k).map(|i| number(i) as f32 / 64.0).collect()
    }
}

impl WeightSource for Calibrated {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        let of = |tensor: CalibrationTensor| tensor.of("w") == name;
        let (rows, values) = match name {
            "w" => (self.n, self.weights()),
            _ if of(CalibrationTensor::InputLimit) => (1, vec![self.limit]),
            _ if of(CalibrationTensor::Outliers) => {
                (1, (0..self.k).map(|i| (i % 3) as f32).collect())
            }
            _ => return Err(DeviceError::Weight { name: name.into(), why: "unknown".into() }),
        };
        let bytes = WeightBytes::owned(values.iter().flat_map(|v| v.to_le_bytes()).collect());
        Ok(WeightData { dtype: DType::F32, rows, cols: values.len() / rows, bytes })
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        packed(self, name, layout, pack)
    }
}

/// Whether this processor adds up products of bytes in 32 bits (VNNI). Elsewhere OpenVINO's CPU adds
/// two of them in 16 bits, which overflow for large inputs: its device refuses such products.
fn sums_are_exact() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// llm.npu, equation 1 in its exact form: the clipped product of the NPU and the CPU's product of
/// what was clipped are the product of the rounded inputs.
#[test]
fn the_clipped_product_and_its_outliers_add_up() {
    let cpu = open_devices(&DeviceOptions::default()).unwrap().remove(0);
    for spec in ["npu:reference", "npu:openvino:cpu"] {
        let npu = device(spec);
        for (rows, k, n, bits) in
            [(16, 64, 48, 8), (1, 96, 17, 8), (32, 33, 5, 8), (16, 64, 16, 16)]
        {
            let activations = ActivationFormat::of_tensor(bits, ScaleOrigin::Clipped);
            let weights = Calibrated { n, k, limit: 1.5 };
            let graph = |op: fn(WeightRef, ActivationFormat) -> Op| {
                let graph = product(rows, weights.decl(), |weight| op(weight, activations));
                bind_static(&graph, rows)
            };
            let clipped = graph(linear);
            let outliers = graph(|weight, activations| Op::Outliers { weight, activations });
            // Up to 50 times the limit in some places.
            let value = |i: usize| ((i * 71 % 199) as f32 - 99.0) / 80.0;
            let large = |i: usize| if i % 29 == 3 { 60.0 } else { 1.0 };
            let x: Vec<f32> = (0..rows * k).map(|i| value(i) * large(i)).collect();
            if bits == 8 && spec == "npu:openvino:cpu" && !sums_are_exact() {
                let refused = Weights::compiled(&*npu, &clipped, &weights);
                if let Err(e) = refused {
                    assert!(e.to_string().contains("its results are "), "{e}");
                    continue;
                }
            }
            let most = run(&*npu, &clipped, &weights, &x);
            let rest = run(&*cpu, &outliers, &weights, &x);
            let rounding = Rounding::of(activations, weights.limit).unwrap();
            let w = weights.weights();
            for (i, (a, b)) in most.iter().zip(&rest).enumerate() {
                let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
                let rounded =
                    |x: f32| f64::from(rounding.round(x)) + f64::from(rounding.clipped(x));
                let sum: f64 = x.iter().zip(w).map(|(x, w)| rounded(*x) * f64::from(*w)).sum();
                let size: f64 = x.iter().zip(w).map(|(x, w)| f64::from((x * w).abs())).sum();
                let error = (f64::from(a + b) - sum).abs() / size;
                assert!(error <= 1e-5, "{spec} {rows}x{k}x{n} {i}: {a} + {b} is not {sum}");
            }
        }
    }
}

/// Groups of experts in the formats of which weights are converted are near the CPU's, and rows
/// without a token change no other row.
#[test]
fn groups_of_experts_take_converted_formats() {
    let _alone = alone("npu:qnn:emulator");
    let cpu = open_devices(&DeviceOptions::default()).unwrap().remove(0);
    let all = op_cases().unwrap();
    for name in ["expert_group", "expert_group of clamped units"] {
        let case = all.iter().find(|c| c.name == name).unwrap();
        let (rows, cols) = (case.graph.max_rows(), 64);
        let graph = bind_static(&case.graph, rows);
        let mut x: Vec<f32> =
            (0..rows * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        x[5 * cols..8 * cols].fill(0.0);
        let expected = run(&*cpu, &graph, &*case.weights, &x);
        for (spec, format, most) in [
            ("npu:reference", ActivationFormat::F16, 4e-3),
            ("npu:reference", ActivationFormat::by_row(8), 2e-2),
            ("npu:openvino:cpu", ActivationFormat::F16, 4e-3),
            ("npu:openvino:cpu", ActivationFormat::by_row(8), 2e-2),
            ("npu:qnn:emulator", ActivationFormat::F16, 4e-3),
        ] {
            let converted = convert_products(&graph, format);
            assert_ne!(converted, graph);
            let npu = device(spec);
            let got = run(&*npu, &converted, &*case.weights, &x);
            let error = relative_error(&got, &expected);
            println!("{spec} {name} {format}: {error:e}");
            assert!(error < most, "{spec} {name} {format}: {error}");
            let mut other = x.clone();
            other[5 * cols..8 * cols].fill(0.5);
            let other = run(&*npu, &converted, &*case.weights, &other);
            assert_eq!(
                (&got[..5 * cols], &got[8 * cols..]),
                (&other[..5 * cols], &other[8 * cols..])
            );
        }
    }
}

/// Halves on the NPU cost a trained model next to nothing.
#[test]
fn halves_keep_what_a_model_predicts() {
    let source = Source::Path(root("models/tiny-moe"));
    let text = std::fs::read_to_string(root("README.md")).unwrap();
    let plain = OpenOptions { context: Some(256), dtype: FloatType::F32, ..OpenOptions::default() };
    let ids = source.tokenizer().unwrap().0.encode(&text, true, false).unwrap();
    let perplexity = |options: &OpenOptions| {
        let model = Model::open(&source, options).unwrap();
        model.perplexity(&ids, 256, Scored::All, &mut |_| true).unwrap().value()
    };
    let whole = perplexity(&plain);
    // Qualcomm's graphs have halves in any case.
    for (npu, npu_numbers, most) in [
        ("npu:reference", NpuNumbers::Halves, 1e-4),
        ("npu:openvino:cpu", NpuNumbers::Halves, 1e-4),
        ("npu:reference", NpuNumbers::HalvesByInt4, 0.1),
        ("npu:openvino:cpu", NpuNumbers::HalvesByInt4, 0.1),
    ] {
        let devices = options(&[npu, "cpu"]);
        let halves = OpenOptions { npu_numbers, devices, chunk: Some(64), ..plain.clone() };
        let change = perplexity(&halves) / whole - 1.0;
        println!("{npu} {:?}: {:+.4} %", halves.converted_format(), 100.0 * change);
        assert!(change != 0.0 && change.abs() < most, "{npu}: {change}");
    }
}

/// A trained model with whole numbers on the NPU predicts a text as well as in f32.
#[test]
fn calibrated_formats_keep_what_a_model_predicts() {
    let source = Source::Path(root("models/tiny-moe"));
    let text = std::fs::read_to_string(root("README.md")).unwrap();
    let plain = OpenOptions { context: Some(256), dtype: FloatType::F32, ..OpenOptions::default() };
    let ids = source.tokenizer().unwrap().0.encode(&text, true, false).unwrap();
    let model = BoundModel::open(&source, &plain).unwrap();
    let seen = calibrate(model, &plain, &ids, None, None, &mut |_, _| true).unwrap();
    let calibration = Arc::new(seen.unwrap().calibration);
    let perplexity = |options: &OpenOptions| {
        let model = Model::open(&source, options).unwrap();
        // Halves are as good as they are asked to be; so are bytes, where their sums are exact.
        let coarse = model.refusals().iter().find(|r| r.why.contains("its results are coarse"));
        assert!(coarse.is_none() || !sums_are_exact(), "{coarse:?}");
        model.perplexity(&ids, 256, Scored::All, &mut |_| true).unwrap().value()
    };
    let whole = perplexity(&plain);
    for (npu, bits, outliers, quant) in [
        ("npu:reference", 8, "kept", Quant::None),
        ("npu:reference", 8, "smooth", Quant::None),
        ("npu:reference", 8, "rows", Quant::None),
        ("npu:reference", 8, "groups", Quant::None),
        ("npu:openvino:cpu", 8, "groups", Quant::None),
        ("npu:reference", 8, "smooth-shadow", Quant::None),
        ("npu:openvino:cpu", 8, "smooth-shadow=0.5", Quant::None),
        ("npu:reference", 8, "shadow", Quant::None),
        ("npu:reference", 16, "shadow=0.5", Quant::None),
        ("npu:reference", 16, "kept", Quant::Q4),
        ("npu:openvino:cpu", 8, "kept", Quant::None),
        ("npu:openvino:cpu", 8, "shadow", Quant::None),
        ("npu:openvino:cpu", 16, "shadow=0.85", Quant::None),
        ("npu:openvino:cpu", 16, "kept", Quant::Q4),
        ("npu:qnn:emulator", 8, "shadow", Quant::None),
        ("npu:qnn:emulator", 16, "shadow", Quant::None),
        ("npu:qnn:emulator", 16, "kept", Quant::Q4),
    ] {
        let _alone = alone(npu);
        let file = PathBuf::from("calibration.json");
        let calibration = calibration.clone();
        // No flag names this way.
        let groups = outliers == "groups";
        let way = if groups { "kept" } else { outliers }.parse().unwrap();
        let calibrated = CalibrationOptions { calibration, file, bits, outliers: way, groups };
        let npu_numbers = NpuNumbers::Calibrated(calibrated);
        let devices = options(&[npu, "cpu"]);
        let chunk = 64;
        let numbers =
            OpenOptions { npu_numbers, devices, quant, chunk: Some(chunk), ..plain.clone() };
        // Four bits change the model itself.
        let same = OpenOptions { quant, ..plain.clone() };
        let expected = if quant == Quant::None { whole } else { perplexity(&same) };
        let change = perplexity(&numbers) / expected - 1.0;
        println!("{npu} {bits} {outliers:?} {quant:?}: {:+.3} %", 100.0 * change);
        let most = if npu.contains("qnn") { 0.03 } else { 0.01 };
        assert!(change.abs() < most, "{npu} {bits} {outliers:?} {quant:?}: {change}");
    }
}

#[test]
fn an_npu_takes_what_the_table_of_families_says() {
    let said = verdicts::check(&device("npu:openvino:cpu"), "NPU");
    assert!(said.is_ok(), "{}", said.unwrap_err());
}
