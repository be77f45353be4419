//! A trace in figures: how much each lane worked, its bubbles, what took longest, and what the
//! profilers of devices measured.

use std::collections::BTreeMap;

use crate::experts::{self, ExpertLayer};
use crate::heat_map::heat_map;
use crate::read::{ChromeTrace, EXECUTION, TraceEvent};
use crate::table::Table;

/// Microseconds that are none: times are whole nanoseconds, start and length rounded each.
const ROUNDING: f64 = 5e-4;

/// How a lane spent its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneUse {
    /// Its name.
    pub name: String,
    /// Its events.
    pub events: usize,
    /// Time in which it worked.
    pub busy_us: f64,
    /// Idle times between its first and last event.
    pub bubbles: usize,
    /// Their sum.
    pub bubble_us: f64,
    /// The longest.
    pub longest_us: f64,
}

/// The events of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeUse {
    /// Their name.
    pub name: String,
    /// Their lane.
    pub lane: String,
    /// How many.
    pub count: usize,
    /// The sum of their times, what happened within them included.
    pub total_us: f64,
    /// The longest.
    pub longest_us: f64,
}

/// What a device's profiler measured of one thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredUse {
    /// Its name.
    pub name: String,
    /// The compiled graph, if it is a node of one.
    pub graph: String,
    /// The device.
    pub device: String,
    /// When in the graph's life.
    pub stage: String,
    /// What the values count.
    pub unit: String,
    /// How often it was measured.
    pub count: usize,
    /// The sum of its values.
    pub total: f64,
    /// The largest.
    pub largest: f64,
    /// Its percentage of what was measured in this unit in this stage of the device, unless what was
    /// measured overlaps.
    pub percent: Option<f64>,
}

/// A trace in figures.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceReport {
    /// From the first event to the last one's end.
    pub all_us: f64,
    /// What came before all others, such as loading a model. Only the figures of `opening` and of
    /// profilers count it.
    pub before: Option<TraceEvent>,
    /// What happened within that.
    pub opening: Vec<NodeUse>,
    /// By name.
    pub lanes: Vec<LaneUse>,
    /// Those that took longest first.
    pub nodes: Vec<NodeUse>,
    /// What profilers say of devices as a whole.
    pub devices: Vec<MeasuredUse>,
    /// What they say of nodes of graphs, the largest share first.
    pub parts: Vec<MeasuredUse>,
    /// What they say of what compilers did.
    pub compiling: Vec<MeasuredUse>,
    /// The same by the ops of the graphs, of runs.
    pub ops: Vec<MeasuredUse>,
    /// Layers with experts, by their numbers.
    pub experts: BTreeMap<usize, ExpertLayer>,
    /// What the trace says of itself.
    pub notes: Vec<String>,
}

impl TraceReport {
    /// The figures of a trace.
    pub fn of(trace: ChromeTrace) -> TraceReport {
        let ChromeTrace { mut events, notes } = trace;
        let within = opening(&events);
        let [devices, parts, compiling, ops] = measured(&events, within);
        let mut first = events.drain(..within);
        let before = first.next();
        let opening = by_name(&first.collect::<Vec<_>>());
        let (lanes, nodes) = (by_lane(&events), by_name(&events));
        let experts = experts::by_layer(&events);
        let first = events.first().map_or(0.0, |e| e.start_us);
        let last = events.iter().map(|e| e.end_us).fold(first, f64::max);
        let all_us = last - first;
        TraceReport {
            all_us,
            before,
            opening,
            lanes,
            nodes,
            devices,
            parts,
            compiling,
            ops,
            experts,
            notes,
        }
    }

    /// Tables in text, with the nodes that took longest.
    pub fn text(&self, top: usize) -> String {
        let mut out = format!("{}\n", self.headline());
        self.notes.iter().for_each(|note| out += &format!("{note}\n"));
        self.tables(top).iter().for_each(|table| out += &table.text());
        out += &heat_map(&experts::rows_by_expert(&self.experts));
        out
    }

    fn headline(&self) -> String {
        let events: usize = self.lanes.iter().map(|lane| lane.events).sum();
        let all = format!("{:.1} ms, {events} events", self.all_us / 1e3);
        match &self.before {
            Some(e) => {
                let took = (e.end_us - e.start_us) / 1e3;
                format!("{all}; before them {} of {took:.1} ms", e.name)
            }
            None => all,
        }
    }

    fn share(&self, us: f64) -> f64 {
        100.0 * us / self.all_us.max(f64::MIN_POSITIVE)
    }

