//! Every type of weights in a GGUF file: models of random blocks give the logits of the same values
//! in single precision.

#![allow(clippy::unwrap_used)]

mod setup;

use std::path::Path;

use conformance::golden::{all_logits, relative_error};
use setup::root;
use troika::graph::{ActivationFormat, DType, Op, blocks};
use troika::model::spec::{Key, WeightRole};
use troika::weights::{FloatType, GgufTensor, parse_gguf};
use troika::{Model, OpenOptions};
use troika_cpu::Isa;
use troika_cpu::kernels::int8::Layout;

/// A file of this repository, whose metadata is kept.
struct Template {
    bytes: Vec<u8>,
    /// Where the list of tensors begins.
    list: usize,
    tensors: Vec<GgufTensor>,
}

impl Template {
    fn read(name: &str) -> Template {
        let bytes = std::fs::read(root("tests/gguf").join(name)).unwrap();
        let tensors = parse_gguf(&bytes).unwrap().tensors;
        let first =
            [&(tensors[0].name.len() as u64).to_le_bytes(), tensors[0].name.as_bytes()].concat();
        let list = bytes.windows(first.len()).position(|at| at == first).unwrap();
        Template { bytes, list, tensors }
    }

    /// Adds a vector.
    fn add(&mut self, name: &str, numbers: &[f32]) {
        let range = self.bytes.len()..self.bytes.len() + 4 * numbers.len();
        self.bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        let (name, shape) = (name.to_string(), vec![numbers.len()]);
        self.tensors.push(GgufTensor { name, shape, dtype: Ok(DType::F32), range });
    }

    /// Sets a number of the metadata.
    fn set(&mut self, key: &str, number: u32) {
        let at = self.bytes.windows(key.len()).position(|at| at == key.as_bytes()).unwrap();
        // The key's type lies between.
        self.bytes[at + key.len() + 4..][..4].copy_from_slice(&number.to_le_bytes());
    }

    /// The numbers that a matrix is multiplied with, one for each of as many equal parts.
    fn factors(&self, matrix: &str) -> Vec<f32> {
        let name = matrix.replace(".weight", ".scale");
        let scale = self.tensors.iter().find(|t| t.name == name && name != matrix);
        let bytes = scale.map_or(&[][..], |t| &self.bytes[t.range.clone()]);
        bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// Writes a file whose matrices are `dtype`, with random blocks, or the values of these as F32,
    /// which are multiplied.
    fn write(&self, path: &Path, dtype: DType, as_floats: bool) {
        let (mut list, mut data) = (Vec::new(), Vec::new());
        let mut seed = 1u64;
        let written = self.tensors.iter().filter(|t| !(as_floats && t.name.ends_with(".scale")));
        let count = written.clone().count() as u64;
        for tensor in written {
            let mut bytes = self.bytes[tensor.range.clone()].to_vec();
            let mut own = *tensor.dtype.as_ref().unwrap();
            let is_matrix = tensor.shape.len() > 1 && !tensor.name.contains("ffn_gate_inp");
            if is_matrix {
                let whole = tensor.shape.last().unwrap().is_multiple_of(dtype.block_len());
                let dtype = if whole { dtype } else { DType::F32 };
                let values: usize = tensor.shape.iter().product();
                bytes = (0..dtype.row_bytes(values).unwrap()).map(|_| byte(&mut seed)).collect();
                if dtype.is_quantized() {
                    blocks::set_scales(dtype, &mut bytes, 0.06);
                } else {
                    let floats = (0..values).map(|_| (f32::from(byte(&mut seed)) - 127.5) / 1000.0);
                    bytes = floats.flat_map(|x| narrow(dtype, x)).collect();
                }
                own = dtype;
                if as_floats {
                    let mut floats = vec![0.0; values];
                    blocks::dequantize(dtype, &bytes, &mut floats);
                    let factors = self.factors(&tensor.name);
                    for (part, factor) in
                        floats.chunks_mut(values / factors.len().max(1)).zip(factors)
                    {
                        part.iter_mut().for_each(|x| *x *= factor);
                    }
                    bytes = floats.into_iter().flat_map(f32::to_le_bytes).collect();
                    own = DType::F32;
                }
            }
            let number = number(own).unwrap();
            list.extend((tensor.name.len() as u64).to_le_bytes());
            list.extend(tensor.name.bytes());
            list.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|d| list.extend((*d as u64).to_le_bytes()));
            list.extend(number.to_le_bytes());
            list.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        let mut all = [&self.bytes[..self.list], &list].concat();
        all[8..16].copy_from_slice(&count.to_le_bytes());
        all.resize(all.len().next_multiple_of(32), 0);
        std::fs::write(path, [all, data].concat()).unwrap();
    }
}

/// GGUF's number of a type.
fn number(dtype: DType) -> Option<u32> {
    (0..64).find(|n| DType::from_gguf(*n) == Some(dtype))
}

fn byte(seed: &mut u64) -> u8 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 56) as u8
}

