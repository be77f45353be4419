//! Memory use: the model's own figures by class, and the system's.

use troika::Model;

/// The system's figures for this process, in bytes.
#[derive(Clone, Copy)]
pub struct Resident {
    /// The highest value so far.
    pub peak: u64,
    /// Current private memory.
    pub own: u64,
    /// Current pages of files, which the system takes back when memory is short.
    pub files: u64,
}

/// Asks the system; `None` if it does not tell.
pub fn resident() -> Option<Resident> {
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
pub fn report(model: &Model) -> Result<String, troika::Error> {
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
