//! Figures at the end of a run: times, and memory, of which the model and the system tell.

use std::time::Duration;

use serde_json::{Value, json};
use troika::device::ExpertStats;
use troika::{Finish, Model, Output, Source};

use crate::output::bytes;

/// Milliseconds with three digits behind the point.
pub fn ms(d: Duration) -> f64 {
    (d.as_secs_f64() * 1e6).round() / 1e3
}

/// A part of a whole in percent.
pub fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// The figures for people.
pub fn text(model: &Model, output: &Output, tokenizer: Option<Duration>) -> String {
    let (stats, load) = (&output.stats, model.load_time());
    let mut s = String::new();
    let mut line = |name: &str, value: String| s.push_str(&format!("{name:>12}: {value}\n"));
    line("load", format!("{:.1} ms", ms(load)));
    if let Some(t) = tokenizer {
        line("tokenizer", format!("{:.2} ms", ms(t)));
    }
    line("TTFT", format!("{:.2} ms", ms(stats.ttft)));
    let cached = match stats.cached_tokens {
        0 => String::new(),
        n => format!(", {n} cached"),
    };
    let prompt = match stats.prompt_tokens - stats.cached_tokens {
        all if stats.computed_tokens < all => format!("{} of {all}", stats.computed_tokens),
        _ => stats.prompt_tokens.to_string(),
    };
    let tokens = if prompt == "1" { "token" } else { "tokens" };
    line("prefill", format!("{:.1} tok/s ({prompt} {tokens}{cached})", stats.prefill_rate()));
    if let Some(tpot) = stats.tpot() {
        line("TPOT", format!("{:.2} ms", ms(tpot)));
        let tokens = counted(stats.generated_tokens, "token");
        line("decode", format!("{:.1} tok/s ({tokens})", stats.decode_rate()));
    }
    match output.finish {
        Finish::Context => line("end", "the context is full (--ctx-size)".into()),
        Finish::Budget => line("end", "the budget of the KV cache is full (--kv-size)".into()),
        Finish::Stop | Finish::Length | Finish::Cancelled => {}
    }
    if let Some(e) = model.expert_stats() {
        let decoding = stats.tpot().map(|t| t * stats.generated_tokens as u32);
        let seconds = stats.ttft + decoding.unwrap_or_default();
        line("experts", experts(&e, seconds.as_secs_f64()));
    }
    for (device, e) in model.device_experts().unwrap_or_default() {
        line(&format!("experts {device}"), device_experts(&e));
    }
    if let Some(now) = resident() {
        line("peak memory", format!("{:.1} MiB", now.peak as f64 / (1 << 20) as f64));
    }
    s
}

/// How many experts are `held` where they are wanted, and how many of the chosen ones were found there,
/// with those that came `ahead` of time.
fn found(e: &ExpertStats, held: &str, ahead: &str) -> String {
    let expected = match e.expected {
        0 => String::new(),
        n => format!(", {n} {ahead} ahead, {:.0} % of them used", percent(e.expected_used, n)),
    };
    format!(
        "{} of {} of experts {held}; {:.1} % of {} chosen were there, {:.1} % on the way{expected}",
        bytes(e.held),
        bytes(e.bytes_of_all),
        100.0 * e.hit_rate(),
        e.chosen,
        percent(e.coming, e.chosen)
    )
}

/// What became of experts that are not all in memory, in a run of `seconds`.
pub fn experts(e: &ExpertStats, seconds: f64) -> String {
    format!(
        "{}; {} read by {}, {:.2} GB/s; waited {:.0} % of the time",
        found(e, "in memory", "read"),
        bytes(e.bytes_read),
        e.reads,
        e.bytes_read as f64 / 1e9 / seconds.max(1e-9),
        100.0 * e.stall.as_secs_f64() / seconds.max(1e-9)
    )
}

/// The sampling interval of the energy meter.
pub const LOOK: Duration = Duration::from_millis(100);

/// What became of experts that a device loads when tokens choose them.
pub fn device_experts(e: &ExpertStats) -> String {
    let (found, read) = (found(e, "loaded", "loaded"), bytes(e.bytes_read));
    format!("{found}; {} evicted; {read} loaded in {:.0} ms", e.evictions, ms(e.stall))
}