    fn tables(&self, top: usize) -> Vec<Table> {
        let lane = |l: &LaneUse| {
            let ms = |us: f64| format!("{:.2}", us / 1e3);
            let share = format!("{:.1} %", self.share(l.busy_us));
            let (events, bubbles) = (l.events.to_string(), l.bubbles.to_string());
            let name = l.name.clone();
            vec![name, events, ms(l.busy_us), share, bubbles, ms(l.bubble_us), ms(l.longest_us)]
        };
        let lanes = Table {
            texts: vec!["lane"],
            numbers: vec![
                "events",
                "busy, ms",
                "of all",
                "bubbles",
                "idle in them, ms",
                "longest, ms",
            ],
            rows: self.lanes.iter().map(lane).collect(),
        };
        vec![
            lanes,
            table_of_nodes("what took longest", &self.nodes, top),
            experts::table(&self.experts),
            table_of_nodes("before, within loading", &self.opening, top),
            table_of_measured("op", &self.ops, usize::MAX),
            table_of_measured("node", &self.parts, top),
            table_of_measured("in the compiler", &self.compiling, top),
            table_of_measured("of the device", &self.devices, usize::MAX),
        ]
    }
}

/// How many events belong to opening a model: one of the host before all others, with those within
/// it.
fn opening(events: &[TraceEvent]) -> usize {
    let Some(first) = events.first().filter(|first| first.lane == "host") else { return 0 };
    let end = first.end_us + ROUNDING;
    let within = events.partition_point(|e| e.start_us < first.end_us);
    let ends = events[..within].iter().all(|e| e.end_us <= end);
    if ends && within < events.len() { within } else { 0 }
}

fn by_lane(events: &[TraceEvent]) -> Vec<LaneUse> {
    let mut lanes: BTreeMap<&str, (LaneUse, f64)> = BTreeMap::new();
    for e in events {
        let (lane, until) = lanes.entry(&e.lane).or_insert_with(|| {
            (LaneUse { name: e.lane.clone(), ..LaneUse::default() }, e.start_us)
        });
        lane.events += 1;
        // Events within others are not counted again.
        lane.busy_us += (e.end_us - until.max(e.start_us)).max(0.0);
        let bubble = e.start_us - *until;
        if bubble > ROUNDING {
            lane.bubbles += 1;
            lane.bubble_us += bubble;
            lane.longest_us = lane.longest_us.max(bubble);
        }
        *until = until.max(e.end_us);
    }
    lanes.into_values().map(|(lane, _)| lane).collect()
}

/// Events by their names, those that took longest first. What profilers measured is apart: its
/// place in time may be made up.
fn by_name(events: &[TraceEvent]) -> Vec<NodeUse> {
    let mut nodes: BTreeMap<(&str, &str), NodeUse> = BTreeMap::new();
    for e in events.iter().filter(|e| e.measured.is_none()) {
        let took = e.end_us - e.start_us;
        let node = nodes.entry((&e.lane, &e.name)).or_insert_with(|| {
            let (name, lane) = (e.name.clone(), e.lane.clone());
            NodeUse { name, lane, ..NodeUse::default() }
        });
        node.count += 1;
        node.total_us += took;
        node.longest_us = node.longest_us.max(took);
    }
    let mut nodes: Vec<NodeUse> = nodes.into_values().collect();
    nodes.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
    nodes
}

/// What profilers measured: of devices, of nodes, in compilers, and of ops. Runs within opening, the
/// first of the events, are trials.
fn measured<'a>(events: &'a [TraceEvent], opening: usize) -> [Vec<MeasuredUse>; 4] {
    let mut all = [const { BTreeMap::new() }; 4];
    for (i, event) in events.iter().enumerate() {
        let Some(m) = &event.measured else { continue };
        let is_run = m.stage == EXECUTION;
        if is_run && i < opening {
            continue;
        }
        let mut add = |table: usize, name: &'a str, graph: &'a str| {
            let key: [&str; 5] = [&m.device, &m.stage, &m.unit, graph, name];
            let used = all[table].entry(key).or_insert_with(|| {
                let [device, stage, unit, graph, name] = key.map(str::to_string);
                MeasuredUse { name, graph, device, stage, unit, ..MeasuredUse::default() }
            });
            used.count += 1;
            used.total += m.value;
            used.largest = used.largest.max(m.value);
        };
        match m.depth {
            0 => add(0, &event.name, ""),
            _ if is_run => add(1, &event.name, &m.graph),
            // Compilers do the same for every graph.
            _ => add(2, &event.name, ""),
        }
        // Parts of parts are in their sums.
        if let Some(op) = m.op.as_ref().filter(|_| m.depth == 1) {
            add(3, op, "");
        }
    }
    let [devices, parts, compiling, ops] = all.map(|table| table.into_values().collect());
    [devices, shared(parts), shared(compiling), shared(ops)]
}

