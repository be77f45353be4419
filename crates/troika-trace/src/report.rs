//! A trace in figures and as a page: how much each lane worked, its bubbles, and what took longest.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::read::TraceEvent;

/// How a lane spent its time.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
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

/// A trace in figures.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceReport {
    /// From the first event to the last one's end.
    pub all_us: f64,
    /// What came before all others, such as loading a model. It is in none of the figures.
    pub before: Option<TraceEvent>,
    /// By name.
    pub lanes: Vec<LaneUse>,
    /// Those that took longest first.
    pub nodes: Vec<NodeUse>,
    events: Vec<TraceEvent>,
}

impl TraceReport {
    /// The figures of events that come by their start.
    pub fn of(mut events: Vec<TraceEvent>) -> TraceReport {
        let apart = matches!(&events[..], [a, b, ..] if a.end_us <= b.start_us && a.lane == "host");
        let before = apart.then(|| events.remove(0));
        let mut lanes: BTreeMap<&str, (LaneUse, f64)> = BTreeMap::new();
        let mut nodes: BTreeMap<(&str, &str), NodeUse> = BTreeMap::new();
        for e in &events {
            let took = e.end_us - e.start_us;
            let (lane, until) = lanes.entry(&e.lane).or_insert_with(|| {
                let name = e.lane.clone();
                let lane = LaneUse {
                    name,
                    events: 0,
                    busy_us: 0.0,
                    bubbles: 0,
                    bubble_us: 0.0,
                    longest_us: 0.0,
                };
                (lane, e.start_us)
            });
            lane.events += 1;
            // Events within others are not counted again.
            lane.busy_us += (e.end_us - until.max(e.start_us)).max(0.0);
            let bubble = e.start_us - *until;
            if bubble > 0.0 {
                lane.bubbles += 1;
                lane.bubble_us += bubble;
                lane.longest_us = lane.longest_us.max(bubble);
            }
            *until = until.max(e.end_us);
            let node = nodes.entry((&e.lane, &e.name)).or_insert_with(|| NodeUse {
                name: e.name.clone(),
                lane: e.lane.clone(),
                count: 0,
                total_us: 0.0,
                longest_us: 0.0,
            });
            node.count += 1;
            node.total_us += took;
            node.longest_us = node.longest_us.max(took);
        }
        let lanes = lanes.into_values().map(|(lane, _)| lane).collect();
        let mut nodes: Vec<NodeUse> = nodes.into_values().collect();
        nodes.sort_by(|a, b| b.total_us.total_cmp(&a.total_us));
        let first = events.first().map_or(0.0, |e| e.start_us);
        let last = events.iter().map(|e| e.end_us).fold(first, f64::max);
        TraceReport { all_us: last - first, before, lanes, nodes, events }
    }

    /// A table in text, with the nodes that took longest.
    pub fn text(&self, top: usize) -> String {
        let mut out = format!("{}\n\n", self.headline());
        out.push_str(
            "| lane | events | busy, ms | of all | bubbles | idle in them, ms | longest, ms |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
        for l in &self.lanes {
            let _ = writeln!(
                out,
                "| {} | {} | {:.2} | {:.1} % | {} | {:.2} | {:.2} |",
                l.name,
                l.events,
                l.busy_us / 1e3,
                self.share(l.busy_us),
                l.bubbles,
                l.bubble_us / 1e3,
                l.longest_us / 1e3
            );
        }
        out.push_str(
            "\n| what took longest | lane | times | total, ms | mean, us | longest, us |\n\
             | --- | --- | ---: | ---: | ---: | ---: |\n",
        );
        for n in self.nodes.iter().take(top) {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {:.2} | {:.1} | {:.1} |",
                n.name,
                n.lane,
                n.count,
                n.total_us / 1e3,
                n.total_us / n.count as f64,
                n.longest_us
            );
        }
        out
    }

    fn headline(&self) -> String {
        let all = format!("{:.1} ms, {} events", self.all_us / 1e3, self.events.len());
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

    /// A page that needs nothing else: the timeline, then the tables.
    pub fn html(&self, title: &str, top: usize) -> String {
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title>\
             <style>{STYLE}</style><h1>{0}</h1><p>{1}</p>",
            escaped(title),
            escaped(&self.headline())
        );
        self.timeline(&mut out);
        self.shares(&mut out);
        self.table_of_lanes(&mut out);
        self.table_of_nodes(top, &mut out);
        out.push_str("</html>\n");
        out
    }

