//! Every kernel, specialised as it is used, through the shader translator: no driver is needed.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::collections::{BTreeMap, HashSet};
use std::process::{Command, Stdio};

use naga::back::{hlsl, msl, pipeline_constants::process_overrides, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use troika_gpu::kernels::{
    self, Append, Around, AttentionShape, BatchWords, Before, Binding, Columns, Dispatch,
    ExpertShape, FewRows, Floats, HeadNorm, KernelError, KernelSpec, Loc, Matrix, NormShape,
    Rotation, RotationAt, RowNorm, Stack, WeightFormat,
};
use troika_graph::{
    Activation, ActivationFormat, Attention, DType, Decay, DeltaRule, Mamba2, Op, Rescale, Rope,
    RopeFreqs, RopeStyle, Router, Score, ShortConv, WeightRef,
};

const WORKGROUP_BYTES: u32 = 16 * 1024;
const INVOCATIONS: u32 = 256;
const BINDINGS: usize = 8;
const MAX_PARAMS: usize = 32;

const AT: Loc = Loc { offset: 0, stride: 2048 };
const ODD: Loc = Loc { offset: 1, stride: 2051 };

const ACTIVATIONS: [Activation; 5] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::ClampedSwiglu { alpha: 1.7, limit: 7.0 },
];

/// No norm, and each kind of them.
fn row_norms() -> [Option<RowNorm>; 4] {
    let norm = |layer, bias| Some(RowNorm { layer, bias, eps: 1e-5, offset: 0.0 });
    [None, norm(false, false), norm(true, false), norm(true, true)]
}

/// What is around products.
fn surroundings() -> Vec<Around> {
    let at = Some(AT);
    let norms = row_norms();
    vec![
        Around::default(),
        Around { bias: Some(0), addends: [at, None], ..Around::default() },
        Around { act: Some(Activation::Gelu), gate: at, addends: [at; 2], ..Around::default() },
        Around { norm: norms[1], normed: at, ..Around::default() },
        Around { norm: norms[3], bias: Some(4096), ..Around::default() },
        Around { norm: norms[2], ..Around::default() },
    ]
}

fn products(out: &mut Vec<Result<Dispatch, KernelError>>) {
    let formats = DType::WEIGHTS.iter().map(|dtype| WeightFormat::of(*dtype));
    let formats: HashSet<_> = formats.map(|f| f.expect("a format")).collect();
    for format in formats {
        let matrix = |cols| Matrix { format, rows: 100, cols, first: 0, eight_bits: false };
        let wide = matrix(2048);
        let around = Around::default();
        out.push(kernels::embed(wide, 1.0, 3, AT, AT));
        out.push(kernels::outliers(wide, 3, AT, AT));
        for x in [AT, ODD] {
            for rows in [1, 2, 3, 8, 9] {
                for around in surroundings() {
                    if rows < 9 || around.norm.is_none() {
                        out.push(kernels::linear(wide, rows, &around, x, AT));
                    }
                }
            }
            let stack = Stack { each: wide, first: 0, count: 8 };
            let mut shape = ExpertShape { rows: 2, top_k: 2, capacity: None, bias: true };
            out.push(kernels::experts_gate_up(stack, Activation::Silu, shape, [x, AT, AT]));
            out.push(kernels::experts_down(stack, shape, Before::Results, [x, AT, AT, AT]));
            shape.bias = false;
            out.push(kernels::experts_gate_up(stack, Activation::Relu, shape, [x, AT, AT]));
            out.push(kernels::experts_down(stack, shape, Before::Value(AT), [x, AT, AT, AT]));
            for (rows, norm) in [1, 2, 8].into_iter().zip(row_norms()) {
                let bias = (rows == 1).then_some(0);
                let of = FewRows { rows, norm, bias };
                out.push(kernels::linear_three([wide; 3], of, [x, AT, AT, AT]));
                out.push(kernels::gate_up(wide, 100, Activation::Silu, of, [x, AT]));
            }
        }
        if format.is_whole_numbers() {
            let each = Matrix { eight_bits: true, ..wide };
            let of = |rows| FewRows { rows, norm: row_norms()[1], bias: None };
            for rows in [1, 3, 9] {
                out.push(kernels::linear(each, rows, &around, AT, AT));
            }
            out.push(kernels::linear_three([each; 3], of(1), [AT; 4]));
            out.push(kernels::gate_up(each, 100, Activation::Silu, of(2), [AT; 2]));
            let stack = Stack { each, first: 0, count: 8 };
            let shape = ExpertShape { rows: 2, top_k: 2, capacity: None, bias: false };
            out.push(kernels::experts_gate_up(stack, Activation::Silu, shape, [AT; 3]));
            out.push(kernels::experts_down(stack, shape, Before::Nothing, [AT; 4]));
        }
        out.push(kernels::head_linear(wide, 4, 1, AT, AT));
        for cols in [256, 1024] {
            out.push(kernels::linear(matrix(cols), 1, &around, AT, AT));
            out.push(kernels::linear(matrix(cols), 5, &around, AT, AT));
        }
        if format.block() <= 32 {
            for cols in [32, 96, 160] {
                out.push(kernels::linear(matrix(cols), 1, &around, AT, AT));
                out.push(kernels::linear(matrix(cols), 8, &around, AT, AT));
            }
        }
    }
}

