//! Lines of benchmarks' JSON.

use serde_json::Value;

use crate::command::Result;

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Test {
    /// Tokens of a prompt, or 0.
    pub prompt: u64,
    /// Tokens decoded, or 0.
    pub generate: u64,
    /// Tokens in the context before.
    pub depth: u64,
    /// Sequences at once.
    pub sequences: u64,
}

/// A line of a benchmark's JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub test: Test,
    /// Tokens per second of each repetition.
    pub samples: Vec<f64>,
    /// Bytes of the model.
    pub size: u64,
    /// The binding limit (Troika only), and how much of it a token per second takes.
    pub limit: String,
    pub per_token: Option<f64>,
    /// The measurements of every limit in each turn (Troika only).
    pub limits: Vec<(String, Vec<f64>)>,
}

/// Reads a benchmark's JSON: an array of objects with llama-bench's field names.
pub fn read(text: &str) -> Result<Vec<Line>> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))?;
    let rows = json.as_array().ok_or("no JSON array")?;
    rows.iter().map(line).collect()
}

fn line(row: &Value) -> Result<Line> {
    let number = |name: &str| {
        row[name].as_u64().ok_or_else(|| format!("a benchmark's JSON has no number {name}"))
    };
    let samples: Vec<f64> =
        row["samples_ts"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    if samples.is_empty() {
        return Err("a benchmark's JSON has no samples_ts".into());
    }
    let limits = row["limits"].as_object().into_iter().flatten();
    let limits: Vec<(String, Vec<f64>)> =
        limits.filter_map(|(k, v)| Some((k.clone(), vec![v.as_f64()?]))).collect();
    let limit = row["limit"].as_str().unwrap_or_default().to_string();
    let own = limits.iter().find(|l| l.0 == limit).map(|l| l.1[0]);
    let parts = (row["share_of_limit"].as_f64(), own, row["avg_ts"].as_f64());
    let per_token = match parts {
        (Some(share), Some(own), Some(rate)) if rate > 0.0 => Some(share * own / rate),
        _ => None,
    };
    Ok(Line {
        test: Test {
            prompt: number("n_prompt")?,
            generate: number("n_gen")?,
            // Older versions of llama-bench have no depth, and none has sequences.
            depth: row["n_depth"].as_u64().unwrap_or(0),
            sequences: row["n_sequences"].as_u64().unwrap_or(1),
        },
        samples,
        size: number("model_size")?,
        limit,
        per_token,
        limits,
    })
}
