//! Counting the bytes of weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Rows of weights, each counted once. Layers with equal graphs share a placement that has the names
/// of the first one, so a weight is identified by its name and segment.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightRows(HashMap<(usize, Arc<str>), RowsOfWeight>);

/// Bytes of a row, and the rows.
type RowsOfWeight = (u64, Vec<Range<usize>>);

impl WeightRows {
    pub fn add(&mut self, segment: usize, name: &Arc<str>, rows: Range<usize>, row_bytes: u64) {
        let entry = self.0.entry((segment, name.clone())).or_default();
        entry.0 = row_bytes;
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