fn narrow(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

/// Products of a file's quantized matrices meet activations in eight bits, without a user asking.
fn multiplies_whole_numbers(path: &Path, dtype: DType) {
    let model = Model::open(path, &OpenOptions::default()).unwrap();
    let engine = model.engine().unwrap();
    let mut products = 0;
    for graph in engine.lowered().segments.iter().map(|s| &s.graph) {
        for node in &graph.nodes {
            let (weights, activations) = match &node.op {
                Op::Linear { weight, activations, .. } => (vec![*weight], *activations),
                Op::Experts(e) => ([&e.gate[..], &e.up, &e.down].concat(), e.activations),
                _ => continue,
            };
            for weight in weights.iter().map(|w| graph.weight(*w)) {
                if weight.dtype.is_quantized() {
                    assert_eq!(activations, ActivationFormat::INT8, "{dtype}: {}", weight.name);
                    products += 1;
                }
            }
        }
    }
    assert_eq!(products > 0, dtype.is_quantized(), "{dtype}");
}

/// A type that is added needs kernels: of whole numbers on every instruction set and on GPUs, in
/// little more memory than its file takes.
#[test]
fn every_type_has_kernels() {
    for &dtype in DType::WEIGHTS {
        let activations = match dtype.is_quantized() {
            true => ActivationFormat::INT8,
            false => ActivationFormat::F32,
        };
        for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let way = troika_cpu::kernels::multiply(isa, dtype, activations);
            assert!(way.is_some(), "{dtype} has no kernel for {}", isa.name());
        }
        // Points of grids take three or four bits for a weight, signs of one bit two.
        let most = match dtype {
            DType::IQ1_S | DType::IQ1_M => 3.1,
            DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::Q1_0 => 2.4,
            // With a table of sixteen bytes for each row of 1024.
            DType::IQ3_XXS => 1.56,
            _ => 1.55,
        };
        let cols = 1024;
        let file = dtype.row_bytes(cols).unwrap();
        if dtype.is_quantized() {
            let layout = Layout::new(dtype, 16, cols).unwrap();
            let bytes = layout.bytes() as f32 / (16 * file) as f32;
            assert!(bytes <= most, "{dtype}: {bytes} of the file's bytes on the CPU");
        }
        #[cfg(feature = "gpu")]
        {
            let format = troika_gpu::kernels::WeightFormat::of(dtype).unwrap();
            assert!(format.is_whole_numbers() == dtype.is_quantized(), "{dtype} as {format:?}");
            let bytes = format.row_bytes(cols as u32) as f32 / file as f32;
            assert!(bytes <= most, "{dtype} as {format:?}: {bytes} of the file's bytes");
        }
    }
}

/// Logits of some tokens, with activations in f32 if they are to be `exact`.
fn logits(path: &Path, exact: bool) -> Vec<f32> {
    let tokens: Vec<u32> = (0..19).map(|i| i * 23 % 300).collect();
    // No format besides f32.
    let activations = exact.then(Vec::new);
    let options = OpenOptions { activations, kv_dtype: Some(DType::F32), ..OpenOptions::default() };
    all_logits(&Model::open(path, &options).unwrap(), &tokens).unwrap()
}

#[test]
fn files_of_every_type_give_the_logits_of_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let (blocks, floats) = (folder.path().join("blocks.gguf"), folder.path().join("floats.gguf"));
    for name in ["llama-q8_0.gguf", "qwen3-moe-q4_k_m.gguf"] {
        let template = Template::read(name);
        for &dtype in DType::WEIGHTS.iter().filter(|d| number(**d).is_some()) {
            template.write(&blocks, dtype, false);
            template.write(&floats, dtype, true);
            let expected = logits(&floats, true);
            let error = relative_error(&logits(&blocks, true), &expected);
            assert!(error < 1e-5, "{name} as {dtype}: {error}");
            multiplies_whole_numbers(&blocks, dtype);
            // Rounded activations may choose other experts.
            if name.starts_with("llama") {
                let error = relative_error(&logits(&blocks, false), &expected);
                // Without VNNI, activations of weights that use all bits have seven.
                let seven = Isa::detect() == Isa::Avx2 && dtype.uses_all_bits();
                assert!(
                    error < if seven { 0.06 } else { 0.03 },
                    "{name} as {dtype} with its usual activations: {error}"
                );
            }
        }
    }
}

