//! Running both and reading what they print.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::options::Options;
use super::{Result, output};

/// What a test is known by: prompt, tokens decoded, depth.
pub type Test = (u64, u64, u64);

/// A line of a benchmark's JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub test: Test,
    /// Tokens per second of each repetition.
    pub samples: Vec<f64>,
    /// Bytes of the model.
    pub size: u64,
    /// The limit that binds (Troika only), and how much of it a token per second takes.
    pub limit: String,
    pub per_token: Option<f64>,
    /// All limits measured, too (Troika only).
    pub limits: Vec<(String, f64)>,
}

/// Both engines' samples of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    pub troika: Line,
    pub llama: Line,
}

/// A file's measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    pub file: PathBuf,
    pub pairs: Vec<Pair>,
}

/// Runs both on a file, in turns.
///
/// # Errors
/// What a command reports.
pub fn compare(troika: &Path, llama: &Path, file: &Path, o: &Options) -> Result<Compared> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 1..=o.rounds {
        eprintln!("{}: round {round} of {}", file.display(), o.rounds);
        let mut ran = Command::new(troika);
        ours.push(read(&run(ran.arg("bench"), file, o)?)?);
        theirs.push(read(&run(&mut Command::new(llama), file, o)?)?);
    }
    let (ours, theirs) = (merge(ours), merge(theirs));
    let pair = |troika: Line| {
        let llama = theirs.iter().find(|l| l.test == troika.test)?.clone();
        Some(Pair { troika, llama })
    };
    Ok(Compared { file: file.to_path_buf(), pairs: ours.into_iter().filter_map(pair).collect() })
}

fn run(command: &mut Command, file: &Path, o: &Options) -> Result<String> {
    let [p, n, d] = &o.tests;
    command.arg("-m").arg(file).args(["-p", p, "-n", n, "-d", d, "-o", "json"]);
    command.arg("-t").arg(o.threads.to_string()).arg("-r").arg(o.repetitions.to_string());
    let name = command.get_program().to_string_lossy().into_owned();
    output(command, &name)
}

/// Reads a benchmark's JSON: an array of objects with llama-bench's field names.
///
/// # Errors
/// Text that is none.
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
    let limits: Vec<(String, f64)> =
        limits.filter_map(|(k, v)| Some((k.clone(), v.as_f64()?))).collect();
    let limit = row["limit"].as_str().unwrap_or_default().to_string();
    let own = limits.iter().find(|l| l.0 == limit).map(|l| l.1);
    let parts = (row["share_of_limit"].as_f64(), own, row["avg_ts"].as_f64());
    let per_token = match parts {
        (Some(share), Some(own), Some(rate)) if rate > 0.0 => Some(share * own / rate),
        _ => None,
    };
    Ok(Line {
        // Older llama-bench knew no depth.
        test: (number("n_prompt")?, number("n_gen")?, row["n_depth"].as_u64().unwrap_or(0)),
        samples,
        size: number("model_size")?,
        limit,
        per_token,
        limits,
    })
}

/// Joins the samples of several turns. Of limits the highest count: on a shared machine a low
/// one was disturbed.
fn merge(turns: Vec<Vec<Line>>) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for line in turns.into_iter().flatten() {
        let Some(known) = all.iter_mut().find(|l| l.test == line.test) else {
            all.push(line);
            continue;
        };
        known.samples.extend(line.samples);
        for (name, value) in line.limits {
            match known.limits.iter_mut().find(|l| l.0 == name) {
                Some(limit) => limit.1 = limit.1.max(value),
                None => known.limits.push((name, value)),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TROIKA: &str = r#"[
        {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "model_size": 100, "samples_ts": [10.0, 12.5],
         "avg_ts": 10, "share_of_limit": 0.5, "limit": "int8", "limits": {"int8": 100.0, "read_bandwidth": 20}},
        {"n_prompt": 0, "n_gen": 64, "n_depth": 0, "model_size": 100, "samples_ts": [5],
         "share_of_limit": null, "limit": "read_bandwidth", "limits": {}}
    ]"#;

    #[test]
    fn both_benchmarks_are_read() {
        let lines = read(TROIKA).unwrap();
        assert_eq!(lines[0].test, (512, 0, 0));
        assert_eq!(lines[0].samples, [10.0, 12.5]);
        assert_eq!(lines[0].per_token, Some(5.0));
        assert_eq!(lines[0].limits[0], ("int8".to_string(), 100.0));
        assert_eq!((lines[1].test, lines[1].per_token), ((0, 64, 0), None));
        let llama = r#"[{"build_commit": "x", "n_prompt": 0, "n_gen": 8, "n_depth": 64,
            "model_size": 5, "model_n_params": 7, "avg_ts": 3.0, "samples_ts": [2.0, 4.0]}]"#;
        let lines = read(llama).unwrap();
        assert_eq!((lines[0].test, lines[0].size), ((0, 8, 64), 5));
        assert!(lines[0].limit.is_empty() && lines[0].limits.is_empty());
    }

    #[test]
    fn what_is_no_benchmark_is_refused() {
        for text in ["", "{}", "[{}]", r#"[{"n_prompt": 1, "n_gen": 0, "model_size": 1}]"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn turns_are_joined_by_test() {
        let mut second = read(TROIKA).unwrap();
        second[0].limits[0].1 = 120.0;
        let all = merge(vec![read(TROIKA).unwrap(), second]);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].samples, [10.0, 12.5, 10.0, 12.5]);
        assert_eq!(all[0].limits[0].1, 120.0);
    }
}
