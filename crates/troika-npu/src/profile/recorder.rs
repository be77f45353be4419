//! A device's hand to the tracer.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use troika_device::{Clock, RealClock};
use troika_trace::{Arg, Span, Tracer};

use super::event::{Events, Recorded, Stage};
use super::place::{Window, lay, place};
use super::{qnn, runtime};
use crate::error::NpuError;
use crate::profiling::{ProfileFile, Profiling, ProfilingLevel};
use crate::provider::Provider;

/// Where a span lies: the host's lane, or one of the device's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    /// Opening the model.
    Host,
    /// The host's work around runs.
    Queue,
    /// Runs, as the host sees them.
    Execute,
}

/// Records the spans and events of a device.
pub(crate) struct Recorder {
    device: String,
    provider: Provider,
    tracer: Tracer,
    clock: RealClock,
    lanes: [Arc<str>; 3],
    profiler: Option<Profiler>,
}

/// Where profilers write, and what came of it.
struct Profiler {
    level: ProfilingLevel,
    folder: PathBuf,
    /// Removes the folder, if nobody asked for it.
    _unasked: Option<TempDir>,
    most_events: usize,
    files: AtomicUsize,
    dropped: AtomicUsize,
    reading_ns: AtomicU64,
}

impl Profiler {
    fn open(profiling: Profiling) -> Result<Profiler, NpuError> {
        let Profiling { level, folder, most_events } = profiling;
        let failed =
            |folder: PathBuf, e: std::io::Error| NpuError::NoFolder { folder, why: e.to_string() };
        let (folder, unasked) = match folder {
            Some(folder) => {
                // A profiler says nothing where it cannot write.
                fs::create_dir_all(&folder)
                    .and_then(|()| tempfile::tempfile_in(&folder))
                    .map_err(|e| failed(folder.clone(), e))?;
                (folder, None)
            }
            None => {
                let unasked = tempfile::tempdir().map_err(|e| failed(std::env::temp_dir(), e))?;
                (unasked.path().to_path_buf(), Some(unasked))
            }
        };
        let (files, dropped, reading_ns) = Default::default();
        let _unasked = unasked;
        Ok(Profiler { level, folder, _unasked, most_events, files, dropped, reading_ns })
    }
}

impl Recorder {
    /// A recorder of a device. Times are those of `clock`.
    ///
    /// # Errors
    /// The provider has no profiler of the level, or its files have no folder.
    pub fn open(
        device: &str,
        provider: Provider,
        tracer: Tracer,
        clock: RealClock,
        profiling: Option<Profiling>,
    ) -> Result<Recorder, NpuError> {
        if let Some(level) = profiling.as_ref().map(|p| p.level) {
            let levels = provider.profiling_levels();
            if !levels.contains(&level) {
                let has: Vec<&str> = levels.iter().map(|l| l.name()).collect();
                let (provider, level, has) = (provider.name(), level.name(), has.join(" and "));
                return Err(NpuError::NoProfiler { provider, level, has });
            }
        }
        let lanes = ["host".into(), format!("{device} host"), format!("{device} execute")];
        let lanes = lanes.map(Arc::from);
        let profiler = profiling.map(Profiler::open).transpose()?;
        Ok(Recorder { device: device.into(), provider, tracer, clock, lanes, profiler })
    }

    /// The level at which sessions are profiled, if they are.
    pub fn level(&self) -> Option<ProfilingLevel> {
        self.profiler.as_ref().map(|p| p.level)
    }

    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The time, if anything is recorded.
    pub fn now(&self) -> Duration {
        if self.tracer.enabled() { self.clock.now() } else { Duration::ZERO }
    }

    /// Records a span that ends now.
    pub fn span(&self, lane: Lane, name: &str, graph: &str, start: Duration) -> Window {
        let window = Window { start, end: self.now() };
        if self.tracer.enabled() {
            let args = vec![
                ("device", Arg::Text(self.device.clone())),
                ("graph", Arg::Text(graph.into())),
            ];
            let lane = self.lanes[lane as usize].clone();
            let Window { start, end } = window;
            let name = name.to_string().into();
            self.tracer.record(Span { name, lane, start, end, args });
        }
        window
    }

