//! Formats of the table.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use troika::Limits;

use super::row::{Facts, Row, mean_sd, value_types};
use crate::error::CliError;
use crate::flags::TableFlag;
use crate::{output, stats};

/// An object in a form for machines.
fn record(object: &Value, form: TableFlag, first: bool) -> String {
    match form {
        TableFlag::Json => format!("{}{object:#}\n", if first { "[\n" } else { ",\n" }),
        TableFlag::Jsonl => format!("{object}\n"),
        TableFlag::Csv | TableFlag::Md => csv(object, first),
    }
}

/// Rows that are printed one by one, for people or for machines.
pub struct BenchRows {
    form: TableFlag,
    /// Whether nothing was printed.
    pub first: bool,
}

impl BenchRows {
    /// Prints the rows that `add` gives, and ends them.
    pub fn print(
        form: TableFlag,
        add: impl FnOnce(&mut BenchRows) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let mut rows = BenchRows { form, first: true };
        let added = add(&mut rows);
        match form {
            // Before something failed, that is a whole list, too.
            TableFlag::Json if !rows.first => added.and(output::json_document("]\n")),
            _ => added,
        }
    }

    /// Prints a row: its line of a table under `head`, or its object.
    pub fn add(&mut self, head: &str, line: &str, object: &Value) -> Result<(), CliError> {
        let text = match (self.form, self.first) {
            (TableFlag::Md, true) => format!("{head}{line}"),
            (TableFlag::Md, false) => line.to_string(),
            (form, first) => record(object, form, first),
        };
        self.first = false;
        match self.form {
            TableFlag::Json | TableFlag::Jsonl => output::json_document(&text),
            TableFlag::Csv | TableFlag::Md => output::write(&text),
        }
    }
}

/// The limits by name: GB/s, GFLOP/s, GOP/s.
pub fn limits(limits: &Limits) -> Value {
    let mut map = Map::new();
    map.insert("read_bandwidth".into(), limits.read.into());
    map.extend(limits.multiply.iter().map(|l| (l.name.into(), l.value.into())));
    Value::Object(map)
}

/// The fields of llama-bench, and our own.
pub fn fields(row: &Row<'_>) -> Value {
    let (f, plan) = (row.facts, &row.facts.plan);
    let kv = plan.kv_dtype.name().to_lowercase();
    let ns: Vec<f64> = row.samples_ns.iter().map(|&n| n as f64).collect();
    let (avg_ns, stddev_ns) = mean_sd(&ns);
    let rates = row.rates();
    let (avg_ts, stddev_ts) = mean_sd(&rates);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut fields = json!({
        "engine": "troika", "build_number": env!("CARGO_PKG_VERSION"),
        "cpu_info": f.cpu_info, "backends": plan.devices.join("+"),
        "model_filename": f.model,
        "model_type": format!("{} {}", f.family, f.quant),
        "model_size": f.size, "model_n_params": f.params,
        "n_batch": plan.prefill.chunk, "n_ubatch": plan.prefill.chunk,
        "n_threads": f.threads, "type_k": kv, "type_v": kv,
        "activations": f.activations.to_string(),
        "strategy": plan.strategy, "policy": plan.prefill.policy.name(),
        "chunks_in_flight": plan.prefill.chunks_in_flight,
        "sync": plan.sync.name(), "value_type": value_types(plan),
        "n_prompt": row.test.prompt, "n_gen": row.test.generate,
        "n_depth": row.test.depth, "n_sequences": row.test.sequences, "test_time": now,
        "avg_ns": avg_ns.round(), "stddev_ns": stddev_ns.round(),
        "avg_ts": avg_ts, "stddev_ts": stddev_ts,
        "avg_ts_per_sequence": avg_ts / row.test.sequences as f64,
        "samples_ns": row.samples_ns, "samples_ts": rates,
        "ttft_ms": row.ttft_ms(),
        "gb_per_s": row.gb_per_s(), "gop_per_s": row.gop_per_s(),
        "limit": row.bound(), "share_of_limit": row.share(),
        "limit_gb_per_s": f.limits.as_ref().map(|l| l.read),
        "limit_gop_per_s": f.multiply.map(|l| l.value),
        "limits": f.limits.as_ref().map(limits),
    });
    fields["joules"] = row.used.joules.into();
    fields["joules_per_token"] = row.used.joules_per_token().into();
    fields["watts"] = row.used.watts().into();
    fields["cpu_ms_per_token"] = row.used.cpu_ms_per_token().into();
    fields["cpu_cycles_per_token"] = row.used.cycles_per_token().into();
    fields["cpu_source"] = f.cpu.clone().into();
    fields["energy_source"] = f.energy.as_ref().and_then(|e| e.as_deref().ok()).into();
    if let Some(experts) = &row.experts {
        fields["expert_hit_rate"] = experts.hit_rate().into();
        fields["expert_bytes_read"] = experts.bytes_read.into();
        fields["expert_stall_ns"] = (experts.stall.as_nanos() as u64).into();
        fields["expert_cache_bytes"] = experts.budget.into();
    }
    if !row.device_experts.is_empty() {
        fields["device_experts"] = stats::device_experts_json(&row.device_experts);
    }
    if let Some(ns) = row.predicted_ns {
        fields["predicted_ns"] = ns.into();
        fields["prediction_error"] = row.prediction_error().into();
    }
    // What virtual devices do is the same in each run.
    fields["load_ms"] = f.limits.as_ref().map(|_| f.load_ms).into();
    fields
}

