//! `troika bench`: prefill and decode speed in llama-bench's shape.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use troika::device::Device;
use troika::{DeviceOptions, Model, OpenOptions, measure_bandwidth};

use crate::error::CliError;
use crate::flags::{BenchArgs, TableFlag};
use crate::{output, progress, resolve};

/// What is measured.
#[derive(Clone, Copy)]
struct Test {
    prompt: usize,
    generate: usize,
    depth: usize,
}

impl Test {
    fn name(self) -> String {
        let base = match self.prompt {
            0 => format!("tg{}", self.generate),
            n => format!("pp{n}"),
        };
        if self.depth == 0 { base } else { format!("{base} @ d{}", self.depth) }
    }

    fn tokens(self) -> usize {
        self.prompt + self.generate
    }
}

/// A finished measurement.
struct Row {
    test: Test,
    threads: usize,
    samples_ns: Vec<u64>,
    /// Time to the first token after the prompt, seconds (the mean over samples).
    bandwidth: f64,
    facts: Facts,
}

/// What does not change between tests.
#[derive(Clone)]
struct Facts {
    model: String,
    family: String,
    size: u64,
    params: u64,
    quant: String,
    device: String,
    cpu: String,
    kv: String,
    chunk: usize,
    /// Parameters and bytes of weights a token reads.
    per_token: (u64, u64),
    /// Bytes of KV cache per position.
    kv_bytes: f64,
}

/// Runs all tests and prints the table.
///
/// # Errors
/// A model that does not open, lengths beyond its context.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    let default = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if args.threads.is_empty() { vec![default] } else { args.threads.clone() };
    let tests = tests(args);
    if tests.is_empty() || args.repetitions == 0 {
        return Err(CliError::Usage(
            "nothing to measure: give -p or -n, and -r of at least 1".into(),
        ));
    }
    let mut first = true;
    for threads in threads {
        let bandwidth = measure_bandwidth(threads.max(1));
        let mut model = open(args, threads, &tests)?;
        let facts = facts(args, &mut model)?;
        for &test in &tests {
            let samples_ns = measure(&mut model, test, args.repetitions)?;
            let row = Row { test, threads, samples_ns, bandwidth, facts: facts.clone() };
            print(&row, args.output, first)?;
            first = false;
        }
    }
    if args.output == TableFlag::Json { output::write("]\n") } else { Ok(()) }
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut all = Vec::new();
    for &depth in &args.n_depth {
        let prompts = args.n_prompt.iter().filter(|&&n| n > 0);
        all.extend(prompts.map(|&prompt| Test { prompt, generate: 0, depth }));
        let gens = args.n_gen.iter().filter(|&&n| n > 0);
        all.extend(gens.map(|&generate| Test { prompt: 0, generate, depth }));
    }
    all
}

fn open(args: &BenchArgs, threads: usize, tests: &[Test]) -> Result<Model, CliError> {
    // Tokens after the depth, plus the first one of a generation.
    let need = tests.iter().map(|t| t.depth + t.tokens() + 1).max().unwrap_or(1);
    let options = OpenOptions {
        dtype: args.dtype.float_type(),
        quant: args.quant.quant.quant(),
        cache_dir: args.quant.cache(),
        progress: Some(progress::quantizing()),
        context: Some(need),
        chunk: args.ubatch_size,
        devices: DeviceOptions { threads: Some(threads) },
        ..OpenOptions::default()
    };
    Ok(match &args.synthetic {
        Some(shape) => Model::synthetic(shape, &options)?,
        None => Model::open(&resolve::model(&args.model)?, &options)?,
    })
}

fn facts(args: &BenchArgs, model: &mut Model) -> Result<Facts, CliError> {
    let classes = model.store().classes();
    let largest = classes.iter().max_by_key(|c| c.bytes);
    let devices = troika::open_devices(&DeviceOptions { threads: Some(1) })
        .map_err(|e| CliError::Troika(e.into()))?;
    let name = match &args.synthetic {
        Some(shape) => shape.clone(),
        None => resolve::model(&args.model)?.display().to_string(),
    };
    let per_token = model.store().per_token(model.spec());
    let states: usize = {
        let lowered = model.engine().lowered();
        lowered.states.iter().map(|s| s.width * s.dtype.block_bytes()).sum()
    };
    let plan = model.engine().plan().clone();
    Ok(Facts {
        family: model.spec().family.clone(),
        model: name,
        size: classes.iter().map(|c| c.bytes).sum(),
        params: classes.iter().map(|c| c.parameters).sum(),
        quant: largest.map_or(String::new(), |c| c.dtype.name().to_string()),
        device: plan.devices.join("+"),
        cpu: cpu_info(&devices),
        kv: plan.kv_dtype.name().to_lowercase(),
        chunk: plan.chunk,
        per_token,
        kv_bytes: states as f64,
    })
}

fn cpu_info(devices: &[std::sync::Arc<dyn Device>]) -> String {
    let facts = devices.iter().flat_map(|d| d.caps().facts.iter());
    facts.map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join("; ")
}

/// A token that varies with its position, so that experts vary, too.
fn token(i: usize, vocab: usize) -> u32 {
    ((i.wrapping_mul(2_654_435_761) >> 7) % vocab) as u32
}

