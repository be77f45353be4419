//! A device's hand to the tracer.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use troika_device::{Clock, RealClock};
use troika_trace::{Arg, Span, Tracer};

use super::event::{Events, Recorded, Role, Stage};
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
    pub provider: Provider,
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
    /// Whether QNN's own interface does not serve, which was noted.
    is_shallow: AtomicBool,
}

impl Profiler {
    fn open(profiling: Profiling) -> Result<Profiler, NpuError> {
        let Profiling { level, folder, most_events } = profiling;
        let (folder, unasked) = match folder {
            Some(folder) => {
                // A profiler says nothing where it cannot write.
                fs::create_dir_all(&folder)
                    .and_then(|()| tempfile::tempfile_in(&folder))
                    .map_err(|e| NpuError::no_folder(&folder, &e))?;
                (folder, None)
            }
            None => {
                let failed = |e| NpuError::no_folder(&std::env::temp_dir(), &e);
                let unasked = tempfile::tempdir().map_err(failed)?;
                (unasked.path().to_path_buf(), Some(unasked))
            }
        };
        Ok(Profiler {
            level,
            folder,
            _unasked: unasked,
            most_events,
            files: AtomicUsize::default(),
            dropped: AtomicUsize::default(),
            reading_ns: AtomicU64::default(),
            is_shallow: AtomicBool::default(),
        })
    }
}

impl Recorder {
    /// A recorder of a device. Times are told by `clock`.
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
                return Err(NpuError::Unfit(format!(
                    "provider {provider} has no profiling level {level}; it has {has}"
                )));
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

    /// The time, if anything is recorded.
    pub fn now(&self) -> Duration {
        if self.tracer.enabled() { self.clock.now() } else { Duration::ZERO }
    }

