//! The file that Qualcomm's provider writes: comma-separated values in the order in which things
//! happened. Their times are the device's, or 0. What QNN's own interface says comes in the same
//! form, with depths.

use std::io::{self, BufRead};

use super::event::{Event, Events, Recorded, Role, Stage, Unit};

/// The first field of the line with the columns' names.
const HEADER: &str = "Msg Timestamp";

/// Reads a file, and keeps at most some events.
///
/// A stage's events of the device come first, then the one that is all of it, then parts of that.
pub(super) fn read(mut from: impl BufRead, most: usize) -> io::Result<Recorded> {
    let mut recorded = Recorded::default();
    let mut open: Vec<Event> = Vec::new();
    let mut whole = None;
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        // A line without an end was not written to its end.
        let row = text.strip_suffix('\n').and_then(|text| row(text.trim_end()));
        let is_header = text.starts_with(HEADER);
        line.clear();
        let Some((message, event)) = row else {
            recorded.odd += usize::from(!is_header);
            continue;
        };
        if event.depth == 0
            && let Some((stage, whole)) = whole.take()
        {
            recorded.add(Events::by_clock(stage, whole, std::mem::take(&mut open)), most);
        }
        let stage = match message.as_str() {
            "INIT" => Some(Stage::Load),
            "FINALIZE" => Some(Stage::Finalize),
            "EXECUTE" => Some(Stage::Execute),
            _ => None,
        };
        whole = stage.map(|stage| (stage, open.len())).or(whole);
        if message == "DE-INIT" {
            open.clear();
        } else {
            open.push(event);
        }
    }
    match whole {
        Some((stage, whole)) => recorded.add(Events::by_clock(stage, whole, open), most),
        // A stage that did not end.
        None => recorded.odd += open.len(),
    }
    Ok(recorded)
}

