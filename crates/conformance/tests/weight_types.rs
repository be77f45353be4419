//! Every type of weights in a GGUF file: models of random blocks give the logits of the same values
//! in single precision.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use conformance::golden::{all_logits, relative_error};
use troika::graph::{DType, blocks};
use troika::weights::{GgufTensor, parse_gguf};
use troika::{Model, OpenOptions};

/// A file of this repository, whose metadata is kept.
struct Template {
    bytes: Vec<u8>,
    /// Where the list of tensors begins.
    list: usize,
    tensors: Vec<GgufTensor>,
}

impl Template {
    fn read(name: &str) -> Template {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gguf");
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let tensors = parse_gguf(&bytes).unwrap().tensors;
        let first =
            [&(tensors[0].name.len() as u64).to_le_bytes(), tensors[0].name.as_bytes()].concat();
        let list = bytes.windows(first.len()).position(|at| at == first).unwrap();
        Template { bytes, list, tensors }
    }

    /// Writes a file whose matrices are `dtype`, with random blocks, or the values of these as F32.
    fn write(&self, path: &Path, dtype: DType, as_floats: bool) {
        let (mut list, mut data) = (Vec::new(), Vec::new());
        let mut seed = 1u64;
        for tensor in &self.tensors {
            let mut bytes = self.bytes[tensor.range.clone()].to_vec();
            let mut own = *tensor.dtype.as_ref().unwrap();
            let is_matrix = tensor.shape.len() > 1 && !tensor.name.contains("ffn_gate_inp");
            if is_matrix {
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
                    bytes = floats.into_iter().flat_map(f32::to_le_bytes).collect();
                    own = DType::F32;
                }
            }
            let number = (0..64).find(|n| DType::from_gguf(*n) == Some(own)).unwrap();
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
        all.resize(all.len().next_multiple_of(32), 0);
        std::fs::write(path, [all, data].concat()).unwrap();
    }
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

#[test]
fn files_of_every_type_give_the_logits_of_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let (blocks, floats) = (folder.path().join("blocks.gguf"), folder.path().join("floats.gguf"));
    let tokens: Vec<u32> = (0..19).map(|i| i * 23 % 500).collect();
    let logits = |path: &PathBuf, exact: bool| {
        // No format besides f32.
        let activations = exact.then(Vec::new);
        let options =
            OpenOptions { activations, kv_dtype: Some(DType::F32), ..OpenOptions::default() };
        all_logits(&Model::open(path, &options).unwrap(), &tokens).unwrap()
    };
    for name in ["llama-q8_0.gguf", "qwen3-moe-q4_k_m.gguf"] {
        let template = Template::read(name);
        for &dtype in DType::WEIGHTS.iter().filter(|d| !d.has_zero_points()) {
            template.write(&blocks, dtype, false);
            template.write(&floats, dtype, true);
            let expected = logits(&floats, true);
            let error = relative_error(&logits(&blocks, true), &expected);
            assert!(error < 1e-5, "{name} as {dtype}: {error}");
            // Rounded activations may choose other experts.
            if name.starts_with("llama") {
                let error = relative_error(&logits(&blocks, false), &expected);
                assert!(error < 0.03, "{name} as {dtype} with its usual activations: {error}");
            }
        }
    }
}
