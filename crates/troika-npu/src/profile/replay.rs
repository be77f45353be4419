//! A recorded profile as the session that wrote it would have added it to a trace.

use std::time::Duration;

use troika_device::RealClock;
use troika_trace::Tracer;

use super::recorder::{Lane, Recorder};
use crate::error::NpuError;
use crate::profiling::{Profiling, ProfilingLevel};
use crate::provider::Provider;

/// What the emulator of QNN 2.7.0 wrote at level detailed, for a graph that was compiled and run
/// twice.
pub const QNN_RECORDING: &str = include_str!("testdata/qnn-detailed.csv");

/// Adds a recorded file of Qualcomm's profiler to a trace: opening, and `runs` runs. The host's
/// spans are real: `work` stands for what the host would wait for, and is called once for opening
/// and once for each run.
///
/// # Errors
/// There is no folder for the file.
pub fn replay_qnn(
    recording: &str,
    runs: usize,
    work: &mut dyn FnMut(),
    tracer: &Tracer,
) -> Result<(), NpuError> {
    const GRAPH: &str = "recorded graph";
    let level = ProfilingLevel::Detailed;
    let profiling = Some(Profiling { level, folder: None, most_events: usize::MAX });
    let (clock, provider) = (RealClock::new(), Provider::Qnn);
    let recorder = Recorder::open("npu", provider, tracer.clone(), clock, profiling)?;
    let Some(file) = recorder.file(GRAPH) else { return Ok(()) };
    let timed = |lane, name: &str, work: &mut dyn FnMut()| {
        let start: Duration = recorder.now();
        work();
        recorder.span(lane, name, GRAPH, start)
    };
    let mut written = Ok(());
    let opened = timed(Lane::Host, "make session", &mut || {
        written = std::fs::write(&file.path, recording);
        work();
    });
    written.map_err(|e| NpuError::no_folder(&file.path, &e))?;
    let mut windows = Vec::new();
    for _ in 0..runs {
        timed(Lane::Queue, "write inputs", &mut || ());
        windows.push(timed(Lane::Execute, GRAPH, work));
        timed(Lane::Queue, "read outputs", &mut || ());
    }
    recorder.read(GRAPH, &file, opened, &windows);
    Ok(())
}
