//! What is recorded of a session.

use std::fs::rename;
use std::sync::Arc;
use std::time::Duration;

use ort::session::Session;

use super::place::Window;
use super::recorder::{Lane, Recorder};
use crate::profiling::ProfileFile;
use crate::provider::Provider;

/// The spans of a session's runs, and its profile. The default records nothing.
#[derive(Default)]
pub(crate) struct SessionRecord {
    recorder: Option<Arc<Recorder>>,
    graph: String,
    file: Option<ProfileFile>,
    /// The host's span of making the session.
    opened: Window,
    /// The host's spans of its runs, if there is a profile to place in them.
    runs: Vec<Window>,
}

impl SessionRecord {
    /// A record of a session that was made within a span.
    pub fn new(
        recorder: &Arc<Recorder>,
        graph: &str,
        file: Option<ProfileFile>,
        opened: Window,
    ) -> SessionRecord {
        let (recorder, graph) = (Some(recorder.clone()), graph.into());
        SessionRecord { recorder, graph, file, opened, runs: Vec::new() }
    }

    /// The time before some work.
    pub fn begin(&self) -> Duration {
        self.recorder.as_ref().map_or(Duration::ZERO, |recorder| recorder.now())
    }

    /// Records the host's work around a run.
    pub fn work(&self, name: &'static str, start: Duration) {
        if let Some(recorder) = &self.recorder {
            recorder.span(Lane::Queue, name, &self.graph, start);
        }
    }

    /// Records a run.
    pub fn ran(&mut self, start: Duration) {
        let Some(recorder) = &self.recorder else { return };
        let window = recorder.span(Lane::Execute, &self.graph, &self.graph, start);
        if self.file.is_some() {
            self.runs.push(window);
        }
    }

    /// Reads the profile of a session that runs no more.
    pub fn end(&mut self, session: &mut Session) {
        let (Some(recorder), Some(mut file)) = (self.recorder.take(), self.file.take()) else {
            return;
        };
        if recorder.provider != Provider::Qnn {
            // The runtime adds the date to the name.
            let named = file.path.with_extension("json");
            let renamed = session
                .end_profiling()
                .map_err(|e| e.to_string())
                .and_then(|dated| rename(&dated, &named).map_err(|e| format!("{dated}: {e}")));
            if let Err(why) = renamed {
                return recorder.note(&self.graph, &format!("has no profile: {why}"));
            }
            file.path = named;
        }
        recorder.read(&self.graph, &file, self.opened, &self.runs);
    }
}