fn csv(object: &Value, first: bool) -> String {
    let fields = object.as_object().into_iter().flatten();
    let fields: Vec<_> = fields.filter(|(_, v)| !v.is_array() && !v.is_object()).collect();
    let quoted = |v: &Value| match v {
        Value::String(s) => format!("\"{}\"", s.replace('"', "\"\"")),
        Value::Null => String::new(),
        v => v.to_string(),
    };
    let line = |items: Vec<String>| format!("{}\n", items.join(","));
    let head = match first {
        true => line(fields.iter().map(|f| f.0.clone()).collect()),
        false => String::new(),
    };
    head + &line(fields.iter().map(|f| quoted(f.1)).collect())
}

/// What became of the experts of a row, if not all are in memory.
pub fn experts_lines(row: &Row<'_>) -> Vec<String> {
    let seconds = row.samples_ns.iter().sum::<u64>() as f64 / 1e9;
    let host = row.experts.as_ref().map(|e| stats::experts(e, seconds));
    let others = row.device_experts.iter();
    let others = others.map(|(device, e)| format!("{device}, {}", stats::device_experts(e)));
    host.into_iter().chain(others).map(|of| format!("{}: {of}", row.test.name())).collect()
}

/// The limits that rows are compared with, in words.
fn limits_line(facts: &Facts, limits: &Limits) -> String {
    let multiply = facts
        .multiply
        .map_or(String::new(), |l| format!(", multiplying {} {:.0} {}", l.words, l.value, l.unit));
    format!(
        "Limits of {}: reading memory {:.1} GB/s{multiply}\n{}{}\n",
        limits.of,
        limits.read,
        energy_line(facts),
        facts.cpu
    )
}

/// Where joules are from, or why there are none.
fn energy_line(facts: &Facts) -> String {
    match &facts.energy {
        Some(Ok(source)) => {
            format!("Energy: {source}, read every {} ms\n", stats::LOOK.as_millis())
        }
        Some(Err(why)) => format!("Energy cannot be read: {why}\n"),
        None => String::new(),
    }
}

/// The lines above a table, which perhaps has predictions.
pub fn markdown_head(facts: &Facts, first: bool, predicted: bool) -> String {
    let gap = if first { "" } else { "\n" };
    let (more, ruled) = match predicted {
        true => (" predicted t/s | off by |", " ---: | ---: |"),
        false => ("", ""),
    };
    format!(
        "{gap}{}\n\
         | model | size | params | device | quant | threads | test | seqs | t/s | t/s each | TTFT | GB/s | GOP/s | of limit | J | mJ/token | W | CPU ms/token | Mcycles/token |{more}\n\
         | --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |{ruled}\n",
        match &facts.limits {
            Some(limits) => limits_line(facts, limits),
            None => format!("All devices are virtual: times are modelled.\n{}\n", facts.cpu),
        }
    )
}

/// The line of a table.
pub fn markdown(row: &Row<'_>) -> String {
    let f = row.facts;
    let (mean, sd) = mean_sd(&row.rates());
    let ttft = row.ttft_ms().map_or(String::new(), |t| format!("{t:.1} ms"));
    let gb = row.gb_per_s().map_or(String::new(), |gb| format!("{gb:.1}"));
    let limit = match (row.share(), row.test.prompt) {
        (Some(share), 0) => format!("{:.0} % of reading", 100.0 * share),
        (Some(share), _) => format!("{:.0} % of multiplying", 100.0 * share),
        (None, _) if row.reads_from_cache() => "reads from the cache".into(),
        (None, _) => String::new(),
    };
    let each = row.used.joules.map(|j| j / row.samples_ns.len() as f64);
    let joules = each.map_or_else(|| "-".to_string(), |j| format!("{j:.3}"));
    let used = row.used.figures().join(" | ");
    let tokens = (row.test.tokens() * row.test.sequences) as f64;
    let predicted = row.predicted_ns.zip(row.prediction_error());
    let predicted = predicted.map_or_else(String::new, |(ns, error)| {
        format!(" {:.2} | {:+.1} % |", tokens * 1e9 / ns as f64, error * 100.0)
    });
    format!(
        "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {} | {} | {mean:.2} ± {sd:.2} | {:.2} | {ttft} | {gb} | {:.0} | {limit} | {joules} | {used} |{predicted}\n",
        f.model,
        f.size as f64 / (1 << 20) as f64,
        f.params as f64 / 1e6,
        f.plan.devices.join("+"),
        f.quant,
        f.threads,
        row.test.name(),
        row.test.sequences,
        mean / row.test.sequences as f64,
        row.gop_per_s(),
    )
}
