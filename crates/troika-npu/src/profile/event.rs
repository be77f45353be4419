//! What a vendor's profiler reports, before it has a place in time.

/// What the value of an event counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Us,
    Cycles,
    Bytes,
    Count,
    Other(String),
}

impl Unit {
    /// Reads what profilers write.
    pub fn parse(text: &str) -> Unit {
        match text.to_ascii_uppercase().as_str() {
            "US" => Unit::Us,
            "CYCLES" => Unit::Cycles,
            "BYTES" => Unit::Bytes,
            "COUNT" => Unit::Count,
            _ => Unit::Other(text.to_ascii_lowercase()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Unit::Us => "us",
            Unit::Cycles => "cycles",
            Unit::Bytes => "bytes",
            Unit::Count => "count",
            Unit::Other(name) => name,
        }
    }

    /// Whether values of it are lengths of time.
    pub fn lasts(&self) -> bool {
        matches!(self, Unit::Us | Unit::Cycles)
    }
}

/// When an event happened in the life of a compiled graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A context is created, or loaded from its compiled form.
    Load,
    /// A graph is compiled.
    Finalize,
    /// A run.
    Execute,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Load => "context load",
            Stage::Finalize => "graph finalization",
            Stage::Execute => troika_trace::EXECUTION,
        }
    }
}

/// How an event goes with the others of its depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It follows them.
    Part,
    /// It says something of what it is part of, as they do.
    Beside,
    /// A step that the device traced.
    Trace,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub name: String,
    /// The graph's op that it is part of.
    pub op: Option<String>,
    pub value: u64,
    pub unit: Unit,
    /// 0: of the device as a whole. Each one more: a part of the last event before it that is one
    /// less deep.
    pub depth: usize,
    pub role: Role,
    /// Microseconds from the start of the whole to its own, where the profiler has a clock.
    pub at_us: Option<u64>,
}

impl Event {
    /// An event by a node's name, which begins with the op if this crate wrote the node.
    pub fn of_node(node: &str, value: u64, unit: Unit) -> Event {
        let op = node.split_once('/').map(|(op, _)| op.to_string());
        Event { name: node.into(), op, value, unit, depth: 1, role: Role::Part, at_us: None }
    }

    /// An event by Qualcomm's name: it has the unit, which is a field of its own, and the compiler's
    /// number of a node, which is another with each compilation. `at_us` is the device's clock, or 0.
    pub fn of_qnn(name: &str, depth: usize, value: u64, unit: Unit, at_us: u64) -> Event {
        let name = name.strip_suffix(" (cycles)").unwrap_or(name).trim_end();
        let node = name.rsplit_once(":OpId_").map_or(name, |(node, _)| node);
        let mut event = Event::of_node(node, value, unit);
        event.op = event.op.filter(|_| depth > 0);
        (event.depth, event.at_us) = (depth, (at_us > 0).then_some(at_us));
        event
    }
}

/// The events of a run, or of a stage before the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Events {
    pub stage: Stage,
    /// The place of the event that is all of it.
    pub whole: usize,
    pub all: Vec<Event>,
}

impl Events {
    /// Events with times of the device's clock, which starts anywhere. Where the whole has none,
    /// those of its parts say nothing.
    pub fn by_clock(stage: Stage, whole: usize, mut all: Vec<Event>) -> Events {
        let zero = all.get(whole).and_then(|event| event.at_us);
        for event in &mut all {
            event.at_us = event.at_us.zip(zero).map(|(at, zero)| at.saturating_sub(zero));
        }
        Events { stage, whole, all }
    }
}

/// What a profiler's file holds, as far as it is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Stages before the first run.
    pub opening: Vec<Events>,
    /// Runs, in their order, the first ones if not all are kept.
    pub runs: Vec<Events>,
    /// How many runs the file has.
    pub all_runs: usize,
    /// Events that were not kept.
    pub dropped: usize,
    /// Lines that say nothing known.
    pub odd: usize,
    kept: usize,
}

impl Recorded {
    /// Keeps events, if not more than `most` are kept then. Later ones are not kept either: the
    /// runs that are there are the first.
    pub fn add(&mut self, events: Events, most: usize) {
        let is_run = events.stage == Stage::Execute;
        self.all_runs += usize::from(is_run);
        if self.dropped > 0 || self.kept + events.all.len() > most {
            self.dropped += events.all.len();
            return;
        }
        self.kept += events.all.len();
        if is_run { self.runs.push(events) } else { self.opening.push(events) }
    }
}