#[test]
fn a_scale_beside_a_weight_is_refused_unless_it_is_one_or_of_nvfp4() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scaled.gguf");
    for (dtype, number, opens) in [
        (DType::Q4_0, 1.0, true),
        (DType::Q4_0, 0.37, false),
        (DType::NVFP4, 0.37, true),
        (DType::NVFP4, 0.0, false),
        (DType::NVFP4, f32::NAN, false),
    ] {
        let mut template = Template::read("llama-q8_0.gguf");
        template.add("blk.0.attn_q.scale", &[number]);
        template.write(&path, dtype, false);
        let opened = Model::open(&path, &OpenOptions::default());
        assert_eq!(opened.is_ok(), opens, "{dtype}, {number}");
        if let Err(e) = opened {
            let text = e.to_string();
            assert!(text.contains("blk.0.attn_q.") && !text.contains('\n'), "{text}");
        }
    }
}

/// Files of NVFP4 have a number for each matrix, or for each expert, that its values are multiplied
/// with.
#[test]
fn scales_of_nvfp4_are_multiplied() {
    let folder = tempfile::tempdir().unwrap();
    let (blocks, floats) = (folder.path().join("blocks.gguf"), folder.path().join("floats.gguf"));
    for name in ["llama-q8_0.gguf", "qwen3-moe-q4_k_m.gguf"] {
        let mut template = Template::read(name);
        let matrices: Vec<(String, usize)> = template
            .tensors
            .iter()
            .filter(|t| t.name.starts_with("blk.1.") && t.shape.len() > 1)
            .filter(|t| !t.name.contains("ffn_gate_inp"))
            .map(|t| (t.name.replace(".weight", ".scale"), t.shape.iter().rev().skip(2).product()))
            .collect();
        for (i, (name, count)) in matrices.iter().enumerate() {
            let factors = (0..*count).map(|e| 0.4 + 0.3 * ((i + e) % 4) as f32);
            template.add(name, &factors.collect::<Vec<_>>());
            template.add(&name.replace(".scale", ".input_scale"), &[0.01]);
        }
        template.write(&blocks, DType::NVFP4, false);
        template.write(&floats, DType::NVFP4, true);
        let error = relative_error(&logits(&blocks, true), &logits(&floats, true));
        // Scales were rounded to f16.
        assert!(error < 1e-3, "{name}: {error}");
        let model = Model::open(&*blocks, &OpenOptions::default()).unwrap();
        let said = model.warnings().join("\n");
        assert!(said.contains("scales of") && !said.contains("not used"), "{said}");
    }
}

/// Older DeepSeek files have the keys' and values' matrices of latent attention in one, of which the
/// former are turned: blocks do not stay whole, and f32 would take several times their bytes.
#[test]
fn turned_blocks_become_q8_0() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turned.gguf");
    let mut template = Template::read("deepseek-v2.gguf");
    let (heads, latent, without_rope, rope, values) = (8, 32, 32, 8, 16);
    template.set("deepseek2.attention.key_length_mla", 40);
    template.tensors.retain(|t| !t.name.contains("attn_v_b"));
    for tensor in &mut template.tensors {
        if tensor.name.contains("attn_k_b") {
            tensor.name = tensor.name.replace("attn_k_b", "attn_kv_b");
            tensor.shape = vec![heads * (without_rope + values), latent];
        } else if tensor.name.contains("attn_q.") {
            tensor.shape = vec![heads * (without_rope + rope), 96];
        }
    }
    template.write(&path, DType::Q4_0, false);
    let model = Model::open(&*path, &OpenOptions::default()).unwrap();
    let dtype = |role| model.store().shape(Key::indexed(0, role, 1)).unwrap().dtype;
    assert_eq!(dtype(WeightRole::KAbsorb), DType::Q8_0);
    assert_eq!(dtype(WeightRole::VUp), DType::Q4_0);
    let said = model.warnings().join("\n");
    assert!(said.contains("24 matrices to Q8_0"), "{said}");
    let exact = OpenOptions { dtype: FloatType::F32, ..OpenOptions::default() };
    let model = Model::open(&*path, &exact).unwrap();
    assert!(!model.warnings().iter().any(|w| w.contains("rounded")), "{:?}", model.warnings());
    let tokens: Vec<u32> = (0..19).map(|i| i * 23 % 300).collect();
    let error = relative_error(&logits(&path, true), &all_logits(&model, &tokens).unwrap());
    assert!(error > 0.0 && error < 0.01, "{error}");
}
