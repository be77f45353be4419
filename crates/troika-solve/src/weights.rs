//! Counting the bytes of weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use troika_graph::{WeightDecl, WeightSlice};

/// Rows of a segment's weights, each counted once.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightRows(HashMap<Arc<str>, RowsOfWeight>);

/// Bytes of a row, and the rows.
type RowsOfWeight = (u64, Vec<Range<usize>>);

impl WeightRows {
    pub fn add(&mut self, weight: &WeightDecl) {
        let entry = self.0.entry(weight.name.clone()).or_default();
        entry.0 = weight.dtype.row_bytes(weight.cols).unwrap_or(0) as u64;
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