fn attentions(out: &mut Vec<Result<Dispatch, KernelError>>) {
    let batch = BatchWords { rows: 0, count: 3, page_len: 16, flag: 0 };
    for cache in [Floats::F32, Floats::F16, Floats::Bf16] {
        let rows = Append { width: 128, x: AT, cache };
        out.push(kernels::kv_append(batch, rows, None));
        let values = Append { cache: Floats::F16, ..rows };
        out.push(kernels::kv_append(batch, rows, Some(values)));
        for (k_dim, v_dim, value_in_key) in [(64, 64, false), (576, 512, true), (96, 64, false)] {
            for softcap in [None, Some(50.0)] {
                let op = Attention {
                    heads: 8,
                    kv_heads: 2,
                    k_dim,
                    v_dim,
                    scale: 0.1,
                    window: None,
                    softcap,
                    sinks: softcap.map(|_| troika_graph::WeightRef(0)),
                    value_in_key,
                    page_group: 0,
                    activations: ActivationFormat::F32,
                };
                for append in [None, Some([AT; 2])] {
                    let (keys, values) = (cache, cache);
                    let shape = AttentionShape { op: &op, batch, keys, values, append };
                    out.push(kernels::attention(shape, None, AT, AT));
                    out.push(kernels::attention(shape, Some(4), AT, AT));
                }
                out.push(kernels::attention_merge(&op, 3, 4, AT, AT));
            }
        }
    }
}

fn recurrences(out: &mut Vec<Result<Dispatch, KernelError>>) {
    let batch = BatchWords { rows: 0, count: 3, page_len: 16, flag: 0 };
    let (width, page_group, weight) = (100, 0, WeightRef(0));
    for (taps, gated) in [(2, true), (3, true), (4, false), (16, false)] {
        let bias = (taps == 4).then_some(weight);
        let op = ShortConv { weight, bias, width, taps, silu: !gated, gated, page_group };
        out.push(kernels::short_conv(&op, batch, &[AT; 2]));
    }
    for state_size in [7, 64, 128, 256] {
        let op = Mamba2 {
            heads: 6,
            head_dim: 64,
            groups: 2,
            state_size,
            a: weight,
            a_log: true,
            d: weight,
            dt_bias: weight,
            dt_min: 0.0,
            dt_max: f32::INFINITY,
            page_group,
        };
        out.push(kernels::mamba2(&op, batch, &[AT; 3]));
    }
    for (key_dim, by_channel) in [(6, true), (64, false), (128, false), (128, true)] {
        let op = DeltaRule {
            key_heads: 2,
            value_heads: 4,
            key_dim,
            value_dim: 128,
            tiled: by_channel,
            rates: weight,
            rates_are_logs: true,
            decay: if by_channel { Decay::Bounded { least: -5.0 } } else { Decay::Softplus },
            by_channel,
            beta_scale: 1.0,
            page_group,
        };
        out.push(kernels::delta_gates(&op, 3, [AT; 3]));
        out.push(kernels::delta_rule(&op, batch, &[AT; 5]));
    }
}