    /// Each lane as a band, with events within others below them.
    fn timeline(&self, out: &mut String) {
        let first = self.events.first().map_or(0.0, |e| e.start_us);
        let scale = WIDTH / self.all_us.max(1e-9);
        let mut bands = String::new();
        let mut top = 20.0;
        for lane in &self.lanes {
            let (rows, deepest) = self.rows(&lane.name);
            let _ = write!(
                bands,
                "<text x=\"0\" y=\"{:.0}\">{}</text>",
                top + 13.0,
                escaped(&lane.name)
            );
            for (event, depth) in drawn(&rows, scale) {
                let (x, w) =
                    ((event.start_us - first) * scale, (event.end_us - event.start_us) * scale);
                let _ = write!(
                    bands,
                    "<rect x=\"{:.2}\" y=\"{:.0}\" width=\"{:.2}\" height=\"{ROW:.0}\" fill=\"{}\">\
                     <title>{}: {:.1} us</title></rect>",
                    LABEL + x,
                    top + depth as f64 * (ROW + 1.0),
                    w.max(0.4),
                    colour(&event.name),
                    escaped(&event.name),
                    event.end_us - event.start_us
                );
            }
            top += (deepest + 1) as f64 * (ROW + 1.0) + 10.0;
        }
        let step = step_of(self.all_us);
        // No more than fit: times that no float holds would have no end.
        for at in (0..=10).map(|i| f64::from(i) * step).take_while(|at| *at <= self.all_us) {
            let x = LABEL + at * scale;
            let _ = write!(
                bands,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"16\" y2=\"{top:.0}\"/>\
                 <text class=\"t\" x=\"{x:.1}\" y=\"11\">{} ms</text>",
                at / 1e3
            );
        }
        let width = LABEL + WIDTH + 40.0;
        let _ = write!(
            out,
            "<h2>Timeline</h2><div class=\"wide\"><svg width=\"{width:.0}\" height=\"{top:.0}\">{bands}\
             </svg></div>"
        );
    }

    /// A lane's events with how many others each lies within.
    fn rows(&self, lane: &str) -> (Vec<(&TraceEvent, usize)>, usize) {
        let (mut open, mut rows, mut deepest): (Vec<f64>, Vec<(&TraceEvent, usize)>, usize) =
            Default::default();
        for event in self.events.iter().filter(|e| e.lane == lane) {
            open.retain(|end| *end > event.start_us + 1e-9);
            deepest = deepest.max(open.len());
            rows.push((event, open.len()));
            open.push(event.end_us);
        }
        (rows, deepest)
    }

    /// How much of the time each lane worked, as bars.
    fn shares(&self, out: &mut String) {
        out.push_str("<h2>Shares</h2><table class=\"bars\">");
        for l in &self.lanes {
            let share = self.share(l.busy_us);
            let _ = write!(
                out,
                "<tr><td>{}<td class=\"bar\"><div style=\"width:{share:.1}%\"></div><td class=\"n\">\
                 {share:.1} %",
                escaped(&l.name)
            );
        }
        out.push_str("</table>");
    }

    fn table_of_lanes(&self, out: &mut String) {
        out.push_str(
            "<h2>Lanes</h2><table><tr><th>lane<th>events<th>busy, ms<th>bubbles<th>idle in them, ms\
             <th>longest, ms</tr>",
        );
        for l in &self.lanes {
            let _ = write!(
                out,
                "<tr><td>{}<td class=\"n\">{}<td class=\"n\">{:.2}<td class=\"n\">{}<td class=\"n\">\
                 {:.2}<td class=\"n\">{:.2}",
                escaped(&l.name),
                l.events,
                l.busy_us / 1e3,
                l.bubbles,
                l.bubble_us / 1e3,
                l.longest_us / 1e3
            );
        }
        out.push_str("</table>");
    }

