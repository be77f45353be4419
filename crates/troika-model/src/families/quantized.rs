//! What a config says of quantized weights.

use serde_json::Value;

use super::fields::{Fields, Result, bad, missing, unsupported};
use crate::spec::{Packing, ScaleBlock};

const SUPPORTED: &str = "gptq and awq (gemm, gemv) of 4 bits, gptq of 8 bits, fp8 (e4m3), \
                         compressed-tensors, mxfp4, mlx, float safetensors, or GGUF";

fn refuse<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(unsupported(format!("quantization_config of {what}"), SUPPORTED))
}

/// How the weights of a config's model are stored; `None`: as they are.
pub(super) fn packing(config: Fields<'_>) -> Result<Option<Packing>> {
    // Other keys of such names would change weights, too.
    let meant = |v: &Value| match v {
        Value::Null | Value::Bool(false) => false,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::Object(o) => !o.is_empty(),
        _ => true,
    };
    for (key, _) in config.0.iter().filter(|(_, value)| meant(value)) {
        let known = ["quantization_config", "quantization", "compression_config"];
        let changes = ["quantiz", "compress", "sparsity"].iter().any(|word| key.contains(word));
        if changes && !known.contains(&key.as_str()) && key != "activation_sparsity_pattern" {
            return Err(unsupported(format!("the config's {key}"), SUPPORTED));
        }
    }
    if let Some(q) = config.object("quantization")? {
        return mlx(q).map(Some);
    }
    let names = ["quantization_config", "compression_config"];
    let Some(q) = config.first(&names, Fields::object)? else { return Ok(None) };
    let method = q.text("quant_method")?.unwrap_or("unknown");
    match method {
        "gptq" => gptq(q),
        "awq" => awq(q),
        "auto-round" | "intel/auto-round" => match q.text("packing_format")?.unwrap_or("none") {
            "auto_round:auto_gptq" | "auto_round:gptq" => gptq(q),
            "auto_round:auto_awq" | "auto_round:awq" => awq(q),
            other => refuse(format!("method {method:?} with packing_format {other:?}")),
        },
        "fp8" | "fbgemm_fp8" => fp8(q),
        "modelopt" if q.get("quant_algo").is_some_and(|a| a == "FP8") => fp8(q),
        "compressed-tensors" => compressed_tensors(q),
        "mxfp4" => Ok(Packing::Mxfp4),
        other => refuse(format!("method {other:?}")),
    }
    .map(Some)
}

/// Refuses numbers of bits that are not read.
fn check_bits(q: Fields<'_>, method: &str, read: &[usize]) -> Result<()> {
    match q.first(&["bits", "w_bit"], Fields::size_opt)? {
        Some(bits) if read.contains(&bits) => Ok(()),
        Some(bits) => refuse(format!("method {method:?} with {bits} bits")),
        None => Err(missing("quantization_config.bits")),
    }
}

fn gptq(q: Fields<'_>) -> Result<Packing> {
    check_bits(q, "gptq", &[4, 8])?;
    match q.text("checkpoint_format")?.unwrap_or("gptq") {
        "gptq" => Ok(Packing::Gptq { less_one: true }),
        "gptq_v2" => Ok(Packing::Gptq { less_one: false }),
        other => refuse(format!("checkpoint_format {other:?}")),
    }
}

fn awq(q: Fields<'_>) -> Result<Packing> {
    check_bits(q, "awq", &[4])?;
    match q.text("version")?.unwrap_or("gemm").to_ascii_lowercase().as_str() {
        "gemm" => Ok(Packing::Awq),
        "gemv" => {
            let group = q.first(&["group_size", "q_group_size"], Fields::size_opt)?;
            Ok(Packing::AwqGemv { group: group.unwrap_or(128) })
        }
        other => refuse(format!("awq version {other:?}")),
    }
}

fn fp8(q: Fields<'_>) -> Result<Packing> {
    match q.text("fmt")?.unwrap_or("e4m3") {
        "e4m3" => scale_block(q, "weight_block_size").map(Packing::Fp8),
        other => refuse(format!("method \"fp8\" with fmt {other:?}")),
    }
}

/// Outputs and inputs that share a scale.
fn scale_block(q: Fields<'_>, name: &str) -> Result<ScaleBlock> {
    let Some(sizes) = q.numbers(name)? else { return Ok(ScaleBlock { rows: 128, cols: 128 }) };
    match sizes.as_slice() {
        [rows, cols] if *rows >= 1.0 && *cols >= 1.0 => {
            Ok(ScaleBlock { rows: *rows as usize, cols: *cols as usize })
        }
        _ => Err(bad(name, format!("{sizes:?}"), "not two sizes of at least 1")),
    }
}

fn compressed_tensors(q: Fields<'_>) -> Result<Packing> {
    let read = ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense"];
    let groups = q.object("config_groups")?;
    let formats = groups.iter().flat_map(|g| g.0.values()).filter_map(|g| g.get("format"));
    for format in q.get("format").into_iter().chain(formats).filter_map(Value::as_str) {
        // In this one each group has a format.
        if !read.contains(&format) && format != "mixed-precision" {
            return refuse(format!("compressed-tensors format {format:?}"));
        }
    }
    if let Some(format) = q.object("sparsity_config")?.and_then(|s| s.get("format"))
        && format != "dense"
    {
        return refuse(format!("compressed-tensors sparsity {format}"));
    }
    if q.object("transform_config")?.is_some_and(|t| !t.0.is_empty()) {
        return refuse("compressed-tensors with transform_config");
    }
    let mut block = ScaleBlock { rows: 128, cols: 128 };
    for group in groups.iter().flat_map(|g| g.0.values()).filter_map(Value::as_object) {
        if let Some(weights) = Fields(group).object("weights")? {
            block = scale_block(weights, "block_structure")?;
        }
    }
    Ok(Packing::CompressedTensors(block))
}

fn mlx(q: Fields<'_>) -> Result<Packing> {
    match q.text("mode")?.unwrap_or("affine") {
        "affine" => check_bits(q, "mlx", &[4, 8]).map(|()| Packing::Mlx),
        other => refuse(format!("mlx mode {other:?}")),
    }
}
