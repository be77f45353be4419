//! Which rows of a layer went to which expert, as the details of a span.

use serde_json::Value;

use crate::span::Arg;

/// What a span says of the rows that a layer's experts received.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertRows {
    /// The layer.
    pub layer: usize,
    /// By expert: rows that its router sent to it.
    pub rows: Vec<u64>,
    /// Rows of zeros that were computed because shapes are fixed.
    pub padded: u64,
    /// Rows that were dropped.
    pub dropped: u64,
    /// Runs of graphs of experts.
    pub launches: u64,
}

const LAYER: &str = "layer";
const ROWS: &str = "expert_rows";
const PADDED: &str = "padded";
const DROPPED: &str = "dropped";
const LAUNCHES: &str = "launches";

impl ExpertRows {
    /// The details of a span that says so. One span of a layer and batch does.
    pub fn args(&self) -> Vec<(&'static str, Arg)> {
        let rows: Vec<String> = self.rows.iter().map(u64::to_string).collect();
        vec![
            (LAYER, Arg::Int(self.layer as u64)),
            (ROWS, Arg::Text(rows.join(","))),
            (PADDED, Arg::Int(self.padded)),
            (DROPPED, Arg::Int(self.dropped)),
            (LAUNCHES, Arg::Int(self.launches)),
        ]
    }

    /// Reads them.
    pub(crate) fn of(args: &Value) -> Option<ExpertRows> {
        let number = |name: &str| args.get(name).and_then(Value::as_u64);
        let rows = args.get(ROWS)?.as_str()?.split(',').map(|n| n.parse().ok());
        Some(ExpertRows {
            layer: usize::try_from(number(LAYER)?).ok()?,
            rows: rows.collect::<Option<_>>()?,
            padded: number(PADDED)?,
            dropped: number(DROPPED)?,
            launches: number(LAUNCHES)?,
        })
    }

    /// Adds what another span of the layer says.
    pub(crate) fn add(&mut self, other: &ExpertRows) {
        self.layer = other.layer;
        self.rows.resize(self.rows.len().max(other.rows.len()), 0);
        self.rows.iter_mut().zip(&other.rows).for_each(|(sum, n)| *sum += n);
        self.padded += other.padded;
        self.dropped += other.dropped;
        self.launches += other.launches;
    }
}