    /// Records a span that ends now.
    pub fn span(&self, lane: Lane, name: &str, graph: &str, start: Duration) -> Window {
        let window = Window { start, end: self.now() };
        if self.tracer.enabled() {
            let text = |text: &str| Arg::Text(text.into());
            let args = vec![("device", text(&self.device)), ("graph", text(graph))];
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

    /// A file for what QNN's own interface says of a graph, if it is to be asked.
    pub fn deep_file(&self, graph: &str) -> Option<ProfileFile> {
        let profiler = self.profiler.as_ref().filter(|_| self.provider == Provider::Qnn)?;
        let is_shallow = profiler.is_shallow.load(Ordering::Relaxed);
        if is_shallow || profiler.level == ProfilingLevel::Basic { None } else { self.file(graph) }
    }

    /// Notes why QNN's own interface is asked no more.
    pub fn stay_shallow(&self, graph: &str, why: &str) {
        let is_shallow = self.profiler.as_ref().map(|p| p.is_shallow.swap(true, Ordering::Relaxed));
        if is_shallow == Some(false) {
            self.note(graph, &format!("has no profile of parts of nodes: {why}"));
        }
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
            let why = format!("{} lines of its profile are odd and left out", recorded.odd);
            self.note(graph, &why);
        }
        let whole = |e: &Events| e.all.get(e.whole).map_or(1, |whole| whole.value.max(1));
        let wholes = |events: &[Events]| events.iter().map(whole).collect::<Vec<u64>>();
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
            let lane = match (event.role, event.depth) {
                (Role::Trace, depth) => format!("{} trace depth {}", self.device, depth.max(1)),
                (_, 0) => format!("{} device", self.device),
                (_, depth) => format!("{} node depth {depth}", self.device),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use troika_device::RealClock;
    use troika_trace::{Arg, Span, Tracer};

    use super::super::place::Window;
    use super::super::replay::QNN_RECORDING as RECORDED;
    use super::Recorder;
    use crate::error::NpuError;
    use crate::profiling::{Profiling, ProfilingLevel};
    use crate::provider::Provider;

    fn window(start: u64, end: u64) -> Window {
        let [start, end] = [start, end].map(Duration::from_millis);
        Window { start, end }
    }

    fn opened(
        provider: Provider,
        level: ProfilingLevel,
        most_events: usize,
    ) -> (Result<Recorder, NpuError>, Tracer) {
        let (tracer, clock) = (Tracer::on(), RealClock::new());
        let profiling = Some(Profiling { level, folder: None, most_events });
        (Recorder::open("npu", provider, tracer.clone(), clock, profiling), tracer)
    }

    /// The spans and notes of a profile of two runs, for a session that ran in some windows.
    fn traced(text: &str, runs: &[Window], most_events: usize) -> (Vec<Span>, Vec<String>) {
        let (recorder, tracer) = opened(Provider::Qnn, ProfilingLevel::Detailed, most_events);
        let recorder = recorder.unwrap();
        let file = recorder.file("layer 0 ffn").unwrap();
        assert!(file.path.ends_with("npu-000-layer-0-ffn.csv"));
        std::fs::write(&file.path, text).unwrap();
        recorder.read("layer 0 ffn", &file, window(0, 20), runs);
        drop(recorder);
        assert!(!file.path.exists(), "nobody asked for it");
        (tracer.spans(), tracer.notes())
    }

    fn is_run(span: &&Span) -> bool {
        span.name == "QNN (execute) time"
    }

    #[test]
    fn each_run_lies_in_its_own_span() {
        let runs = [window(100, 120), window(200, 220)];
        let (spans, notes) = traced(RECORDED, &runs, 1000);
        assert_eq!((spans.len(), notes.len()), (9 + 2 * 13, 1), "{notes:?}");
        let wholes: Vec<&Span> = spans.iter().filter(is_run).collect();
        assert_eq!(wholes.len(), 2);
        for (span, run) in wholes.iter().zip(runs) {
            assert!(run.start <= span.start && span.end <= run.end, "{span:?}");
        }
        let finalize = spans.iter().find(|s| s.name == "QNN (finalize) time").unwrap();
        assert_eq!(finalize.end - finalize.start, Duration::from_micros(12_739));
        assert!(finalize.end <= Duration::from_millis(20));
        let up = spans.iter().find(|s| s.name == "up").unwrap();
        assert_eq!(&*up.lane, "npu node depth 1");
        let arg = |name: &str| up.args.iter().find(|(n, _)| *n == name).map(|(_, a)| a.clone());
        assert_eq!(arg("value"), Some(Arg::Int(34_000)));
        for (name, text) in [
            ("unit", "cycles"),
            ("level", "detailed"),
            ("stage", "execution"),
            ("device", "npu"),
            ("graph", "layer 0 ffn"),
            ("placed", "in order, in proportion to its value"),
        ] {
            assert_eq!(arg(name), Some(Arg::Text(text.into())), "{name}");
        }
    }

    #[test]
    fn parts_and_traces_have_lanes_of_their_own() {
        let deep = include_str!("testdata/qnn-linting.csv");
        let steps = "0,TRACE,1,US,BACKEND,ROOT,a\n0,TRACE,1,US,BACKEND,SUB-EVENT 2,b\n";
        let (spans, _) = traced(&format!("{steps}{deep}"), &[window(100, 120)], 1000);
        let lanes =
            ["node depth 1", "node depth 2", "node depth 3", "trace depth 1", "trace depth 2"];
        let on = |lane| spans.iter().filter(|s| s.lane.strip_prefix("npu ") == Some(lane)).count();
        assert_eq!(lanes.map(on), [6, 24, 1, 1, 1]);
    }

    #[test]
    fn qnn_is_asked_until_it_fails() {
        let (basic, _) = opened(Provider::Qnn, ProfilingLevel::Basic, 1);
        assert!(basic.unwrap().deep_file("ffn").is_none());
        let (recorder, tracer) = opened(Provider::Qnn, ProfilingLevel::Detailed, 1);
        let recorder = recorder.unwrap();
        assert!(recorder.deep_file("ffn").is_some());
        recorder.stay_shallow("ffn", "version 3.0");
        recorder.stay_shallow("ffn", "again");
        assert!(recorder.deep_file("ffn").is_none());
        assert_eq!(tracer.notes(), ["ffn on npu: has no profile of parts of nodes: version 3.0"]);
    }

    /// A provider may cut a model into two graphs, or a profile may end early.
    #[test]
    fn other_numbers_of_runs_are_told_apart() {
        let (spans, notes) = traced(RECORDED, &[window(100, 120)], 1000);
        let wholes: Vec<&Span> = spans.iter().filter(is_run).collect();
        assert!(wholes[0].end <= wholes[1].start && wholes[1].end <= Duration::from_millis(120));
        assert_eq!(notes.len(), 1);
        let more = [window(100, 120), window(200, 220), window(300, 320)];
        let (spans, notes) = traced(RECORDED, &more, 1000);
        assert_eq!(spans.iter().filter(is_run).count(), 2);
        assert!(notes[0].ends_with("its profile has 2 runs, and it ran 3 times"), "{notes:?}");
        // Which of three belong to which of two is not known.
        let (_, run) = RECORDED.split_at(RECORDED.rfind("0,BACKEND,0,COUNT").unwrap());
        let run = format!("0,BACKEND,0,COUNT,BACKEND,ROOT,Number of HVX threads used\n{run}");
        let three = format!("{RECORDED}{run}");
        let (spans, notes) = traced(&three, &more[..2], 1000);
        assert_eq!(spans.iter().filter(is_run).count(), 0);
        assert!(notes[0].ends_with("its profile has 3 runs, and it ran 2 times"), "{notes:?}");
    }

    #[test]
    fn what_is_left_out_is_noted() {
        let (spans, notes) = traced(RECORDED, &[window(100, 120), window(200, 220)], 22);
        assert_eq!(spans.len(), 22);
        assert!(notes[0].contains("13 events are left out"), "{notes:?}");
        let (_, notes) = traced("nonsense\n", &[], 22);
        assert!(notes[0].contains("1 lines of its profile are odd"), "{notes:?}");
    }

    #[test]
    fn levels_go_by_the_provider() {
        for provider in Provider::ALL {
            for level in ProfilingLevel::ALL {
                match opened(provider, level, 1).0 {
                    Ok(_) => assert!(provider.profiling_levels().contains(&level)),
                    Err(e) => {
                        let says = e.to_string();
                        let (_, has) = says.split_once("; it has ").unwrap();
                        assert!(has.starts_with("basic") && !has.contains(level.name()));
                    }
                }
            }
        }
    }
}