fn rest(out: &mut Vec<Result<Dispatch, KernelError>>) {
    out.push(Ok(kernels::probe_read(1 << 10)));
    out.push(kernels::probe_multiply(4, 4).map(|(dispatch, _)| dispatch));
    for group in [5, 64, 100, 1000] {
        let shape = NormShape { rows: 3, groups: 2, group, own_weights: true, eps: 1e-5 };
        for addend in [None, Some(AT)] {
            out.push(kernels::rms_norm(shape, None, addend, [AT; 2]));
            out.push(kernels::rms_norm(shape, Some(1.0), addend, [AT; 2]));
            out.push(kernels::layer_norm(shape, true, addend, [AT; 2]));
            out.push(kernels::layer_norm(shape, false, addend, [AT; 2]));
        }
    }
    let freqs = RopeFreqs { inv_freq: vec![1.0; 16].into(), factor: 1.0, growth: None };
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        let freqs = freqs.clone();
        let op = Rope { head_dim: 64, offset: 0, rotary_dim: 32, style, freqs, long: None };
        let at = RotationAt { from: [AT; 2], positions: AT, to: [AT; 2] };
        for norm in [None, Some(HeadNorm { eps: 1e-6, offset: 0.0, groups: [64, 128] })] {
            let of =
                Rotation { rope: &op, factor: 1.0, growth: None, rows: 3, heads: [8, 2], norm };
            out.push(kernels::rope(&of, at));
        }
    }
    for act in ACTIVATIONS {
        for op in [Op::Activate(act), Op::Gate(act)] {
            out.push(kernels::elements(&op, 3, 100, [AT; 3]));
        }
    }
    let largest = kernels::top_k_kernels();
    assert_eq!(largest.len(), 2 + 3 + 4);
    out.extend(largest.into_iter().map(Ok));
    let (factor, limit, cap) = (2.0, 2.0, 2.0);
    for op in
        [Op::Add, Op::Scale { factor }, Op::Clamp { limit }, Op::SoftCap { cap }, Op::SigmoidGate]
    {
        out.push(kernels::elements(&op, 3, 100, [AT; 3]));
    }
    for (group, joined) in [(32, 0), (8, 16)] {
        let of = Columns { rows: 3, groups: 4, group, start: group % 24, kept: 8, joined };
        out.push(kernels::columns(of, [AT; 3]));
    }
    out.push(kernels::mix(3, 100, 4, 2, [AT; 3]));
    let columns = Rescale::Columns(WeightRef(0));
    for (rescale, like) in [
        (columns, None),
        (Rescale::Match { least: 1e-5 }, Some(AT)),
        (Rescale::Largest { deviations: 1.5 }, None),
    ] {
        out.push(kernels::rescale(rescale, 3, 100, like, [AT; 2]));
    }
    for from in [Floats::F32, Floats::F16, Floats::Bf16] {
        for to in [Floats::F32, Floats::F16, Floats::Bf16] {
            out.push(kernels::convert(from, to, 1001, 0, 0));
        }
    }
    for score in
        [Score::Softmax, Score::TopKSoftmax, Score::Sigmoid, Score::SparseMixer { eps: 0.01 }]
    {
        for groups in [None, Some((8, 3))] {
            let normalize = groups.is_some();
            let bias = groups.filter(|_| score == Score::Sigmoid).map(|_| WeightRef(0));
            let (experts, top_k, scale) = (64, 2, 1.0);
            let expert_scales = bias.map(|_| WeightRef(1));
            let op =
                Router { experts, top_k, score, normalize, scale, groups, bias, expert_scales };
            out.push(kernels::router(&op, 3, [AT; 3]));
        }
    }
}

/// Each kernel with each set of override constants, once.
fn variants() -> Vec<Dispatch> {
    let mut all = Vec::new();
    products(&mut all);
    attentions(&mut all);
    recurrences(&mut all);
    rest(&mut all);
    let mut unique = BTreeMap::new();
    let plain = all.into_iter().map(|dispatch| dispatch.expect("a dispatch"));
    let all = plain.flat_map(|dispatch| {
        let mut other = dispatch.clone();
        kernels::with_matrix_units(&mut other);
        [dispatch, other]
    });
    for dispatch in all {
        unique.insert(format!("{} {:?}", dispatch.spec.name, dispatch.overrides), dispatch);
    }
    unique.into_values().collect()
}