/// Sets percentages, and sorts by them. Uses of one device, stage and unit come side by side.
fn shared(mut all: Vec<MeasuredUse>) -> Vec<MeasuredUse> {
    let same = |a: &MeasuredUse, b: &MeasuredUse| {
        (&a.device, &a.stage, &a.unit) == (&b.device, &b.stage, &b.unit)
    };
    for uses in all.chunk_by_mut(same) {
        let sum: f64 = uses.iter().map(|used| used.total).sum();
        uses.iter_mut().for_each(|used| used.percent = Some(100.0 * used.total / sum.max(1.0)));
    }
    all.sort_by(|a, b| b.percent.unwrap_or(0.0).total_cmp(&a.percent.unwrap_or(0.0)));
    all
}

/// A table by the name of its first column.
fn table_of_nodes(name: &'static str, nodes: &[NodeUse], top: usize) -> Table {
    let row = |n: &NodeUse| {
        vec![
            n.name.clone(),
            n.lane.clone(),
            n.count.to_string(),
            format!("{:.2}", n.total_us / 1e3),
            format!("{:.1}", n.total_us / n.count as f64),
            format!("{:.1}", n.longest_us),
        ]
    };
    Table {
        texts: vec![name, "lane"],
        numbers: vec!["times", "total, ms", "mean, us", "longest, us"],
        rows: nodes.iter().take(top).map(row).collect(),
    }
}

