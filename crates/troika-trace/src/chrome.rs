//! Chrome trace event format: complete events, one thread per lane.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;

use crate::{Arg, Span};

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'static str,
    pid: u32,
    tid: usize,
    ts: f64,
    dur: f64,
    args: serde_json::Map<String, serde_json::Value>,
}

fn args(span: &Span) -> serde_json::Map<String, serde_json::Value> {
    let value = |a: &Arg| match a {
        Arg::Int(n) => (*n).into(),
        Arg::Text(t) => t.clone().into(),
    };
    span.args.iter().map(|(k, v)| (k.to_string(), value(v))).collect()
}

pub(crate) fn write(spans: &[Span], out: &mut dyn Write) -> io::Result<()> {
    let mut lanes: Vec<&Arc<str>> = Vec::new();
    out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut separator = "\n";
    for span in spans {
        let tid = lanes.iter().position(|l| **l == span.lane).unwrap_or_else(|| {
            lanes.push(&span.lane);
            lanes.len() - 1
        });
        let event = Event {
            name: &span.name,
            ph: "X",
            pid: 1,
            tid,
            ts: span.start.as_nanos() as f64 / 1e3,
            dur: span.end.saturating_sub(span.start).as_nanos() as f64 / 1e3,
            args: args(span),
        };
        out.write_all(separator.as_bytes())?;
        serde_json::to_writer(&mut *out, &event)?;
        separator = ",\n";
    }
    for (tid, lane) in lanes.iter().enumerate() {
        let name = serde_json::json!({
            "name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": &***lane},
        });
        out.write_all(separator.as_bytes())?;
        serde_json::to_writer(&mut *out, &name)?;
        separator = ",\n";
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

    #[test]
    fn off_collects_nothing() {
        let t = Tracer::off();
        assert!(!t.enabled());
        assert!(t.spans().is_empty());
    }
}
