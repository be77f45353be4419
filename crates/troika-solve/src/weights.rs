//! Counting the bytes of weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use troika_device::CodeWeights;
use troika_graph::{
    ActivationFormat, DType, IntFormat, Op, ScaleOrigin, Subgraph, WeightDecl, WeightSlice,
};
use troika_model::lower::Lowered;

/// Bytes of a row of a weight as it is stored.
pub(super) fn stored(weight: &WeightDecl) -> u64 {
    weight.dtype.row_bytes(weight.cols).unwrap_or(0) as u64
}

/// Bytes of an expert's weights as they are stored, the most of any layer; `None` without experts.
pub fn expert_bytes(lowered: &Lowered) -> Option<u64> {
    let of_layer = lowered.segments.iter().filter_map(|segment| {
        let experts = segment.graph.experts()?;
        let bytes = |weight: &WeightDecl| stored(weight) * weight.rows as u64;
        let first =
            [&experts.gate, &experts.up, &experts.down].into_iter().filter_map(|l| l.first());
        Some(first.map(|w| bytes(segment.graph.weight(*w))).sum())
    });
    of_layer.max()
}

/// Bytes of a row of each weight of a graph, with their scales, where it is part of the code, held in
/// a device's way.
pub(super) fn in_code(graph: &Subgraph, code: CodeWeights) -> Vec<u64> {
    let float_bytes = code.float_bytes;
    let as_they_are = |w: &WeightDecl| code.row_bytes(w.dtype, w.cols);
    let mut rows: Vec<u64> = graph.weights.iter().map(as_they_are).collect();
    for node in &graph.nodes {
        if let Op::Embed { table, .. } = &node.op {
            let decl = graph.weight(*table);
            if code.keeps_blocks && decl.dtype.is_quantized() && decl.dtype.level_bits() == 4 {
                // Numbers of 4 bits cannot be looked up: they are bytes.
                rows[table.0 as usize] += decl.cols as u64 / 2;
            }
        }
        let Op::Linear { weight, activations, .. } = &node.op else { continue };
        if !activations.converts_weights() {
            continue;
        }
        let decl = graph.weight(*weight);
        rows[weight.0 as usize] = match activations.converted_numbers() {
            // Numbers, and a scale of two bytes.
            None if code.keeps_blocks && *activations == ActivationFormat::F16Int4 => {
                decl.cols.div_ceil(2) as u64 + 2
            }
            None if code.keeps_blocks && decl.dtype.is_quantized() => as_they_are(decl),
            None => 2 * decl.cols as u64,
            // Four bits stay so.
            Some(IntFormat {
                bits: 16,
                scales: ScaleOrigin::Static | ScaleOrigin::Clipped,
                ..
            }) if decl.dtype == DType::Q4_0 || decl.dtype.has_zero_points() => stored(decl),
            // Large inputs are multiplied as floats.
            Some(IntFormat { scales: ScaleOrigin::Dynamic, .. }) => {
                (decl.cols + float_bytes) as u64 + as_they_are(decl)
            }
            Some(_) => (decl.cols + float_bytes) as u64,
        };
    }
    rows
}

/// Rows of a segment's weights, each counted once: by the weight's name, with the bytes of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightRows(HashMap<Arc<str>, (u64, Vec<Range<usize>>)>);

impl WeightRows {
    pub fn add(&mut self, weight: &WeightDecl, row_bytes: u64) {
        let entry = self.0.entry(weight.name.clone()).or_default();
        entry.0 = row_bytes;
        let first = match weight.slice {
            Some(WeightSlice::Rows { first, .. }) => first,
            _ => 0,
        };
        let rows = first..first + weight.rows;
        if !entry.1.contains(&rows) {
            entry.1.push(rows);
        }
    }

    pub fn bytes(&self) -> u64 {
        let union = |ranges: &[Range<usize>]| {
            let mut ranges = ranges.to_vec();
            ranges.sort_by_key(|r| r.start);
            let (mut sum, mut at) = (0, 0);
            for r in ranges {
                sum += r.end.saturating_sub(r.start.max(at)) as u64;
                at = at.max(r.end);
            }
            sum
        };
        self.0.values().map(|(row, ranges)| row * union(ranges)).sum()
    }
}
