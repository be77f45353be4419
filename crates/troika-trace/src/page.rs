//! A report as a page.

use std::fmt::Write;

use crate::experts::heat_map;
use crate::read::TraceEvent;
use crate::report::{ROUNDING, TraceReport};
use crate::table::{colour, escaped};

impl TraceReport {
    /// A page that needs nothing else: the timeline, then the tables.
    pub fn html(&self, title: &str, top: usize) -> String {
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title>\
             <style>{STYLE}</style><h1>{0}</h1><p>{1}</p>",
            escaped(title),
            escaped(&self.headline())
        );
        for note in &self.notes {
            let _ = write!(out, "<p>{}</p>", escaped(note));
        }
        self.timeline(&mut out);
        self.shares(&mut out);
        out.push_str(&heat_map(&self.experts).html());
        self.tables(top).iter().for_each(|table| out.push_str(&table.html()));
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
                     <title>{}: {}</title></rect>",
                    LABEL + x,
                    top + depth as f64 * (ROW + 1.0),
                    w.max(0.4),
                    colour(&event.name),
                    escaped(&event.name),
                    escaped(&amount(event))
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
            open.retain(|end| *end > event.start_us + ROUNDING);
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
}

/// What a profiler says, or how long it took.
fn amount(event: &TraceEvent) -> String {
    match &event.measured {
        Some(measured) => format!("{} {}", measured.value, measured.unit),
        None => format!("{:.1} us", event.end_us - event.start_us),
    }
}

/// The timeline's width, that of names beside it, and the height of a row, in pixels.
const WIDTH: f64 = 1400.0;
const LABEL: f64 = 140.0;
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

pub(crate) const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2em;color:#222}\
h2{font-size:1.1em;margin:1.6em 0 .5em}.wide{overflow-x:auto;border:1px solid #ddd;padding:.5em}\
svg text{font:12px system-ui,sans-serif}svg text.t{fill:#777;font-size:10px}svg line{stroke:#0002}\
table{border-collapse:collapse}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}td.bar{width:32em}\
td.bar div{background:#1f6fb2;height:.8em}td i{display:inline-block;width:.8em;height:.8em;\
margin-right:.5em}";
