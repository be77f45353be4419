//! Layers with experts: which rows went to which expert, and what that cost.

use std::collections::BTreeMap;

use crate::expert_rows::ExpertRows;
use crate::read::TraceEvent;
use crate::table::Table;

/// The rows and times of a layer's experts in a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertLayer {
    /// What spans say of rows, in all.
    pub rows: Option<ExpertRows>,
    /// Microseconds of the router, of sorting rows by expert, of packing and handing them out, of the
    /// experts, and of adding up what they made.
    pub us: [f64; 5],
}

/// The parts of a layer's time, as columns are named.
const PARTS: [&str; 5] = ["router, ms", "route, ms", "pack, ms", "experts, ms", "scatter, ms"];

/// The layers with experts of a trace, by their numbers.
pub(crate) fn by_layer(events: &[TraceEvent]) -> BTreeMap<usize, ExpertLayer> {
    let mut layers: BTreeMap<usize, ExpertLayer> = BTreeMap::new();
    for event in events.iter().filter(|e| e.measured.is_none()) {
        if let Some(rows) = &event.experts {
            let of = layers.entry(rows.layer).or_default();
            of.rows.get_or_insert_default().add(rows);
        }
        if let Some((layer, part)) = part_of(&event.name) {
            let (us, time) =
                (event.end_us - event.start_us, &mut layers.entry(layer).or_default().us);
            time[part] += us;
            // Rows are packed by the function that routes them.
            if event.name.ends_with("[pack]") {
                time[1] -= us;
            }
        }
    }
    layers
}

/// The layer and part of its experts that an event is of, by its name: `layer 3 experts [route]`.
fn part_of(name: &str) -> Option<(usize, usize)> {
    let (layer, what) = name.strip_prefix("layer ")?.split_once(' ')?;
    let layer = layer.parse().ok()?;
    let is = |step: &str| what.ends_with(&format!("[{step}]"));
    if what.starts_with("router") {
        return Some((layer, 0));
    }
    let part = match what.starts_with("experts") {
        false => return None,
        true if is("route") => 1,
        true if is("pack") || is("dispatch") => 2,
        true if is("scatter") || is("combine") => 4,
        true => 3,
    };
    Some((layer, part))
}

/// The table of layers with experts.
pub(crate) fn table(layers: &BTreeMap<usize, ExpertLayer>) -> Table {
    let has_rows = layers.values().any(|of| of.rows.is_some());
    let row = |(layer, of): (&usize, &ExpertLayer)| {
        let mut row = vec![layer.to_string()];
        if has_rows {
            row.extend(figures(of.rows.as_ref()));
        }
        row.extend(of.us.iter().map(|us| format!("{:.2}", us / 1e3)));
        row
    };
    let mut numbers = Vec::new();
    if has_rows {
        numbers.extend(["rows", "busiest by mean", "padding, %", "dropped, %", "launches"]);
    }
    numbers.extend(PARTS);
    Table { texts: vec!["layer of experts"], numbers, rows: layers.iter().map(row).collect() }
}

fn figures(rows: Option<&ExpertRows>) -> [String; 5] {
    let Some(of) = rows else { return Default::default() };
    let all: u64 = of.rows.iter().sum();
    let most = of.rows.iter().copied().max().unwrap_or(0);
    let imbalance = most as f64 * of.rows.len() as f64 / all.max(1) as f64;
    let computed = (all - of.dropped.min(all) + of.padded).max(1);
    [
        all.to_string(),
        format!("{imbalance:.2}"),
        format!("{:.1}", 100.0 * of.padded as f64 / computed as f64),
        format!("{:.1}", 100.0 * of.dropped as f64 / all.max(1) as f64),
        of.launches.to_string(),
    ]
}

/// The rows by expert of the layers of which the trace says them.
pub(crate) fn rows_by_expert(layers: &BTreeMap<usize, ExpertLayer>) -> BTreeMap<usize, Vec<f64>> {
    let counts =
        |of: &ExpertLayer| Some(of.rows.as_ref()?.rows.iter().map(|n| *n as f64).collect());
    layers.iter().filter_map(|(layer, of)| Some((*layer, counts(of)?))).collect()
}