    /// A file for a profiler to write, if there is one: nothing is there yet.
    pub fn file(&self, graph: &str) -> Option<ProfileFile> {
        let profiler = self.profiler.as_ref()?;
        let number = profiler.files.fetch_add(1, Ordering::Relaxed);
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let graph: String = graph.chars().map(plain).collect();
        let name = format!("{}-{number:03}-{graph}", self.device);
        // Qualcomm's provider adds to what an earlier command wrote.
        for ending in [".csv", "_qnn.log"] {
            let _ = fs::remove_file(profiler.folder.join(format!("{name}{ending}")));
        }
        let path = profiler.folder.join(format!("{name}.csv"));
        Some(ProfileFile { level: profiler.level, path })
    }

    /// Adds what a profiler wrote to the trace: the stages before the first run in the host's span
    /// `opened`, each run in its own of `runs`.
    pub fn read(&self, graph: &str, file: &ProfileFile, opened: Window, runs: &[Window]) {
        let Some(profiler) = &self.profiler else { return };
        let start = self.now();
        let read = File::open(&file.path).map_err(|e| e.to_string()).and_then(|from| {
            let (from, most) = (BufReader::new(from), profiler.most_events);
            match self.provider {
                Provider::Qnn => qnn::read(from, most).map_err(|e| e.to_string()),
                _ => runtime::read(from, file.level, most).map_err(|e| e.to_string()),
            }
        });
        let recorded = match read {
            Ok(recorded) => recorded,
            Err(why) => return self.note(graph, &format!("has no profile: {why}")),
        };
        profiler.dropped.fetch_add(recorded.dropped, Ordering::Relaxed);
        if recorded.odd > 0 {
            self.note(graph, &format!("its profile has {} odd events", recorded.odd));
        }
        let wholes = |events: &[Events]| -> Vec<u64> {
            events
                .iter()
                .map(|e| e.all.get(e.whole).map_or(1, |whole| whole.value.max(1)))
                .collect()
        };
        let Recorded { opening, runs: executed, all_runs, .. } = &recorded;
        for (events, at) in opening.iter().zip(lay(opened, &wholes(opening), 0)) {
            self.add(graph, file.level, events, at);
        }
        // A provider may run a model as several graphs. A profile that ends early has the first runs.
        let each = (all_runs / runs.len().max(1)).max(1);
        let known = if *all_runs > each * runs.len() { &[] } else { runs };
        if *all_runs != each * runs.len() {
            let why = format!("its profile has {all_runs} runs, and it ran {} times", runs.len());
            self.note(graph, &why);
        }
        for (window, events) in known.iter().zip(executed.chunks(each)) {
            for (events, at) in events.iter().zip(lay(*window, &wholes(events), 0)) {
                self.add(graph, file.level, events, at);
            }
        }
        let took = self.now().saturating_sub(start).as_nanos();
        profiler.reading_ns.fetch_add(u64::try_from(took).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Records the events of a stage within the host's span of it.
    fn add(&self, graph: &str, level: ProfilingLevel, events: &Events, host: Window) {
        for (event, place) in events.all.iter().zip(place(host, events)) {
            let text = |text: &str| Arg::Text(text.into());
            let lane = match event.depth {
                0 => format!("{} device", self.device),
                depth => format!("{} node depth {depth}", self.device),
            };
            let op = event.op.as_deref().filter(|_| events.stage == Stage::Execute);
            let args = [
                ("device", text(&self.device)),
                ("graph", text(graph)),
                ("stage", text(events.stage.name())),
                ("depth", Arg::Int(event.depth as u64)),
                ("level", text(level.name())),
                ("value", Arg::Int(event.value)),
                ("unit", text(event.unit.name())),
                ("placed", text(place.rule)),
            ];
            self.tracer.record(Span {
                name: event.name.clone().into(),
                lane: lane.into(),
                start: place.at.start,
                end: place.at.end,
                args: args.into_iter().chain(op.map(|op| ("op", text(op)))).collect(),
            });
        }
    }

    /// Notes something of a graph that the reader of the trace should know.
    pub fn note(&self, graph: &str, what: &str) {
        self.tracer.note(format!("{graph} on {}: {what}", self.device));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let Some(profiler) = &self.profiler else { return };
        let count = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        let ms = profiler.reading_ns.load(Ordering::Relaxed) as f64 * 1e-6;
        let (device, files) = (&self.device, count(&profiler.files));
        let left_out = match count(&profiler.dropped) {
            0 => String::new(),
            n => format!(
                "; {n} events are left out: of each compiled graph the first {} are in the trace",
                profiler.most_events
            ),
        };
        self.tracer
            .note(format!("device {device}: {files} profiles were read in {ms:.1} ms{left_out}"));
    }
}