/// The same for machines.
pub fn experts_json(e: &ExpertStats) -> Value {
    json!({
        "bytes": e.bytes_of_all, "cache_bytes": e.budget, "held_bytes": e.held,
        "chosen": e.chosen, "hits": e.hits, "hit_rate": e.hit_rate(), "on_the_way": e.coming,
        "read_ahead": e.expected, "read_ahead_used": e.expected_used,
        "evictions": e.evictions, "bytes_read": e.bytes_read, "stall_ms": ms(e.stall),
        "reads": e.reads,
    })
}

/// Figures of several devices for machines, by their names.
pub fn device_experts_json(all: &[(String, ExpertStats)]) -> Value {
    let each = all.iter().map(|(device, e)| (device.clone(), experts_json(e)));
    Value::Object(each.collect())
}

/// How many of something.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The figures of one answer among others.
pub fn line(output: &Output) -> String {
    let s = &output.stats;
    let rate = s.tpot().map_or(String::new(), |_| format!(", then {:.1} tok/s", s.decode_rate()));
    format!(
        "[{} after {} in the prompt: the first after {:.0} ms{rate}]\n",
        counted(s.generated_tokens, "token"),
        s.prompt_tokens,
        ms(s.ttft)
    )
}

/// The figures and the answer for machines.
pub fn json(model: &Model, source: &Source, output: &Output, tokenizer: Option<Duration>) -> Value {
    let s = &output.stats;
    json!({
        "model": source.to_string(),
        "tokens": output.tokens,
        "text": output.text,
        "finish_reason": output.finish.name(),
        "prompt_tokens": s.prompt_tokens,
        "cached_tokens": s.cached_tokens,
        "generated_tokens": s.generated_tokens,
        "timings": {
            "modelled": model.is_modelled(),
            "load_ms": ms(model.load_time()),
            "tokenizer_ms": tokenizer.map(ms),
            "ttft_ms": ms(s.ttft),
            "prefill_tok_per_s": s.prefill_rate(),
            "tpot_ms": s.tpot().map(ms),
            "decode_tok_per_s": s.tpot().map(|_| s.decode_rate()),
        },
        "experts": model.expert_stats().map(|e| experts_json(&e)),
        "device_experts": device_experts_json(&model.device_experts().unwrap_or_default()),
        "peak_memory_bytes": resident().map(|r| r.peak),
    })
}

/// The system's figures for this process, in bytes.
#[derive(Clone, Copy)]
struct Resident {
    /// The highest value so far.
    peak: u64,
    /// Current private memory.
    own: u64,
    /// Current pages of files, which the system takes back when memory is short.
    files: u64,
}

/// Asks the system; `None` if it does not tell.
fn resident() -> Option<Resident> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    };
    Some(Resident { peak: field("VmHWM:")?, own: field("RssAnon:")?, files: field("RssFile:")? })
}

/// A table of the memory of the model and of the process.
///
/// # Errors
/// This thread holds the engine.
pub fn memory(model: &Model) -> Result<String, troika::Error> {
    let weights = model.store().report();
    let engine = model.engine()?.memory();
    let mib = |n: u64| n as f64 / (1 << 20) as f64;
    let mut s = String::new();
    let mut line = |what: &str, n: u64| s.push_str(&format!("{what:>40}: {:.1} MiB\n", mib(n)));
    for ((class, form), n) in &weights.classes {
        line(&format!("{class} ({form})"), *n);
    }
    let packed = weights.packed.values().sum::<u64>();
    line("weights packed", packed);
    line("weights copied", weights.owned);
    line("weights read from mapped files", weights.mapped);
    line("KV cache in use", engine.kv_used - engine.kv_kept);
    line("KV cache kept for prompts that begin alike", engine.kv_kept);
    line("KV cache reserved, not in memory yet", engine.kv_cache.saturating_sub(engine.kv_used));
    line("activations, at most", engine.activations);
    line("scratch, at most", engine.scratch);
    if let Some(now) = resident() {
        let known = packed + weights.owned + engine.kv_used;
        line("resident, of this process", now.own);
        line("resident, pages of files", now.files);
        line("peak", now.peak);
        // Cached packed weights are pages of files, so the peak is the figure to compare.
        line("peak beside weights and KV cache", now.peak.saturating_sub(known));
    }
    Ok(s)
}