/// A table by the name of its first column.
fn table_of_measured(name: &'static str, all: &[MeasuredUse], top: usize) -> Table {
    let has_graphs = all.iter().any(|used| !used.graph.is_empty());
    let row = |used: &MeasuredUse| {
        let mut row = vec![used.name.clone()];
        row.extend(has_graphs.then(|| used.graph.clone()));
        row.extend([used.device.clone(), used.stage.clone(), used.unit.clone()]);
        row.extend([
            used.count.to_string(),
            format!("{:.0}", used.total),
            format!("{:.1}", used.total / used.count as f64),
            format!("{:.0}", used.largest),
        ]);
        row.extend(used.percent.map(|percent| format!("{percent:.1} %")));
        row
    };
    let mut texts = vec![name];
    texts.extend(has_graphs.then_some("graph"));
    texts.extend(["device", "stage", "unit"]);
    let mut numbers = vec!["times", "total", "mean", "largest"];
    numbers.extend(all.iter().any(|used| used.percent.is_some()).then_some("of all"));
    Table { texts, numbers, rows: all.iter().take(top).map(row).collect() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{MeasuredUse, TraceReport};
    use crate::read::{EXECUTION, read_chrome};
    use crate::{Arg, ExpertRows, Span, Tracer};

    const TRACE: &str = r#"{"traceEvents":[
        {"name":"b","ph":"X","pid":1,"tid":0,"ts":30,"dur":10,"args":{}},
        {"name":"a","ph":"X","pid":1,"tid":0,"ts":10,"dur":10},
        {"name":"inner","ph":"X","pid":1,"tid":0,"ts":12,"dur":4},
        {"name":"x","ph":"X","pid":1,"tid":1,"ts":10,"dur":40},
        {"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"npu"}}]}"#;

    #[test]
    fn lanes_have_their_work_and_bubbles() {
        let report = TraceReport::of(read_chrome(TRACE).unwrap());
        assert_eq!(report.all_us, 40.0);
        let npu = report.lanes.iter().find(|l| l.name == "npu").unwrap();
        assert_eq!((npu.events, npu.busy_us), (3, 20.0), "what is inside counts once");
        assert_eq!((npu.bubbles, npu.bubble_us, npu.longest_us), (1, 10.0, 10.0));
        assert_eq!((report.nodes[0].name.as_str(), report.nodes[0].total_us), ("x", 40.0));
        assert!(report.text(1).contains("| npu | 3 | 0.02 | 50.0 % | 1 | 0.01 | 0.01 |"));
    }

    /// Opening with a compiler's profile and a trial run, then two runs of two nodes.
    fn profiled() -> Tracer {
        let tracer = Tracer::on();
        let add = |name: &str, lane: &str, [start, end]: [u64; 2], args| {
            let [start, end] = [start, end].map(Duration::from_micros);
            let (name, lane) = (name.to_string().into(), lane.into());
            tracer.record(Span { name, lane, start, end, args });
        };
        let measured = |stage: &str, depth, value, unit: &str, op: Option<&str>| {
            let text = |text: &str| Arg::Text(text.into());
            let mut args = vec![("device", text("npu")), ("graph", text("ffn"))];
            args.extend([("stage", text(stage)), ("unit", text(unit))]);
            args.extend([("depth", Arg::Int(depth)), ("value", Arg::Int(value))]);
            args.extend(op.map(|op| ("op", text(op))));
            args
        };
        let linear = |value| measured(EXECUTION, 1, value, "cycles", Some("linear"));
        add("load", "host", [0, 100], vec![]);
        add("compile", "host", [10, 60], vec![]);
        add("Optimize", "npu node depth 1", [10, 50], measured("compiling", 1, 40, "us", None));
        add("linear/up", "npu node depth 1", [60, 70], linear(5000));
        for start in [100, 300] {
            add("ffn", "npu", [start, start + 50], vec![]);
            let whole = measured(EXECUTION, 0, 40, "us", None);
            add("run", "npu device", [start + 5, start + 45], whole);
            add("linear/up", "npu node depth 1", [start + 5, start + 35], linear(300));
            add("linear/down", "npu node depth 1", [start + 35, start + 45], linear(100));
        }
        tracer.note("something is missing".into());
        tracer
    }

    #[test]
    fn what_profilers_measured_has_tables_of_its_own() {
        let mut json = Vec::new();
        profiled().write_chrome(&mut json).unwrap();
        let report = TraceReport::of(read_chrome(std::str::from_utf8(&json).unwrap()).unwrap());
        assert_eq!((report.all_us, report.opening.len(), report.opening[0].count), (250.0, 1, 1));
        assert_eq!(report.before.as_ref().unwrap().name, "load");
        assert_eq!(report.nodes.len(), 1, "placed events took no time that is known");
        let row = |used: &MeasuredUse| {
            let share = used.percent.map(|p| p.round() as i64);
            (used.name.clone(), used.count, used.total as i64, used.unit.clone(), share)
        };
        let row_of = |name: &str, count, total, unit: &str, share| {
            (name.to_string(), count, total, unit.to_string(), share)
        };
        let rows = |uses: &[MeasuredUse]| uses.iter().map(row).collect::<Vec<_>>();
        assert_eq!(rows(&report.ops), [row_of("linear", 4, 800, "cycles", Some(100))]);
        let parts = [
            row_of("linear/up", 2, 600, "cycles", Some(75)),
            row_of("linear/down", 2, 200, "cycles", Some(25)),
        ];
        assert_eq!(rows(&report.parts), parts, "without the trial run");
        assert_eq!(report.parts[0].graph, "ffn");
        assert_eq!(rows(&report.compiling), [row_of("Optimize", 1, 40, "us", Some(100))]);
        assert_eq!(rows(&report.devices), [row_of("run", 2, 80, "us", None)]);
        let text = report.text(9);
        let line =
            "| linear/up | ffn | npu | execution | cycles | 2 | 600 | 300.0 | 300 | 75.0 % |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("| compile | host | 1 | 0.05 |"), "{text}");
        assert!(text.contains("something is missing"));
    }

    #[test]
    fn layers_with_experts_have_their_rows_and_times() {
        let tracer = Tracer::on();
        let mut at = 0;
        let mut add = |name: &str, us: u64, args| {
            let [start, end] = [at, at + us].map(Duration::from_micros);
            at += us;
            tracer.record(Span {
                name: name.to_string().into(),
                lane: "cpu".into(),
                start,
                end,
                args,
            });
        };
        let rows = |rows: &[u64]| {
            let rows = rows.to_vec();
            ExpertRows { layer: 1, rows, padded: 20, dropped: 5, launches: 3 }.args()
        };
        for batch in 0..2 {
            add("layer 0 ffn", 10, vec![]);
            add("layer 1 router", 20, vec![]);
            // Rows are packed within the function that routes them.
            add("layer 1 experts [route]", 70, vec![]);
            add("layer 1 experts [pack]", 40, rows(&[30, 10 * batch, 0, 0]));
            add("layer 1 experts [group 2]", 50, vec![]);
            add("layer 1 experts", 60, vec![]);
            add("layer 1 experts [scatter]", 70, vec![]);
        }
        let mut json = Vec::new();
        tracer.write_chrome(&mut json).unwrap();
        let report = TraceReport::of(read_chrome(std::str::from_utf8(&json).unwrap()).unwrap());
        assert_eq!(report.experts.len(), 1);
        let of = &report.experts[&1];
        assert_eq!(of.us.map(f64::round), [40.0, 60.0, 80.0, 220.0, 140.0]);
        let all =
            ExpertRows { layer: 1, rows: vec![60, 10, 0, 0], padded: 40, dropped: 10, launches: 6 };
        assert_eq!(of.rows.as_ref(), Some(&all));
        let line = "| 1 | 70 | 3.43 | 40.0 | 14.3 | 6 | 0.04 | 0.06 | 0.08 | 0.22 | 0.14 |";
        let text = report.text(9);
        assert!(text.contains(line) && text.contains("\nlayer 1 *-__\n"), "{text}");
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, says) in [
            ("", "is no Chrome trace"),
            ("{}", "is no Chrome trace"),
            ("[1]", "is no Chrome trace"),
            ("[]", "no events"),
            (r#"[{"ph":"X","ts":1,"dur":-1}]"#, "no events"),
        ] {
            let why = read_chrome(text).unwrap_err().to_string();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