/// The message and the event of a line: time stamp, message, value, unit, source, level, name.
fn row(text: &str) -> Option<(String, Event)> {
    let mut fields = text.splitn(7, ',');
    let mut next = || fields.next();
    let (at_us, message, value, unit) = (next()?, next()?, next()?, next()?);
    let (_, level, name) = (next()?, next()?, next()?);
    let (value, unit) = (value.parse().ok()?, Unit::parse(unit));
    // Only QNN's own interface tells depths.
    let depth = match level.strip_prefix("SUB-EVENT") {
        None if level == "ROOT" => 0,
        None => return None,
        Some("") => 1,
        Some(depth) => depth.trim().parse().ok()?,
    };
    let mut event = Event::of_qnn(name, depth, value, unit, at_us.parse().unwrap_or(0));
    event.role = match message {
        "TRACE" => Role::Trace,
        "PART" => Role::Beside,
        _ => Role::Part,
    };
    Some((message.into(), event))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::event::{Recorded, Role, Stage, Unit};
    use super::super::place::{Window, place};
    use super::super::replay::QNN_RECORDING as RECORDED;

    /// The same graph from its compiled form, at level basic.
    const LOADED: &str = include_str!("testdata/qnn-basic.csv");

    /// A like graph, as QNN's own interface told it.
    const DEEP: &str = include_str!("testdata/qnn-linting.csv");

    fn read(text: &str, most: usize) -> Recorded {
        super::read(text.as_bytes(), most).unwrap()
    }

    #[test]
    fn stages_have_their_events_in_their_units() {
        let all = read(RECORDED, usize::MAX);
        assert_eq!((all.opening.len(), all.runs.len(), all.all_runs), (1, 2, 2));
        assert_eq!((all.dropped, all.odd), (0, 0));
        let finalize = &all.opening[0];
        assert_eq!((finalize.stage, finalize.whole), (Stage::Finalize, 0));
        assert_eq!(finalize.all.len(), 9);
        assert!(finalize.all[1..].iter().all(|e| e.depth == 1 && e.unit == Unit::Us));
        let run = &all.runs[1];
        assert_eq!((run.stage, run.whole, run.all.len()), (Stage::Execute, 12, 13));
        assert_eq!((run.all[12].name.as_str(), run.all[12].value), ("QNN (execute) time", 11983));
        assert_eq!(run.all[0].unit, Unit::Count);
        let cycles = &run.all[4];
        assert_eq!(cycles.name, "Accelerator (execute) time");
        assert_eq!((cycles.value, &cycles.unit, cycles.depth), (124_459, &Unit::Cycles, 0));
        let nodes = &run.all[5..11];
        assert!(nodes.iter().all(|e| e.depth == 1 && e.unit == Unit::Cycles));
        assert_eq!(nodes.iter().map(|e| e.value).sum::<u64>(), cycles.value);
        let names: Vec<&str> = nodes.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["Input OpId_2", "up", "sig", "silu", "down", "Output OpId_3"]);
    }

    #[test]
    fn a_compiled_form_is_loaded() {
        let all = read(LOADED, usize::MAX);
        let load = &all.opening[0];
        assert_eq!((load.stage, load.whole, load.all.len()), (Stage::Load, 1, 2));
        assert_eq!(load.all[1].name, "QNN (load binary) time");
        assert_eq!(all.runs.iter().map(|r| r.all.len()).collect::<Vec<_>>(), [3, 3]);
    }

    #[test]
    fn whole_runs_are_kept_up_to_the_cap() {
        let all = read(RECORDED, 9 + 13);
        assert_eq!((all.opening.len(), all.runs.len(), all.all_runs, all.dropped), (1, 1, 2, 13));
        let some = read(RECORDED, 20);
        assert_eq!((some.opening.len(), some.runs.len(), some.dropped), (1, 0, 26));
        let none = read(RECORDED, 0);
        assert_eq!((none.opening.len(), none.runs.len(), none.dropped), (0, 0, 35));
    }

    #[test]
    fn odd_and_truncated_lines_are_counted() {
        // The last line lacks its end: its name may, too.
        let cut = RECORDED.trim_end();
        let all = read(&cut[..cut.len() - 5], usize::MAX);
        assert_eq!((all.runs.len(), all.all_runs), (1, 1));
        assert_eq!(all.odd, 1 + 12, "the line, and the events of a run without its end");
        for (odd, lines) in [
            ("", 0),
            ("\n", 1),
            ("0,EXECUTE,12\n", 1),
            ("0,EXECUTE,twelve,US,BACKEND,ROOT,QNN (execute) time\n", 1),
            ("0,EXECUTE,-3,US,BACKEND,ROOT,QNN (execute) time\n", 1),
            ("0,EXECUTE,12,US,BACKEND,LEAF,QNN (execute) time\n", 1),
            ("0,NODE,12,CYCLES,BACKEND,SUB-EVENT,n:OpId_1 (cycles)\n", 1),
            ("\u{0}\u{ffff}\n,,,,,,\n", 2),
        ] {
            let all = read(odd, usize::MAX);
            assert_eq!((all.odd, all.opening.len(), all.runs.len()), (lines, 0, 0), "{odd:?}");
        }
        let others = "0,BACKEND,7,BYTES,BACKEND,ROOT,read, in all\n\
                      0,BACKEND,7,Ticks,BACKEND,ROOT,t\n\
                      0,EXECUTE,12,US,BACKEND,ROOT,QNN (execute) time\n\
                      0,DE-INIT,12,US,BACKEND,ROOT,QNN (free) time\n";
        let all = read(others, usize::MAX);
        assert_eq!((all.odd, all.runs.len()), (0, 1));
        let [bytes, ticks, _] = &all.runs[0].all[..] else { panic!("{all:?}") };
        assert_eq!((bytes.name.as_str(), &bytes.unit), ("read, in all", &Unit::Bytes));
        assert_eq!(ticks.unit.name(), "ticks");
    }

    #[test]
    fn parts_of_nodes_lie_in_their_node() {
        let all = read(DEEP, usize::MAX);
        let events = &all.runs[0];
        let depths = [0, 1, 2, 3].map(|d| events.all.iter().filter(|e| e.depth == d).count());
        assert_eq!((depths, all.odd), ([7, 6, 24, 1], 0));
        let [start, end] = [5, 95].map(Duration::from_millis);
        let run = Window { start, end };
        let mut node = run;
        for (event, place) in events.all.iter().zip(place(run, events)) {
            node = if event.depth < 2 { run } else { node };
            let (start, end) = (place.at.start, place.at.end);
            assert!(node.start <= start && start <= end && end <= node.end, "{event:?} {place:?}");
            node = if event.depth == 1 { place.at } else { node };
            assert_eq!(event.role == Role::Beside, event.depth > 1);
            // What goes on beside it is long enough to be seen.
            let is_long = event.name == "Overlap time" && event.value > 0;
            assert_eq!(is_long, event.depth > 1 && end - start > Duration::from_micros(100));
        }
        let [op, of] = [3, 1].map(|d| events.all.iter().find(|e| e.depth == d && e.op.is_some()));
        assert_eq!(op.map(|e| (&*e.name, e.unit.name())), Some(("linear/up", "op")));
        assert_eq!(of.map(|e| (&*e.name, e.unit.name())), Some(("linear/up", "cycles")));
        let traced = DEEP.replace(",NODE,", ",TRACE,");
        let traced = read(&traced, usize::MAX);
        assert_eq!(traced.runs[0].all.iter().filter(|e| e.role == Role::Trace).count(), 6);
    }

    #[test]
    fn times_of_the_device_are_told_from_the_whole() {
        let at = |part| format!("{part},NODE,5,US,BACKEND,SUB-EVENT,a\n");
        let rows = |whole| {
            let whole = format!("{whole},EXECUTE,12,US,BACKEND,ROOT,QNN (execute) time\n");
            whole + &at(107) + &at(99) + &at(0)
        };
        let times = |text: &str| {
            let all = read(text, usize::MAX);
            all.runs[0].all.iter().map(|e| e.at_us).collect::<Vec<_>>()
        };
        assert_eq!(times(&rows(100)), [Some(0), Some(7), Some(0), None]);
        assert_eq!(times(&rows(0)), [None; 4], "a clock that starts anywhere");
    }
}