fn measure(model: &mut Model, test: Test, repetitions: usize) -> Result<Vec<u64>, CliError> {
    let vocab = model.spec().vocab;
    let ids =
        |n: usize, from: usize| -> Vec<u32> { (from..from + n).map(|i| token(i, vocab)).collect() };
    let mut samples = Vec::new();
    // The first run warms caches up and is not counted.
    for i in 0..=repetitions {
        model.reset();
        if test.depth > 0 {
            model.advance(&ids(test.depth, 0))?;
        }
        let prompt = ids(test.prompt, test.depth);
        let start = Instant::now();
        if test.prompt > 0 {
            model.advance(&prompt)?;
        }
        for j in 0..test.generate {
            model.advance(&ids(1, test.depth + j))?;
        }
        if i > 0 {
            samples.push(start.elapsed().as_nanos() as u64);
        }
    }
    model.reset();
    Ok(samples)
}

fn mean_sd(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let var = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
    (mean, var.sqrt())
}

impl Row {
    fn rates(&self) -> Vec<f64> {
        let n = self.test.tokens() as f64;
        self.samples_ns.iter().map(|&ns| n * 1e9 / ns as f64).collect()
    }

    /// GB/s of weights and cache a decoded token reads; none for prefill, which reuses them.
    fn gb_per_s(&self) -> Option<f64> {
        if self.test.generate == 0 {
            return None;
        }
        let positions = self.test.depth as f64 + self.test.generate as f64 / 2.0;
        let bytes = self.facts.per_token.1 as f64 + positions * self.facts.kv_bytes;
        Some(bytes * mean_sd(&self.rates()).0 / 1e9)
    }

    /// Operations per second of the weight products.
    fn gop_per_s(&self) -> f64 {
        2.0 * self.facts.per_token.0 as f64 * mean_sd(&self.rates()).0 / 1e9
    }

    /// The fields llama-bench prints, and ours.
    fn json(&self) -> Value {
        let ns: Vec<f64> = self.samples_ns.iter().map(|&n| n as f64).collect();
        let (avg_ns, stddev_ns) = mean_sd(&ns);
        let rates = self.rates();
        let (avg_ts, stddev_ts) = mean_sd(&rates);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        json!({
            "engine": "troika", "build_number": env!("CARGO_PKG_VERSION"),
            "cpu_info": self.facts.cpu, "backends": self.facts.device,
            "model_filename": self.facts.model,
            "model_type": format!("{} {}", self.facts.family, self.facts.quant),
            "model_size": self.facts.size, "model_n_params": self.facts.params,
            "n_batch": self.facts.chunk, "n_ubatch": self.facts.chunk,
            "n_threads": self.threads, "type_k": self.facts.kv, "type_v": self.facts.kv,
            "n_prompt": self.test.prompt, "n_gen": self.test.generate,
            "n_depth": self.test.depth, "test_time": now,
            "avg_ns": avg_ns.round(), "stddev_ns": stddev_ns.round(),
            "avg_ts": avg_ts, "stddev_ts": stddev_ts,
            "samples_ns": self.samples_ns, "samples_ts": rates,
            "ttft_ms": (self.test.prompt > 0).then_some(avg_ns / 1e6),
            "gb_per_s": self.gb_per_s(), "gop_per_s": self.gop_per_s(),
            "limit_gb_per_s": self.bandwidth,
        })
    }
}

fn print(row: &Row, form: TableFlag, first: bool) -> Result<(), CliError> {
    match form {
        TableFlag::Json => {
            output::write(if first { "[\n" } else { ",\n" })?;
            output::write(&format!("{:#}\n", row.json()))
        }
        TableFlag::Jsonl => output::write(&format!("{}\n", row.json())),
        TableFlag::Csv => csv(row, first),
        TableFlag::Md => markdown(row, first),
    }
}

fn csv(row: &Row, first: bool) -> Result<(), CliError> {
    let json = row.json();
    let fields: Vec<(&String, &Value)> =
        json.as_object().into_iter().flatten().filter(|(_, v)| !v.is_array()).collect();
    if first {
        let names: Vec<&str> = fields.iter().map(|f| f.0.as_str()).collect();
        output::write(&format!("{}\n", names.join(",")))?;
    }
    let quoted = |v: &Value| match v {
        Value::String(s) => format!("\"{}\"", s.replace('"', "\"\"")),
        Value::Null => String::new(),
        v => v.to_string(),
    };
    let values: Vec<String> = fields.iter().map(|f| quoted(f.1)).collect();
    output::write(&format!("{}\n", values.join(",")))
}

fn markdown(row: &Row, first: bool) -> Result<(), CliError> {
    if first {
        output::write(
            "| model | size | params | device | quant | threads | test | t/s | TTFT | GB/s | of limit | GOP/s |\n\
             | --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        )?;
    }
    let f = &row.facts;
    let (mean, sd) = mean_sd(&row.rates());
    let ns: Vec<f64> = row.samples_ns.iter().map(|&n| n as f64).collect();
    let ttft = match row.test.prompt {
        0 => String::new(),
        _ => format!("{:.1} ms", mean_sd(&ns).0 / 1e6),
    };
    let (gb, share) = match row.gb_per_s() {
        Some(gb) => (format!("{gb:.1}"), format!("{:.0} %", 100.0 * gb / row.bandwidth)),
        None => Default::default(),
    };
    output::write(&format!(
        "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {} | {mean:.2} ± {sd:.2} | {ttft} | {gb} | {share} | {:.0} |\n",
        f.model,
        f.size as f64 / (1 << 20) as f64,
        f.params as f64 / 1e6,
        f.device,
        f.quant,
        row.threads,
        row.test.name(),
        row.gop_per_s(),
    ))
}
