//! Chrome trace event format: complete events, one thread per track.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::{Arg, Span};

fn args(span: &Span) -> Map<String, Value> {
    let value = |a: &Arg| match a {
        Arg::Int(n) => (*n).into(),
        Arg::Text(t) => t.clone().into(),
    };
    span.args.iter().map(|(k, v)| (k.to_string(), value(v))).collect()
}

/// A row of the timeline. Viewers take a span for a part of the one that is open on its track, so
/// spans of a lane that overlap in part have tracks of their own.
struct Track<'a> {
    lane: &'a Arc<str>,
    name: String,
    /// Ends of the spans that are open, the innermost last.
    open: Vec<Duration>,
}

impl Track<'_> {
    /// Whether a span of the lane lies behind or within all that is open here.
    fn takes(&mut self, span: &Span) -> bool {
        while self.open.last().is_some_and(|end| *end <= span.start) {
            self.open.pop();
        }
        self.open.last().is_none_or(|end| span.end <= *end)
    }
}

/// The number of the track that a span goes to: spans come by their start.
fn track_of<'a>(tracks: &mut Vec<Track<'a>>, span: &'a Span) -> usize {
    let mut of_lane = 0;
    for (at, track) in tracks.iter_mut().enumerate().filter(|(_, t)| *t.lane == span.lane) {
        of_lane += 1;
        if track.takes(span) {
            track.open.push(span.end);
            return at;
        }
    }
    let name = match of_lane {
        0 => span.lane.to_string(),
        others => format!("{} {}", span.lane, others + 1),
    };
    tracks.push(Track { lane: &span.lane, name, open: vec![span.end] });
    tracks.len() - 1
}

/// Writes spans, which come by their start, those that hold others first.
pub(crate) fn write(spans: &[Span], notes: &[String], out: &mut dyn Write) -> io::Result<()> {
    let mut tracks = Vec::new();
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"otherData\":")?;
    serde_json::to_writer(&mut *out, &json!({ "notes": notes }))?;
    out.write_all(b",\"traceEvents\":[")?;
    let mut separator = "\n";
    let mut add = |event: Value| -> io::Result<()> {
        out.write_all(separator.as_bytes())?;
        separator = ",\n";
        Ok(serde_json::to_writer(&mut *out, &event)?)
    };
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    for span in spans {
        let (ts, dur) = (us(span.start), us(span.end.saturating_sub(span.start)));
        let (tid, args) = (track_of(&mut tracks, span), args(span));
        add(json!({
            "name": span.name, "ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args,
        }))?;
    }
    for (tid, track) in tracks.iter().enumerate() {
        add(json!({
            "name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": track.name},
        }))?;
    }
    out.write_all(b"\n]}\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Arg, Span, Tracer};

    #[test]
    fn writes_json_with_lanes_in_microseconds() {
        let t = Tracer::on();
        for (name, lane, start) in [("b", "cpu", 30), ("a", "host", 10)] {
            t.record(Span {
                name: name.into(),
                lane: lane.into(),
                start: Duration::from_micros(start),
                end: Duration::from_micros(start + 5),
                args: vec![("rows", Arg::Int(7))],
            });
        }
        let mut out = Vec::new();
        t.write_chrome(&mut out).unwrap();
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let events = v["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 4);
        assert_eq!(events[0]["name"], "a");
        assert_eq!(events[0]["ts"], 10.0);
        assert_eq!(events[1]["dur"], 5.0);
        assert_eq!(events[1]["args"]["rows"], 7);
        assert_eq!(events[3]["args"]["name"], "cpu");
    }

    /// Two threads tokenize, and a part of one of these is a span of its own.
    #[test]
    fn spans_that_overlap_in_part_have_tracks_of_their_own() {
        let t = Tracer::on();
        for (start, end) in [(10, 20), (15, 30), (12, 14), (20, 25), (10, 22), (31, 32), (10, 12)] {
            let (name, lane) = (format!("{start} to {end}").into(), "host".into());
            let [start, end] = [start, end].map(Duration::from_micros);
            t.record(Span { name, lane, start, end, args: vec![] });
        }
        let mut out = Vec::new();
        t.write_chrome(&mut out).unwrap();
        let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let events = v["traceEvents"].as_array().unwrap();
        let of = |tid: u64| -> Vec<&str> {
            let spans = events.iter().filter(|e| e["tid"] == tid && e["ph"] == "X");
            spans.map(|e| e["name"].as_str().unwrap()).collect()
        };
        assert_eq!(of(0), ["10 to 22", "10 to 20", "10 to 12", "12 to 14", "31 to 32"]);
        assert_eq!(of(1), ["15 to 30", "20 to 25"]);
        let names: Vec<_> = events.iter().filter_map(|e| e["args"]["name"].as_str()).collect();
        assert_eq!(names, ["host", "host 2"]);
    }

    #[test]
    fn off_collects_nothing() {
        let t = Tracer::off();
        assert!(!t.enabled());
        assert!(t.spans().is_empty());
    }
}