    fn table_of_nodes(&self, top: usize, out: &mut String) {
        out.push_str(
            "<h2>What took longest</h2><table><tr><th>name<th>lane<th>times<th>total, ms<th>mean, us\
             <th>longest, us</tr>",
        );
        for n in self.nodes.iter().take(top) {
            let _ = write!(
                out,
                "<tr><td><i style=\"background:{}\"></i>{}<td>{}<td class=\"n\">{}<td class=\"n\">{:.2}\
                 <td class=\"n\">{:.1}<td class=\"n\">{:.1}",
                colour(&n.name),
                escaped(&n.name),
                escaped(&n.lane),
                n.count,
                n.total_us / 1e3,
                n.total_us / n.count as f64,
                n.longest_us
            );
        }
        out.push_str("</table>");
    }
}

/// The timeline's width, that of names beside it, and the height of a row, in pixels.
const WIDTH: f64 = 1400.0;
const LABEL: f64 = 110.0;
const ROW: f64 = 16.0;
/// Events narrower than this, in pixels, are drawn only where none is yet.
const NARROW: f64 = 0.5;

/// The events to draw: of many that share a pixel one is enough.
fn drawn<'a>(rows: &[(&'a TraceEvent, usize)], scale: f64) -> Vec<(&'a TraceEvent, usize)> {
    let mut until: Vec<f64> = Vec::new();
    let mut all = Vec::new();
    for (event, depth) in rows {
        if until.len() <= *depth {
            until.resize(depth + 1, f64::NEG_INFINITY);
        }
        let (from, to) = (event.start_us * scale, event.end_us * scale);
        if to - from >= NARROW || from >= until[*depth] {
            until[*depth] = to.max(from + NARROW);
            all.push((*event, *depth));
        }
    }
    all
}

/// A round number of microseconds that divides a length into some ten parts.
fn step_of(all_us: f64) -> f64 {
    let rough = (all_us / 10.0).max(1e-3);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|s| *s >= rough).unwrap_or(rough)
}

/// A colour that is the same for the same name, without the digits of layers and chunks.
fn colour(name: &str) -> String {
    let letters = name.bytes().filter(|b| !b.is_ascii_digit());
    let hash = letters.fold(7_u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    format!("hsl({},{}%,{}%)", hash % 360, 45 + hash / 360 % 25, 48 + hash / 9000 % 15)
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2em;color:#222}\
h2{font-size:1.1em;margin:1.6em 0 .5em}.wide{overflow-x:auto;border:1px solid #ddd;padding:.5em}\
svg text{font:12px system-ui,sans-serif}svg text.t{fill:#777;font-size:10px}svg line{stroke:#0002}\
table{border-collapse:collapse}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}td.bar{width:32em}\
td.bar div{background:#1f6fb2;height:.8em}td i{display:inline-block;width:.8em;height:.8em;\
margin-right:.5em}";

#[cfg(test)]
mod tests {
    use super::TraceReport;
    use crate::read::read_chrome;

    const TRACE: &str = r#"{"traceEvents":[
        {"name":"b","ph":"X","pid":1,"tid":0,"ts":30,"dur":10,"args":{}},
        {"name":"a","ph":"X","pid":1,"tid":0,"ts":10,"dur":10},
        {"name":"inner","ph":"X","pid":1,"tid":0,"ts":12,"dur":4},
        {"name":"<x>","ph":"X","pid":1,"tid":1,"ts":10,"dur":40},
        {"name":"thread_name","ph":"M","pid":1,"tid":0,"args":{"name":"npu"}}]}"#;

    #[test]
    fn lanes_have_their_work_and_bubbles() {
        let report = TraceReport::of(read_chrome(TRACE).unwrap());
        assert_eq!(report.all_us, 40.0);
        let npu = report.lanes.iter().find(|l| l.name == "npu").unwrap();
        assert_eq!((npu.events, npu.busy_us), (3, 20.0), "what is inside counts once");
        assert_eq!((npu.bubbles, npu.bubble_us, npu.longest_us), (1, 10.0, 10.0));
        assert_eq!((report.nodes[0].name.as_str(), report.nodes[0].total_us), ("<x>", 40.0));
        let page = report.html("a & b", 5);
        assert!(page.contains("a &amp; b") && page.contains("&lt;x&gt;") && !page.contains("<x>"));
        assert_eq!(page.matches("<rect").count(), 4);
        assert!(report.text(1).contains("| npu | 3 | 0.02 | 50.0 % | 1 | 0.01 | 0.01 |"));
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