#[test]
fn kernels_are_valid_and_portable() {
    let mut modules = BTreeMap::new();
    let mut folder = Spirv::new();
    for dispatch in variants() {
        let spec = dispatch.spec;
        let name = format!("{} {:?}", spec.name, dispatch.overrides);
        let (module, info) = modules.entry(spec.name).or_insert_with(|| {
            let source = spec.source();
            let module = naga::front::wgsl::parse_str(&source)
                .unwrap_or_else(|e| panic!("{}: {}", spec.name, e.emit_to_string(&source)));
            let info = validate(&module, uses_matrix_units(spec))
                .unwrap_or_else(|e| panic!("{}: {}", spec.name, e.emit_to_string(&source)));
            (module, info)
        });
        let constants = dispatch.overrides.iter().map(|(k, v)| ((*k).to_string(), *v)).collect();
        let stage = (naga::ShaderStage::Compute, "main");
        let (module, info) = process_overrides(module, info, Some(stage), &constants)
            .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        limits(&name, &dispatch, &module);
        let [entry] = &module.entry_points[..] else { panic!("{name}: entry points") };
        assert_eq!(entry.name, "main");
        let spirv = spv::Options { lang_version: (1, 3), ..Default::default() };
        let words =
            spv::write_vec(&module, &info, &spirv, None).unwrap_or_else(|e| panic!("{name}: {e}"));
        let units = uses_matrix_units(spec);
        if !units {
            folder.add(&name, &words);
        }
        let metal = msl::Options { lang_version: (2, 4), ..Default::default() };
        msl::write_string(&module, &info, &metal, &Default::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        if units {
            // Direct3D has no such units yet.
            continue;
        }
        let options = hlsl::Options {
            shader_model: hlsl::ShaderModel::V6_2,
            immediates_target: Some(Default::default()),
            special_constants_binding: Some(Default::default()),
            ..Default::default()
        };
        let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
        hlsl::Writer::new(&mut text, &options, &pipeline)
            .write(&module, &info, None)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    folder.check();
}

fn validate(
    module: &naga::Module,
    units: bool,
) -> Result<naga::valid::ModuleInfo, Box<naga::WithSpan<naga::valid::ValidationError>>> {
    let mut needs = Capabilities::IMMEDIATES | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if units {
        needs |= Capabilities::SHADER_FLOAT16;
        needs |= Capabilities::SUBGROUP | Capabilities::COOPERATIVE_MATRIX;
    }
    Validator::new(ValidationFlags::all(), needs).validate(module).map_err(Box::new)
}

/// Whether a kernel uses matrix units, which not every adapter has. The reference validator of Debian
/// 12 does not know them.
fn uses_matrix_units(spec: &KernelSpec) -> bool {
    spec.name.starts_with("matrix_")
}

/// The limits that every API has, and what the spec says about itself.
fn limits(name: &str, dispatch: &Dispatch, module: &naga::Module) {
    let spec = dispatch.spec;
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("layouts");
    let (mut workgroup, mut immediates) = (0, 0);
    let mut bindings = BTreeMap::new();
    for (_, variable) in module.global_variables.iter() {
        let size = layouter[variable.ty].size;
        match variable.space {
            naga::AddressSpace::WorkGroup => workgroup += size.next_multiple_of(16),
            naga::AddressSpace::Immediate => immediates += size,
            naga::AddressSpace::Storage { access } => {
                let at = variable.binding.expect("a binding");
                assert_eq!(at.group, 0, "{name}");
                let writes = access.contains(naga::StorageAccess::STORE);
                let kind = if writes { Binding::Value } else { Binding::Weight };
                assert_eq!(bindings.insert(at.binding, kind), None, "{name}: binding {at:?}");
            }
            _ => {}
        }
    }
    assert!(workgroup <= spec.workgroup_bytes, "{name}: {workgroup} bytes of workgroup memory");
    assert!(uses_matrix_units(spec) || spec.workgroup_bytes <= WORKGROUP_BYTES, "{name}");
    assert_eq!(immediates as usize, 4 * dispatch.params.len(), "{name}: immediates");
    assert!(dispatch.params.len() <= MAX_PARAMS, "{name}");
    for (at, kind) in &bindings {
        assert_eq!(spec.bindings.get(*at as usize), Some(kind), "{name}: binding {at}");
    }
    assert!(spec.bindings.len() <= BINDINGS, "{name}");
    let [x, y, z] = module.entry_points[0].workgroup_size;
    assert!(x * y * z <= INVOCATIONS && x * y * z > 0, "{name}: {x} x {y} x {z} invocations");
}

/// Modules for the reference validator, where it is installed.
struct Spirv {
    folder: std::path::PathBuf,
    names: Vec<(String, std::path::PathBuf)>,
    installed: bool,
}

impl Spirv {
    fn new() -> Spirv {
        let version = Command::new("spirv-val").arg("--version").stdout(Stdio::null()).status();
        let folder = std::env::temp_dir().join(format!("troika-spirv-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Spirv { folder, names: Vec::new(), installed: version.is_ok_and(|s| s.success()) }
    }

    fn add(&mut self, name: &str, words: &[u32]) {
        if self.installed {
            let path = self.folder.join(format!("{}.spv", self.names.len()));
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            std::fs::write(&path, bytes).expect("a file");
            self.names.push((name.into(), path));
        }
    }

    fn check(self) {
        if !self.installed {
            println!("spirv-val is not installed: its checks were left out");
        }
        for (name, path) in &self.names {
            let mut run = Command::new("spirv-val");
            let output = run.args(["--target-env", "vulkan1.1"]).arg(path).output();
            let output = output.expect("spirv-val");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let text = text + &String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name}: {text}");
        }
        println!("{} kernels checked", self.names.len());
        std::fs::remove_dir_all(&self.folder).expect("the folder goes");
    }
}
