//! How much memory is free, and what of a model's experts it holds.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use troika_device::Clock;
use troika_model::spec::ModelSpec;
use troika_plan::{Prediction, RoutingPredictor};
use troika_trace::{Span, Tracer};
use troika_weights::{ExpertForecast, WeightStore};

use crate::budget::HostMemory;
use crate::error::Error;

use crate::options::{OpenOptions, PredictorOptions};

/// The share of the experts that is in memory however little is free.
const LEAST_SHARE: u64 = 64;

/// Bytes of memory that this process can get, if the system tells: what the machine has free, or
/// what the process's control group leaves (Linux).
pub fn free_memory() -> Option<u64> {
    let free = free_of_machine()?;
    Some(free.min(left_by_groups(Path::new("/sys/fs/cgroup")).unwrap_or(u64::MAX)))
}

/// What the machine has free, with what the system's cache of files takes.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn free_of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What the machine has free, with what the system's cache of files takes.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn free_of_machine() -> Option<u64> {
    if !sysinfo::IS_SUPPORTED_SYSTEM {
        return None;
    }
    let mut system = sysinfo::System::new();
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    Some(system.available_memory())
}

/// What the control groups of this process leave, of both versions.
fn left_by_groups(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut left = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, names) = if controllers.is_empty() {
            (root.to_path_buf(), ["memory.max", "memory.current"])
        } else if controllers.split(',').any(|c| c == "memory") {
            (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes"])
        } else {
            continue;
        };
        // Groups within groups: each has a limit of its own.
        let inner = base.join(path.trim_start_matches('/'));
        let all = inner.ancestors().take_while(|at| at.starts_with(&base));
        left = all.filter_map(|at| left_by_group(at, names)).chain(left).min();
    }
    left
}

/// What a group leaves: its limit without what is used, where files in the system's cache make way.
fn left_by_group(at: &Path, [limit, used]: [&str; 2]) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(at.join(name)).ok()?.trim().parse().ok()
    };
    let (limit, used) = (number(limit)?, number(used)?);
    let stat = std::fs::read_to_string(at.join("memory.stat")).unwrap_or_default();
    let files = |name: &str| -> Option<u64> {
        let line = stat.lines().find(|l| l.split(' ').next() == Some(name))?;
        line.split(' ').nth(1)?.parse().ok()
    };
    let of_files = |prefix: &str| {
        let each = ["active_file", "inactive_file"].map(|name| files(&format!("{prefix}{name}")));
        Some(each[0]? + each[1]?)
    };
    // Version 1 counts a group's children apart.
    let files = of_files("total_").or_else(|| of_files("")).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

/// Limits the experts in memory to what is asked for, or to what is free if the weights do not fit.
/// Returns what the user should know. To be called before the folder of packed weights is opened.
pub(crate) fn limit_experts(store: &mut WeightStore, options: &OpenOptions) -> Option<String> {
    let experts = store.expert_bytes();
    if experts == 0 {
        return None;
    }
    if let Some(budget) = options.memory.experts {
        if budget < experts {
            store.limit_experts(budget);
        }
        return None;
    }
    let host = HostMemory::now(options.memory)?;
    let all: u64 = store.classes().iter().map(|class| class.bytes).sum();
    let rest = all.saturating_sub(experts);
    if all <= host.weights() {
        return None;
    }
    let mib = |bytes: u64| bytes >> 20;
    let Some(folder) = &options.cache else {
        return Some(format!(
            "the weights take {} MiB, and {} MiB of memory are free: with a folder to read experts \
             from (--cache-dir, and no --no-cache) they need not all be in memory",
            mib(all),
            mib(host.free)
        ));
    };
    let cache = options.sharing.kv_bytes.unwrap_or(host.cache(all));
    let budget = host.experts(rest, cache).max(experts / LEAST_SHARE);
    store.limit_experts(budget);
    Some(format!(
        "the experts take {} MiB, of which {} MiB fit into the memory that is free: the others are \
         read from {} when tokens choose them (--expert-cache-mib)",
        mib(experts),
        mib(budget),
        folder.dir().display()
    ))
}

/// Experts that are read ahead for each that is used. More would find more of them, but a disk that is
/// busy anyway would have to read what nobody uses: at 1.5 tokens took longer than without.
const AHEAD: f64 = 1.0;

/// Has experts read ahead that a predictor names, where not all are in memory.
///
/// # Errors
/// A predictor of another model.
pub(crate) fn read_ahead(
    store: &WeightStore,
    spec: &ModelSpec,
    options: &OpenOptions,
) -> Result<(), Error> {
    if let Some(PredictorOptions { file, predictor }) = &options.predictor {
        let file = file.display().to_string();
        predictor.check(spec).map_err(|error| Error::Predictor { file, error })?;
        let (predictor, memory) = (predictor.clone(), Mutex::default());
        store.set_forecast(Arc::new(Forecast { predictor, memory }));
    }
    Ok(())
}

/// A predictor with the memory that its predictions share.
struct Forecast {
    predictor: Arc<RoutingPredictor>,
    memory: Mutex<Prediction>,
}

impl ExpertForecast for Forecast {
    fn after(&self, layer: usize, row: &[f32], expect: &mut dyn FnMut(usize, &[u16])) {
        let Some(next) = self.predictor.after(layer) else { return };
        let count = (next.top_k as f64 * AHEAD).ceil() as usize;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        expect(next.layer, self.predictor.predict(next.layer, row, count, &mut memory));
    }
}

/// Records waits for experts that are read.
pub(crate) fn trace_waits(store: &WeightStore, tracer: &Tracer, clock: &Arc<dyn Clock>) {
    if !tracer.enabled() {
        return;
    }
    let (tracer, clock) = (tracer.clone(), clock.clone());
    store.on_expert_wait(Arc::new(move |layer, waited| {
        let end = clock.now();
        tracer.record(Span {
            name: format!("layer {layer} waits for experts").into(),
            lane: "disk".into(),
            start: end.saturating_sub(waited),
            end,
            args: Vec::new(),
        });
    }));
}
