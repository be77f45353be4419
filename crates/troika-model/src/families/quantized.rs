//! A config's `quantization_config`: GPTQ and AWQ.

use super::fields::{ConfigError, Fields, Result, unsupported};
use crate::spec::{Int4Config, Int4Layout};

const SUPPORTED: &str = "4-bit gptq, 4-bit awq (version gemm), float safetensors, or GGUF";

/// Reads the `quantization_config` object.
pub(super) fn int4(q: Fields<'_>) -> Result<Int4Config> {
    let refuse =
        |what: String| Err(unsupported(format!("quantization_config of {what}"), SUPPORTED));
    let method = q.text("quant_method")?.unwrap_or("unknown");
    let layout = match method {
        "gptq" => {
            let format = q.text("checkpoint_format")?.unwrap_or("gptq");
            match format {
                "gptq" => Int4Layout::Gptq { less_one: true },
                "gptq_v2" => Int4Layout::Gptq { less_one: false },
                other => return refuse(format!("checkpoint_format {other:?}")),
            }
        }
        "awq" => {
            let version = q.text("version")?.unwrap_or("gemm");
            if !version.eq_ignore_ascii_case("gemm") {
                return refuse(format!("awq version {version:?}"));
            }
            Int4Layout::Awq
        }
        other => return refuse(format!("method {other:?}")),
    };
    let bits = match q.size_opt("bits")? {
        Some(bits) => Some(bits),
        None => q.size_opt("w_bit")?,
    };
    match bits {
        Some(4) => {}
        Some(bits) => return refuse(format!("method {method:?} with {bits} bits")),
        None => return Err(ConfigError::Missing("quantization_config.bits".into())),
    }
    // -1 means one group.
    let name = if q.get("group_size").is_some() { "group_size" } else { "q_group_size" };
    let group = match q.get(name) {
        Some(v) if v.as_i64() == Some(-1) => None,
        _ => Some(q.size_opt(name)?.unwrap_or(128)),
    };
    Ok(Int4Config { layout, group })
}
